"""Which member of the portfolio serves a shape: the tuned row, or for a shape never tuned what it has learnt.

Deterministic, and about a millisecond: distances to all tuned shapes are one NumPy expression, and only
configurations that won nearby are looked at. A model ranks them (`predictor`); without one, neighbours do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..configs import cost, few_rows, stream
from ..configs.fields import to_fields
from ..configs.registry import Config
from ..problem.shape import BACKWARD, Shape
from .predictor import Model, in_program
from .table import ProductRow, TableRow, TunedTable

#: legal(configuration) -> may it run? (layout, alignment, gaps and limits of the problem at hand)
Legal = Callable[[Config], bool]
#: the configuration that does the same for another type, None where there is none
Translate = Callable[[Config], "Config | None"]


#: A selection is noisy, the more so where the power limit decides, so a tuned row's time has to be better by
#: these factors: ours than the best library's, (FLOP, up to which it holds; factor), torch's than cuBLASLt's
#: best algorithm (chosen among torch's and others, so that where torch leads it is by chance). Found by
#: replaying pairs of selection and measurement.
OURS_BETTER = ((1e11, 1.02), (math.inf, 1.05))
#: the same in layouts of the backward pass, whose selections were noisier (cuBLASLt's times with workspace)
OURS_BETTER_BACKWARD = ((1e11, 1.03), (math.inf, 1.05))
TORCH_BETTER = 1.05
#: torch over what is chosen for few rows, for layers of models, B from memory: on an H100 the stream kernel
#: 1.04 to 1.20 at 1 and 4 rows, `few_rows` 1.05 on average of 69 products of 16 to 64
STREAMED = 1.04


@dataclass(frozen=True, slots=True)
class Streamed:
    """Where the stream kernel comes before split-K tiles of few rows.

    Attributes:
        plain: rows of A, at most.
        compiled: the same in compiled models, where it saves launches around it.
        wide: rings of a whole multiprocessor there.
        least: elements of a B of many lines from which those tiles serve (`few_rows.LEAST` with fewer lines).
    """

    plain: int
    compiled: int
    wide: bool
    least: int = few_rows.LEAST


#: plain, of split-K tiles' speed at 1, 4 and 8 rows: 1.02, 0.99, 0.96 on an H100; 0.94, 0.91, 0.87 on an H200
_STREAMED = {"NVIDIA H200": Streamed(plain=0, compiled=4, wide=True, least=6 << 20)}
_ELSEWHERE = Streamed(plain=2, compiled=8, wide=False)
#: configurations for few rows among `Selector.favourites`
_STREAMS = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to serve a shape.

    Attributes:
        member: ``ours``, ``torch`` or ``lt`` (cuBLASLt's tuned algorithm).
        config: our configuration, for ``ours``.
        row: the tuned row, for a tuned shape or product of a program.
        speedup: torch's time over this member's: measured for a tuned shape, predicted otherwise.
        why: one sentence.
    """

    member: str
    config: Config | None
    row: TableRow | ProductRow | None
    speedup: float
    why: str

    def to_json(self) -> dict[str, Any]:
        """Member and configuration, for a file."""
        return {"member": self.member, "config": to_fields(self.config) if self.config else None}


@dataclass(frozen=True, slots=True)
class SelectorSettings:
    """Of the chooser: for shapes never tuned, and for tuned ones.

    Attributes:
        neighbours: tuned shapes that are asked.
        reach: largest distance of the nearest one, in octaves (log2); farther shapes go to torch.
        margin: predicted speed-up that ours needs.
        caution: how many standard deviations of the neighbours' speed-ups are subtracted.
        candidates: known shapes whose winners a model ranks.
        model_margin: predicted speed-up that ours needs where a model predicts.
        program_margin: the same where it predicts the speed between other kernels.
        tuned: (FLOP, up to which it holds; by what factor a tuned time of ours has to be better), see above.
    """

    neighbours: int = 6
    reach: float = 1.6
    margin: float = 1.3
    caution: float = 1.0
    candidates: int = 48
    model_margin: float = 1.08
    program_margin: float = 1.03
    tuned: tuple[tuple[float, float], ...] = OURS_BETTER

    def ours_better(self, shape: Shape, layout: str) -> float:
        """The factor by which a tuned time of ours has to be better than the best library's."""
        factors = OURS_BETTER_BACKWARD if layout in BACKWARD else self.tuned
        return next(factor for limit, factor in factors if shape.flop <= limit)


class Selector:
    """Choices from a table.

    Args:
        table: tuned rows of one GPU.
        lt_version: the cuBLASLt at hand; its algorithms are used only if the table's are of the same one.
        model: ranks configurations for shapes never tuned, in its layouts; None: their neighbours do.
        backward: another, of the layouts nt and tt.
    """

    def __init__(
        self,
        table: TunedTable,
        settings: SelectorSettings | None = None,
        *,
        lt_version: int | None = None,
        model: Model | None = None,
        backward: Model | None = None,
    ) -> None:
        self.table = table
        self._models = {layout: one for one in (model, backward) if one is not None for layout in one.layouts}
        self.settings = settings or SelectorSettings()
        self.streamed = _STREAMED.get(str(table.header.get("gpu")), _ELSEWHERE)
        self.lt_version, known = lt_version, table.header.get("cublaslt")
        self._lt_usable = lt_version is not None and known == lt_version
        self._near: dict[str, tuple[np.ndarray, list[TableRow]]] = {}
        for layout in sorted({row.layout for row in table.rows.values()}):
            rows = [r for r in table.rows.values() if r.layout == layout and r.speedup is not None]
            rows.sort(key=lambda r: r.shape)
            if rows:
                self._near[layout] = (_points(r.shape for r in rows), rows)
        # what a model may choose from: winners of tuned shapes, and of those that it has learnt from besides
        self._winners: dict[str, tuple[np.ndarray, list[tuple[Config, ...]]]] = {}
        for layout, (_, rows) in self._near.items():
            won = [(row.shape, tuple(config for config, _ in row.ours)) for row in rows]
            learnt = self._models[layout].known if layout in self._models else ()
            won += [(shape, configs) for shape, of, configs in learnt if of == layout]
            self._winners[layout] = _points(shape for shape, _ in won), [configs for _, configs in won]

    def model_of(self, layout: str) -> Model | None:
        """What ranks configurations of a layout; None: nothing has learnt of it."""
        return self._models.get(layout)

    def nearest(self, shape: Shape, layout: str) -> TableRow | None:
        """The tuned row of a shape, or else of the nearest within reach that has times of ours and torch."""
        row = self.table.get(shape, layout)
        if row is not None and row.speedup is not None:
            return row
        if layout not in self._near:
            return None
        points, rows = self._near[layout]
        distances = _octaves(points, shape)
        at = int(np.argmin(distances))
        return rows[at] if distances[at] <= self.settings.reach else None

    def choose(
        self,
        shape: Shape,
        layout: str,
        legal: Legal,
        translate: Translate = lambda config: config,
        *,
        lt: bool = True,
    ) -> Choice:
        """The member for a problem. Never raises: in doubt it is torch.

        Args:
            translate: from the table's configurations (FP16) to those that may serve; their times are taken
                to be equal, as BF16 moves the same bytes at the same rate.
            lt: a cuBLASLt algorithm can run it.
        """
        row = self.table.get(shape, layout)
        if row is not None and row.torch_us is not None:
            return self._tuned(row, legal, translate, lt and self._lt_usable)
        return self._chosen(shape, layout, legal, translate)

    def _tuned(self, row: TableRow, legal: Legal, translate: Translate, lt: bool) -> Choice:
        assert row.torch_us is not None
        best = Choice("torch", None, row, 1.0, "tuned: torch is the fastest")
        if row.lt_us and row.lt and lt and row.lt_us < TORCH_BETTER * row.torch_us:
            best = Choice(
                "lt", None, row, row.torch_us / row.lt_us, "tuned: a cuBLASLt algorithm is the fastest"
            )
        margin = self.settings.ours_better(row.shape, row.layout)
        for known, us in row.ours:
            config = translate(known)
            if config is not None and legal(config):
                if row.torch_us / us > margin * best.speedup:
                    best = Choice("ours", config, row, row.torch_us / us, "tuned: ours is the fastest")
                break
        return best

    def _chosen(self, shape: Shape, layout: str, legal: Legal, translate: Translate) -> Choice:
        settings = self.settings
        for config in self._few(shape, layout):
            if (served := translate(config)) is not None and legal(served):
                return Choice("ours", served, None, STREAMED, "few rows: the time is that of reading B")
        if layout not in self._near:
            return Choice("torch", None, None, 1.0, f"nothing was tuned in layout {layout}")
        model = self._models.get(layout)
        distances = _octaves((self._near if model is None else self._winners)[layout][0], shape)
        order = np.argsort(distances, kind="stable")
        if distances[order[0]] > settings.reach:
            return Choice("torch", None, None, 1.0, "no tuned shape is near")
        if model is not None:
            best = next(self._ranked(model, order, shape, layout, legal, translate), None)
            margin, why = settings.model_margin, "chosen by what was learnt from tuned shapes"
            if model.program and in_program(shape, layout):
                margin, why = settings.program_margin, "chosen by what was learnt from layers of programs"
        else:
            rows = self._near[layout][1]
            near = [(rows[i], 1.0 / (0.1 + float(distances[i])) ** 2) for i in order[: settings.neighbours]]
            best = self._by_neighbours(near, shape, legal, translate)
            margin, why = settings.margin, "chosen by its tuned neighbours"
        if best is None:
            return Choice("torch", None, None, 1.0, "no configuration that won nearby can run it")
        if best[0] < margin:
            return Choice(
                "torch", None, None, best[0], f"ours is predicted at {best[0]:.2f} of torch's speed"
            )
        return Choice("ours", best[1], None, best[0], why)

    def favourites(
        self, shape: Shape, layout: str, legal: Legal, translate: Translate = lambda config: config
    ) -> Iterator[Config]:
        """What may run a shape, the most promising first: for a selection by measurement."""
        row, model = self.table.get(shape, layout), self._models.get(layout)
        known = [*(config for config, _ in row.ours)] if row else []
        known += self._few(shape, layout)[:_STREAMS]
        yield from (served for c in known if (served := translate(c)) is not None and legal(served))
        if model is None or layout not in self._winners:
            return
        distances = _octaves(self._winners[layout][0], shape)
        order = np.argsort(distances, kind="stable")
        yield from (config for _, config in self._ranked(model, order, shape, layout, legal, translate))

    def _few(self, shape: Shape, layout: str) -> list[Config]:
        """For few rows, bound by reading B: the best of one kernel, of the other, and further ones."""
        if layout != "tn":
            return []
        least = self.streamed.least if shape.n >= few_rows.MANY else few_rows.LEAST
        streams, tiles = stream.best(shape), few_rows.best(shape, least)
        first, second = (streams, tiles) if shape.m <= self.streamed.plain else (tiles, streams)
        return [*first[:1], *second[:1], *first[1:], *second[1:]]

    def _ranked(
        self, model: Model, order: np.ndarray, shape: Shape, layout: str, legal: Legal, translate: Translate
    ) -> Iterator[tuple[float, Config]]:
        """(predicted speed-up, configuration) of what may run among the winners of the nearest shapes, the
        model's first choice first."""
        winners = self._winners[layout][1]
        won = dict.fromkeys(config for i in order[: self.settings.candidates] for config in winners[i])
        ranked = [config for config in won if model.knows(config) and _fits(config, shape)]
        for speedup, config in model.speedups(ranked, shape, program=in_program(shape, layout)):
            served = translate(config)
            if served is not None and legal(served):
                yield speedup, served

    def _by_neighbours(
        self, near: Sequence[tuple[TableRow, float]], shape: Shape, legal: Legal, translate: Translate
    ) -> tuple[float, Config] | None:
        """The same by the neighbours' times."""
        best: tuple[float, Config] | None = None
        for config in dict.fromkeys(config for row, _ in near for config, _ in row.ours):
            served = translate(config)
            if served is None or not legal(served) or not _fits(config, shape):
                continue
            speedup = self._predicted(config, shape, near)
            if best is None or speedup > best[0]:
                best = (speedup, served)
        return best

    def _predicted(self, config: Config, shape: Shape, near: Sequence[tuple[TableRow, float]]) -> float:
        """torch over this configuration, cautiously, from neighbours where either was timed.

        Where the configuration itself was timed, its own speed-up counts. Elsewhere the winner's does,
        reduced by what the static estimate says the configuration loses against that winner on that shape.
        For nt and tt, and by what it says that the configuration fills the GPU worse here than there: that
        shapes off the grid do so was what misled this rule in nn and tn.
        """
        careful = config.layout in BACKWARD
        logs, weights = [], []
        for row, weight in near:
            assert row.speedup is not None and row.torch_us is not None
            own = dict(row.ours).get(config)
            if own is not None:
                value = math.log(row.torch_us / own)
            else:
                winner = row.ours[0][0]
                loss = math.log(config.estimate_us(row.shape) / winner.estimate_us(row.shape))
                value = math.log(row.speedup) - max(0.0, loss)
                weight *= 0.5
            if careful:
                value -= max(0.0, math.log(_share(config, row.shape) / _share(config, shape)))
            logs.append(value)
            weights.append(weight)
        if not logs:
            return 0.0
        mean = float(np.average(logs, weights=weights))
        spread = math.sqrt(float(np.average((np.array(logs) - mean) ** 2, weights=weights)))
        return math.exp(mean - self.settings.caution * spread)


def _points(shapes: Iterable[Shape]) -> np.ndarray:
    """float64 (shapes, 3): where they lie, in octaves."""
    return np.log2(np.array([[s.m, s.n, s.k] for s in shapes], float))


def _octaves(points: np.ndarray, shape: Shape) -> np.ndarray:
    """float64 (points,): how far they are from a shape."""
    distances: np.ndarray = np.linalg.norm(points - _points([shape]), axis=1)
    return distances


def _fits(config: Config, shape: Shape) -> bool:
    """Whether it can run a shape and no smaller one is surely better: no sweep times such configurations
    (`dominated`), so nothing is learnt of them."""
    return config.why_illegal(shape) is None and config.dominated(shape) is None


def _share(config: Config, shape: Shape) -> float:
    """What the static estimate leaves of the machine's peak (1 at most, roughly)."""
    return cost.least_us(shape) / config.estimate_us(shape)
