"""Spaces beyond reordering, each on its own: options of ptxas, control codes, copies. Writes
beyond-reordering.json; with ``--compiler`` the space of all of them together, compiler-space.json.

    python benchmarks/beyond.py --seconds 15 [--only softmax,...] [--limit-s 540]     # a GPU; resumes
    python benchmarks/beyond.py --compiler --seconds 60 [--targets captured.json:KERNEL ...] [--limit-s 500]
    python benchmarks/beyond.py --device model --evaluations 30 --only rotary         # modelled, no GPU
    python benchmarks/beyond.py --merge A.json B.rows.jsonl                # several sittings into one file

A row is a kernel and a stage. ``knobs``: the fastest kernel that any option of the installed releases of
ptxas makes, over the frontend's own; the other stages start from it and are over it. ``identity``: its own
order with control codes from scratch. ``swaps``, ``control``, ``renaming`` and ``blocks`` are the spaces of
``sassafras optimize --space``, searched by annealing; the result is re-measured in fresh processes beside
the A/A control. Tuned HGEMM kernels have ``identity``, ``swaps`` and ``control`` alone. Each finished
kernel's rows are in beyond.rows.jsonl of the output folder (``--resume`` copies another one there first);
the same command goes on with missing ones.

With ``--compiler`` a row is a kernel of the suite, or of another project (``--targets``), under
``sassafras optimize --space compiler``: its figure is over the frontend's own kernel, ``stages`` has it after
settings, rewrites and schedules, and ``over_ptxas`` is over the best settings alone. What does not lie beyond
its null counts as 1. Modelled rows stay in compiler-space-modelled.rows.jsonl and make no result file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import (
    Lines,
    command_line,
    ends,
    geomean,
    one_gpu,
    per_gpu,
    read_lines,
    read_result,
    searched,
    write,
)

Row = dict[str, Any]
SPACES = ("swaps", "control", "renaming", "blocks")
STAGES = ("knobs", "identity", *SPACES)
#: of a search by stages
COMPILER, PARTS = "compiler", ("settings", "ptx", "schedule")
#: of tuned HGEMM kernels: their compiler is NVRTC, and copies of them are not tried
GEMM_STAGES = ("identity", "swaps", "control")
#: shapes of tuned HGEMM kernels, small and large
GEMM_SHAPES = (
    "512x512x64",
    "256x2048x256",
    "4096x1024x512",
    "64x128x16384",
    "8192x256x512",
    "8192x8192x256",
    "1024x64x512",
    "8192x8192x1024",
)


def stages_of(subject: str, compiler: bool = False) -> tuple[str, ...]:
    """What is measured of a subject."""
    if compiler:
        return (COMPILER,)
    return GEMM_STAGES if subject.startswith("gemm:") else STAGES


def subjects(only: Sequence[str], targets: Sequence[str] | None = None) -> list[str]:
    """CuAsmRL's six kernels, then the suite's others and HGEMM kernels in turn; `only`: names to keep.

    With `targets` all of these instead of HGEMM kernels.
    """
    from sassafras import suite

    six = [f"suite:{name}" for name in suite.paper_six()]
    rest = [f"suite:{name}" for name in suite.names() if f"suite:{name}" not in six]
    further = [f"gemm:{shape}" for shape in GEMM_SHAPES] if targets is None else []
    found = [*six, *further, *rest]
    return [*(s for s in found if not only or s.removeprefix("suite:") in only), *(targets or ())]


def asked(of: argparse.Namespace | Row) -> Row:
    """The budget of a search, by the options or as its row says."""
    found = of if isinstance(of, dict) else {"seconds": of.seconds, "asked_evaluations": of.evaluations}
    return {key: found[key] for key in ("seconds", "asked_evaluations") if found.get(key) is not None}


def rows_of(subject: str, options: argparse.Namespace) -> list[Row]:
    """A row for each stage of ``suite:NAME`` or ``gemm:MxNxK``; an error of one stage is a row of its own."""
    import sassafras
    from sassafras.api import ptxas_options
    from sassafras.core import DeviceError, SassafrasError
    from sassafras.frontend import ptx
    from sassafras.jobs.opening import DEFAULT_ARCH, open_device
    from sassafras.targets import load

    workload = load(subject)
    case = workload.case()
    common: Row = {"kernel": subject.removeprefix("suite:"), "shape": case.name, "seed": options.seed}
    common |= asked(options)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        choice: Path | None = None
        for stage in stages_of(subject):
            row: Row = {**common, "stage": stage}
            device = open_device(options.device, None)
            row |= {"modelled": device.modelled, "environment": device.environment()}
            arch = getattr(device, "arch", None) or DEFAULT_ARCH
            try:
                if stage == "knobs":
                    found = ptxas_options.choose(ptx.of(workload, case, arch), workload, case, device)
                    choice = found.save(folder)
                    row |= {"ptxas": found.ptxas, "settings": found.settings} | _interval(found)
                elif stage == "identity":
                    kernel = workload.build(case, arch) if choice is None else found.kernel
                    device.open(workload, case, kernel)
                    row |= identity(device, kernel)
                else:
                    budget = f"{options.evaluations}e" if options.evaluations else f"{options.seconds:g}s"
                    result = sassafras.optimize(
                        load(subject),
                        strategy="anneal",
                        budget=budget,
                        device=device,
                        seed=options.seed,
                        ptxas_options=choice,
                        store=False,
                        space=stage,
                    )
                    row |= searched(result)
            except SassafrasError as error:
                lost = stage in ("knobs", "identity", "swaps") or isinstance(error, DeviceError)
                row["error" if lost else "unavailable"] = str(error)
            finally:
                device.close()
            rows.append(row)
            print(row["kernel"], stage, row.get("speedup", row.get("error")), flush=True)
    return rows


def label(subject: str) -> str:
    """A subject's name in rows: of the suite its own, of a captured kernel its folder's and its own."""
    return "/".join(Path(subject.removeprefix("suite:")).parts[-2:]).replace("/captured.json:", " ")


def compiler_row(subject: str, options: argparse.Namespace) -> list[Row]:
    """The row of a search through settings, rewrites and schedules; an error is a row of its own."""
    import sassafras
    from sassafras.core import SassafrasError
    from sassafras.jobs.opening import open_device
    from sassafras.targets import load

    begin = time.perf_counter()
    name = label(subject)
    row: Row = {"kernel": name, "stage": COMPILER, "seed": options.seed, **asked(options)}
    device = open_device(options.device, None)
    row |= {"modelled": device.modelled, "suite": subject.startswith("suite:")}
    try:
        row["environment"] = device.environment()
        workload = load(subject)
        row |= {"shape": workload.case().name if row["suite"] else "", "frontend": workload.name}
        result = sassafras.optimize(
            workload,
            space=COMPILER,
            budget=f"{options.evaluations}e" if options.evaluations else f"{options.seconds:g}s",
            device=device,
            seed=options.seed,
            store=False,
            out=options.out / "compiler-space",
        )
        facts = result.facts
        row |= searched(result) | {"stages": facts.get("stages", []), "samples": result.samples}
        row |= {"over_ptxas": facts.get("over_settings"), "summary": result.summary()}
        row["cold_l2_speedup"] = facts.get("cold_l2_speedup")
        row["digests"] = [result.baseline.digest, result.kernel.digest]
        if result.reason == "interrupted":
            row["error"] = "interrupted"
    except SassafrasError as error:
        row["error"] = str(error)
    finally:
        device.close()
    row["wall_seconds"] = round(time.perf_counter() - begin, 1)
    print(name, row.get("summary", row.get("error")), row["wall_seconds"], "s", flush=True)
    return [row]


def counted(row: Row, part: str) -> float:
    """The speed-up after a stage, 1 where it does not lie beyond its null."""
    found = next((each for each in row["stages"] if each["stage"] == part), None)
    if found is None or not found.get("interval") or not found.get("null_interval"):
        return 1.0
    return float(found["ratio"]) if found["interval"][0] > max(found["null_interval"][1], 1.0) else 1.0


def over_ptxas(row: Row) -> float:
    """The winner over the best settings of ptxas alone: 1 where nothing is beyond it."""
    found = row.get("over_ptxas")
    return float(found["ratio"]) if row["improved"] and found else 1.0


def summarise_compiler(rows: Sequence[Row]) -> Row:
    """Geometric means over the frontend's own kernel by stage, and over the best settings."""
    good = [r for r in rows if r.get("speedup") and "error" not in r]
    out: Row = {"modelled": any(r["modelled"] for r in rows)}
    for label, of in (
        ("all", good),
        ("suite", [r for r in good if r["suite"]]),
        ("third_party", [r for r in good if not r["suite"]]),
    ):
        if of:
            means = {part: geomean(counted(r, part) for r in of) for part in PARTS}
            chosen = [row for r in of for row in r["stages"] if row["stage"] == "schedule"]
            kept = [row["retained"] for row in chosen if "retained" in row]
            out[label] = {
                "kernels": len(of),
                "geomean_speedup": geomean(float(r["speedup"]) for r in of),
                "geomean_after": means,
                "geomean_over_ptxas": geomean(map(over_ptxas, of)),
                "geomean_cold_l2": geomean(r.get("cold_l2_speedup") or 1.0 for r in of),
                "improved": sum(bool(r["improved"]) for r in of),
                "best_speedup": max(float(r["speedup"]) for r in of),
                "geomean_retained": geomean(kept),
            }
    nulls = [float(r["null"]) for r in good if r.get("null")]
    out |= {"null_lowest": min(nulls, default=None), "null_highest": max(nulls, default=None)}
    out["evaluations"] = sum(r.get("evaluations") or 0 for r in rows)
    wrong = ("wrong_result", "crashed", "timed_out", "cheated")
    out["wrong_or_crashed"] = sum(r.get("verdicts", {}).get(verdict, 0) for r in rows for verdict in wrong)
    # of settings and rewrites; such candidates are refused, and no schedule of theirs is searched
    out["refused_by_results"] = sum(
        part["verdicts"].get(verdict, 0)
        for r in good
        for part in r["stages"]
        if part["stage"] != "schedule"
        for verdict in wrong
    )
    out["wrong_or_crashed_after_validation"] = sum(r.get("failed_after_validation") or 0 for r in rows)
    out["failed_rows"] = [r["kernel"] for r in rows if "error" in r]
    return out


def _interval(found: Any) -> Row:
    """The figures of a choice of ptxas's options; the frontend's own kernel is 1."""
    low, null_high = found.low or 1.0, found.null_high or 1.0
    return {
        "speedup": found.speedup or 1.0,
        "speedup_low": low,
        "speedup_high": found.high or 1.0,
        "null": found.null,
        "improved": low > null_high,
    }


def identity(device: Any, kernel: Any) -> Row:
    """ptxas's own order with scoreboards, waits and stall counts from scratch, over its own codes.

    Raises:
        SassafrasError: there are no such codes, the validator refuses them, or they cannot be measured.
    """
    from sassafras.core import Candidate, DeviceError, SassafrasError
    from sassafras.schedule import ScheduleSpace
    from sassafras.validate import Validator

    space = ScheduleSpace(kernel, control="regenerate")
    cubin = space.emit(space.tightened(space.start()))
    report = Validator(kernel.cubin, kernel.name).check(cubin)
    if not report.ok:
        raise SassafrasError(f"the validator refuses it: {report.violations[0]}", where=kernel.name)
    outcome = device.remeasure(Candidate(kernel.with_cubin(cubin), {"space": "identity"}))
    speedup = outcome.modelled_ratio if device.modelled else outcome.speedup
    if speedup is None:
        raise DeviceError(f"it is {outcome.verdict}: {outcome.detail}")
    interval, null = outcome.interval, outcome.null_interval
    better = bool(interval and interval.low > (null.high if null else 1.0))
    return {"speedup": speedup, **ends("speedup", interval), "null": outcome.null, "improved": better}


def summarise(rows: Sequence[Row]) -> Row:
    """Per stage: geometric means; of knobs over the frontend's own, of the others over the best of ptxas."""
    out: Row = {"modelled": any(r["modelled"] for r in rows)}
    good = [r for r in rows if r.get("speedup") and "error" not in r]
    for label, gemm in (("", False), ("hgemm_", True)):
        for stage in GEMM_STAGES if gemm else STAGES:
            of = [r for r in good if r["stage"] == stage and r["kernel"].startswith("gemm:") is gemm]
            if of:
                speedups = [float(r["speedup"]) for r in of]
                out[label + stage] = {
                    "kernels": len(of),
                    "geomean_speedup": geomean(speedups),
                    "best_speedup": max(speedups),
                    "worst_speedup": min(speedups),
                    "improved": sum(bool(r["improved"]) for r in of),
                }
    out["evaluations"] = sum(r.get("evaluations") or 0 for r in rows)
    out["wrong_or_crashed_after_validation"] = sum(r.get("failed_after_validation") or 0 for r in rows)
    out["failed_rows"] = [f"{r['kernel']}/{r['stage']}" for r in rows if {"error", "unavailable"} & set(r)]
    return out


def read_rows(path: Path) -> list[Row]:
    """The rows of a ``.rows.jsonl`` or of a result file; none where there is no file."""
    if not path.is_file():
        return []
    if path.suffix == ".jsonl":
        return read_lines(path)
    whole = read_result(path, "environment")
    if whole.get("benchmark") not in ("beyond-reordering", "beyond-reordering-modelled", "compiler-space"):
        raise SystemExit(f"error: {path} is a result of {whole.get('benchmark')!r}, not of this script")
    return [{"environment": whole["environment"], **row} for row in whole["rows"]]


def finish(rows: Sequence[Row], out: Path) -> Path:
    """Write the result file; of a kernel and stage the last row without an error counts."""
    last = {(r["kernel"], r["stage"]): r for r in sorted(rows, key=lambda r: "error" not in r)}
    order = (*STAGES, COMPILER)
    places = {key: (not row.get("suite", True), key[0], order.index(key[1])) for key, row in last.items()}
    stand = [dict(last[key]) for key in sorted(last, key=places.__getitem__)]
    environment = one_gpu([r.pop("environment", None) for r in stand])
    if len({json.dumps(asked(r)) for r in stand if asked(r)}) > 1:
        raise SystemExit("error: rows of searches of several budgets make no result together")
    if any(r["stage"] == COMPILER for r in stand):
        return write("compiler-space", stand, summarise_compiler(stand), environment, out=out)
    name = "beyond-reordering-modelled" if any(r["modelled"] for r in stand) else "beyond-reordering"
    return write(name, stand, summarise(stand), environment, out=out)


def main() -> None:
    """Command line."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default="", help="subjects, comma-separated; - for none")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each search")
    parser.add_argument("--evaluations", type=int, help="of each search, instead of seconds")
    parser.add_argument("--limit-s", type=float, default=1e7, help="begin no kernel after so many seconds")
    parser.add_argument("--compiler", action="store_true", help="search settings, rewrites and schedules")
    parser.add_argument("--targets", nargs="+", default=[], help="with --compiler: further kernels")
    parser.add_argument("--resume", type=Path, help="rows.jsonl of an earlier run to go on with")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "model"))
    parser.add_argument("--gpus", type=int, help="[default: all]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--merge", type=Path, nargs="+", help="result files and rows to put together")
    options = parser.parse_args()
    if options.merge:
        rows = [row for file in options.merge for row in read_rows(file)]
        if not rows:  # or a published result would become an empty one
            parser.error("there is no row in " + ", ".join(map(str, options.merge)))
        print(finish(rows, options.out))
        return
    if options.targets and not options.compiler:
        parser.error("--targets goes with --compiler")
    modelled = options.device == "model"
    name = ("compiler-space-modelled" if modelled else "compiler-space") if options.compiler else "beyond"
    journal = Lines(options.out / f"{name}.rows.jsonl", options.resume)
    rows = [r for r in journal.rows if asked(r) in ({}, asked(options))]
    have = {(r["kernel"], r["stage"]) for r in rows if "error" not in r}
    only = [name for name in options.only.split(",") if name]
    wanted = [
        (s, options)
        for s in subjects(only, options.targets if options.compiler else None)
        if not all((label(s), stage) in have for stage in stages_of(s, options.compiler))
    ]
    work = compiler_row if options.compiler else rows_of
    until = time.monotonic() + options.limit_s
    for index, found in per_gpu(work, wanted, options.gpus, until=until):
        if isinstance(found, Exception):
            subject, stage = wanted[index][0], COMPILER if options.compiler else STAGES[0]
            lost = {"kernel": label(subject), "stage": stage, "suite": subject.startswith("suite:")}
            found = [{**lost, "modelled": modelled, "error": repr(found)}]
        journal.add(*found)
        rows += found
    if rows and options.compiler and (modelled or any(r["modelled"] for r in rows)):
        print(json.dumps(summarise_compiler(rows), indent=1))
    elif rows:
        print(finish(rows, options.out))


if __name__ == "__main__":
    main()
