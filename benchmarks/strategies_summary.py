"""What a comparison of strategies says: the summary of strategies.json. See `strategies.py`.

By strategy: geometric mean, interquartile mean of the log speed-ups with a 95 % interval of a bootstrap
stratified by kernel (Agarwal et al., arXiv 2108.13264), evaluations to 90 % of annealing's log-gain on the
same kernel, and the same at equal seconds; for the pre-trained policy the transfer to kernels of families
that it has never seen; ablations beside the preset; rates of training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from common import geomean
from strategies_units import ABLATIONS, DEFAULT

Row = dict[str, Any]
#: columns of a curve
EVALUATIONS, GPU_SECONDS, SPEEDUP, SECONDS = range(4)
#: an annealing gain below this is too small to ask who reaches it first
LEAST_GAIN = 1.01
#: those whose evaluations to 90 % of annealing's gain are listed; the first uses the pre-trained policy
TRANSFER = ("ppo_pretrained", "guided_experience", "ppo_twin")
GOAL = 0.2


def best_at(curve: list[list[float]], limit: float, column: int) -> float:
    """Best speed-up within so many evaluations or seconds."""
    held = [point[SPEEDUP] for point in curve if point[column] <= limit]
    return held[-1] if held else 1.0


def iqm(values: np.ndarray) -> float:
    """Interquartile mean: of the middle half."""
    ordered = np.sort(values)
    cut = len(ordered) // 4
    return float(np.mean(ordered[cut : len(ordered) - cut]))


def stratified(rows: list[Row], draws: int = 2000) -> tuple[float, float, float]:
    """Interquartile mean of log speed-ups with a 95 % interval; seeds are resampled within each kernel."""
    by_kernel: dict[str, list[float]] = {}
    for row in rows:
        by_kernel.setdefault(row["kernel"], []).append(math.log(row["final_speedup"]))
    strata = [np.array(v) for v in by_kernel.values()]
    rng = np.random.default_rng(0)
    found = [iqm(np.concatenate([s[rng.integers(0, len(s), len(s))] for s in strata])) for _ in range(draws)]
    low, high = np.quantile(found, [0.025, 0.975])
    return tuple(math.exp(x) for x in (iqm(np.concatenate(strata)), low, high))  # type: ignore[return-value]


def reach(row: Row, target: float) -> int | None:
    """Evaluations until the unit's curve reached a speed-up, or None."""
    return next((int(point[EVALUATIONS]) for point in row["curve"] if point[SPEEDUP] >= target), None)


def middle_or_none(needed: list[float]) -> float | None:
    """The median of evaluations needed (infinity: never), None where it is infinite or there are none."""
    found = float(np.median(needed)) if needed else math.inf
    return found if math.isfinite(found) else None


def _of(rows: Sequence[Row], kernel: str, name: str) -> list[Row]:
    return [r for r in rows if r["kernel"] == kernel and r["strategy"] == name]


def compared(rows: list[Row]) -> list[str]:
    """Strategies that have done at least half as many searches as the one that has done most: the others
    would leave nearly nothing to judge by (`balanced`), and are looked at apart (`_unfinished`)."""
    done = {n: len({(r["kernel"], r["seed"]) for r in rows if r["strategy"] == n}) for n in DEFAULT}
    most = max(done.values(), default=0)
    return [n for n, count in done.items() if count and 2 * count >= most]


def balanced(rows: list[Row]) -> list[Row]:
    """Those of kernels and seeds that every strategy has done, so that all are judged by the same; all
    where there are none."""
    done = [
        {(r["kernel"], r["seed"]) for r in rows if r["strategy"] == name}
        for name in {r["strategy"] for r in rows}
    ]
    common = set.intersection(*done) if done else set()
    return [r for r in rows if not common or (r["kernel"], r["seed"]) in common]


def summarise(rows: list[Row], cut: Sequence[Row] = ()) -> Row:
    """The comparison: everything relative to annealing on the same kernel.

    Args:
        cut: searches that are under way (`strategies_units.cut`).
    """
    good = [r for r in rows if "error" not in r]
    every = [r for r in good if r["strategy"] in DEFAULT]
    able = compared(every)
    main = balanced([r for r in every if r["strategy"] in able])
    kernels = list(dict.fromkeys(r["kernel"] for r in main))
    by = {name: _strategy(main, name) for name in DEFAULT if any(r["strategy"] == name for r in main)}
    winner = max(by, key=lambda n: by[n]["iqm_final"]) if by else None
    return {
        "modelled": any(r.get("modelled") for r in good), "units": len(main), "kernels": kernels,
        "left_out_for_balance": len(every) - len(main),
        "seeds": {name: sorted({r["seed"] for r in main if r["strategy"] == name}) for name in by},
        "searched_evaluations": sum(r["evaluations"] for r in (*good, *cut)),
        "strategies": by, "best_interquartile_mean": winner,
        "not_told_apart_from_it": [
            n for n in by if winner and n != winner and by[n]["iqm_high"] >= by[winner]["iqm_low"]
        ],
        "by_kernel": {
            k: {n: geomean(r["final_speedup"] for r in _of(main, k, n)) for n in by if _of(main, k, n)}
            for k in kernels
        },
        "above": {
            one: {other: _pairs(main, one, other)["better"] for other in by if other != one} for one in by
        },
        "pretrained_over_twin": _pairs(main, "ppo_pretrained", "ppo_twin"),
        "experience_over_anneal": _pairs(main, "guided_experience", "anneal"),
        "transfer": _transfer(main, kernels),
        "unfinished": _unfinished([*every, *(r for r in cut if r["strategy"] in DEFAULT)], able),
        "ablations": _ablations(good, list(by)), "training": _training(good),
        "remeasured": [
            {k: r[k] for k in ("kernel", "strategy", "seed", "final_speedup", "remeasured")}
            for r in good if "remeasured" in r
        ],
        "errors": [{k: r[k] for k in ("kernel", "strategy", "seed", "error")} for r in rows if "error" in r],
    }  # fmt: skip


def _unfinished(rows: list[Row], able: Sequence[str]) -> Row:
    """Strategies too few of whose searches are over: what they believed when they were cut, beside what the
    others believed on the same kernel after as many evaluations (geometric mean over seeds)."""
    found: Row = {}
    for name in (n for n in DEFAULT if n not in able):
        searches = [
            {
                "kernel": r["kernel"], "seed": r["seed"], "evaluations": r["evaluations"],
                "over": not r.get("cut", False), "believed": r["curve"][-1][SPEEDUP],
                "others": {
                    other: geomean(
                        best_at(o["curve"], r["evaluations"], EVALUATIONS)
                        for o in _of(rows, r["kernel"], other) if not o.get("cut")
                    )
                    for other in able if any(not o.get("cut") for o in _of(rows, r["kernel"], other))
                },
            }
            for r in rows if r["strategy"] == name
        ]  # fmt: skip
        if searches:
            whole = [s for s in searches if set(s["others"]) == set(able)]
            found[name] = {
                "searches": searches, "over": sum(s["over"] for s in searches),
                "median_evaluations": float(np.median([s["evaluations"] for s in searches])),
                "judged": len(whole), "geomean_believed": geomean(s["believed"] for s in whole),
                "others": {o: geomean(s["others"][o] for s in whole) for o in able},
            }  # fmt: skip
    return found


def _strategy(rows: list[Row], name: str) -> Row:
    mine = [r for r in rows if r["strategy"] == name]
    middle, low, high = stratified(mine)
    needed: list[float] = []
    equal: dict[int, list[float]] = {GPU_SECONDS: [], SECONDS: []}
    for r in mine:
        annealed = _of(rows, r["kernel"], "anneal")
        if not annealed:
            continue
        # (curves hold what searches believed, so the target does too)
        gain = geomean(a["believed_speedup"] for a in annealed) or 1.0
        if gain > 1.0:
            at = reach(r, gain**0.9)
            needed.append(math.inf if at is None else at)
        for column, key in ((GPU_SECONDS, "gpu_seconds"), (SECONDS, "seconds")):
            equal[column].append(best_at(r["curve"], float(np.median([a[key] for a in annealed])), column))
    verdicts = [r["verdicts"] for r in mine]
    return {
        "units": len(mine), "kernels": len({r["kernel"] for r in mine}),
        "geomean_final": geomean(r["final_speedup"] for r in mine),
        "iqm_final": middle, "iqm_low": low, "iqm_high": high,
        "mean_area_under_curve": float(np.mean([r["area_under_curve"] for r in mine])),
        "evaluations_to_90_percent": middle_or_none(needed),
        "never_reached_90_percent": sum(map(math.isinf, needed)), "could_reach": len(needed),
        "geomean_believed_at_equal_gpu_seconds": geomean(equal[GPU_SECONDS]),
        "geomean_believed_at_equal_seconds": geomean(equal[SECONDS]),
        "median_evaluations": float(np.median([r["evaluations"] for r in mine])),
        "median_gpu_seconds": float(np.median([r["gpu_seconds"] for r in mine])),
        "median_cpu_seconds": float(np.median([r["cpu_seconds"] for r in mine])),
        "gpu_ms_an_evaluation": 1e3 * sum(r["gpu_seconds"] for r in mine)
        / max(1, sum(r["evaluations"] for r in mine)),
        "evaluations_per_second": float(np.median([r["evaluations_per_second"] for r in mine])),
        "refused": sum(v.get("illegal_schedule", 0) for v in verdicts),
        "wrong_or_crashed": sum(
            v.get(w, 0) for v in verdicts for w in ("wrong_result", "crashed", "timed_out")
        ),
    }  # fmt: skip


def _pairs(rows: list[Row], one: str, other: str) -> Row:
    """How often one strategy ended above another with the same kernel and seed."""
    final = {(r["kernel"], r["seed"], r["strategy"]): r["final_speedup"] for r in rows}
    both = [(v, final[k, s, other]) for (k, s, n), v in final.items() if n == one and (k, s, other) in final]
    return {"pairs": len(both), "better": sum(a > b for a, b in both), "worse": sum(a < b for a, b in both)}


def _transfer(rows: list[Row], kernels: list[str]) -> Row:
    """Kernels of families that the shipped policy has not seen: evaluations to 90 % of annealing's gain."""
    from sassafras.training.environment import HELD_OUT

    held = {n for names in HELD_OUT.values() for n in names}
    found: list[Row] = []
    ratios: dict[str, list[float]] = {name: [] for name in TRANSFER}
    for k in kernels:
        annealed = _of(rows, k, "anneal")
        gain = geomean(r["final_speedup"] for r in annealed)
        if k.split("/")[0] not in held or not gain or gain <= LEAST_GAIN:
            continue
        target = (geomean(r["believed_speedup"] for r in annealed) or 1.0) ** 0.9
        medians: Row = {}
        for name in ("anneal", *TRANSFER):
            at = [reach(r, target) for r in _of(rows, k, name)]
            medians[name] = float(np.median([math.inf if a is None else a for a in at])) if at else None
        for name in TRANSFER:
            if medians[name]:
                ratios[name].append(medians[name] / medians["anneal"])
        found.append({
            "kernel": k, "annealing_final": gain,
            "evaluations_to_90_percent": {
                n: v if v is None or math.isfinite(v) else "never" for n, v in medians.items()
            },
        })  # fmt: skip

    def said(name: str) -> str:
        if len(found) < 4:
            return "inconclusive: fewer than four kernels with room"
        if not ratios[name]:
            return "inconclusive: it has not been run"
        return "reached" if float(np.median(ratios[name])) <= GOAL else "not reached"

    return {
        "kernels": found, "goal": "a fifth of annealing's own evaluations, in the median of the kernels",
        "median_ratio": {name: middle_or_none(ratios[name]) for name in TRANSFER},
        "conclusion": {name: said(name) for name in TRANSFER[:1]},
    }  # fmt: skip


def _believed(rows: list[Row], limit: float) -> Row:
    """By kernel, what searches believed after so many evaluations (geometric mean)."""
    return {
        k: geomean(best_at(r["curve"], limit, EVALUATIONS) for r in rows if r["kernel"] == k)
        for k in dict.fromkeys(r["kernel"] for r in rows)
    }


def _ablations(rows: list[Row], able: Sequence[str]) -> Row:
    """CuAsmRL's preset and one change each: final speed-ups and areas on the same kernels; beside them what
    the strategies of the comparison believed there after as many evaluations as an ablation may make."""
    found: Row = {}
    for name in ABLATIONS:
        mine = [r for r in rows if r["strategy"] == name]
        if not mine:
            continue
        found[name] = {
            "units": len(mine), "kernels": sorted({r["kernel"] for r in mine}),
            "geomean_final": geomean(r["final_speedup"] for r in mine),
            "final": {k: geomean(r["final_speedup"] for r in mine if r["kernel"] == k)
                      for k in dict.fromkeys(r["kernel"] for r in mine)},
            "mean_area_under_curve": float(np.mean([r["area_under_curve"] for r in mine])),
            "median_evaluations": float(np.median([r["evaluations"] for r in mine])),
            "median_steps": float(np.median([r["steps"] for r in mine])),
            "believed": _believed(mine, math.inf),
            "above_as_it_is": _pairs(rows, name, "fresh_as_it_is"),
            "ended_by": {w: sum(r["reason"] == w for r in mine) for w in sorted({r["reason"] for r in mine})},
        }  # fmt: skip
    if not found:
        return found
    most = max(r["evaluations"] for r in rows if r["strategy"] in ABLATIONS)
    kernels = {k for it in found.values() for k in it["kernels"]}
    there = [r for r in rows if r["kernel"] in kernels]
    beside = {n: _believed([r for r in there if r["strategy"] == n], most) for n in able}
    return {"evaluations": most, "changes": found, "beside": beside}


def apart(values: dict[str, list[tuple[float, bool]]], draws: int = 10_000) -> Row | None:
    """Whether two groups of searches end differently: the difference of their mean log speed-ups (those that
    say True less the others; mean over kernels that have both, in percent), and how often one as large comes
    of groups drawn anew within each kernel (two-sided). None where no kernel has both."""
    both = [np.array(v) for v in values.values() if len({of for _, of in v}) == 2]
    if not both:
        return None
    rng = np.random.default_rng(0)

    def apart_by(shuffled: bool) -> float:
        found = []
        for v in both:
            of = (rng.permutation(v[:, 1]) if shuffled else v[:, 1]).astype(bool)
            found.append(v[of, 0].mean() - v[~of, 0].mean())
        return 100.0 * float(np.mean(found))

    seen = apart_by(False)
    as_large = sum(abs(apart_by(True)) >= abs(seen) - 1e-12 for _ in range(draws))
    return {"kernels": len(both), "percent": seen, "p": as_large / draws}


def _training(rows: list[Row]) -> Row:
    """CuAsmRL's preset: steps a second, in the comparison (thinking and measuring added up) with its network
    elsewhere and on the GPU that is timed on, in turns; alone with its network on the CPU, and on that GPU.
    `whole`: searches in turns that made all their evaluations."""
    fresh = [r for r in rows if r["strategy"] == "ppo_fresh"]
    turns = [r for r in fresh if r.get("turns")]
    budget = max((r["evaluations"] for r in fresh), default=0)

    def named(name: str) -> list[Row]:
        return [r for r in rows if r["strategy"] == name]

    def rates(mine: list[Row], seconds: str) -> Row | None:
        return {
            "units": len(mine), "median_steps": float(np.median([r["steps"] for r in mine])),
            "median_evaluations": float(np.median([r["evaluations"] for r in mine])),
            "median_seconds": float(np.median([r[seconds] for r in mine])),
            "steps_per_second": float(np.median([r["steps"] / r[seconds] for r in mine])),
            "evaluations_per_second": float(np.median([r["evaluations"] / r[seconds] for r in mine])),
        } if mine else None  # fmt: skip

    whole = [r for r in turns if r["evaluations"] == budget]
    return {
        "shared_gpu": rates([r for r in fresh if not r.get("turns")], "seconds"),
        "shared_turns": rates(turns, "seconds"), "alone": rates(named("fresh_alone"), "wall_seconds"),
        "alone_gpu": rates(named("fresh_alone_gpu"), "wall_seconds"), "whole": rates(whole, "seconds"),
        "whole_wall_seconds": float(np.median([r["wall_seconds"] for r in whole])) if whole else None,
        "ended_by": {w: sum(r["reason"] == w for r in fresh) for w in sorted({r["reason"] for r in fresh})},
        "least_evaluations": min((r["evaluations"] for r in fresh), default=None),
        "turns_apart": apart(
            {k: [(math.log(r["final_speedup"]), bool(r.get("turns"))) for r in fresh if r["kernel"] == k]
             for k in dict.fromkeys(r["kernel"] for r in fresh)}
        ),
    }  # fmt: skip
