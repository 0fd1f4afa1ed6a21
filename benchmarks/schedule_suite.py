"""`sassafras optimize` over the suite on a GPU: writes schedule-suite.json.

    python benchmarks/schedule_suite.py [--seconds 60] [--cases calls|odd|all]
                                        [--only softmax,rotary/4096x8x128]
                                        [--ptxas PATH] [--gpus N] [--seed 0]
    python benchmarks/schedule_suite.py --preset cuasmrl [--seeds 2] [--evaluations 15000]
    python benchmarks/schedule_suite.py --preset sip --samples 10000000 [--sample-seconds 60] [--profile]
    python benchmarks/schedule_suite.py --merge A.json B.rows.jsonl   # several sittings into one file

With ``--preset`` the paper's kernels are searched by its protocol and, with the same evaluations, by ours:
writes cuasmrl-protocol.json or sip-protocol.json. Rows of this budget in the output folder's rows.jsonl stay.
``--samples`` runs each winner that often on fresh inputs and compares all bytes with its baseline's. A case
that takes longer than ``--sample-seconds`` leaves the rest to the next case of the same code; the last one
has the time it takes. A kept row with fewer samples is done again; its search is in the output folder's
store. ``--profile`` adds ncu's metrics.

The baseline of each row is the better of what the bundled ptxas and --ptxas (by default the newest that is
found; '' for none) make of the same PTX, chosen by a measurement in fresh processes of its own; numerics must
be bitwise equal. One row a variant that a call selects; those that only odd sizes select (scalar accesses and
the like) carry ``"odd": true`` and stay out of the averages. Each finished row is written at once to
schedule-suite.rows.jsonl in the output folder.
"""

from __future__ import annotations

import json
import re
import time
import traceback
from pathlib import Path
from typing import Any

import common
from common import command_line, ends, geomean, one_gpu, per_gpu, read_lines, read_result, searched, write

Row = dict[str, Any]
#: what a row takes beside its search: the choice of a ptxas and fresh processes
AROUND_S = 24.0
#: evaluations a second, and samples of a short case, at least: to foresee how long a row takes
RATE, SAMPLES_RATE = 120.0, 40_000.0
#: the search of the suite's own table
OURS: Row = {"label": "anneal", "strategy": "anneal"}
#: preset -> its kernels (and shapes), and the searches that are compared
PROTOCOLS: dict[str, tuple[str, list[Row]]] = {
    "cuasmrl": (
        "gemm_leakyrelu,batched_gemm,feed_forward,attention,softmax,rmsnorm",
        # (on a CPU, updates of its network of 30 million weights take ten times as long as the evaluations)
        [{"label": "cuasmrl", "preset": "cuasmrl", "settings": {"on": "cuda"}}, OURS],
    ),
    "sip": (
        "attention_long,gemm_leakyrelu/512x512x2048",
        [
            {"label": "sip, memory moves", "preset": "sip"},
            {"label": "sip, all moves", "preset": "sip", "settings": {"moves": "all"}},
            OURS,
        ],
    ),
}


def newest_ptxas() -> str | None:
    """The newest ptxas that is found, None where there is one version alone."""
    from sassafras.sass.tools import find_all

    found = {tuple(map(int, tool.version.split("."))): str(tool.path) for tool in find_all("ptxas")}
    return found[max(found)] if len(found) > 1 else None


def choose_baseline(workload: Any, case: Any, newest: str | None) -> tuple[str | None, Row]:
    """The ptxas (None: the bundled one) whose code is faster, and what was measured."""
    from sassafras.core import Candidate
    from sassafras.evaluate.gpu import CudaDevice

    device = CudaDevice()
    try:
        bundled = workload.build(case, device.arch)
        if newest is None:
            return None, {"ptxas": bundled.meta.get("ptxas")}
        other = workload.build(case, device.arch, ptxas=newest)
        device.open(workload, case, bundled)
        found = device.remeasure(Candidate(other, {"ptxas": newest}), processes=3, cold_l2=False)
    finally:
        device.close()
    facts: Row = {"newest_ptxas": other.meta.get("ptxas"), "newest_verdict": str(found.verdict)}
    if found.interval is not None and found.null_interval is not None:
        facts |= {"newest_over_bundled": found.speedup, **ends("newest", found.interval)}
        if found.interval.low > max(1.0, found.null_interval.high):
            return newest, facts | {"ptxas": other.meta.get("ptxas")}
    return None, facts | {"ptxas": bundled.meta.get("ptxas")}


def draw(workload: Any, ptxas: str | None, result: Any, count: int, seconds: float | None) -> list[Row]:
    """Probabilistic tests of the winner, a row a case: `count` launches in all, `seconds` at most of each but
    the last."""
    from sassafras.core import Candidate
    from sassafras.evaluate.gpu import CudaDevice

    found: list[Row] = []
    with CudaDevice() as device:
        names = list(dict.fromkeys((result.case, *result.facts["cases_checked"])))
        for name in names:
            left = count - sum(part["samples"] for part in found)
            if left <= 0 or any(part["verdict"] != "correct" for part in found):
                break
            case = workload.case(name)
            original = workload.build(case, device.arch, **({} if ptxas is None else {"ptxas": ptxas}))
            if original.cubin != result.baseline.cubin:
                raise ValueError(f"case {name} runs other code than {result.case}")
            device.open(workload, case, original)
            winner = Candidate(original.with_cubin(result.cubin), {"samples": True})
            report = device.sample(winner, count=left, seconds=None if name == names[-1] else seconds)
            facts = {key: getattr(report, key) for key in ("samples", "mismatches", "seconds", "detail")}
            found.append({"case": name, **facts, "verdict": str(report.verdict)})
    return found


def one(
    name: str,
    case_name: str,
    odd: bool,
    budget: str,
    seed: int,
    newest: str | None,
    folder: str,
    until: float | None = None,
    search: Row = OURS,
    tests: tuple[int, float | None] = (0, None),
    counters: bool = False,
) -> Row | None:
    """Optimise one variant; a row, whatever happens; None when it could not end by `until` (a `time.time`).

    Args:
        search: what `sassafras.optimize` gets besides, and ``label``, the name of the contestant.
        tests: samples of a winner, and seconds of a case (`draw`).
        counters: profile baseline and winner by ncu.
    """
    seconds = float(budget[:-1]) / (1.0 if budget.endswith("s") else RATE)
    sampling = tests[0] / SAMPLES_RATE + (tests[1] or 0.0)
    if until is not None and time.time() + seconds + AROUND_S + sampling > until:
        return None
    import sassafras
    from sassafras.targets import load

    begin = time.perf_counter()
    row: Row = {"kernel": name, "shape": case_name, "odd": odd, "strategy": search["label"], "seed": seed}
    row |= {"seconds": seconds} if budget.endswith("s") else {"budget": budget}
    label = f"{name}-{case_name}" + ("" if search is OURS else f"-{search['label']}-{seed}")
    try:
        workload = load(f"suite:{name}")
        ptxas, facts = choose_baseline(workload, workload.case(case_name), newest)
        row |= facts
        result = sassafras.optimize(
            workload,
            **{key: value for key, value in search.items() if key != "label"},
            budget=budget,
            device="cuda",
            seed=seed,
            case=case_name,
            ptxas=ptxas,
            store=Path(folder) / f"{label}.sqlite",
            out=Path(folder) / "tuned",
        )
        row |= {
            "instructions": None,
            **searched(result),
            "time_us": result.time_us,
            "evaluations_per_second": round(result.evaluations / max(result.seconds, 1e-9), 1),
            "samples": result.samples,
            "moves": result.recipe.get("moves"),
            "summary": result.summary(),
            "facts": dict(result.facts),
            "environment": result.environment,
        }
        from sassafras.sass import Program

        if tests[0] and result.improved:
            row["sampled"] = draw(workload, ptxas, result, *tests)
            row["samples"] += sum(part["samples"] for part in row["sampled"])
            row["mismatches"] = sum(part["mismatches"] for part in row["sampled"])
            row["failed_after_validation"] += any(part["verdict"] != "correct" for part in row["sampled"])
        if counters:
            from sassafras.evaluate.gpu.profile import profile

            row["profile"] = profile(workload, workload.case(case_name), [result.baseline, result.kernel])
        row["instructions"] = len(Program.parse(result.baseline.cubin).function(result.baseline.name))
    except Exception as error:
        traceback.print_exc()
        row["error"] = f"{type(error).__name__}: {error}"
    row["wall_seconds"] = round(time.perf_counter() - begin, 1)
    with Path(folder, "schedule-suite.rows.jsonl").open("a") as rows:
        rows.write(json.dumps(row, default=str) + "\n")
    return row


def wanted(which: str, only: set[str]) -> list[tuple[str, str, bool]]:
    """(kernel, case, odd) for one case a variant: the first that selects it."""
    from sassafras import suite
    from sassafras.targets import load
    from sassafras.targets.load import variants

    found = []
    asked = {one.split("/")[0] for one in only}
    for name in (*suite.names(), *(name for name in asked if name not in suite.names())):
        if asked and name not in asked:
            continue
        workload = load(f"suite:{name}")
        odd_names = set(workload.meta.get("odd", ()))
        for number, (_, cases) in enumerate(variants(workload, "sm_90a")):
            odd = all(case.name in odd_names for case in cases)
            keep = {"headline": number == 0, "calls": not odd, "odd": odd, "all": True}[which]
            if keep and (not only or only & {name, f"{name}/{cases[0].name}"}):
                found.append((name, cases[0].name, odd))
    return found


def counts(row: Row) -> bool:
    """Whether a row's speed-up is one: the row did not fail, and no sample of its winner was wrong."""
    sampled = row.get("sampled") or ()
    right = all(part["verdict"] == "correct" for part in sampled) and not row.get("mismatches")
    return bool(row.get("speedup")) and right and "error" not in row


def summarise(rows: list[Row]) -> Row:
    """The summary of the format page, over the rows that a user's call selects."""
    from sassafras import suite

    good = [r for r in rows if counts(r) and not r["odd"]]
    firsts: dict[str, float] = {}
    for row in good:
        firsts.setdefault(row["kernel"], row["speedup"])
    evaluations = sum(r.get("evaluations") or 0 for r in rows)
    return {
        "kernels": len(good),
        "geomean_speedup": geomean(r["speedup"] for r in good),
        "best_speedup": max((r["speedup"] for r in good), default=None),
        "geomean_speedup_paper_six": geomean(firsts[n] for n in suite.paper_six() if n in firsts),
        "geomean_speedup_odd": geomean(r["speedup"] for r in rows if counts(r) and r["odd"]),
        "evaluations": evaluations,
        "evaluations_per_second": evaluations / max(sum(r.get("search_seconds") or 0 for r in rows), 1e-9),
        "wrong_or_crashed_after_validation": sum(r.get("failed_after_validation") or 0 for r in rows),
        "failed_rows": [f"{r['kernel']}/{r['shape']}" for r in rows if "error" in r],
        "stopped_rows": [f"{r['kernel']}/{r['shape']}" for r in rows if r.get("reason") == "interrupted"],
    }


def key_of(row: Row) -> tuple[str, str, str, int]:
    """What a row of a protocol answers."""
    return row["kernel"], row["shape"], row["strategy"], row.get("seed", 0)


def journal(folder: Path, budget: str) -> list[Row]:
    """The rows of this budget that earlier sittings left, failed ones left out; of one search the last."""
    path = folder / "schedule-suite.rows.jsonl"
    rows = [row for row in (read_lines(path) if path.exists() else []) if "error" not in row]
    asked = [row.get("budget") or f"{row.get('seconds', 0):g}s" for row in rows]
    return list({key_of(row): row for row, of in zip(rows, asked, strict=True) if of == budget}.values())


def by_search(rows: list[Row]) -> Row:
    """The summary of a protocol: geometric means of each search, and what was wrong."""
    labels = dict.fromkeys(row["strategy"] for row in rows)
    good = [row for row in rows if counts(row)]
    found: Row = {
        label: {
            "geomean_speedup": geomean(r["speedup"] for r in good if r["strategy"] == label),
            "best_speedup": max((r["speedup"] for r in good if r["strategy"] == label), default=None),
            "rows": sum(r["strategy"] == label for r in good),
        }
        for label in labels
    }
    first = found.get(next(iter(labels), ""), {})
    return {
        "geomean_speedup": first.get("geomean_speedup"),
        "best_speedup": first.get("best_speedup"),
        "by_search": found,
        "wrong_or_crashed_after_validation": sum(r.get("failed_after_validation") or 0 for r in rows),
        "samples_least": min((r["samples"] for r in rows if r.get("speedup") and r["improved"]), default=0),
        "mismatches": sum(r.get("mismatches") or 0 for r in rows),
        "failed_rows": [f"{r['kernel']}/{r['shape']}" for r in rows if "error" in r],
    }


def sitting(file: Path) -> tuple[list[Row], list[Row]]:
    """The rows of a result file or of a rows.jsonl, and the sittings that they come from: what ran where."""
    if file.suffix == ".json":
        data = read_result(file, "date", "command", "commit", "environment")
        head = {name: data[name] for name in ("date", "command", "commit")}
        old = data["environment"].pop("sittings", None)
        return data["rows"], old or [{**head, "rows": len(data["rows"]), "environment": data["environment"]}]
    rows = read_lines(file)
    environments = [e for row in rows if (e := row.pop("environment", None))]
    if not environments:
        raise ValueError(f"{file}: no row says where it was measured")
    said = sorted({e.pop("command") for e in environments})
    command = "; ".join(re.sub(r"/\S*/(?=\S)", "", c) for c in said)  # paths of that machine mean nothing
    first = one_gpu(environments)
    head = {"date": first["date"], "command": command, "commit": str(first["commit"]).rstrip("+")}
    return rows, [{**head, "rows": len(rows), "environment": first}]


def merge(files: list[Path], name: str, seed: int, out: Path) -> None:
    """One result file of several sittings: a later file's row replaces an earlier one's of the same variant.

    Files are result files (.json) or the rows that a sitting wrote (.rows.jsonl); their commands, commits and
    environments are kept.
    """
    found: dict[tuple[str, str], Row] = {}
    sittings: list[Row] = []
    for file in files:
        rows, said = sitting(file)
        sittings += said
        found |= {(row["kernel"], row["shape"]): row for row in rows}
    if len({row.get("strategy", OURS["label"]) for row in found.values()}) > 1:
        raise SystemExit("error: rows of several searches, as of --preset, make no table of the suite")
    environment = {**one_gpu(each["environment"] for each in sittings), "sittings": sittings}
    order = {item[:2]: n for n, item in enumerate(wanted("all", {kernel for kernel, _ in found}))}
    kept = sorted(found.values(), key=lambda r: order[(r["kernel"], r["shape"])])
    path = write(
        name,
        kept,
        summarise(kept),
        environment,
        seed=seed,
        out=out,
        command="; ".join(s["command"] for s in sittings),
        commits="; ".join(s["commit"] for s in sittings),
    )
    print(path)


def main() -> None:
    """Run all rows, one process a GPU, and write the result file."""
    parser = command_line(__doc__, out=".")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--cases", choices=("headline", "calls", "odd", "all"), default="calls")
    parser.add_argument("--only", default="")
    parser.add_argument("--ptxas")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within", type=float, help="seconds: start no row that would end later")
    parser.add_argument("--name")
    parser.add_argument("--preset", choices=tuple(PROTOCOLS))
    parser.add_argument("--seeds", type=int, default=1, help="of a preset: from --seed on")
    parser.add_argument("--evaluations", type=int, help="of a preset: instead of its own")
    parser.add_argument("--samples", type=int, default=0, help="of each winner, on fresh inputs")
    parser.add_argument("--sample-seconds", type=float, help="most seconds of samples on a case")
    parser.add_argument("--profile", action="store_true", help="baseline and winner by ncu")
    parser.add_argument("--merge", type=Path, nargs="+")
    options = parser.parse_args()
    name = options.name or (f"{options.preset}-protocol" if options.preset else "schedule-suite")
    if options.merge:
        merge(options.merge, name, options.seed, options.out)
        return
    why_not = "" if options.gpus or common.gpu_count() else "missing: a GPU, nvidia-smi lists none"
    if why_not and not options.preset:  # whose rows may all be there
        parser.error(why_not)
    until = None if options.within is None else time.time() + options.within
    only, searches, budget = options.only, [OURS], f"{options.seconds:g}s"
    if options.preset:
        from sassafras.search import preset

        only, searches = only or PROTOCOLS[options.preset][0], PROTOCOLS[options.preset][1]
        budget = f"{options.evaluations}e" if options.evaluations else preset(options.preset).budget
    which = wanted("headline" if options.preset else options.cases, set(filter(None, only.split(","))))
    seeds = range(options.seed, options.seed + options.seeds)
    rows: list[Row] = journal(options.out, budget) if options.preset else []
    if rows:
        from sassafras.cuda.environment import environment as here

        one_gpu([here(), *(row.get("environment") for row in rows)])
    rows = [r for r in rows if not (r["improved"] and r["samples"] < options.samples)]
    done = {key_of(row) for row in rows}
    tasks = [(item, seed, search) for item in which for seed in seeds for search in searches]
    tasks = [t for t in tasks if (*t[0][:2], t[2]["label"], t[1]) not in done]
    if tasks and why_not:
        parser.error(why_not)
    items = [item for item, _, _ in tasks]
    tests = (options.samples, options.sample_seconds)
    newest = newest_ptxas() if options.ptxas is None else options.ptxas or None
    arguments = [
        (*item, budget, seed, newest, options.out, until, search, tests, options.profile)
        for item, seed, search in tasks
    ]
    measured = [row.pop("environment", None) for row in rows]
    for index, row in per_gpu(one, arguments, options.gpus):
        if row is None:
            print("/".join(items[index][:2]) + ": no time left")
            continue
        if isinstance(row, Exception):
            row = dict(zip(("kernel", "shape", "odd"), items[index], strict=True)) | {"error": repr(row)}
            row |= {"strategy": tasks[index][2]["label"], "seed": tasks[index][1]}
        measured.append(row.pop("environment", None))
        rows.append(row)
        print(f"{row['kernel']}/{row['shape']}: {row.get('summary') or row.get('error')}", flush=True)
    order = {item[:2]: n for n, item in enumerate(which)}
    rows.sort(key=lambda r: order.get((r["kernel"], r["shape"]), len(order)))
    summary = by_search(rows) if options.preset else summarise(rows)
    environment = one_gpu(measured)
    commits = environment.get("commit")
    path = write(name, rows, summary, environment, seed=options.seed, out=options.out, commits=commits)
    print(json.dumps(summary, indent=1), f"\nwrote {path.name}")


if __name__ == "__main__":
    main()
