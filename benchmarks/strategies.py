"""Search strategies with equal evaluations, on a GPU or on the timing model; writes strategies.json.

    python benchmarks/strategies.py --folder runs --seconds 540     # a GPU; the same command goes on
    python benchmarks/strategies.py --folder runs --summary         # strategies.json of what is there
    python benchmarks/strategies.py --folder /tmp/runs --out /tmp --device model --kernels softmax \\
        --strategies anneal,list --seeds 2 --evaluations 200        # without a GPU

A search is a kernel, a strategy and a seed. Each finished one is a file in --folder and is not run again;
one that the deadline cuts is discarded. All strategies of a kernel and seed run on one GPU, one after the
other, and seeds are outermost, so that a short sitting leaves whole comparisons.

A search selects on noise, so what it believed is not what is reported: its best few are timed --looks times
more, the first half of these chooses among them, and the median of the second half is ``final_speedup``. On
the timing model, other start times choose, and others again are reported.

The summary names the interquartile mean of log speed-ups by strategy, with a 95 % interval of a bootstrap
stratified by kernel (Agarwal et al., arXiv 2108.13264), evaluations to 90 % of annealing's gain on the same
kernel, and what was believed after annealing's seconds. Only kernels and seeds that every strategy has done
count.
"""

from __future__ import annotations

import json
import math
import os
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import command_line, geomean, gpu_count, one_gpu, per_gpu, write

from sassafras.core.files import locked

Row = dict[str, Any]
#: strategies by what they are called here: (name, settings, options of the space)
STRATEGIES: dict[str, tuple[str, Row, Row]] = {
    "random_walk": ("random_walk", {}, {}),
    "greedy": ("greedy", {}, {}),
    "anneal": ("anneal", {}, {}),
    "guided": ("guided", {}, {}),
    "list": ("list", {}, {}),
    "ppo": ("ppo", {}, {}),
    # CuAsmRL's moves without its agent
    "walk_memory_moves": ("random_walk", {"length": 32}, {"moves": "memory"}),
    "greedy_memory_moves": ("greedy", {}, {"moves": "memory"}),
}
DEFAULT = ("random_walk", "greedy", "anneal", "guided", "ppo")
#: kernels that annealing made at least 2.8 % faster (schedule-suite.json)
KERNELS = (
    "softmax/512x2048",
    "quantise_fp8/2048x4096",
    "attention/1x4x4096x32",
    "gemv_int4/4096x4096",
    "softmax/512x4095",
    "layernorm/2048x1024",
)
#: best few of a search that are timed again
LEADERS = 4
#: columns of a curve: best so far by evaluations, seconds of the device, seconds in all
EVALUATIONS, DEVICE_SECONDS, SPEEDUP, SECONDS = range(4)


@dataclass(frozen=True)
class Settings:
    """What all searches of a comparison share. Travels to processes.

    Attributes:
        folder: where finished searches are kept.
        device: ``cuda`` or ``model``.
        evaluations: of each search.
        looks: at the leaders, after the search.
        deadline: time after which nothing begins.
        shared: other searches time on the same GPU, one candidate at a time; networks are on it, too.
    """

    folder: Path
    device: str
    evaluations: int
    looks: int
    deadline: float
    shared: bool = False

    @property
    def asked(self) -> list[Any]:
        """What the searches of a folder have in common."""
        return [self.device, self.evaluations, self.looks]

    @property
    def turns(self) -> str:
        """Lock file of this process's GPU; "" where it is not shared."""
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        return str(self.folder / f"gpu-{gpu}.lock") if self.shared else ""

    def path(self, kernel: str, strategy: str, seed: int) -> Path:
        """Where a search is kept."""
        return self.folder / f"{kernel.replace('/', '-')}--{strategy}--{seed}.json"


# -- searches -----------------------------------------------------------------------------------------------


class Timed:
    """A device that counts the seconds it spends on candidates; `turns`: lock file that it holds for each."""

    def __init__(self, device: Any, turns: str = "") -> None:
        self.device, self.turns, self.busy = device, turns, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def run(self, candidate: Any) -> Any:
        """See `core.Device`."""
        with locked(self.turns):
            begin = time.monotonic()
            try:
                return self.device.run(candidate)
            finally:
                self.busy += time.monotonic() - begin


def play(kernel: str, seed: int, names: Sequence[str], settings: Settings) -> int:
    """Run what is missing of a kernel's strategies with one seed; how many were done."""
    from sassafras.evaluate.gpu import CudaDevice
    from sassafras.jobs.opening import DEFAULT_ARCH
    from sassafras.targets import load
    from sassafras.timing_model import ModelDevice

    missing = [name for name in names if not settings.path(kernel, name, seed).exists()]
    if not missing or time.time() > settings.deadline:
        return 0
    family, _, shape = kernel.partition("/")
    workload = load(f"suite:{family}")
    case = workload.case(shape or None)
    made = CudaDevice() if settings.device == "cuda" else ModelDevice("sm_90a")
    device = Timed(made, settings.turns)
    baseline = workload.build(case, getattr(device.device, "arch", None) or DEFAULT_ARCH)
    done = 0
    try:
        device.open(workload, case, baseline)
        for name in missing:
            row: Row = {"kernel": kernel, "strategy": name, "seed": seed, "modelled": device.modelled}
            row["asked"] = settings.asked
            row |= {"environment": device.environment()}
            try:
                found = search_once(name, seed, device, baseline, settings)
            except Exception as error:  # one failure is a row that says so
                traceback.print_exc()
                path = settings.path(kernel, name, seed).with_suffix(".error")
                path.write_text(json.dumps(row | {"error": f"{type(error).__name__}: {error}"}))
                continue
            if found is None:
                return done
            keep(settings.path(kernel, name, seed), row | found)
            done += 1
    finally:
        device.close()
    return done


def keep(path: Path, row: Row) -> None:
    """Write a finished search whole; an error that it had before is over."""
    from sassafras.core.files import write_whole

    write_whole(path, json.dumps(row))
    path.with_suffix(".error").unlink(missing_ok=True)
    print(f"{row['kernel']} {row['strategy']} {row['seed']}: {row['final_speedup']:.4f}", flush=True)


def search_once(name: str, seed: int, device: Timed, baseline: Any, settings: Settings) -> Row | None:
    """One search and a figure for its winner that no luck of the search's has a part in; None if cut."""
    from sassafras import search
    from sassafras.core import Budget
    from sassafras.evaluate import KernelEvaluator
    from sassafras.schedule import ScheduleSpace
    from sassafras.validate import Validator

    called, options, narrowed = STRATEGIES[name]
    if settings.shared and called == "ppo":
        where = "cuda" if settings.device == "cuda" else "cpu"
        options = options | {"on": where, "turns": settings.turns}
    strategy = search.get(called, options)
    space = ScheduleSpace(baseline, **(getattr(strategy, "space_options", {}) | narrowed))
    validator = Validator(baseline.cubin, baseline.name)
    judge = KernelEvaluator(device, lambda _, cubin: validator.check(cubin), baseline)
    curve: list[tuple[int, float, float, float]] = []
    begin, device.busy = time.monotonic(), 0.0

    def note(progress: Any) -> None:
        best = 1.0 / progress.best.cost
        if not curve or best > curve[-1][SPEEDUP]:
            curve.append((progress.evaluations, device.busy, best, time.monotonic() - begin))

    budget = Budget(evaluations=settings.evaluations)
    more = {"seed": seed, "progress": note, "keep": LEADERS}
    found = search.run(strategy, space, judge, budget, stop=lambda: time.time() > settings.deadline, **more)
    seconds, busy = time.monotonic() - begin, device.busy
    if found.reason == "interrupted":
        return None
    return {
        "evaluations": found.evaluations,
        "gpu_seconds": busy,
        "cpu_seconds": seconds - busy,
        "seconds": seconds,
        "reason": found.reason,
        "believed_speedup": 1.0 / found.best.cost,
        "final_speedup": look_again(device, found, settings.looks),
        "curve": curve,
        "verdicts": dict(found.verdicts),
        "settings": search.settings_of(strategy),
    }


def look_again(device: Timed, found: Any, looks: int) -> float:
    """The speed-up of the best of the leaders, chosen by other measurements than those reported."""
    from sassafras.core import Redrawing
    from sassafras.jobs.confirm import select

    leaders = [leader.candidate for leader in found.leaders]
    if isinstance(device.device, Redrawing):
        best = [*select(device.device, found.leaders, lambda outcome: None), leaders[0]][0]
        return float(device.remeasure(best).modelled_ratio or 1.0)
    seen: list[list[float]] = [[] for _ in leaders]
    for _ in range(max(looks, 2)):
        for times, candidate in zip(seen, leaders, strict=True):
            if (cost := device.run(candidate).cost) is not None:
                times.append(1.0 / cost)
    halves = [(times[: len(times) // 2], times[len(times) // 2 :]) for times in seen]
    able = [(float(np.median(a)), float(np.median(b))) for a, b in halves if a and b]
    return max(able)[1] if able else 1.0


# -- summary ------------------------------------------------------------------------------------------------


def iqm(values: np.ndarray) -> float:
    """Interquartile mean: of the middle half."""
    ordered = np.sort(values)
    cut = len(ordered) // 4
    return float(np.mean(ordered[cut : len(ordered) - cut]))


def stratified(rows: list[Row], draws: int = 2000) -> tuple[float, float | None, float | None]:
    """Interquartile mean of log speed-ups with a 95 % interval; seeds are resampled within each kernel.

    There is no interval where no kernel has two seeds.
    """
    by_kernel: dict[str, list[float]] = {}
    for row in rows:
        by_kernel.setdefault(row["kernel"], []).append(math.log(row["final_speedup"]))
    strata = [np.array(values) for values in by_kernel.values()]
    if max(map(len, strata)) < 2:
        return math.exp(iqm(np.concatenate(strata))), None, None
    rng = np.random.default_rng(0)
    found = [iqm(np.concatenate([s[rng.integers(0, len(s), len(s))] for s in strata])) for _ in range(draws)]
    low, high = np.quantile(found, [0.025, 0.975])
    return math.exp(iqm(np.concatenate(strata))), math.exp(low), math.exp(high)


def best_at(row: Row, limit: float, column: int) -> float:
    """Best speed-up believed within so many evaluations or seconds."""
    held = [point[SPEEDUP] for point in row["curve"] if point[column] <= limit]
    return float(held[-1]) if held else 1.0


def reach(row: Row, target: float) -> float:
    """Evaluations until a search believed in a speed-up; infinity if it never did."""
    return next((point[EVALUATIONS] for point in row["curve"] if point[SPEEDUP] >= target), math.inf)


def balanced(rows: list[Row]) -> list[Row]:
    """Searches of the kernels and seeds that every strategy has done; all where there are none."""
    done = [
        {(r["kernel"], r["seed"]) for r in rows if r["strategy"] == name}
        for name in {r["strategy"] for r in rows}
    ]
    common = set.intersection(*done) if done else set()
    return [r for r in rows if not common or (r["kernel"], r["seed"]) in common]


def summarise(rows: list[Row]) -> Row:
    """The comparison, everything relative to annealing on the same kernel."""
    good = [r for r in rows if "error" not in r]
    main = balanced(good)
    names = [name for name in STRATEGIES if any(r["strategy"] == name for r in main)]
    final = {(r["strategy"], r["kernel"], r["seed"]): r["final_speedup"] for r in main}

    def above(one: str, other: str) -> int:
        return sum(v > final.get((other, *at), math.inf) for (name, *at), v in final.items() if name == one)

    by = {name: _of_one(main, name) for name in names}
    winner = max(by, key=lambda n: by[n]["iqm_final"], default=None)
    return {
        "modelled": any(r["modelled"] for r in good),
        "units": len(main),
        "kernels": sorted({r["kernel"] for r in main}),
        "seeds": sorted({r["seed"] for r in main}),
        "left_out_for_balance": len(good) - len(main),
        "searched_evaluations": sum(r["evaluations"] for r in good),
        "strategies": by,
        "best_interquartile_mean": winner,
        "not_told_apart_from_it": [
            n
            for n in by
            if winner and n != winner and (by[n]["iqm_high"] or math.inf) >= (by[winner]["iqm_low"] or 0.0)
        ],
        "by_kernel": {
            kernel: {
                n: geomean(v for (name, k, _), v in final.items() if name == n and k == kernel) for n in names
            }
            for kernel in sorted({r["kernel"] for r in main})
        },
        "above": {one: {other: above(one, other) for other in names if other != one} for one in names},
        "errors": [{k: r[k] for k in ("kernel", "strategy", "seed", "error")} for r in rows if "error" in r],
    }


def _of_one(rows: list[Row], name: str) -> Row:
    mine = [r for r in rows if r["strategy"] == name]
    middle, low, high = stratified(mine)
    needed: list[float] = []
    equal: list[float] = []
    for row in mine:
        annealed = [r for r in rows if r["kernel"] == row["kernel"] and r["strategy"] == "anneal"]
        if not annealed:
            continue
        # curves hold what searches believed, so the target does too
        gain = geomean(r["believed_speedup"] for r in annealed) or 1.0
        if gain > 1.0:
            needed.append(reach(row, gain**0.9))
        equal.append(best_at(row, float(np.median([r["seconds"] for r in annealed])), SECONDS))
    verdicts = [r["verdicts"] for r in mine]
    typical = float(np.median(needed)) if needed else math.inf
    return {
        "units": len(mine),
        "geomean_final": geomean(r["final_speedup"] for r in mine),
        "iqm_final": middle,
        "iqm_low": low,
        "iqm_high": high,
        "evaluations_to_90_percent": typical if math.isfinite(typical) else None,
        "never_reached_90_percent": sum(map(math.isinf, needed)),
        "could_reach": len(needed),
        "geomean_believed_at_equal_seconds": geomean(equal),
        "median_evaluations": float(np.median([r["evaluations"] for r in mine])),
        "median_gpu_seconds": float(np.median([r["gpu_seconds"] for r in mine])),
        "median_cpu_seconds": float(np.median([r["cpu_seconds"] for r in mine])),
        "refused": sum(v.get("illegal_schedule", 0) for v in verdicts),
        "wrong_or_crashed": sum(
            v.get(w, 0) for v in verdicts for w in ("wrong_result", "crashed", "timed_out")
        ),
    }


def finished(folder: Path, asked: list[Any] | None = None) -> list[Row]:
    """All searches in the folder, failed ones last; with `asked` (`Settings.asked`) there may be none.

    Raises:
        SystemExit: there are none, or they were asked for otherwise, or one unlike another.
    """
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*--*--*.json"))]
    rows += [json.loads(path.read_text()) for path in sorted(folder.glob("*--*--*.error"))]
    if not rows and not asked:
        raise SystemExit(f"error: no searches in {folder}: run some first")
    if any(row.get("asked", asked) != (asked or rows[0].get("asked")) for row in rows):
        raise SystemExit(f"error: searches in {folder} had another --device, --evaluations or --looks")
    return rows


def publish(folder: Path, out: Path) -> Path:
    """strategies.json (on the timing model strategies-modelled.json) of all searches in the folder."""
    rows = finished(folder)
    summary = summarise(rows)
    for name, of in summary["strategies"].items():
        print(f"{name:20} {of['iqm_final']:.4f} [{of['iqm_low']}, {of['iqm_high']}]")
    return record("strategies", rows, summary, out)


def record(name: str, rows: Sequence[Row], summary: Row, out: Path) -> Path:
    """Write a result of searches; the name says so where they are modelled."""
    kept = [{k: v for k, v in row.items() if k != "environment"} for row in rows]
    name += "-modelled" if summary["modelled"] else ""
    return write(name, kept, summary, one_gpu(row.get("environment") for row in rows), out=out)


def main() -> None:
    """Command line."""
    parse = command_line(__doc__)
    parse.add_argument("--folder", type=Path, required=True, help="where searches are kept")
    parse.add_argument("--kernels", default=",".join(KERNELS))
    parse.add_argument("--strategies", default=",".join(DEFAULT), help=f"of {', '.join(STRATEGIES)}")
    parse.add_argument("--seeds", type=int, default=5)
    parse.add_argument("--evaluations", type=int, default=3000)
    parse.add_argument("--device", choices=("cuda", "model"), default="cuda")
    parse.add_argument("--looks", type=int, default=14, help="at the leaders, after the search")
    parse.add_argument("--gpus", type=int, help="[default: all]")
    parse.add_argument("--seconds", type=float, default=1e7, help="stop after so many")
    parse.add_argument("--summary", action="store_true", help="run nothing, write the result")
    given = parse.parse_args()
    names = given.strategies.split(",")
    if unknown := [name for name in names if name not in STRATEGIES]:
        raise SystemExit(f"error: unknown strategies {unknown}; there are {', '.join(STRATEGIES)}")
    if given.summary:
        print(publish(given.folder, given.out))
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    common = {key: getattr(given, key) for key in ("folder", "device", "evaluations", "looks")}
    settings = Settings(**common, deadline=time.time() + given.seconds)
    finished(given.folder, settings.asked)
    items = [(k, s, names, settings) for s in range(given.seeds) for k in given.kernels.split(",")]
    gpus = given.gpus or (gpu_count() if given.device == "cuda" else 1) or 1
    for index, result in per_gpu(play, items, gpus):
        if isinstance(result, Exception):
            print(f"{items[index][0]}, seed {items[index][1]}: {result!r}", flush=True)
    print(publish(given.folder, given.out))
    left = sum(not settings.path(k, n, s).exists() for k, s, names, _ in items for n in names)
    print(f"{left} searches left", flush=True)


if __name__ == "__main__":
    main()
