"""How thorough a run of the benchmark is: what its selection and its measurement follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from sassafras.core import SassafrasError

from ..configs.backward import part
from ..configs.registry import expression
from ..problem.shape import BACKWARD, LAYOUTS
from ..select.dataset import recorded_path, slug
from .candidates import matching

#: calls of which a median has an interval (a single one's is a point, and any excess over 1 a win)
LEAST_CALLS = 5


@dataclass(frozen=True, slots=True)
class Options:
    """How thorough a run is.

    Attributes:
        configs: of our legal configurations of a layout, how many enter the first rung (those that the static
            estimate likes best, of every family some, and those that won at neighbouring shapes).
        finalists: how many of a layout reach the last rung, on either side.
        seconds: GPU time for the measurement of a shape, roughly.
        screen_seconds: GPU time for the first rung, roughly: large problems try fewer.
        final_seconds: GPU time for the last rung, roughly. (0.03 left 6 % between orders of tiles.)
        block_us: length of a timed block of the last rung.
        exclude: a regular expression; configurations whose name it finds are not tried (kernels that fail).
        only: a regular expression; if given, candidates are the configurations whose name it finds (`configs`
            of a layout, best estimate first), and on either side the best few of the shipped dataset. Those
            are candidates, too: everything that is compared is timed in this run.
        recorded: with `only` or `known`, how many of the dataset's configurations of each layout.
        source: if given, a GPU whose recorded data set proposes the candidates (`candidates.carried`), at
            most `recorded` of each layout by their times there; a shape that it lacks is tried as ever. All
            of cuBLASLt's algorithms are timed.
        known: candidates are the dataset's of the shape and nothing else; what it lacks is tried as ever.
        isolated: the last rung times isolated calls of shapes above 1e10 FLOP (smaller ones rank alike): back
            to back the power limit has a say in who wins, and a GPU that rests between calls has none.
        cold: time with an emptied L2 as well.
        apart: ahead of each block of the last rung, and of the measurement with a warm L2, the L2 is emptied
            and the contestant has one untimed call, so that none pays for what another leaves.
        walls: calls whose wall time is taken, 0 for none.
        rate: server mode: calls a second.
        calls: server mode: of each contestant, `LEAST_CALLS` or more.
        tuned: the portfolio knows this run's selection; False: only what is shipped (shapes never tuned).
        layouts: which are swept (`cublas`): of nn and tn, or of nt and tt.
        dtype: ``fp16``, or ``bf16``: the same configurations for BF16, where they are compiled.
        seed: of inputs.
    """

    configs: int = 128
    finalists: int = 6
    seconds: float = 0.1
    screen_seconds: float = 0.15
    final_seconds: float = 0.15
    block_us: float = 200.0
    exclude: str = ""
    only: str = ""
    recorded: int = 4
    source: str = ""
    known: bool = False
    isolated: bool = False
    cold: bool = True
    apart: bool = False
    walls: int = 200
    rate: float = 1000.0
    calls: int = 30
    tuned: bool = True
    layouts: Sequence[str] = LAYOUTS
    dtype: str = "fp16"
    seed: int = 0

    def __post_init__(self) -> None:
        asked = tuple(dict.fromkeys(self.layouts))
        if not asked or not any(set(asked) <= set(known) for known in (LAYOUTS, BACKWARD)):
            raise SassafrasError(
                "layouts are of nn and tn, or of nt and tt", where=",".join(asked), hint="one sweep for each"
            )
        if self.dtype not in ("fp16", "bf16"):
            raise SassafrasError("a type that no kernel multiplies", where=self.dtype, hint="fp16 or bf16")
        if self.calls < LEAST_CALLS:
            what = f"{self.calls} calls have no interval"
            raise SassafrasError(what, hint=f"{LEAST_CALLS} or more of each contestant")
        expression(self.exclude)
        object.__setattr__(self, "layouts", asked)  # JSON gives a list back


#: options that the measurement follows, and those that the selection follows
MEASURING = ("seconds", "block_us", "cold", "apart", "walls", "rate", "calls", "tuned", "dtype", "seed")
_NOT_SELECTING = ("seconds", "cold", "walls", "rate", "calls", "tuned")
SELECTING = tuple(f.name for f in fields(Options) if f.name not in _NOT_SELECTING)


def retuning(options: Options, only: str, recorded: int = 4, configs: int | None = None) -> Options:
    """These options for a sweep of what `only` finds: 0.4 s a shape on an H200 (1,000 shapes, 40 candidates).

    Raises:
        SassafrasError: `only` is no regular expression, or finds nothing; no recorded dataset is here.
    """
    matching(only)
    recorded_path()  # what is timed again is merged into it
    chosen = replace(options, only=only, recorded=recorded, configs=configs or 24)
    return replace(chosen, finalists=4, screen_seconds=0.03)


def carried_over(options: Options, gpu: str, top: int = 6) -> Options:
    """These options for a sweep on a GPU like another.

    Args:
        gpu: the other's name (``NVIDIA H200`` or ``nvidia-h200``).
        top: how many of its configurations are timed, at most, for each layout.

    Raises:
        SassafrasError: no data set of that GPU is recorded here.
    """
    recorded_path(gpu, part(options.layouts))
    chosen = replace(options, source=slug(gpu), recorded=top)
    return replace(chosen, finalists=3, screen_seconds=0.03, final_seconds=0.06)


def of_known(options: Options, recorded: int = 4) -> Options:
    """These options to choose, by isolated calls, among what the dataset holds of a shape."""
    chosen = replace(options, known=True, isolated=True, recorded=recorded)
    return replace(chosen, finalists=3, screen_seconds=0.03, final_seconds=0.03)
