"""One configuration at a time beside cuBLASLt's best.

The strong baseline is chosen once a shape, from cuBLASLt's candidates of both layouts, and stays for the
whole search.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sassafras.cuda.driver import CudaError

from ..configs.fields import from_fields
from ..problem.shape import LAYOUTS, Shape
from .options import Options
from .timing import Enqueue, contest, paired, rough_us
from .tune import lt_finalists

#: blocks of a search's look, microseconds, and its rounds
LOOK_US, LOOK_ROUNDS = 100.0, 7


class Judge:
    """A shape's operands, its baseline, and what configurations make of it.

    Args:
        stage: `Contestants` or `DryContestants`.
        options: how thorough choosing the baseline is, and of the seed.
    """

    def __init__(self, stage: Any, options: Options) -> None:
        self.stage, self.options = stage, options
        self._shape: Shape | None = None
        self._problems: dict[str, Any] = {}

    def look(self, text: str, given: dict[str, Any]) -> dict[str, Any]:
        """What a configuration is worth: ``verdict``, ``detail``, ``us``, ``baseline_us``, ``ratios``,
        ``rms_ratio``, ``baseline``.

        Raises:
            CudaError: the context is lost.
            SassafrasError: no baseline works, or there is no such shape or configuration.
        """
        self._open(Shape.parse(text))
        stage, operands = self.stage, self._operands
        config = from_fields(given)
        record: dict[str, Any] = {"shape": text, "config": given, "baseline": self._baseline.to_json()}
        if why := config.why_illegal(operands.shape):
            return {**record, "verdict": "unsupported", "detail": why}
        try:
            enqueue = stage.ours(config, operands)
            check = operands.check(enqueue)
        except CudaError as error:
            if error.sticky:
                raise
            scarce = "RESOURCES" in str(error) or "OUT_OF_MEMORY" in str(error)
            verdict = "out_of_resources" if scarce else "crashed"
            return {**record, "verdict": verdict, "detail": str(error)}
        if check.why:
            return {**record, "verdict": "wrong_result", "detail": check.why}
        faults: list[str] = []

        def after(index: int, replay: Enqueue) -> None:
            if index and (why := operands.check(replay).why):
                faults.append(f"after timing: {why}")

        us = (self._us, rough_us(stage, enqueue))
        table = contest(stage, (self._enqueue, enqueue), us, LOOK_US, 0.0, least=LOOK_ROUNDS, after=after)
        if faults:
            return {**record, "verdict": "wrong_result", "detail": faults[0]}
        medians = np.median(table, axis=0)
        return {
            **record,
            "verdict": "correct",
            "detail": "",
            "baseline_us": float(medians[0]),
            "us": float(medians[1]),
            "ratios": [float(r) for r in paired(table, 0, 1)],
            "rms_ratio": check.rms_ratio,
        }

    def _open(self, shape: Shape) -> None:
        if shape == self._shape:
            return
        stage = self.stage
        self._shape = None
        for problem in self._problems.values():
            problem.close()
        self._operands = operands = stage.operands(shape, self.options.seed)
        operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
        self._problems = {layout: stage.lt.problem(shape, layout) for layout in LAYOUTS}
        finalists, _ = lt_finalists(stage, operands, self._problems, self.options)
        rough, algorithms, calls = zip(*finalists, strict=True)
        block_us, seconds = self.options.block_us, self.options.final_seconds
        medians = np.median(contest(stage, calls, rough, block_us, seconds, least=3, most=15), axis=0)
        best = int(np.argmin(medians))
        self._us, self._baseline, self._enqueue = float(medians[best]), algorithms[best], calls[best]
        self._shape = shape
