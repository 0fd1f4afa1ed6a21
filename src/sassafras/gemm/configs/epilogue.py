"""More than a product in one launch: C = activation(alpha * A B + beta * addend + bias), and batches.

Any configuration of an instance with an epilogue (`registry.EPILOGUE_INSTANCES`; `kernels/epilogue.cuh`) runs
them; what a plain configuration's launch is, `launch` turns into theirs. Everything is FP32 until the one
rounding at the end; the sum of a split k is complete before the epilogue is applied, once.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

from sassafras.core import SassafrasError

from ..problem.launch import GRID_LIMIT, Launch, TensorMap
from ..problem.shape import Shape
from . import registry, tma_wgmma
from .persistent import PersistentConfig, band_dividers
from .persistent_pair import UNIT, PairConfig
from .registry import Config
from .split_k_early import EarlySplitKConfig
from .stream import StreamConfig
from .tma_wgmma import LAYOUTS
from .unaligned import UnalignedConfig

#: name -> its number in `kernels/epilogue.cuh`; gelu is the exact form (erf)
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
#: silu of the product's first half of columns, times the second; C is as wide as either. In `stream` and
#: `persistent_pair`
SWIGLU = "swiglu"
NUMBERS = {**ACTIVATIONS, SWIGLU: 5}


@dataclass(frozen=True, slots=True)
class Batch:
    """Matrices of one shape at equal distances.

    Attributes:
        count: how many.
        a, b, c: elements from one matrix to the next; 0 for a or b: all products share it.
    """

    count: int = 1
    a: int = 0
    b: int = 0
    c: int = 0


@dataclass(frozen=True, slots=True)
class Lines:
    """Elements from line to line of the operands (rows, or columns where an operand is stored transposed)."""

    a: int
    b: int
    c: int

    @classmethod
    def tight(cls, shape: Shape, layout: str) -> Lines:
        """No gaps."""
        a_t, b_mn = LAYOUTS[layout]
        return cls(shape.m if a_t else shape.k, shape.n if b_mn else shape.k, shape.n)


ALONE = Batch()


def bits(value: float) -> int:
    """The FP32 pattern of a number, as a signed word; infinity of one that is too large, as in C."""
    return ctypes.c_int32.from_buffer(ctypes.c_float(value)).value


def why_illegal(
    config: Config,
    shape: Shape,
    batch: Batch = ALONE,
    lines: Lines | None = None,
    pair: bool = False,
    norm: bool = False,
) -> str | None:
    """Why a configuration cannot run this; None when it can. `pair`: `SWIGLU` is asked for; `norm`: A is
    RMS-normalised first."""
    if not config.instance.epilogue:
        return f"{config.instance.name} is compiled without an epilogue"
    if config.instance.norm != norm:
        return f"{config.instance.name} is compiled {'without' if norm else 'for'} normalised rows"
    if pair and (not isinstance(config, StreamConfig | PairConfig) or shape.n % UNIT):
        return f"{config.instance.name} does not multiply {shape.n} columns with each other"
    if not pair and isinstance(config, PairConfig):
        return f"{config.instance.name} multiplies columns with each other"
    if why := config.why_illegal(shape):
        return why
    tight = Lines.tight(shape, config.layout)
    lines = lines or tight
    if lines != tight and max(lines.a, lines.b, lines.c) >= 1 << 22:
        return "lines lie too far apart for 32-bit offsets within a tile"
    if isinstance(config, UnalignedConfig | StreamConfig | PairConfig) and batch.count > 1:
        return "one matrix: the kernel has no batches"
    if uneven(config, lines, batch.a, batch.b, batch.c):
        return "a line or a matrix of the batch does not begin at a multiple of 8 elements"
    if batch.count < 1 or (batch.count > 1 and batch.c == 0):
        return f"{batch.count} results at the same place"
    tiles_m, tiles_n = config.tiles(shape)
    if isinstance(config, PersistentConfig):
        if batch.count * tiles_m * tiles_n >= 1 << 31:
            return "more than 2^31 tiles"
    elif batch.count * tiles_m > GRID_LIMIT:
        return f"{batch.count} x {tiles_m} rows of tiles, a grid takes {GRID_LIMIT}"
    return None


def uneven(config: Config, lines: Lines, *steps: int) -> bool:
    """Whether lines, or matrices `steps` apart, begin where the configuration cannot read or write them."""
    leading = (getattr(lines, operand) for operand in "abc" if operand not in config.ANY_LINES)
    return not config.any_alignment and any(step % 8 for step in (*leading, *steps))


def launch(
    config: Config,
    shape: Shape,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    activation: str | None = None,
    batch: Batch = ALONE,
    lines: Lines | None = None,
    addend: tuple[int, int] | None = None,
    eps: float = 0.0,
) -> Launch:
    """How to launch it. Addresses of ``bias`` (n values or null) and ``addend`` are wanted beside a, b and c,
    and of ``norm`` where the instance has it.

    Args:
        lines: where there are gaps between lines; tight by default.
        addend: elements from row to row of the addend and from matrix to matrix; as of C by default.

    Raises:
        SassafrasError: `why_illegal`, or an unknown activation.
    """
    if why := why_illegal(config, shape, batch, lines, activation == SWIGLU, config.instance.norm):
        raise SassafrasError(why, where=f"{config.name} for {shape}")
    if activation not in NUMBERS:
        known = ", ".join(str(name) for name in ACTIVATIONS)
        raise SassafrasError("no such activation", where=repr(activation), hint=f"one of {known}")
    natural = Lines.tight(shape, config.layout)
    lines, tight = lines or natural, {"a": natural.a, "b": natural.b}
    line = {"a": lines.a, "b": lines.b, "c": lines.c}
    step = {"a": batch.a, "b": batch.b, "c": batch.c}
    if config.swap_ab:  # the kernel's names
        line["a"], line["b"], step["a"], step["b"] = line["b"], line["a"], step["b"], step["a"]
    plain, tiles_m, tiles_n = config.launch(shape), *config.tiles(shape)
    scalars = dict(plain.scalars)
    scalars |= {f"ld{name}": line[name] for name in "abc" if f"ld{name}" in scalars}
    pair = isinstance(config, PairConfig)
    if beta and "last_row" in scalars and not pair:
        # what is added may be C itself: no element of it is stored twice
        scalars |= {"last_row": tma_wgmma.APART, "last_column": tma_wgmma.APART}
    ld_addend, step_addend = addend or (lines.c, batch.c)
    scalars |= {
        "eps": bits(eps),
        "alpha": bits(alpha),
        "beta": bits(beta),
        "activation": NUMBERS[activation],
        "out_rows": shape.m,
        "out_columns": shape.n,
        "ld_addend": ld_addend,
        "tiles_each": tiles_m,
        "batch_a": step["a"],
        "batch_b": int(not beta) if pair else step["b"],  # up's layer in its map
        "batch_c": step["c"],
        "batch_addend": step_addend,
    }
    maps = {
        name: described.spread(tight[described.operand], line[described.operand])
        if described.lines
        else _layered(described, line, step, batch.count)
        for name, described in plain.tensor_maps.items()
    }
    if pair:  # up's weight: a tensor of its own, or the layer behind the gate's
        up = maps["map_up"]
        maps["map_up"] = replace(up, operand="addend") if beta else replace(up, dims=(*up.dims[:2], 2))
    x, y, z = plain.grid
    if isinstance(config, PersistentConfig):
        if batch.count > 1:
            scalars["tiles_m"] = tiles_m * batch.count
            scalars |= band_dividers(tiles_m * batch.count, tiles_n, config.group)
            x = min(tiles_m * tiles_n * batch.count, config.clusters()) * config.cluster
    else:
        z *= batch.count
    return replace(
        plain,
        grid=(x, y, z),
        scalars=scalars,
        tensor_maps=maps,
        workspace_bytes=plain.workspace_bytes * batch.count,
    )


def _layered(described: TensorMap, line: dict[str, int], step: dict[str, int], count: int) -> TensorMap:
    """A tensor map of three dimensions, the last over the batch (one layer where all share the operand)."""
    name = described.operand
    # a single layer has no next one; what would be its place is what every driver accepts
    layers, apart = (count, 2 * step[name]) if step[name] else (1, 2 * line[name] * described.dims[1])
    return replace(
        described,
        dims=(*described.dims, layers),
        strides=(2 * line[name], apart),
        box=(*described.box, 1),
    )


def configurations(
    shape: Shape,
    layout: str,
    dtype: str,
    batch: Batch = ALONE,
    lines: Lines | None = None,
    aligned: bool = True,
    pair: bool = False,
    norm: bool = False,
) -> list[Config]:
    """Configurations that can run this, without those that surely waste, if that leaves any.

    Those for weights that may be read early are chosen apart (`split_k_early.best`).

    Args:
        aligned: all addresses are multiples of 16 bytes.
        pair, norm: as in `why_illegal`.
    """
    legal = [
        config
        for config in registry.epilogue_configurations()
        if not isinstance(config, EarlySplitKConfig)
        and config.layout == layout
        and config.dtype == dtype
        and (aligned or config.any_alignment)
        and why_illegal(config, shape, batch, lines, pair, norm) is None
    ]
    return [config for config in legal if config.dominated(shape) is None] or legal
