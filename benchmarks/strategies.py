"""Compare search strategies on equal terms; write strategies.json.

    python benchmarks/strategies.py --folder runs --minutes 9              # a GPU; again until all is done
    python benchmarks/strategies.py --folder runs --remeasure --minutes 9  # one winner a kernel and strategy
    python benchmarks/strategies.py --folder runs --summary              # strategies.json, from what is there
    python benchmarks/strategies.py --device model --kernels softmax --strategies anneal,ppo_twin --seeds 2 \\
        --evaluations 200 --folder /tmp/runs --out /tmp/results          # without a GPU, to try it

A unit is one search: kernel x strategy x seed, --evaluations long. Each is written to its own file in
--folder when it ends, and is not run again: stop at any time, and go on with the same command. One process
a GPU; with several, units are spread over them kernel by kernel.

A unit's curve is its best so far after each evaluation that improved on it, with evaluations and seconds of
the search, so that equal-evaluations and equal-seconds comparisons come from the same log. What the search
believed is not what is reported: its best few are looked at --looks times more, the one with the best
median is chosen by the first half of the looks, and final_speedup is the median of the second half.
--remeasure then takes, for each kernel and strategy, the seed with the best such figure to fresh processes
beside the null experiment.

The summary gives, by strategy: geometric mean, interquartile mean of the log speed-ups with a 95 % interval
of a bootstrap stratified by kernel (Agarwal et al., arXiv 2108.13264), evaluations to 90 % of annealing's
log-gain on the same kernel, and the same at equal seconds; and for the pre-trained policy the transfer to
kernels of families that it has never seen.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from common import geomean, gpu_count, per_gpu, write

from sassafras.writing import write_whole

Row = dict[str, Any]
#: kernels with measurable room on an H200 (schedule-suite.json), all of families that the shipped policy has
#: not seen, and two that it has
KERNELS = (
    "attention/1x4x4096x64", "attention/1x4x4096x128", "softmax/512x2048", "quantise_fp8", "gemv_int4",
    "layernorm",
)  # fmt: skip
STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "random_walk": ("random_walk", {}),
    "greedy": ("greedy", {}),
    "anneal": ("anneal", {}),
    "ppo_fresh": ("ppo", {"policy": "fresh"}),
    "ppo_pretrained": ("ppo", {"policy": "pretrained"}),
    "ppo_twin": ("ppo", {"policy": "twin"}),
    # not among the default ones: with --strategies, on two kernels
    "anneal_prerank8": ("anneal", {"prerank": 8}),
    "fresh_no_mask": ("ppo", {"policy": "fresh", "mask": False}),
    "fresh_all_features": ("ppo", {"policy": "fresh", "view": "all"}),
    "fresh_all_moves": ("ppo", {"policy": "fresh", "moves": "all"}),
    "fresh_noisy_reward": ("ppo", {"policy": "fresh", "reward_noise": 0.002}),
    "twin_paper_features": ("ppo", {"policy": "twin", "view": "paper"}),
    "twin_memory_moves": ("ppo", {"policy": "twin", "moves": "memory"}),
}
DEFAULT = tuple(STRATEGIES)[:6]
LEADERS = 4


def unit_file(folder: Path, kernel: str, strategy: str, seed: int) -> Path:
    """Where a unit's row is kept."""
    return folder / f"{kernel.replace('/', '-')}--{strategy}--{seed}.json"


def keep(path: Path, row: Row) -> None:
    """Write a row, complete or not at all."""
    write_whole(path, json.dumps(row))


def make_device(name: str, lonely: bool) -> Any:
    """The device that units run on."""
    from sassafras.device import CudaDevice, ModelDevice

    return CudaDevice() if name == "cuda" else ModelDevice("sm_90a")


def units(
    kernel: str, todo: list[tuple[str, int]], folder: str, evaluations: int, device: str, lonely: bool,
    looks: int, deadline: float,
) -> int:  # fmt: skip
    """Run the units of one kernel until the deadline (seconds since the epoch); how many were done."""
    from sassafras import game
    from sassafras.frontend import load
    from sassafras.wiring import DEFAULT_ARCH

    name, _, case = kernel.partition("/")
    workload = load(f"suite:{name}")
    chosen = workload.case(case or None)
    if lonely:
        chosen = game.lonely(chosen)
    opened = make_device(device, lonely)
    done = 0
    try:
        baseline = workload.build(chosen, getattr(opened, "arch", None) or DEFAULT_ARCH)
        opened.open(workload, chosen, baseline)
        for strategy, seed in todo:
            if time.time() > deadline:
                break
            path = unit_file(Path(folder), kernel, strategy, seed)
            try:
                row = one(workload, chosen, baseline, opened, strategy, seed, evaluations, looks)
            except Exception as error:  # one unit's failure is a row that says so
                traceback.print_exc()
                row = {"error": f"{type(error).__name__}: {error}"}
            row |= {
                "kernel": kernel, "shape": chosen.name, "strategy": strategy, "seed": seed,
                "modelled": opened.modelled, "environment": opened.environment(), "lonely": lonely,
            }  # fmt: skip
            keep(path, row)
            done += "error" not in row
            print(
                f"{kernel} {strategy} {seed}: {row.get('final_speedup', row.get('error'))} "
                f"({row.get('evaluations')} evaluations, {row.get('seconds', 0):.1f} s)", flush=True,
            )  # fmt: skip
    finally:
        opened.close()
    return done


def one(
    workload: Any, case: Any, baseline: Any, device: Any, strategy: str, seed: int, evaluations: int,
    looks: int,
) -> Row:  # fmt: skip
    """One search, and an honest figure for what it found."""
    from sassafras import search
    from sassafras.core import Budget
    from sassafras.evaluate import Evaluator
    from sassafras.schedule import ScheduleSpace
    from sassafras.search.prerank import Preranked
    from sassafras.validate import Validator
    from sassafras.wiring import prerank_score

    name, settings = STRATEGIES[strategy]
    settings = dict(settings)
    pool = int(settings.pop("prerank", 1))
    made = search.get(name, settings)
    space: Any = ScheduleSpace(baseline, **getattr(made, "space_options", {}))
    if pool > 1:
        space = Preranked(space, prerank_score(workload, case, baseline), pool)
    validator = Validator(baseline.cubin, baseline.name)
    judge = Evaluator(device, lambda _, cubin: validator.check(cubin), baseline)
    curve: list[tuple[int, float, float]] = []

    def note(p: Any) -> None:
        best = 1.0 / p.best.cost
        if not curve or best > curve[-1][2]:
            curve.append((p.evaluations, round(p.elapsed, 4), best))

    found = search.run(
        made, space, judge, Budget(evaluations=evaluations), seed=seed, progress=note, keep=LEADERS
    )
    final, cubin = look_again(device, found, looks)
    return {
        "evaluations": found.evaluations, "seconds": found.seconds, "reason": found.reason,
        "believed_speedup": 1.0 / found.best.cost, "final_speedup": final,
        "area_under_curve": area(curve, found.evaluations), "curve": curve,
        "verdicts": dict(found.verdicts), "settings": search.settings_of(made), "prerank": pool,
        "evaluations_per_second": found.evaluations / max(found.seconds, 1e-9), "winner": cubin,
    }  # fmt: skip


def look_again(device: Any, found: Any, looks: int) -> tuple[float, str]:
    """A figure that no luck of the search's has a part in, and the winner's cubin (base64 of zlib)."""
    import base64
    import zlib

    leaders = [leader.candidate for leader in found.leaders]
    if device.modelled:  # deterministic: another look says the same
        best, final = leaders[0], 1.0 / found.best.cost
    else:
        seen: list[list[float]] = [[] for _ in leaders]
        for _ in range(max(looks, 2)):
            for n, candidate in enumerate(leaders):
                outcome = device.run(candidate)
                if outcome.cost is not None:
                    seen[n].append(1.0 / outcome.cost)
        # the first half chooses, the second is reported
        halves = [(s[: len(s) // 2], s[len(s) // 2 :]) for s in seen]
        able = [n for n, (a, b) in enumerate(halves) if a and b]
        if not able:
            return 1.0, ""
        top = max(able, key=lambda n: np.median(halves[n][0]))
        best, final = leaders[top], float(np.median(halves[top][1]))
    return float(final), base64.b64encode(zlib.compress(best.kernel.cubin, 9)).decode()


def area(curve: list[tuple[int, float, float]], evaluations: int) -> float:
    """Mean over evaluations of the log of the best speed-up so far, in percent."""
    total = 0.0
    for (at, _, best), nxt in zip(curve, [*curve[1:], (evaluations + 1, 0.0, 0.0)], strict=True):
        total += 100.0 * math.log(max(best, 1e-9)) * (nxt[0] - at)
    return total / max(evaluations, 1)


def best_at(curve: list[list[float]], limit: float, column: int) -> float:
    """Best speed-up within so many evaluations (column 0) or seconds (column 1)."""
    held = [point[2] for point in curve if point[column] <= limit]
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
    return next((int(point[0]) for point in row["curve"] if point[2] >= target), None)


def middle_or_none(needed: list[float]) -> float | None:
    """The median of evaluations needed (infinity: never), None where it is infinite or there are none."""
    found = float(np.median(needed)) if needed else math.inf
    return found if math.isfinite(found) else None


def summarise(rows: list[Row]) -> Row:
    """The comparison: everything relative to annealing on the same kernel."""
    from sassafras.game import HELD_OUT

    good = [r for r in rows if "error" not in r]
    kernels = sorted({r["kernel"] for r in good})
    anneal = {
        k: geomean(r["final_speedup"] for r in good if r["kernel"] == k and r["strategy"] == "anneal")
        for k in kernels
    }
    believed = {
        k: geomean(r["believed_speedup"] for r in good if r["kernel"] == k and r["strategy"] == "anneal")
        for k in kernels
    }
    seconds = {
        k: float(np.median([r["seconds"] for r in good if r["kernel"] == k and r["strategy"] == "anneal"]))
        for k in kernels
        if anneal[k]
    }
    by: dict[str, Row] = {}
    for name in dict.fromkeys(r["strategy"] for r in good):
        mine = [r for r in good if r["strategy"] == name]
        middle, low, high = stratified(mine)
        needed: list[float] = []
        missed = 0
        for r in mine:
            gain = believed.get(r["kernel"])
            if not gain or gain <= 1.0:
                continue
            # (curves hold what searches believed, so the target does too)
            at = reach(r, gain**0.9)
            missed += at is None
            needed.append(math.inf if at is None else at)
        equal = [best_at(r["curve"], seconds[r["kernel"]], 1) for r in mine if r["kernel"] in seconds]
        by[name] = {
            "units": len(mine), "kernels": len({r["kernel"] for r in mine}),
            "geomean_final": geomean(r["final_speedup"] for r in mine),
            "iqm_final": middle, "iqm_low": low, "iqm_high": high,
            "mean_area_under_curve": float(np.mean([r["area_under_curve"] for r in mine])),
            "evaluations_to_90_percent": middle_or_none(needed),
            "never_reached_90_percent": missed, "could_reach": len(needed),
            "geomean_believed_at_equal_seconds": geomean(equal),
            "evaluations_per_second": float(np.median([r["evaluations_per_second"] for r in mine])),
            "refused": sum(r["verdicts"].get("illegal_schedule", 0) for r in mine),
            "wrong_or_crashed": sum(
                r["verdicts"].get(v, 0) for r in mine for v in ("wrong_result", "crashed", "timed_out")
            ),
        }  # fmt: skip
    held = {n for names in HELD_OUT.values() for n in names}
    transfer = []
    for k in kernels:
        gain = anneal[k]
        if k.split("/")[0] not in held or not gain or gain <= 1.01:
            continue
        target = (believed[k] or 1.0) ** 0.9
        medians = {}
        for name in ("anneal", "ppo_pretrained", "ppo_twin"):
            at = [reach(r, target) for r in good if r["kernel"] == k and r["strategy"] == name]
            medians[name] = float(np.median([math.inf if a is None else a for a in at])) if at else None
        transfer.append({
            "kernel": k, "annealing_final": gain,
            "evaluations_to_90_percent": {n: v if v is None or math.isfinite(v) else "never"
                                          for n, v in medians.items()},
        })  # fmt: skip
    winner = max(by, key=lambda n: by[n]["iqm_final"]) if by else None
    return {
        "modelled": any(r.get("modelled") for r in good),
        "strategies": by, "best_interquartile_mean": winner,
        "transfer": {
            "kernels": transfer,
            "conclusion": None if len(transfer) >= 4 else "inconclusive: fewer than four kernels with room",
        },
        "errors": [
            {k: r[k] for k in ("kernel", "strategy", "seed", "error")} for r in rows if "error" in r
        ],
    }  # fmt: skip


def read(folder: Path) -> list[Row]:
    """All units that are done."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*--*--*.json"))]


def remeasure(kernel: str, names: list[str], folder: str, deadline: float) -> int:
    """The best seed's winner of each strategy, in fresh processes beside the null."""
    import base64
    import zlib

    from sassafras.core import Candidate
    from sassafras.device import CudaDevice
    from sassafras.frontend import load

    rows = [r for r in read(Path(folder)) if r["kernel"] == kernel and "error" not in r]
    name, _, case = kernel.partition("/")
    workload = load(f"suite:{name}")
    chosen = workload.case(case or None)
    device = CudaDevice()
    done = 0
    try:
        baseline = workload.build(chosen, device.arch)
        device.open(workload, chosen, baseline)
        for strategy in names:
            mine = [r for r in rows if r["strategy"] == strategy and r.get("winner")]
            if not mine or any("remeasured" in r for r in mine) or time.time() > deadline:
                continue
            top = max(mine, key=lambda r: r["final_speedup"])
            cubin = zlib.decompress(base64.b64decode(top["winner"]))
            outcome = device.remeasure(Candidate(baseline.with_cubin(cubin)))
            top["remeasured"] = {
                "verdict": str(outcome.verdict), "speedup": outcome.speedup, "null": outcome.null,
                "low": outcome.interval and outcome.interval.low,
                "high": outcome.interval and outcome.interval.high,
                "null_low": outcome.null_interval and outcome.null_interval.low,
                "null_high": outcome.null_interval and outcome.null_interval.high,
            }  # fmt: skip
            keep(unit_file(Path(folder), kernel, strategy, top["seed"]), top)
            print(kernel, strategy, top["remeasured"], flush=True)
            done += 1
    finally:
        device.close()
    return done


def publish(folder: Path, out: str | None) -> None:
    """strategies.json, from all units in the folder."""
    rows = read(folder)
    if not rows:
        raise SystemExit(f"no units in {folder}: run some first")
    environment = next((r["environment"] for r in rows if "environment" in r), {})
    kept = [{k: v for k, v in r.items() if k not in ("environment", "winner")} for r in rows]
    name = "strategies-modelled" if any(r.get("modelled") for r in rows) else "strategies"
    summary = summarise(rows)
    print(json.dumps(summary, indent=1))
    print(write(name, kept, summary, environment, out=out))


def main() -> None:
    """Command line."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--folder", type=Path, required=True, help="where units are kept")
    parse.add_argument("--kernels", default=",".join(KERNELS))
    parse.add_argument("--strategies", default=",".join(DEFAULT))
    parse.add_argument("--seeds", type=int, default=5)
    parse.add_argument("--evaluations", type=int, default=3000)
    parse.add_argument("--device", choices=("cuda", "model"), default="cuda")
    parse.add_argument("--lonely", action="store_true", help="one CTA an SM (timing model: not chaotic then)")
    parse.add_argument("--looks", type=int, default=14, help="at the leaders, after the search")
    parse.add_argument("--gpus", type=int, help="processes [default: GPUs]")
    parse.add_argument("--minutes", type=float, default=1e6, help="start no unit after so many")
    parse.add_argument("--remeasure", action="store_true")
    parse.add_argument("--summary", action="store_true")
    parse.add_argument("--out")
    given = parse.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.summary:
        publish(given.folder, given.out)
        return
    deadline = time.time() + 60 * given.minutes
    kernels, names = given.kernels.split(","), given.strategies.split(",")
    if unknown := [n for n in names if n not in STRATEGIES]:
        raise SystemExit(f"unknown strategies {unknown}; there are {', '.join(STRATEGIES)}")
    gpus = given.gpus or (gpu_count() if given.device == "cuda" else 1) or 1
    items: list[tuple[Any, ...]] = []
    if given.remeasure:
        work: Any = remeasure
        items = [(k, names, str(given.folder), deadline) for k in kernels]
    else:
        work = units
        for kernel in kernels:
            # seeds outermost: what is there after a short sitting is balanced over strategies
            todo = [
                (name, seed)
                for seed in range(given.seeds)
                for name in names
                if not unit_file(given.folder, kernel, name, seed).exists()
            ]
            parts = max(1, -(-gpus // len(kernels)))
            items += [
                (kernel, todo[p::parts], str(given.folder), given.evaluations, given.device, given.lonely,
                 given.looks, deadline)
                for p in range(parts) if todo[p::parts]
            ]  # fmt: skip
        # fill every sitting fairly: kernels take turns seed by seed where there are fewer GPUs than kernels
        if gpus < len(items):
            items = _turns(items, given.seeds)
    failed = 0
    for number, result in per_gpu(work, items, gpus) if items else ():
        if isinstance(result, Exception):
            failed += 1
            traceback.print_exception(result)
            print(f"{items[number][0]}: {result}", flush=True)
    left = sum(
        not unit_file(given.folder, k, n, s).exists()
        for k in kernels
        for n in names
        for s in range(given.seeds)
    )
    print(f"{left} units left, {failed} workers failed")
    publish(given.folder, given.out)


def _turns(items: list[tuple[Any, ...]], seeds: int) -> list[tuple[Any, ...]]:
    """Split each kernel's units by seed, and let the kernels take turns."""
    split = []
    for seed in range(seeds):
        for kernel, todo, *rest in items:
            if part := [u for u in todo if u[1] == seed]:
                split.append((kernel, part, *rest))
    return split


if __name__ == "__main__":
    main()
