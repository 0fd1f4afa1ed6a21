"""Do modelled gains survive other draws of start times, and do their intervals hold what they say?

    python benchmarks/redraws.py [--workers 2] [--budget 60s] [--only softmax] [--sets 20] [--out FOLDER]
    python benchmarks/redraws.py --workers 16 --measure    # where there is a GPU: measures the winners too

Writes redraws.json. Each kernel of the suite whose rank correlation is at least 0.3 is searched on the timing
model as ``sassafras optimize --device model`` does. The row holds the chosen leader's ratio three times: on
the draws that it was selected on, re-drawn with its interval and null (as the command line reports it), and
on 100 draws that neither saw. The interval has to hold the third: it is made for the mean of 100 other draws,
so it includes their own error. `--sets` draws 100 more so many times: the share inside is `coverage`, which
should be 0.95. A leader that did not beat the null is compared all the same. No GPU, unless `--measure` asks
for one: the chosen schedules are then re-measured in fresh processes beside their null experiment.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from common import command_line, ends, geomean, without_gpu, write

Row = dict[str, Any]
#: draws that the reported interval is made for
OTHERS = 100


def search(name: str, budget: str, seed: int, sets: int) -> tuple[Row, bytes]:
    """One kernel: its row, and the chosen leader's cubin."""
    from sassafras import search as strategies
    from sassafras.core import Budget, beats
    from sassafras.jobs.confirm import select
    from sassafras.jobs.job import Job
    from sassafras.schedule.spaces import space_of
    from sassafras.suite import load
    from sassafras.timing_model import ModelDevice, correlation
    from sassafras.timing_model.draws import DrawSet, half_width
    from sassafras.validate import Validator

    workload = load(name)
    case = workload.case(None)
    baseline = workload.build(case, "sm_90a")
    strategy, device = strategies.get("guided", {}), ModelDevice("sm_90a")
    space = space_of("swaps", Validator, asked_by_name=False, **getattr(strategy, "space_options", {}))(
        baseline
    )
    job = Job(
        workload, case, baseline, strategy, Budget.parse(budget), seed, device, space, None, lambda text: None
    )
    device.open(workload, case, baseline)
    try:
        found = job.search(None)
        notes: list[str] = []
        chosen = select(device, job._contenders(found, notes), lambda outcome: notes.append(outcome.detail))
        candidate = chosen[0] if chosen else found.baseline.candidate
        final = device.remeasure(candidate)
        assert final.interval is not None and final.null_interval is not None
        before = device.draws.baseline(DrawSet.OTHER, 0, OTHERS * (sets + 1))
        after = device.drawn(candidate, DrawSet.OTHER, 0, OTHERS * (sets + 1))
        fresh = [
            float(before[n : n + OTHERS].mean() / after[n : n + OTHERS].mean())
            for n in range(0, len(before), OTHERS)
        ]
        selected = next((1 / x.cost for x in found.leaders if x.candidate.digest == candidate.digest), 1.0)
    finally:
        device.close()
    inside = [final.interval.low <= ratio <= final.interval.high for ratio in fresh]
    known = correlation(workload.name, case.name) or {}
    row: Row = {
        "kernel": name,
        "shape": case.name,
        "kendall_tau": known.get("kendall_tau"),
        "selected": selected,
        "modelled": final.modelled_ratio,
        **ends("modelled", final.interval),
        "half_width": half_width(final.interval),
        "null": final.null,
        **ends("null", final.null_interval),
        "draws": final.draws,
        "fresh": fresh[0],
        "inside": inside[0],
        "coverage": sum(inside[1:]) / sets if sets else None,
        "gain": beats(final),
        "confirmed": beats(final) and fresh[0] > max(1.0, final.null_interval.high),
        "evaluations": found.evaluations,
        "seconds": found.seconds,
        "digest": candidate.digest,
        "baseline_digest": baseline.digest,
        "notes": notes,
    }
    return row, candidate.kernel.cubin


def measured(name: str, cubin: bytes) -> Row:
    """The chosen leader on this machine's GPU, in fresh processes."""
    from sassafras.core import Candidate, Evaluation
    from sassafras.jobs.opening import open_device
    from sassafras.targets import load

    workload = load(f"suite:{name}")  # with the source from which worker processes load it
    case = workload.case(None)
    baseline = workload.build(case, "sm_90a")
    device = open_device("cuda")
    try:
        device.open(workload, case, baseline)
        again: Evaluation = device.remeasure(  # type: ignore[attr-defined]
            Candidate(baseline.with_cubin(cubin)), processes=5, rounds=60, cold_l2=False
        )
        gpu = device.name
    finally:
        device.close()
    row: Row = {"gpu": gpu, "verdict": again.verdict.value, "speedup": again.speedup, "null": again.null}
    row |= ends("speedup", again.interval) | ends("null", again.null_interval)
    return {f"measured_{key}" if key != "gpu" else key: value for key, value in row.items()}


def summarise(rows: list[Row]) -> Row:
    """What the issue is about: how many intervals held, how many gains were gains."""
    shares = [row["coverage"] for row in rows if row["coverage"] is not None]
    both = [r for r in rows if r.get("measured_speedup_low") is not None]
    summary: Row = {
        "kernels": len(rows),
        "inside": sum(r["inside"] for r in rows),
        "others": OTHERS,
        "coverage": sum(shares) / len(shares) if shares else None,
        "widest_half_width": max((r["half_width"] for r in rows), default=None),
        "gains": sum(r["gain"] for r in rows),
        "confirmed": sum(r["confirmed"] for r in rows),
        "geomean_selected": geomean(r["selected"] for r in rows),
        "geomean_modelled": geomean(r["modelled"] for r in rows),
        "geomean_fresh": geomean(r["fresh"] for r in rows),
    }
    summary["not_correct"] = [r["kernel"] for r in rows if r.get("measured_verdict", "correct") != "correct"]
    if both:
        faster = [r for r in both if r["measured_speedup_low"] > max(1.0, r["measured_null_high"] or 1.0)]
        summary |= {
            "measured": len(both),
            "measured_faster": len(faster),
            "gpu": both[0]["gpu"],
            "gains_measured_faster": sum(r["gain"] for r in faster),
            "geomean_measured": geomean(r["measured_speedup"] for r in both),
        }
    return summary


def names(only: str) -> list[str]:
    """Kernels of the suite of which the model's ratio is evidence, in the suite's order."""
    from sassafras import suite
    from sassafras.timing_model.evidence import correlation, refusal

    chosen = only.split(",") if only else suite.names()
    if unknown := set(chosen) - set(suite.names()):
        raise SystemExit(f"error: no kernel of the suite: {', '.join(sorted(unknown))}")
    known = {name: correlation(name, suite.load(name).case(None).name) for name in chosen}
    return [name for name in chosen if known[name] and not refusal(known[name])]


def main(arguments: list[str] | None = None) -> int:
    """See the module; 1 when a kernel could not be searched or measured."""
    parser = command_line(__doc__)
    parser.add_argument("--workers", type=int, default=max(1, os.cpu_count() or 1), help="processes")
    parser.add_argument("--budget", default="60s", help="of a kernel's search: 60s, 600e, or both")
    parser.add_argument("--sets", type=int, default=20, help="further sets of 100 draws, for the coverage")
    parser.add_argument("--only", default="", help="workloads, by comma")
    parser.add_argument("--measure", action="store_true", help="re-measure what was chosen on this GPU")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    from sassafras.cuda.environment import environment

    wanted = names(options.only)
    rows: dict[str, Row] = {}
    cubins: dict[str, bytes] = {}
    failed: Row = {}
    with ProcessPoolExecutor(max(1, min(options.workers, len(wanted))), get_context("spawn")) as pool:
        jobs = {
            pool.submit(search, name, options.budget, options.seed, options.sets): name for name in wanted
        }
        for job in as_completed(jobs):
            name = jobs[job]
            try:
                rows[name], cubins[name] = job.result()
            except Exception as error:
                failed[name] = str(error)
                print(f"{name}: {error}", flush=True)
                continue
            row = rows[name]
            print(
                f"{name}: selected {row['selected']:.4f}, re-drawn {row['modelled']:.4f} "
                f"[{row['modelled_low']:.4f}, {row['modelled_high']:.4f}], null {row['null']:.4f} "
                f"[{row['null_low']:.4f}, {row['null_high']:.4f}], 100 others {row['fresh']:.4f}, "
                f"coverage {row['coverage']}, {row['evaluations']} evaluations",
                flush=True,
            )

    def save() -> Row:
        kept = [rows[name] for name in wanted if name in rows]
        summary = summarise(kept) | {"sets": options.sets, "budget": options.budget, "failed": failed}
        where = (environment() if "gpu" in summary else {}) | without_gpu("numba", "numpy", "triton")
        where |= {"gpu": summary.get("gpu"), "cpus": os.cpu_count()}
        print(write("redraws", kept, summary, where, seed=options.seed, out=options.out), flush=True)
        return summary

    summary = save()  # before the GPU runs: a crash there must not lose the searches
    if options.measure:
        for name in [n for n in wanted if n in rows]:
            try:
                rows[name] |= measured(name, cubins[name])
            except Exception as error:
                failed[name] = f"not measured: {error}"
                print(f"{name}: {failed[name]}", flush=True)
                summary = save()
                continue
            print(f"{name}: measured {rows[name]['measured_speedup']}", flush=True)
            summary = save()  # each: the time on a lent machine may end
    print(summary)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
