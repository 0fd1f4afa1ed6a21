"""The reported figures of one shape: everybody interleaved on the same buffers, in a fresh process.

Offline: calls back to back in CUDA graphs, warm L2; the same with an emptied L2; wall time of eager calls.
Server: one isolated call after an exponential gap, on rotated buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sassafras.core import DeviceError
from sassafras.core.statistics import bootstrap_median
from sassafras.cuda.cublas import LtAlgorithm
from sassafras.cuda.timing import launches_a_block

from ..configs.registry import parse
from ..problem.shape import LAYOUTS, Shape
from ..select.table import TableRow
from .operands import RMS_LIMIT
from .options import Options
from .timing import Enqueue, Isolated, apart, paired, rough_us, timed
from .tune import drawn, rounds_for

#: baselines may reduce in FP16 (cuBLAS's default); beyond this their result counts as wrong
BASELINE_RMS_LIMIT = 10.0
#: baselines of which the better layout is reported, and the portfolio alike
FAMILIES = ("lt_autotune", "lt_heuristic", "cublas", "torch", "portfolio")
#: sets of buffers that server mode rotates through, at most
_SERVER_SETS = 24
#: calls of each contestant, hardly any pause between, that tell which layouts of server mode are hopeless:
#: so many times as slow as the other layout of the same contestant
_TRIAL_CALLS, _HOPELESS = 3, 1.05
#: GPU time that wall times of a shape may take, microseconds
_WALL_US = 5e4

#: binds a contestant to a set of buffers
Bind = Callable[[Any], Enqueue]


def measure(
    stage: Any, selection: dict[str, Any], options: Options, process: int, mode: str
) -> dict[str, Any]:
    """One row: microseconds a contestant, ratios, checks. Nothing is chosen here but
    the better layout of each baseline.

    Args:
        stage: `stage.Stage`, or `dry.DryStage`.
        selection: a record of `select.choose`.
        process: number of this process; inputs and seeds follow it.
        mode: ``offline`` or ``server``.

    Raises:
        CudaError: the context is lost.
        DeviceError: a contestant's graph was empty, or a result is wrong.
    """
    shape = Shape.parse(selection["shape"])
    operands = stage.operands(shape, options.seed + 1000 + process)
    cublas_rms = operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
    problems = {layout: stage.lt.problem(shape, layout) for layout in LAYOUTS}
    stage.tell_portfolio(tuned_rows(selection) if options.tuned else [])
    binds = _contestants(stage, selection, problems)
    contestants = {name: bind(operands) for name, bind in binds.items()}
    for name, enqueue in contestants.items():
        if name.startswith("portfolio"):
            stage.settled(enqueue)
    ratios = {name: _checked(operands, name, enqueue) for name, enqueue in contestants.items()}
    row: dict[str, Any] = {"m": shape.m, "n": shape.n, "k": shape.k, "band": shape.band}
    if stage.modelled:
        row["modelled"] = True
    if mode == "server":
        row |= _server(stage, selection, options, process, binds, operands)
    else:
        row |= _offline(stage, selection, options, binds, contestants, operands)
    row |= {"served": stage.served(), "cublas_rms": cublas_rms}
    if "ours" in ratios:
        row["rms_ratio"] = ratios["ours"]
    row["baseline_rms_ratio"] = {name: round(value, 4) for name, value in ratios.items() if name != "ours"}
    for problem in problems.values():
        problem.close()
    return row


def tuned_rows(selection: dict[str, Any]) -> list[TableRow]:
    """What the selection knows of its shape, as dispatch takes it."""
    shape = Shape.parse(selection["shape"])
    rows = []
    for layout, torch_us in selection["torch"].items():
        lt = selection["lt"].get(layout)
        best = selection["best"].get(layout)
        ours = ((str(best[0]), float(best[1])),) if best else ()
        rows.append(TableRow(shape, layout, ours, torch_us, lt["us"] if lt else None, lt))
    return rows


def _contestants(stage: Any, selection: dict[str, Any], problems: dict[str, Any]) -> dict[str, Bind]:
    """name -> how to bind it to buffers."""
    found: dict[str, Bind] = {}

    def lt(entry: dict[str, Any], layout: str) -> Bind:
        algorithm = LtAlgorithm.from_json(entry)
        stage.lt.check(problems[layout], algorithm)
        return lambda buffers: stage.lt_call(problems[layout], algorithm, buffers)  # type: ignore[no-any-return]

    if selection.get("ours"):
        config = parse(selection["ours"])
        found["ours"] = lambda buffers: stage.ours(config, buffers)
    for layout, (name, _) in selection["best"].items():
        if name != selection["ours"]:  # the other layout's best
            other = parse(name)
            found[f"ours_{layout}"] = lambda buffers, c=other: stage.ours(c, buffers)  # type: ignore[misc]
    for family, entries in (("lt_autotune", selection["lt"]), ("lt_heuristic", selection["heuristic"])):
        for layout, entry in entries.items():
            found[f"{family}_{layout}"] = lt(entry, layout)
    for layout in LAYOUTS:
        found[f"cublas_{layout}"] = lambda buffers, la=layout: stage.gemm_ex(la, buffers)  # type: ignore[misc]
        found[f"torch_{layout}"] = lambda buffers, la=layout: stage.torch_matmul(la, buffers)  # type: ignore[misc]
        found[f"portfolio_{layout}"] = lambda buffers, la=layout: stage.portfolio(la, buffers)  # type: ignore[misc]
    twin = selection_best(selection)
    found["null"] = lt(selection["lt"][twin[-2:]], twin[-2:])
    return found


def selection_best(selection: dict[str, Any]) -> str:
    """Name of the AutoTuning contestant that the selection run found faster."""
    return "lt_autotune_" + min(selection["lt"], key=lambda layout: float(selection["lt"][layout]["us"]))


def judged(
    table: np.ndarray, names: list[str], selection: dict[str, Any], prefix: str = ""
) -> dict[str, Any]:
    """Columns of a row from times (rounds, contestants): the better layouts, speed-ups, the null.

    Args:
        prefix: of every column (``cold_``).
    """
    medians = dict(zip(names, np.median(table, axis=0).tolist(), strict=True))
    row: dict[str, Any] = {}
    best: dict[str, str] = {}
    for family in FAMILIES:
        of_family = [f"{family}_{layout}" for layout in LAYOUTS if f"{family}_{layout}" in medians]
        if of_family:
            best[family] = min(of_family, key=medians.__getitem__)
            row[prefix + family] = medians[best[family]]
    if not prefix:
        row |= {name: us for name, us in medians.items() if name not in ("ours", "null")}
        row["baseline_layout"] = best["lt_autotune"][-2:]
        null = paired(table, names.index(selection_best(selection)), names.index("null"))
        interval = bootstrap_median(null)
        row |= {"null": float(np.median(null)), "null_low": interval.low, "null_high": interval.high}
    baseline = names.index(best["lt_autotune"])
    pairs = [("speedup", "ratios", "ours")]
    if "portfolio" in best:
        pairs.append(("portfolio_speedup", "portfolio_ratios", best["portfolio"]))
    for column, kept, name in pairs:
        if name not in medians:
            continue
        ratios = paired(table, baseline, names.index(name))
        interval = bootstrap_median(ratios)
        row[prefix + column] = float(np.median(ratios))
        row |= {f"{prefix}{column}_low": interval.low, f"{prefix}{column}_high": interval.high}
        row[prefix + kept] = [round(float(value), 5) for value in ratios]
    row[prefix + "ours"] = medians.get("ours")
    if selection.get("ours") and not prefix:
        row[f"ours_{parse(selection['ours']).layout}"] = row["ours"]
    return row


def _offline(
    stage: Any,
    selection: dict[str, Any],
    options: Options,
    binds: dict[str, Bind],
    contestants: dict[str, Enqueue],
    operands: Any,
) -> dict[str, Any]:
    names = list(contestants)
    rough = {name: rough_us(stage, contestants[name]) for name in names}
    blocks = [
        stage.block(contestants[name], launches_a_block(rough[name], options.block_us)) for name in names
    ]
    rounds = rounds_for(list(rough.values()), options.seconds, options.block_us)
    before = apart(stage, list(contestants.values())) if options.apart else None
    table = timed(
        stage.gpu, stage.watch, blocks, rounds, before=before, seed=drawn(operands.shape, options.seed)
    )
    row = _ours_columns(selection) | judged(table, names, selection) | {"rounds": rounds}
    for name, block in zip(names, blocks, strict=True):
        after = _replayed(stage, operands, name, block)
        if name == "ours":
            row["rms_ratio_after"] = after
        block.discard(stage.gpu)
    if options.cold:
        row |= _cold(stage, selection, options, binds, operands, rough)
    if options.walls:
        # what a user calls; cuBLASLt's algorithms have no Python call of their own
        callers = [name for name in names if name.startswith(("torch_", "portfolio_"))]
        slowest = max(rough[name] for name in callers)
        count = int(min(options.walls, max(10, _WALL_US // (len(callers) * slowest))))
        walls = stage.walls([contestants[name] for name in callers], count)
        for family in ("torch", "portfolio"):
            of_family = [i for i, name in enumerate(callers) if name.startswith(family)]
            best = min(of_family, key=lambda i: float(np.median(walls[:, i])))
            row[f"wall_p50_{family}"] = float(np.median(walls[:, best]))
            row[f"wall_p99_{family}"] = float(np.quantile(walls[:, best], 0.99))
    return row


def _cold(
    stage: Any,
    selection: dict[str, Any],
    options: Options,
    binds: dict[str, Bind],
    operands: Any,
    rough: dict[str, float],
) -> dict[str, Any]:
    """Ours, AutoTuning, torch and the portfolio with nothing in the L2: each call of a block has buffers of
    its own, and the L2 is emptied by reading before every block."""
    names = [name for name in binds if name.startswith(("ours", "lt_autotune", "torch", "portfolio"))]
    sets = stage.sets(operands)
    blocks = []
    for name in names:
        calls = [binds[name](buffers) for buffers in sets]
        blocks.append(stage.block(calls, len(calls)))
    spent = [rough[name] * len(sets) + 60.0 for name in names]
    rounds = int(min(15, max(5, options.seconds / 2 * 1e6 // sum(spent))))
    table = timed(
        stage.gpu,
        stage.watch,
        blocks,
        rounds,
        before=lambda index: stage.empty_l2(),
        seed=drawn(operands.shape, options.seed),
    )
    for block in blocks:
        block.discard(stage.gpu)
    found = judged(table, names, selection, "cold_")
    for name in ("cold_ratios", "cold_portfolio_ratios"):
        found.pop(name, None)
    return {**found, "cold_sets": len(sets)}


def _server(
    stage: Any,
    selection: dict[str, Any],
    options: Options,
    process: int,
    binds: dict[str, Bind],
    operands: Any,
) -> dict[str, Any]:
    """Isolated calls: GPU time by events around each, and wall time of the whole call, waits untimed."""
    everybody, sets = list(binds), stage.sets(operands, _SERVER_SETS)
    rng = np.random.default_rng((options.seed, process, operands.shape.flop % (1 << 31)))
    contest = Isolated(stage, [[binds[name](buffers) for buffers in sets] for name in everybody])
    trial, _, _ = contest.calls(_TRIAL_CALLS, math.inf, rng)
    kept = hopeful(everybody, np.median(trial, axis=0).tolist(), selection_best(selection))
    table, walls, rate = contest.calls(options.calls, options.rate, rng, kept)
    contest.close()
    names = [everybody[index] for index in kept]
    row = _ours_columns(selection) | judged(table, names, selection)
    row |= {"rounds": options.calls, "rate": rate, "sets": len(sets)}
    after = _checked(operands, "ours", binds["ours"](operands)) if "ours" in binds else None
    if after is not None:
        row["rms_ratio_after"] = after
    for family in ("ours", *FAMILIES):
        columns = [i for i, name in enumerate(names) if name == family or name.startswith(family + "_")]
        if columns:
            best = min(columns, key=lambda i: float(np.median(walls[:, i])))
            row[f"wall_p50_{family}"] = float(np.median(walls[:, best]))
            row[f"wall_p99_{family}"] = float(np.quantile(walls[:, best], 0.99))
    return row


def hopeful(names: Sequence[str], trial_us: Sequence[float], twin: str) -> list[int]:
    """Indices of the contestants worth a pause: without the layouts that are clearly slower than the other.

    Args:
        names: of contestants (`_contestants`).
        trial_us: microseconds of each in a short trial.
        twin: whom ``null`` repeats; stays, as ``ours`` and ``null`` do.
    """
    fastest: dict[str, float] = {}
    families = [name if name in ("ours", "null") else name[:-3] for name in names]  # without _nn, _tn
    for family, us in zip(families, trial_us, strict=True):
        fastest[family] = min(us, fastest.get(family, math.inf))
    return [
        index
        for index, (name, family) in enumerate(zip(names, families, strict=True))
        if name in ("ours", twin) or trial_us[index] <= _HOPELESS * fastest[family]
    ]


def _ours_columns(selection: dict[str, Any]) -> dict[str, Any]:
    name = selection.get("ours")
    return {"layout": parse(name).layout if name else None, "config": name}


def _checked(operands: Any, name: str, enqueue: Enqueue) -> float:
    """Error ratio of one cold launch. Raises DeviceError when it is wrong."""
    ours = name in ("ours", "ours_nn", "ours_tn")
    check = operands.check(enqueue, RMS_LIMIT if ours else BASELINE_RMS_LIMIT)
    if check.why:
        raise DeviceError(f"{name}: {check.why}", where=str(operands.shape))
    return float(check.rms_ratio)


def _replayed(stage: Any, operands: Any, name: str, block: Any) -> float:
    """The same of the timed graph itself, after timing: it must still write all of C."""
    shown = name if name.startswith("ours") else f"{name} (after)"
    return _checked(operands, shown, lambda: stage.gpu.replay(block.graph))
