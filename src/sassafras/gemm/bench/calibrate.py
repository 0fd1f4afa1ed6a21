"""What a GPU's table knows of a shape, timed on another GPU: a shape's record of a calibration."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from sassafras.core import SassafrasError
from sassafras.cuda.cublas import RECOMMENDED_WORKSPACE, LtAlgorithm
from sassafras.cuda.driver import CudaError

from ..configs.fields import to_fields
from ..problem.shape import Shape
from ..select.table import TunedTable, shipped_path
from .options import Options
from .timing import Enqueue, contest, order_seed

#: of a shape: length of a block in microseconds, seconds on the GPU, rounds at least and at most
_BLOCK_US, _SECONDS, _ROUNDS = 100.0, 0.02, (3, 9)


@cache
def near_table(gpu: str) -> TunedTable:
    """A GPU's shipped table. Raises SassafrasError when there is none."""
    return TunedTable.load(shipped_path(gpu))


def times(stage: Any, shape: Shape, near: str, options: Options) -> dict[str, Any]:
    """A record, in the form of a selection's (`tune.choose`), of what the table of `near` has of a shape.

    All are timed interleaved; the fastest of each layout is checked, and left out if it is wrong.

    Raises:
        CudaError: the context is lost.
        SassafrasError: the table has nothing of this shape.
    """
    table = near_table(near)
    rows = [row for layout in options.layouts if (row := table.get(shape, layout))]
    if not rows:
        raise SassafrasError("the table has no such shape", where=f"{near} {shape}")
    operands = stage.operands(shape, options.seed, options.layouts)
    operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
    problems = {row.layout: stage.lt.problem(shape, row.layout) for row in rows}
    entries: list[tuple[float, Any, Enqueue]] = []
    wrong: list[str] = []
    for row in rows:
        for config, us in row.ours:
            try:
                entries.append((us, config, stage.ours(config, operands)))
            except CudaError as error:
                if error.sticky:
                    raise
                wrong.append(f"{config.name}: {error}")
        algorithm = _algorithm(stage, problems[row.layout], row.lt, table.header.get("cublaslt"))
        enqueue = stage.lt_call(problems[row.layout], algorithm, operands)
        entries.append((row.lt_us or row.torch_us or 1.0, algorithm, enqueue))
        entries.append((row.torch_us or 1.0, f"torch_{row.layout}", stage.torch_matmul(row.layout, operands)))
    rough, keys, calls = zip(*entries, strict=True)
    for call in calls:
        call()
    seed, clear = order_seed(shape, options.seed), options.apart
    least, most = _ROUNDS
    rounds = contest(stage, calls, rough, _BLOCK_US, _SECONDS, least=least, most=most, clear=clear, seed=seed)
    medians = np.median(rounds, axis=0).tolist()
    for problem in problems.values():
        problem.close()
    record: dict[str, Any] = {"shape": str(shape), "near": near, "lt": {}, "torch": {}, "rungs": []}
    right: dict[str, bool] = {}
    for us, key, call in sorted(zip(medians, keys, calls, strict=True), key=lambda entry: entry[0]):
        if isinstance(key, LtAlgorithm):
            record["lt"][key.layout] = {**key.to_json(), "us": us}
        elif isinstance(key, str):
            record["torch"][key[-2:]] = us
        elif not right.get(key.layout) and (check := operands.check(call)).why:
            wrong.append(f"{key.name}: {check.why}")
        else:
            right[key.layout] = True
            record["rungs"].append([to_fields(key), round(us, 4), 2])
    fastest = record["rungs"][0] if record["rungs"] else (None, None)
    baseline_us = min(entry["us"] for entry in record["lt"].values())
    return {**record, "wrong": wrong, "ours": fastest[0], "ours_us": fastest[1], "baseline_us": baseline_us}


def _algorithm(stage: Any, problem: Any, known: dict[str, Any] | None, version: int | None) -> LtAlgorithm:
    """The table's algorithm where the library is of the table's version, else the heuristic's first."""
    if known and version == stage.lt.version:
        return LtAlgorithm.from_json(known)
    first = next(iter(stage.lt.heuristics(problem, RECOMMENDED_WORKSPACE)), None)
    if first is None:
        raise SassafrasError("cuBLASLt has no algorithm", where=str(problem.shape))
    return replace(first, workspace=max(first.workspace, RECOMMENDED_WORKSPACE))
