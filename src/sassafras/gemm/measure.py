"""The reported figures of one shape: everybody interleaved on the same buffers, in a fresh process."""

from __future__ import annotations

from typing import Any

import numpy as np

from sassafras.core import DeviceError
from sassafras.core.statistics import bootstrap_median
from sassafras.device.cuda.timing import launches_a_block

from .cublas import LAYOUTS, LtAlgorithm, LtProblem
from .families import parse
from .graphs import Block, Enqueue, paired, rough_us, timed
from .operands import RMS_LIMIT, Operands
from .select import Options, rounds_for
from .shapes import Shape
from .tools import Tools

#: baselines may reduce in FP16 (cuBLAS's default); beyond this their result counts as wrong
BASELINE_RMS_LIMIT = 10.0
#: baselines of which the better layout is reported
FAMILIES = ("lt_autotune", "lt_heuristic", "cublas", "torch")


def measure(tools: Tools, selection: dict[str, Any], options: Options, process: int) -> dict[str, Any]:
    """One row (see `docs/hgemm.md`): microseconds a contestant, ratios, checks. Nothing is chosen here but
    the better layout of each baseline.

    Args:
        selection: a record of `select.choose`.
        process: number of this process; inputs and seeds follow it.

    Raises:
        CudaError: the context is lost.
        DeviceError: a contestant's graph was empty, or a result is wrong.
    """
    shape = Shape.parse(selection["shape"])
    operands = Operands(shape, options.seed + 1000 + process)
    cublas_rms = operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    problems = {layout: tools.lt.problem(shape, layout) for layout in LAYOUTS}
    contestants = _contestants(tools, selection, operands, problems)
    ratios = {name: _checked(operands, name, enqueue) for name, enqueue in contestants.items()}
    names = list(contestants)
    rough = {name: rough_us(tools.gpu, tools.watch, contestants[name]) for name in names}
    blocks = [
        Block(tools.gpu, contestants[name], launches_a_block(rough[name], options.block_us)) for name in names
    ]
    rounds = rounds_for(list(rough.values()), options.seconds, options.block_us)
    table = timed(tools.gpu, tools.watch, blocks, rounds)
    after = {name: _replayed(tools, operands, name, block) for name, block in zip(names, blocks, strict=True)}
    for block in blocks:
        block.discard(tools.gpu)
    for problem in problems.values():
        problem.close()
    medians = dict(zip(names, np.median(table, axis=0).tolist(), strict=True))
    row: dict[str, Any] = {
        "m": shape.m, "n": shape.n, "k": shape.k, "band": shape.band, "layout": None, "ours": None,
        "config": selection.get("ours"),
    }  # fmt: skip
    best: dict[str, str] = {}
    for family in FAMILIES:
        best[family] = min(
            (f"{family}_{layout}" for layout in LAYOUTS if f"{family}_{layout}" in medians),
            key=medians.__getitem__,
        )
        row[family] = medians[best[family]]
    row |= {name: us for name, us in medians.items() if name not in ("ours", "null")}
    twin = selection_best(selection)
    null = paired(table, names.index(twin), names.index("null"))
    interval = bootstrap_median(null)
    row |= {"null": float(np.median(null)), "null_low": interval.low, "null_high": interval.high}
    if "ours" in medians:
        speedups = paired(table, names.index(best["lt_autotune"]), names.index("ours"))
        interval = bootstrap_median(speedups)
        row |= {
            "ours": medians["ours"], "layout": parse(selection["ours"]).layout,
            "speedup": float(np.median(speedups)), "speedup_low": interval.low, "speedup_high": interval.high,
            "ratios": [round(float(value), 5) for value in speedups], "rms_ratio": ratios["ours"],
            "rms_ratio_after": after["ours"],
        }  # fmt: skip
    row |= {"baseline_layout": best["lt_autotune"][-2:], "cublas_rms": cublas_rms, "rounds": rounds}
    row["baseline_rms_ratio"] = {name: round(value, 4) for name, value in ratios.items() if name != "ours"}
    return row


def selection_best(selection: dict[str, Any]) -> str:
    """Name of the AutoTuning contestant that the selection run found faster."""
    return "lt_autotune_" + min(selection["lt"], key=lambda layout: float(selection["lt"][layout]["us"]))


def _contestants(
    tools: Tools, selection: dict[str, Any], operands: Operands, problems: dict[str, LtProblem]
) -> dict[str, Enqueue]:
    found: dict[str, Enqueue] = {}
    if selection.get("ours"):
        found["ours"] = tools.ours(parse(selection["ours"]), operands)
    for family, entries in (("lt_autotune", selection["lt"]), ("lt_heuristic", selection["heuristic"])):
        for layout, entry in entries.items():
            algorithm = LtAlgorithm.from_json(entry)
            tools.lt.check(problems[layout], algorithm)
            found[f"{family}_{layout}"] = tools.lt.bind(
                problems[layout], algorithm, *operands.addresses(layout)
            )
    for layout in LAYOUTS:
        found[f"cublas_{layout}"] = tools.gemm_ex(layout, operands)
        found[f"torch_{layout}"] = tools.torch_matmul(layout, operands)
    twin = selection_best(selection)
    layout = twin[-2:]
    found["null"] = tools.lt.bind(
        problems[layout], LtAlgorithm.from_json(selection["lt"][layout]), *operands.addresses(layout)
    )
    return found


def _checked(operands: Operands, name: str, enqueue: Enqueue) -> float:
    """Error ratio of one cold launch. Raises DeviceError when it is wrong."""
    check = operands.check(enqueue, RMS_LIMIT if name == "ours" else BASELINE_RMS_LIMIT)
    if check.why:
        raise DeviceError(f"{name}: {check.why}", where=str(operands.shape))
    return check.rms_ratio


def _replayed(tools: Tools, operands: Operands, name: str, block: Block) -> float:
    """The same of the timed graph itself, after timing: it must still write all of C."""
    return _checked(
        operands, f"{name}" if name == "ours" else f"{name} (after)", lambda: tools.gpu.replay(block.graph)
    )
