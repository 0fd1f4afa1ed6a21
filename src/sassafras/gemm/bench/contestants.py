"""What the benchmark needs beyond `GpuContext`: rotated buffers, emptied L2, sassafras.matmul, wall time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.cuda.cublas import LtAlgorithm, LtProblem

from ..problem.shape import LAYOUTS, Shape
from ..select.table import TableRow, TunedTable
from .gpu_context import GpuContext
from .operands import Operands, OperandSet
from .timing import Enqueue, TimedBlock

#: sets of buffers in a rotation, at most
MOST_SETS = 64


class Contestants(GpuContext):
    """A GPU with everything that contestants need. See `GpuContext`."""

    modelled = False

    def __init__(self, cache: Path | None = None) -> None:
        import torch

        if cache is not None:  # sassafras.matmul looks there, too
            os.environ["SASSAFRAS_GEMM_CACHE"] = str(cache)
        super().__init__(cache)
        self.l2_bytes = int(self.gpu.l2_bytes)
        self._words = torch.ones(2 * self.l2_bytes // 4 + 1, dtype=torch.int32, device="cuda")
        self._pool = torch.cuda.MemPool()

    # -- buffers ------------------------------------------------------------------------------------------

    def operands(self, shape: Shape, seed: int, layouts: Sequence[str] = LAYOUTS) -> Operands:
        """Guarded buffers with an FP64 reference."""
        return Operands(shape, seed, layouts)

    def sets(self, operands: Operands, most: int = MOST_SETS) -> list[OperandSet]:
        """Copies of the inputs over more than twice the L2, `most` at the utmost; at least one."""
        count = int(min(most, max(1, 2 * self.l2_bytes // operands.shape.nbytes + 1)))
        return [operands.copy() for _ in range(count)]

    def empty_l2(self) -> None:
        """Enqueue a read of twice the L2."""
        self._words.amax()

    def block(
        self,
        enqueue: Enqueue | Sequence[Enqueue],
        launches: int,
        events: tuple[Any, Any] | None = None,
    ) -> TimedBlock:
        """A captured block; what torch allocates meanwhile stays the graph's."""
        import torch

        with torch.cuda.use_mem_pool(self._pool):
            return TimedBlock(self.gpu, enqueue, launches, events)

    # -- contestants ----------------------------------------------------------------------------------------

    def lt_call(self, problem: LtProblem, algorithm: LtAlgorithm, operands: Any) -> Enqueue:
        """A chosen cuBLASLt algorithm on buffers."""
        return self.lt.bind(problem, algorithm, *operands.addresses(algorithm.layout))  # type: ignore[no-any-return]

    def portfolio(self, layout: str, operands: Any) -> Enqueue:
        """sassafras.matmul on buffers, as a user calls it."""
        from ..matmul.api import matmul  # loads torch

        (a, b), c = operands.factors(layout), operands.c
        return lambda: matmul(a, b, c)

    def tell_portfolio(self, rows: Sequence[TableRow]) -> None:
        """Let dispatch know what was tuned; nothing: it works from the table that is shipped."""
        from ..matmul import api as room
        from ..select.selector import Selector

        if room._engine is None:
            room._set_up()
        engine = room._engine
        if engine is None:
            return
        engine.settle()
        engine.forget()
        if rows:
            header = {"gpu": engine.gpu(0).name, "cublaslt": self.lt.version}
            engine.gpu(0).chooser = Selector(TunedTable(header, rows), lt_version=self.lt.version)

    def served(self) -> dict[str, str]:
        """layout -> who served the latest problems of the portfolio, and with what."""
        from ..matmul.api import status

        found = status()["problems"]
        return {
            p["layout"]: p["member"] + (f" {p['config']}" if p["member"] == "ours" else "") for p in found
        }

    def settled(self, enqueue: Enqueue) -> None:
        """Call once, and wait for whatever is built because of it."""
        from ..matmul.api import settle

        enqueue()
        self.gpu.sync()
        settle()

    # -- wall time ------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds."""
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        """Idle until then: asleep while there is time, then awake."""
        while (left := moment - time.perf_counter()) > 0:
            if left > 2e-3:
                time.sleep(left - 1e-3)

    def walls(self, calls: Sequence[Enqueue], count: int) -> np.ndarray:
        """Microseconds from the call to the end of a synchronisation, (count, len(calls)), interleaved."""
        table = np.empty((count, len(calls)))
        for call in calls:
            call()
        self.gpu.sync()
        for index in range(count):
            order = range(len(calls)) if index % 2 == 0 else range(len(calls) - 1, -1, -1)
            for which in order:
                begin = time.perf_counter()
                calls[which]()
                self.gpu.sync()
                table[index, which] = 1e6 * (time.perf_counter() - begin)
        return table
