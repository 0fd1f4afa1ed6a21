"""A product on sets of operands beside torch, cuBLASLt's best and a plain Triton kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sassafras.gemm import matmul as room
from sassafras.gemm.bench.context import Context
from sassafras.gemm.bench.operands import BASELINE_RMS_LIMIT, RMS_LIMIT
from sassafras.gemm.bench.timing import contest, rough_us
from sassafras.gemm.configs.base import PLAIN
from sassafras.gemm.matmul.problem import CONSTANT, Problem
from sassafras.gemm.problem.shape import Product, Shape

#: sets of operands that a chain rotates through at most
ROTATED = 64
#: tiles of a plain Triton kernel: rows, columns, k, warps, stages
TILINGS = (
    (16, 32, 128, 4, 4), (16, 64, 128, 4, 4), (16, 128, 128, 4, 4), (16, 32, 256, 4, 3), (16, 64, 256, 4, 3),
    (16, 256, 64, 4, 4), (32, 32, 128, 4, 5), (32, 64, 64, 4, 6), (32, 64, 128, 4, 4), (32, 128, 64, 4, 5),
    (32, 256, 64, 8, 4), (64, 32, 128, 4, 4), (64, 64, 128, 4, 3), (64, 64, 128, 8, 4), (64, 64, 64, 4, 6),
    (64, 128, 64, 4, 4), (64, 128, 128, 4, 3), (64, 256, 64, 4, 3), (64, 256, 64, 8, 3), (128, 64, 64, 4, 4),
    (128, 64, 128, 4, 3), (128, 128, 64, 8, 3), (128, 128, 64, 4, 4), (128, 128, 64, 8, 4),
    (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3),
)  # fmt: skip
Calls = dict[str, list[Callable[[], Any]]]


class Products(Context):
    """One product on sets of operands, back to back, with all contestants; weights from memory if `cold`."""

    def __init__(self, stage: Any, shape: Shape, dtype: str, *, cold: bool) -> None:
        super().__init__(stage, Product(shape, "tn", dtype), most=ROTATED if cold else 1, around=False)
        self.served: dict[str, Any] = {}

    def contestants(self, algorithm: Any = None) -> Calls:
        """Contestant -> its call on each set; ours plainly launched only where that is another call.

        Args:
            algorithm: cuBLASLt's; None: its fastest here.
        """
        algorithm = algorithm or self.fastest(self.stage.lt.candidates(self.lt))
        keys = {"torch": "torch", "lt_autotune": algorithm, "null": algorithm, "sassafras": "sassafras"}
        found = {name: self.calls(key) for name, key in keys.items()}
        if self.stage.modelled:
            self.served = self.stage.served().get("tn", {})
            return found
        served = engine.served if (engine := room.api._engine) else {}
        for choice in (choice for problem, choice in served.items() if problem.product == self.product):
            self.served = {"member": choice.member, "why": choice.why, "in_table": choice.row is not None}
            if choice.member == "ours" and choice.config.mode != PLAIN:
                found["sassafras_plain"] = self.calls(replace(choice.config, mode=PLAIN))
        return found

    def as_layer(self) -> list[Callable[[], Any]] | None:
        """Calls as compiled models make them, weights that nothing writes read early; None where that is
        `matmul`."""
        from sassafras.gemm.matmul.layer_op import LayerCall, layer

        engine = room.api._engine
        problem = Problem.of(self.product)._replace(extra=CONSTANT)
        config = engine.choose(problem).config if engine else None
        if config is None or ("early", "i32") not in config.instance.parameters:
            return None
        asked = [LayerCall(*operands.factors("tn"), constant=True) for operands in self.sets]
        layer(*asked[0])
        room.api.settle()  # compiled; the next call has it
        return [lambda call=call: layer(*call) for call in asked]

    def by_triton(
        self, seconds: float, keep: Callable[[], bool] = lambda: True
    ) -> tuple[list[Callable[[], Any]], str, int]:
        """Calls of the plain Triton kernel in the fastest of `TILINGS` here, the tiling, of how many.

        Args:
            keep: whether what a tiling has computed, which C of the first set is, may serve.
        """
        from sassafras.gemm.matmul import row_kernels

        m, found = self.product.shape.m, dict[str, list[Callable[[], Any]]]()
        for rows, columns, depth, warps, stages in TILINGS:
            if rows > max(16, 2 * m) or (m > 256 and rows < 64):
                continue
            tiling = row_kernels.Tiling(rows, columns, depth, 8, warps, stages)
            calls = [lambda s=s, t=tiling: row_kernels.product(s.a, s.b["tn"].t(), t, s.c) for s in self.sets]
            try:
                calls[0]()
            except Exception as error:  # a tile too large for this type
                if "out of resource" not in str(error):
                    raise
                continue
            if keep():
                found[str(tiling)] = calls
        self.stage.gpu.sync()
        tried = timed_chains(self.stage, found, len(self.sets), seconds, 100)
        fastest = min(found, key=lambda tiling: float(np.median(tried[tiling])))
        return found[fastest], fastest, len(found)

    def wrong_of(self, calls: Calls) -> list[str]:
        """Contestants whose RMS error is too large on any of four sets."""
        errors = self.errors({name: those[:4] for name, those in calls.items()})

        def right(name: str) -> Any:
            limit = RMS_LIMIT if name.startswith("sassafras") else BASELINE_RMS_LIMIT
            return (errors[name] <= limit * errors["torch"]).all()

        return sorted(name for name in calls if not right(name))

    def between(self, pdl: bool = False) -> Callable[[], Any]:
        """A kernel on C: torch's, or one launched with PDL."""
        if self.stage.modelled:
            return lambda: self.stage.gpu.launch(2.0)
        c = self.sets[0].c
        if pdl:
            from neighbours import halve

            return lambda: halve(c)
        return lambda: c.mul_(0.5)


def mixed(calls: Calls, kernel: Callable[[], Any]) -> Calls:
    """A kernel behind each product."""
    return {name: [each for call in those for each in (call, kernel)] for name, those in calls.items()}


def timed_chains(
    stage: Any, chains: Calls, products: int, seconds: float, most: int = 400, before: Any = None
) -> dict[str, list[float]]:
    """Microseconds a product, block by block, contestants interleaved.

    Args:
        chains: contestant -> launches that follow each other, `products` of them products.
        seconds: GPU time, about.
        most: launches in a block, but at least one chain.
        before: see `timed`.
    """
    sizes = [len(calls) for calls in chains.values()]
    whole = [rough_us(stage, lambda calls=calls: [c() for c in calls]) for calls in chains.values()]
    rough = np.divide(whole, sizes)
    block_us = min(200.0, most * min(rough))
    table = contest(stage, list(chains.values()), rough, block_us, seconds, least=9, before=before)
    table = table * np.divide(sizes, products)
    return {name: [round(float(us), 4) for us in table[:, at]] for at, name in enumerate(chains)}
