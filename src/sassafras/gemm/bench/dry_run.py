"""A GPU that only keeps time: the whole benchmark runs on it, so that it can be rehearsed without one.

Every launch advances a modelled clock by the static estimate (ours) or a made-up figure (baselines). Rows of
such a run carry ``modelled``: they are no measurements, and tables for dispatch refuse them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from sassafras.cuda.cublas import LtAlgorithm
from sassafras.cuda.timing import Stopwatch

from ..configs.registry import Config
from ..problem.shape import LAYOUTS, Shape
from ..select.selector import Selector
from ..select.table import TableRow, TunedTable
from .operands import RMS_LIMIT, Check
from .timing import Enqueue, TimedBlock

#: of the modelled clock, relative
_NOISE = 0.004


class DryGpu:
    """Events, graphs and a clock (microseconds)."""

    def __init__(self, seed: int = 0) -> None:
        self.clock = 0.0
        self._rng = np.random.default_rng(seed)
        self._capturing: list[Any] | None = None

    def launch(self, us: float) -> None:
        """A call of so many microseconds."""
        if self._capturing is not None:
            self._capturing.append(us)
        else:
            self.clock += us * (1 + _NOISE * abs(float(self._rng.standard_normal())))

    def capture_counted(self, enqueue: Callable[[], None]) -> tuple[list[Any], int]:
        """(microseconds of calls, events between them; how many there are)."""
        self._capturing = []
        try:
            enqueue()
            return self._capturing, len(self._capturing)
        finally:
            self._capturing = None

    def replay(self, graph: list[Any]) -> None:
        """Run a graph."""
        slower = 1 + _NOISE * abs(float(self._rng.standard_normal()))
        for node in graph:
            if isinstance(node, list):
                self.record(node)
            else:
                self.clock += node * slower

    def discard(self, graph: list[Any]) -> None:
        """Forget a graph."""

    def event(self) -> list[float]:
        """A time to be."""
        return [0.0]

    def record(self, event: list[float]) -> None:
        """Note the clock."""
        event[0] = self.clock

    def record_in_graph(self, event: list[float]) -> None:
        """A node that notes the clock."""
        assert self._capturing is not None
        self._capturing.append(event)

    def elapsed_us(self, begin: list[float], end: list[float]) -> float:
        """Microseconds between two events."""
        return end[0] - begin[0]

    def sync(self) -> None:
        """Nothing is pending."""


class DryOperands:
    """Buffers without memory: every result is right."""

    cublas_rms = 1e-3

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def copy(self) -> DryOperands:
        """No memory either."""
        return DryOperands(self.shape)

    def calibrate(self, enqueue: Enqueue) -> None:
        """Runs it."""
        enqueue()

    def check(self, enqueue: Enqueue, limit: float = RMS_LIMIT) -> Check:
        """Runs it."""
        enqueue()
        return Check(1.0, "")


class DryContestants:
    """See `Contestants`: the same methods on the modelled clock."""

    modelled = True
    l2_bytes = 50 << 20

    def __init__(self, cache: Path | None = None, seed: int = 0) -> None:
        self.gpu = DryGpu(seed)
        self.watch: Any = Stopwatch(self.gpu)  # type: ignore[arg-type]
        self.lt: Any = SimpleNamespace(
            version=0,
            problem=self._problem,
            candidates=self._candidates,
            heuristics=lambda problem, workspace: self._candidates(problem)[-1:],
            check=lambda problem, algorithm: None,
        )
        self._rows: dict[tuple[Shape, str], TableRow] = {}
        self._served: dict[str, Any] = {}

    def _problem(self, shape: Shape, layout: str, dtype: str = "fp16") -> Any:
        return SimpleNamespace(shape=shape, layout=layout, close=lambda: None)

    def _candidates(self, problem: Any) -> list[LtAlgorithm]:
        return [LtAlgorithm(problem.layout, bytes([n + 1]) + bytes(63), 4096 * n) for n in range(3)]

    def _baseline_us(self, shape: Shape, layout: str, algorithm: int = 1) -> float:
        us = 2.0 + max(shape.flop / 7.5e8, shape.nbytes / 4e6)
        return us * (1.02 if layout[0] == "n" else 1.0) * (1 + 0.02 * (algorithm - 1))

    def operands(self, shape: Shape, seed: int, layouts: Sequence[str] = LAYOUTS, dtype: str = "fp16") -> Any:
        """No memory."""
        return DryOperands(shape)

    def empty_l2(self) -> None:
        """Takes its time."""
        self.gpu.launch(30.0)

    def block(self, *block: Any) -> TimedBlock:
        """A captured block."""
        return TimedBlock(self.gpu, *block)  # type: ignore[arg-type]

    def ours(self, config: Config, operands: Any, code: Any = None) -> Enqueue:
        """The static estimate, and a figure of the configuration's own, whatever its code."""
        config.launch(operands.shape)
        own = 1 + 0.1 * math.sin(sum(map(ord, config.name)))
        us = config.estimate_us(operands.shape) * own
        return lambda: self.gpu.launch(us)

    def lt_call(self, problem: Any, algorithm: LtAlgorithm, operands: Any) -> Enqueue:
        """Made up."""
        us = self._baseline_us(operands.shape, algorithm.layout, algorithm.blob[0])
        return lambda: self.gpu.launch(us)

    def gemm_ex(self, layout: str, operands: Any, *, strict: bool = False) -> Enqueue:
        """Made up."""
        us = 1.03 * self._baseline_us(operands.shape, layout)
        return lambda: self.gpu.launch(us)

    torch_matmul = gemm_ex

    def portfolio(self, layout: str, operands: Any) -> Enqueue:
        """What the selector makes of the rows that it was told."""
        choice = Selector(TunedTable({"cublaslt": 0}, self._rows.values()), lt_version=0).choose(
            operands.shape, layout, lambda config: config.why_illegal(operands.shape) is None
        )
        self._served[layout] = choice.to_json()
        if choice.config is not None:
            return self.ours(choice.config, operands)
        if choice.member == "lt" and choice.row and choice.row.lt:
            return self.lt_call(None, LtAlgorithm.from_json(choice.row.lt), operands)
        return self.torch_matmul(layout, operands)

    def tell_portfolio(self, rows: Sequence[TableRow]) -> None:
        """Remember them."""
        self._rows = {(row.shape, row.layout): row for row in rows}

    def served(self) -> dict[str, Any]:
        """layout -> which member, with which configuration."""
        return dict(self._served)

    def now(self) -> float:
        """Seconds on the modelled clock; asking takes five microseconds, as a call's way to the GPU does."""
        self.gpu.clock += 5.0
        return self.gpu.clock * 1e-6

    def wait_until(self, moment: float) -> None:
        """Be there."""
        self.gpu.clock = max(self.gpu.clock, moment * 1e6)
