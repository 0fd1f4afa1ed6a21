"""The reported figures of one shape: all contestants interleaved on the same buffers, in a fresh process.

Offline: calls back to back in CUDA graphs, warm L2; the same with an emptied L2; wall time of eager calls.
Server: one isolated call after an exponential gap, on rotated buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from sassafras.core.statistics import bootstrap_median
from sassafras.cuda.cublas import LtAlgorithm

from ..configs.fields import from_fields
from ..problem.shape import LAYOUTS, Shape
from ..select.table import TableRow
from .operands import required, rotated
from .options import Options
from .timing import Enqueue, Isolated, contest, order_seed, paired, rough_us, walls

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
    operands = stage.operands(shape, options.seed + 1000 + process, dtype=options.dtype)
    row: dict[str, Any] = {"shape": str(shape), "m": shape.m, "n": shape.n, "k": shape.k, "band": shape.band}
    if stage.modelled:
        row["modelled"] = True
    operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
    stage.tell_portfolio(tuned_rows(selection) if options.tuned else [])
    every = _Measurement(stage, selection, options, operands)
    ratios = {name: required(operands, name, call, name in OURS) for name, call in every.calls.items()}
    ours = selection.get("ours")
    row |= {"layout": from_fields(ours).layout if ours else None, "config": ours}
    row |= every.server(process) if mode == "server" else every.offline()
    row |= {"served": stage.served(), "cublas_rms": operands.cublas_rms}
    if "ours" in ratios:
        row["rms_ratio"] = ratios["ours"]
    row["baseline_rms_ratio"] = {name: round(value, 4) for name, value in ratios.items() if name != "ours"}
    every.close()
    return row


class _Measurement:
    """All contestants of a shape.

    Attributes:
        binds: contestant -> how to bind it to buffers.
        calls: contestant -> its call on `operands`.
    """

    def __init__(self, stage: Any, selection: dict[str, Any], options: Options, operands: Any) -> None:
        self.stage, self.selection, self.options, self.operands = stage, selection, options, operands
        self.problems = {
            layout: stage.lt.problem(operands.shape, layout, options.dtype) for layout in LAYOUTS
        }
        self.binds = self._binds()
        self.calls = {name: bind(operands) for name, bind in self.binds.items()}

    def _binds(self) -> dict[str, Bind]:
        stage, selection = self.stage, self.selection
        found: dict[str, Bind] = {}

        def lt(entry: dict[str, Any], layout: str) -> Bind:
            algorithm, problem = LtAlgorithm.from_json(entry), self.problems[layout]
            stage.lt.check(problem, algorithm)
            return partial(stage.lt_call, problem, algorithm)

        if selection.get("ours"):
            found["ours"] = partial(stage.ours, from_fields(selection["ours"]))
        for layout, (config, _) in selection["best"].items():
            if config != selection["ours"]:  # the other layout's best
                found[f"ours_{layout}"] = partial(stage.ours, from_fields(config))
        for family, entries in (("lt_autotune", selection["lt"]), ("lt_heuristic", selection["heuristic"])):
            for layout, entry in entries.items():
                found[f"{family}_{layout}"] = lt(entry, layout)
        for layout in LAYOUTS:
            found[f"cublas_{layout}"] = partial(stage.gemm_ex, layout)
            found[f"torch_{layout}"] = partial(stage.torch_matmul, layout)
            found[f"portfolio_{layout}"] = partial(stage.portfolio, layout)
        twin = selection_best(selection)[-2:]
        found["null"] = lt(selection["lt"][twin], twin)
        return found

    def close(self) -> None:
        """Free what cuBLASLt holds."""
        for problem in self.problems.values():
            problem.close()

    def offline(self) -> dict[str, Any]:
        """Columns of calls back to back in graphs, with a warm L2 and an emptied one, and of wall time."""
        stage, options, names, calls = self.stage, self.options, list(self.calls), list(self.calls.values())
        rough = [rough_us(stage, call) for call in calls]
        row: dict[str, Any] = {}

        def after(index: int, replay: Enqueue) -> None:  # the timed graph must still write all of C
            name = names[index]
            shown = name if name.startswith("ours") else f"{name} (after)"
            ratio = required(self.operands, shown, replay, name in OURS)
            if name == "ours":
                row["rms_ratio_after"] = ratio

        block_us, clear, seed = options.block_us, options.apart, order_seed(self.operands.shape, options.seed)
        table = contest(stage, calls, rough, block_us, options.seconds, clear=clear, seed=seed, after=after)
        row |= judged(table, names, self.selection) | {"rounds": len(table)}
        if options.cold:
            row |= self._cold(dict(zip(names, rough, strict=True)))
        if options.walls:
            # what a user calls; cuBLASLt's algorithms have no Python call of their own
            callers = [i for i, name in enumerate(names) if name.startswith(("torch_", "portfolio_"))]
            slowest = max(rough[i] for i in callers)
            count = int(min(options.walls, max(10, _WALL_US // (len(callers) * slowest))))
            took = walls(stage, [calls[i] for i in callers], count)
            row |= _walls(took, [names[i] for i in callers], ("torch", "portfolio"))
        return row

    def _cold(self, rough: dict[str, float]) -> dict[str, Any]:
        """Ours, AutoTuning, torch and the portfolio with nothing in the L2: each call of a block has buffers
        of its own, and the L2 is emptied by reading before every block."""
        stage = self.stage
        names = [name for name in rough if name.startswith(("ours", "lt_autotune", "torch", "portfolio"))]
        sets = rotated(self.operands, stage.l2_bytes)
        chains, us = [[self.binds[n](s) for s in sets] for n in names], [rough[n] for n in names]
        seconds, seed = self.options.seconds / 2, order_seed(self.operands.shape, self.options.seed)
        table = contest(
            stage, chains, us, 0.0, seconds, most=15, seed=seed, before=lambda index: stage.empty_l2()
        )
        found = judged(table, names, self.selection, "cold_")
        for name in ("cold_ratios", "cold_portfolio_ratios"):
            found.pop(name, None)
        return {**found, "cold_sets": len(sets)}

    def server(self, process: int) -> dict[str, Any]:
        """Columns of isolated calls: GPU time by events around each, wall time of the call, waits untimed."""
        options, operands, every = self.options, self.operands, list(self.binds)
        sets = rotated(operands, self.stage.l2_bytes, _SERVER_SETS)
        rng = np.random.default_rng((options.seed, process, operands.shape.flop % (1 << 31)))
        isolated = Isolated(self.stage, [[bind(buffers) for buffers in sets] for bind in self.binds.values()])
        trial, _, _ = isolated.calls(_TRIAL_CALLS, math.inf, rng)
        kept = hopeful(every, np.median(trial, axis=0).tolist(), selection_best(self.selection))
        table, took, rate = isolated.calls(options.calls, options.rate, rng, kept)
        isolated.close()
        names = [every[index] for index in kept]
        row = judged(table, names, self.selection)
        row |= {"rounds": options.calls, "rate": rate, "sets": len(sets)}
        if "ours" in self.binds:
            row["rms_ratio_after"] = required(operands, "ours", self.binds["ours"](operands), True)
        return row | _walls(took, names, ("ours", *FAMILIES))


def tuned_rows(selection: dict[str, Any]) -> list[TableRow]:
    """What the selection knows of its shape, as dispatch takes it."""
    shape = Shape.parse(selection["shape"])
    rows = []
    for layout, torch_us in selection["torch"].items():
        lt = selection["lt"].get(layout)
        best = selection["best"].get(layout)
        ours = ((from_fields(best[0]), float(best[1])),) if best else ()
        rows.append(TableRow(shape, layout, ours, torch_us, lt["us"] if lt else None, lt))
    return rows


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
        row |= _median("null", null)
    for of, name in (("", "ours"), ("portfolio_", best.get("portfolio", ""))):
        if name in medians:
            ratios = paired(table, names.index(best["lt_autotune"]), names.index(name))
            row |= _median(f"{prefix}{of}speedup", ratios)
            row[f"{prefix}{of}ratios"] = [round(float(value), 5) for value in ratios]
    row[prefix + "ours"] = medians.get("ours")
    if selection.get("ours") and not prefix:
        row[f"ours_{from_fields(selection['ours']).layout}"] = row["ours"]
    return row


def _median(column: str, ratios: np.ndarray) -> dict[str, float]:
    """Columns of a median and its interval."""
    interval = bootstrap_median(ratios)
    return {column: float(np.median(ratios)), f"{column}_low": interval.low, f"{column}_high": interval.high}


def _walls(took: np.ndarray, names: Sequence[str], families: Sequence[str]) -> dict[str, float]:
    """Columns of wall times (calls, contestants): of each family the better layout's."""
    row: dict[str, float] = {}
    for family in families:
        columns = [i for i, name in enumerate(names) if name == family or name.startswith(family + "_")]
        if columns:
            best = min((took[:, i] for i in columns), key=lambda us: float(np.median(us)))
            row[f"wall_p50_{family}"] = float(np.median(best))
            row[f"wall_p99_{family}"] = float(np.quantile(best, 0.99))
    return row


def hopeful(names: Sequence[str], trial_us: Sequence[float], twin: str) -> list[int]:
    """Indices of the contestants worth a pause: without the layouts that are clearly slower than the other.

    Args:
        names: of contestants (`_Measurement`).
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
