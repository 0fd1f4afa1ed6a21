"""Every cheat must be caught, nothing honest may be flagged: writes cheats.json, and the table in docs/reference/cheats.md.

    nice python benchmarks/cheats.py cpu [--only python_] [--honest 204]      # here: some minutes
    nice python benchmarks/cheats.py plan [--honest 204] [--folder plans]     # CPU: what `gpu` would build
    python benchmarks/cheats.py gpu [--folder plans]                          # on a GPU: about two minutes
    python benchmarks/cheats.py docs                                          # docs/reference/cheats.md from the results

``cpu`` judges what needs no GPU: patched machine code (the validator), source text (scan and confined build),
Python candidates (confined, on the CPU), and honest schedules and GEMM sources (validator and scans). ``gpu``
judges device code that must run, and runs the honest schedules. Each part keeps the other's rows.
"""

from __future__ import annotations

import argparse
import base64
import json
import lzma
import os
import time
from pathlib import Path
from typing import Any

from common import ROOT, gpu_count, write
from gallery import Exhibit, device, host, machine, source, subject

Row = dict[str, Any]
RESULT = ROOT / "benchmarks" / "results" / "cheats.json"
#: classes that cannot be caught, or not always, and why
LIMITS = (
    (
        "A time bomb: right until a date, an hour, or a rare input",
        "No finite test finds a trigger that it does not hit. Sampling bounds the failure probability for its input "
        "distribution; only schedules, which are proved, are free of this.",
    ),
    (
        "A cache keyed by contents, in a program that really meets the same inputs again",
        "Caught by timing. That it would be welcome in some programs is not ours to decide.",
    ),
    (
        "Data that an honest kernel could keep too, for example weights packed by the first launch",
        "Counts as remembering work and is flagged when it pays in time: write it as two kernels.",
    ),
    (
        "A device-wide state left behind by a Python candidate on a GPU (persisting L2, clocks)",
        "The scan refuses the calls; confinement does not see them. Clocks need rights that candidates lack.",
    ),
    (
        "Special values (infinities, NaN) in candidates that are judged by a tolerance",
        "Schedules are compared bitwise on them. Other programs may order arithmetic differently, so that "
        "honest ones differ there; they are not checked.",
    ),
    (
        "Heat and clock speed: a candidate whose own turn slows the processor in the next",
        "Turns alternate, and each begins with an untimed call. What lasts longer than that call is not seen.",
    ),
    (
        "More than a limit for less than 50 ms, on machines where limits in all are watched from outside",
        "Processes, threads, memory and disk are looked at every 20 to 50 ms; the kernel's own limits hold at once.",
    ),
    (
        "A hole in Python, the compiler, the driver or the kernel's own fences",
        "Run what you must not trust in a virtual machine.",
    ),
)


def judge_machine(exhibit: Exhibit) -> tuple[str, str]:
    """A patched cubin's verdict by the validator."""
    _, _, report = exhibit.make()
    return ("legal", "") if report.ok else ("illegal_schedule", str(next(iter(report.violations)))[:160])


def judge_source(exhibit: Exhibit) -> tuple[str, str]:
    """A source's verdict by scanning and building it."""
    from sassafras.evaluate import Confinement
    from sassafras.evaluate.source import build

    limits = Confinement(wall_s=20.0, resident_bytes=2 << 30)
    built = build(exhibit.make(), source.case(), "sm_90a", confinement=limits)
    return ("built" if built.verdict is None else str(built.verdict)), built.detail[:160]


class Judge:
    """Judges exhibits of every kind that the CPU can judge; starts what it needs when it needs it."""

    def __init__(self) -> None:
        self._hosts: dict[bool, Any] = {}

    def __call__(self, exhibit: Exhibit) -> tuple[str, str]:
        """(verdict, detail)."""
        if exhibit.how == "cubin":
            return judge_machine(exhibit)
        if exhibit.how == "source":
            return judge_source(exhibit)
        from sassafras.evaluate import Confinement
        from sassafras.evaluate.host import HostSource

        scan = exhibit.how == "python_scan"
        if scan not in self._hosts:
            limits = Confinement(
                wall_s=600.0,
                cpu_s=1200,
                memory_bytes=None,
                resident_bytes=3 << 30,
                processes=4,
                threads=64,
                disk_bytes=64 << 20,
            )
            self._hosts[scan] = host.judge(scan=scan, confinement=limits)
        outcome = self._hosts[scan].evaluate(HostSource(exhibit.make()))
        return gained(exhibit, outcome) or (str(outcome.verdict), outcome.detail[:160])

    def close(self) -> None:
        """End the processes that stand by."""
        for one in self._hosts.values():
            one.close()


def gained(exhibit: Exhibit, outcome: Any) -> tuple[str, str] | None:
    """``gained`` for a trick that was let run, and was worth something."""
    if exhibit.most is None or not outcome.speedup or outcome.speedup <= exhibit.most:
        return None
    low, high = outcome.interval
    return "gained", f"{outcome.speedup:.2f} [{low:.2f}, {high:.2f}] times the baseline's speed"


def row(exhibit: Exhibit, verdict: str, detail: str, seconds: float, where: str) -> Row:
    """A result row."""
    return {
        "name": exhibit.name,
        "kind": exhibit.kind,
        "expected": "/".join(exhibit.expected),
        "verdict": verdict,
        "ok": verdict in exhibit.expected,
        "title": exhibit.title,
        "by": exhibit.by,
        "how": exhibit.how,
        "where": where,
        "detail": detail,
        "seconds": round(seconds, 2),
    }


def on_cpu(options: argparse.Namespace) -> list[Row]:
    """Rows of everything that needs no GPU."""
    rows = []
    judge = Judge()
    try:
        for exhibit in [*machine.exhibits(), *source.exhibits(), *host.exhibits()]:
            if not exhibit.name.startswith(options.only):
                continue
            begin = time.perf_counter()
            verdict, detail = judge(exhibit)
            rows.append(row(exhibit, verdict, detail, time.perf_counter() - begin, "cpu"))
            print(f"{'ok  ' if rows[-1]['ok'] else 'FAIL'} {exhibit.name}: {verdict} {detail}", flush=True)
    finally:
        judge.close()
    if "honest".startswith(options.only) and options.honest:
        rows += honest_schedules(options.honest)
        rows += honest_gemm()
    return rows


def honest_schedules(count: int) -> list[Row]:
    """Random legal schedules of every suite kernel: validator and binary scan must accept all of them."""
    from sassafras.evaluate.scan import scan_cubin
    from sassafras.validate import Validator

    names = device.suite_names()
    rows = []
    for name in names:
        validator = None
        begin = time.perf_counter()
        for number, candidate in enumerate(device.schedules(name, -(-count // len(names)))):
            if validator is None:
                validator = Validator(candidate.kernel.cubin, candidate.kernel.name)
            report = validator.check(candidate.kernel.cubin)
            finding, _ = scan_cubin(candidate.kernel.cubin, candidate.kernel.name)
            verdict = "accepted" if report.ok and finding is None else "flagged"
            rows.append(
                {
                    "name": f"schedule_{name}_{number}",
                    "kind": "honest",
                    "expected": "accepted",
                    "verdict": verdict,
                    "ok": verdict == "accepted",
                    "title": candidate.recipe["honest"],
                    "by": "",
                    "how": "cubin",
                    "where": "cpu",
                    "detail": str(finding or ""),
                    "seconds": 0.0,
                }
            )
        print(
            f"{name}: {sum(r['ok'] for r in rows)} of {len(rows)} accepted, "
            f"{time.perf_counter() - begin:.1f} s",
            flush=True,
        )
    return rows


def honest_gemm() -> list[Row]:
    """Our own HGEMM sources: the scan of CUDA text must accept all of them."""
    from sassafras.evaluate.scan import scan_cuda
    from sassafras.gemm.build.cubins import source as text
    from sassafras.gemm.configs.registry import INSTANCES

    rows = []
    for instance in INSTANCES:
        finding = scan_cuda(text(instance))
        rows.append(
            {
                "name": f"gemm_{instance.name}",
                "kind": "honest",
                "expected": "accepted",
                "verdict": "flagged" if finding else "accepted",
                "ok": finding is None,
                "title": "GEMM source",
                "by": "",
                "how": "source",
                "where": "cpu",
                "detail": str(finding or ""),
                "seconds": 0.0,
            }
        )
    return rows


def make_plan(options: argparse.Namespace) -> Path:
    """Build everything that `on_gpu` runs, on a CPU, into one file: the GPU's time is for running."""
    from mutants.plan import difference

    from sassafras.evaluate.gpu.protocol import kernel_facts
    from sassafras.evaluate.source import build

    plan: Row = {"exhibits": {}, "schedules": {}}
    for exhibit in device.exhibits():
        built = build(exhibit.make(), subject.CASE, "sm_90a", fp32_accumulation=True)
        made = (
            None
            if built.kernel is None
            else {"facts": kernel_facts(built.kernel), "cubin": base64.b64encode(built.kernel.cubin).decode()}
        )
        plan["exhibits"][exhibit.name] = {
            "kernel": made,
            "verdict": None if built.verdict is None else str(built.verdict),
            "detail": built.detail,
        }
        print(f"{exhibit.name}: {built.verdict or 'built'} {built.detail[:100]}", flush=True)
    names = device.suite_names()
    for name in names if options.honest else ():
        first, *others = device.schedules(name, -(-options.honest // len(names)))
        plan["schedules"][name] = {
            "facts": kernel_facts(first.kernel),
            "cubin": base64.b64encode(first.kernel.cubin).decode(),
            "others": [difference(first.kernel.cubin, other.kernel.cubin) for other in others],
        }
        print(f"{name}: {1 + len(others)} schedules", flush=True)
    options.folder.mkdir(parents=True, exist_ok=True)
    path = Path(options.folder, "cheats.xz")
    path.write_bytes(lzma.compress(json.dumps(plan).encode(), preset=3))
    return path


def read_plan(folder: Path) -> tuple[dict[str, tuple[Any, str, str]], dict[str, list[Any]]]:
    """(kernel or None, verdict and detail by exhibit; honest kernels by workload, the original first)."""
    from mutants.plan import patched

    from sassafras.evaluate.gpu.protocol import kernel_from_facts

    plan = json.loads(lzma.decompress(Path(folder, "cheats.xz").read_bytes()))
    exhibits: dict[str, tuple[Any, str, str]] = {}
    for name, made in plan["exhibits"].items():
        kernel = None
        if made["kernel"] is not None:
            kernel = kernel_from_facts(made["kernel"]["facts"], base64.b64decode(made["kernel"]["cubin"]))
        exhibits[name] = (kernel, str(made["verdict"]), made["detail"])
    schedules: dict[str, list[Any]] = {}
    for name, made in plan["schedules"].items():
        original = kernel_from_facts(made["facts"], base64.b64decode(made["cubin"]))
        schedules[name] = [
            original,
            *(original.with_cubin(patched(original.cubin, runs)) for runs in made["others"]),
        ]
    return exhibits, schedules


def on_gpu(options: argparse.Namespace) -> list[Row]:
    """Rows of device code that has to run, and of honest schedules that ran."""
    from sassafras.core import Candidate
    from sassafras.evaluate import SourceEvaluator
    from sassafras.evaluate.gpu import CudaDevice, Limits
    from sassafras.targets import load

    rows: list[Row] = []
    workload = load(f"{ROOT / 'benchmarks/gallery/subject.py'}:workload")
    case = workload.cases[0]
    with CudaDevice(limits=Limits(candidate_s=3.0), bitwise=False) as gpu:
        baseline = workload.build(case, gpu.arch)
        gpu.open(workload, case, baseline)
        evaluator = SourceEvaluator(gpu, workload, case, baseline)
        exhibits, schedules = read_plan(options.folder)
        for exhibit in device.exhibits():
            if not exhibit.name.startswith(options.only):
                continue
            begin = time.perf_counter()
            try:
                kernel, verdict, detail = exhibits[exhibit.name]
                if kernel is not None:
                    outcome = evaluator.inner.evaluate(Candidate(kernel, {"exhibit": exhibit.name}))
                    verdict, detail = str(outcome.verdict), outcome.detail[:160]
            except Exception as error:  # one exhibit must not lose the others
                verdict, detail = "error", f"{type(error).__name__}: {error}"[:160]
            rows.append(row(exhibit, verdict, detail, time.perf_counter() - begin, "gpu"))
            print(f"{'ok  ' if rows[-1]['ok'] else 'FAIL'} {exhibit.name}: {verdict} {detail}", flush=True)
    rows += host_on_gpu(options.only)
    if not ("honest".startswith(options.only) and options.honest):
        return rows
    with CudaDevice() as gpu:
        for name, kernels in schedules.items():
            opened = load(f"suite:{name}")
            begin = time.perf_counter()
            gpu.open(opened, opened.cases[0], kernels[0])
            for number, kernel in enumerate(kernels):
                outcome = gpu.run(Candidate(kernel, {"honest": "original" if number == 0 else "schedule"}))
                rows.append(
                    {
                        "name": f"schedule_{name}_{number}",
                        "kind": "honest",
                        "expected": "correct",
                        "verdict": str(outcome.verdict),
                        "ok": outcome.verdict.ok,
                        "title": "original" if number == 0 else "schedule",
                        "by": "",
                        "how": "cubin",
                        "where": "gpu",
                        "detail": outcome.detail[:160],
                        "seconds": 0.0,
                    }
                )
            print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)
    return rows


def host_on_gpu(only: str) -> list[Row]:
    """Rows of Python candidates that use a GPU."""
    from sassafras.evaluate.host import HostSource

    rows = []
    with host.judge(device="cuda", call_s=30.0) as judging:
        for exhibit in host.on_gpu():
            if not exhibit.name.startswith(only):
                continue
            begin = time.perf_counter()
            try:
                outcome = judging.evaluate(HostSource(exhibit.make()))
                verdict, detail = str(outcome.verdict), outcome.detail[:160]
            except Exception as error:  # one exhibit must not lose the others
                verdict, detail = "error", f"{type(error).__name__}: {error}"[:160]
            rows.append(row(exhibit, verdict, detail, time.perf_counter() - begin, "gpu"))
            print(f"{'ok  ' if rows[-1]['ok'] else 'FAIL'} {exhibit.name}: {verdict} {detail}", flush=True)
    return rows


def summarise(rows: list[Row]) -> Row:
    """The counts that docs quote."""
    cheats = [r for r in rows if r["kind"] == "cheat"]
    honest = [r for r in rows if r["kind"] == "honest"]
    return {
        "cheats": len(cheats),
        "cheats_caught": sum(r["ok"] for r in cheats),
        "honest": len(honest),
        "honest_flagged": sum(not r["ok"] for r in honest),
        "where": sorted({r["where"] for r in rows}),
        "missed": [r["name"] for r in rows if not r["ok"]],
    }


def merged(path: Path, rows: list[Row], where: str, only: str) -> list[Row]:
    """New rows beside those of the other part (and of exhibits that were left out this time)."""
    if not path.exists():
        return rows
    old = json.loads(path.read_text())["rows"]
    fresh = {(r["name"], r["where"]) for r in rows}
    kept = [r for r in old if r["where"] != where or (only and (r["name"], where) not in fresh)]
    return sorted([*kept, *rows], key=lambda r: (r["where"], r["kind"], r["name"]))


def docs(path: Path) -> str:
    """docs/reference/cheats.md as text."""
    data = json.loads(path.read_text())
    rows, summary = data["rows"], data["summary"]
    singles = [r for r in rows if not r["name"].startswith(("schedule_", "gemm_"))]
    many: dict[tuple[str, str], list[Row]] = {}
    for one in rows:
        if one["name"].startswith(("schedule_", "gemm_")):
            many.setdefault((one["name"].split("_")[0], one["where"]), []).append(one)
    on = (
        "a CPU and a GPU"
        if "gpu" in summary["where"]
        else "a CPU; the exhibits that must run on a GPU have not run yet"
    )
    lines = [
        "# The cheat gallery",
        "",
        "Generated by `python benchmarks/cheats.py docs` from `benchmarks/results/cheats.json` "
        f"({data['date']}). Do not edit.",
        "",
        f"**{summary['cheats_caught']} of {summary['cheats']} cheats were caught, {summary['honest_flagged']} of "
        f"{summary['honest']} honest candidates were flagged**, on {on}.",
        "",
        "A cheat is caught when it ends with the verdict that it deserves. Some tricks gain nothing under this "
        "evaluator (a patched clock is merely not asked): they count as honest and must not be flagged.",
        "",
    ]
    titles = {
        "cubin": ("Machine code", "Patched schedules; proved wrong before anything runs."),
        "source": ("Source text", "Scanned, then built in confinement ([how](../concepts/evaluator.md))."),
        "python": (
            "Python candidates",
            "Run with the scan of their text switched off, on the CPU, so that confinement "
            "and checks have to do the work.",
        ),
        "python_scan": ("Python candidates that the scan refuses", "Streams, graphs, libraries, limits."),
        "gpu": ("Device code", "Judged on a GPU as source candidates."),
        "python_gpu": ("Python candidates on a GPU", "The scan of their text switched off."),
    }
    for how, (title, words) in titles.items():
        own = [r for r in singles if r["how"] == how]
        if not own:
            continue
        lines += [
            f"## {title}",
            "",
            words,
            "",
            "| exhibit | what it does | kind | verdict | caught by | |",
            "|---|---|---|---|---|---|",
        ]
        for r in sorted(own, key=lambda r: (r["kind"], r["name"])):
            mark = "" if r["ok"] else "**missed**"
            lines.append(
                f"| {r['name']} | {r['title']} | {r['kind']} | `{r['verdict']}` | {r['by']} | {mark} |"
            )
        lines.append("")
    if "gpu" not in summary["where"]:
        lines += [
            "## Device code, not run yet",
            "",
            "Written, and built by the compiler; these need a GPU (`python benchmarks/cheats.py gpu`).",
            "",
            "| exhibit | what it does | kind | must end as | caught by |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {e.name} | {e.title} | {e.kind} | {' or '.join(f'`{v}`' for v in e.expected)} | {e.by} |"
            for e in device.exhibits()
        ]
        lines.append("")
    if many:
        lines += ["## Honest candidates in bulk", "", "| candidates | on | accepted |", "|---|---|---|"]
        names = {
            "schedule": "original and random legal schedules of the suite's kernels",
            "gemm": "our HGEMM sources",
        }
        for (what, where), group in sorted(many.items()):
            lines.append(f"| {names[what]} | {where} | {sum(r['ok'] for r in group)} of {len(group)} |")
        lines.append("")
    lines += ["## What cannot be caught", "", "| class | why |", "|---|---|"]
    lines += [f"| {what} | {why} |" for what, why in LIMITS]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """See the module; 0 when every cheat was caught and nothing honest flagged."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("cpu", "plan", "gpu", "docs"))
    parser.add_argument("--only", default="", help="exhibits whose names begin so")
    parser.add_argument("--honest", type=int, default=204, help="honest schedules")
    parser.add_argument("--folder", type=Path, default=Path("plans"), help="where the plan is")
    parser.add_argument("--out", default=os.environ.get("OUT") or str(RESULT.parent))
    options = parser.parse_args(arguments)
    path = Path(options.out, "cheats.json")
    if options.step == "docs":
        (ROOT / "docs" / "reference" / "cheats.md").write_text(docs(path))
        return 0
    if options.step == "plan":
        print(make_plan(options))
        return 0
    if options.step == "gpu" and not (options.folder / "cheats.xz").is_file():
        print(f"no {options.folder / 'cheats.xz'}: make it with `python benchmarks/cheats.py plan` first")
        return 2
    if options.step == "gpu" and not gpu_count():
        print("no GPU here")
        return 2
    from sassafras.cuda.environment import environment

    found = environment()
    rows = (on_cpu if options.step == "cpu" else on_gpu)(options)
    everything = merged(path, rows, options.step, options.only)
    summary = summarise(everything)
    command = "; ".join(f"python benchmarks/cheats.py {where}" for where in summary["where"])
    write("cheats", everything, summary, {**found, "command": command}, out=options.out, command=command)
    print(json.dumps(summary, indent=1))
    return 1 if summary["missed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
