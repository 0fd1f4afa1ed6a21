"""The reported figures of one shape: all contestants interleaved on the same buffers, in a fresh process.

Offline: calls back to back in CUDA graphs, warm L2; the same with an emptied L2; wall time of eager calls.
Server: one isolated call after an exponential gap, on rotated buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sassafras.core.statistics import bootstrap_median
from sassafras.cuda.cublas import LtAlgorithm

from ..configs.registry import parse
from ..problem.shape import LAYOUTS, Shape
from ..select.table import TableRow
from .operands import required
from .options import Options
from .timing import Enqueue, Isolated, apart, contest, order_seed, paired, rough_us, rounds_for, timed

#: contestants that are kernels of ours
OURS = ("ours", "ours_nn", "ours_tn")
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
    """One row: microseconds a contestant, ratios, checks. Only the better layout of each baseline is chosen.

    Args:
        stage: `Contestants` or `DryContestants`.
        selection: a record of `tune.choose`.
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
    ratios = {name: required(operands, name, enqueue, name in OURS) for name, enqueue in contestants.items()}
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
    names, calls = list(contestants), list(contestants.values())
    rough = {name: rough_us(stage, enqueue) for name, enqueue in contestants.items()}
    rounds = rounds_for(list(rough.values()), options.seconds, options.block_us)
    replayed: dict[str, float] = {}

    def after(index: int, replay: Enqueue) -> None:  # the timed graph must still write all of C
        name = names[index]
        shown = name if name.startswith("ours") else f"{name} (after)"
        replayed[name] = required(operands, shown, replay, name in OURS)

    table = contest(
        stage,
        calls,
        list(rough.values()),
        rounds,
        options.block_us,
        before=apart(stage, calls) if options.apart else None,
        seed=order_seed(operands.shape, options.seed),
        after=after,
    )
    row = _ours_columns(selection) | judged(table, names, selection) | {"rounds": rounds}
    if "ours" in replayed:
        row["rms_ratio_after"] = replayed["ours"]
    if options.cold:
        row |= _cold(stage, selection, options, binds, operands, rough)
    if options.walls:
        # what a user calls; cuBLASLt's algorithms have no Python call of their own
        callers = [name for name in names if name.startswith(("torch_", "portfolio_"))]
        slowest = max(rough[name] for name in callers)
        count = int(min(options.walls, max(10, _WALL_US // (len(callers) * slowest))))
        walls = stage.walls([contestants[name] for name in callers], count)
        row |= _walls(walls, callers, ("torch", "portfolio"))
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
        seed=order_seed(operands.shape, options.seed),
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
    every, sets = list(binds), stage.sets(operands, _SERVER_SETS)
    rng = np.random.default_rng((options.seed, process, operands.shape.flop % (1 << 31)))
    isolated = Isolated(stage, [[binds[name](buffers) for buffers in sets] for name in every])
    trial, _, _ = isolated.calls(_TRIAL_CALLS, math.inf, rng)
    kept = hopeful(every, np.median(trial, axis=0).tolist(), selection_best(selection))
    table, walls, rate = isolated.calls(options.calls, options.rate, rng, kept)
    isolated.close()
    names = [every[index] for index in kept]
    row = _ours_columns(selection) | judged(table, names, selection)
    row |= {"rounds": options.calls, "rate": rate, "sets": len(sets)}
    if "ours" in binds:
        row["rms_ratio_after"] = required(operands, "ours", binds["ours"](operands), True)
    return row | _walls(walls, names, ("ours", *FAMILIES))


def _walls(walls: np.ndarray, names: Sequence[str], families: Sequence[str]) -> dict[str, float]:
    """Columns of wall times (calls, contestants): of each family the better layout's."""
    row: dict[str, float] = {}
    for family in families:
        columns = [i for i, name in enumerate(names) if name == family or name.startswith(family + "_")]
        if columns:
            best = min((walls[:, i] for i in columns), key=lambda us: float(np.median(us)))
            row[f"wall_p50_{family}"] = float(np.median(best))
            row[f"wall_p99_{family}"] = float(np.quantile(best, 0.99))
    return row


def hopeful(names: Sequence[str], trial_us: Sequence[float], twin: str) -> list[int]:
    """Indices of the contestants worth a pause: without the layouts that are clearly slower than the other.

    Args:
        names: of contestants (`_contestants`).
        trial_us: microseconds of each in a short trial.
        twin: what ``null`` repeats; stays, as ``ours`` and ``null`` do.
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
