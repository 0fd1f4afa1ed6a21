"""Every cheat must be caught, nothing honest may be flagged: writes cheats.json and docs/reference/cheats.md.

    nice python benchmarks/cheats.py cpu [--only python_] [--honest 204]      # some minutes
    python benchmarks/cheats.py gpu [--only gpu_] [--honest 204]              # on a GPU
    python benchmarks/cheats.py docs                       # docs/reference/cheats.md from the results

``cpu`` judges what needs no GPU: patched machine code (the validator), source text (scan and confined build),
Python candidates (confined, on the CPU), and honest schedules and GEMM sources (validator and scans). ``gpu``
judges device code that must run, and runs the honest schedules. Each part keeps the other's rows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from common import ROOT, command_line, gpu_count, one_gpu, write
from gallery import Exhibit, device, host, machine, source

Row = dict[str, Any]
PAGE = ROOT / "docs" / "reference" / "cheats.md"
#: from this heading on the page is written by hand
BY_HAND = "## What cannot be caught"


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
            most = {"wall_s": 600.0, "cpu_s": 1200, "memory_bytes": None, "resident_bytes": 3 << 30}
            limits = Confinement(**most, processes=4, threads=64, disk_bytes=64 << 20)
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
    """A result row; printed as it comes."""
    ok = verdict in exhibit.expected
    print(f"{'ok  ' if ok else 'FAIL'} {exhibit.name}: {verdict} {detail}", flush=True)
    found: Row = {"name": exhibit.name, "kind": exhibit.kind, "expected": "/".join(exhibit.expected)}
    found |= {"verdict": verdict, "ok": ok, "title": exhibit.title, "by": exhibit.by, "how": exhibit.how}
    return found | {"where": where, "detail": detail, "seconds": round(seconds, 2)}


def judged(exhibits: Iterable[Exhibit], judge: Callable[[Exhibit], tuple[str, str]], where: str) -> list[Row]:
    """A row for each; an error of one must not lose the others."""
    rows = []
    for exhibit in exhibits:
        begin = time.perf_counter()
        try:
            verdict, detail = judge(exhibit)
        except Exception as error:
            verdict, detail = "error", f"{type(error).__name__}: {error}"[:160]
        rows.append(row(exhibit, verdict, detail, time.perf_counter() - begin, where))
    return rows


def honest(name: str, title: str, how: str) -> Exhibit:
    """Something honest that is not of the gallery."""
    return Exhibit(name, title, "honest", how, ("accepted", "correct"), "", lambda: None)


def on_cpu(options: argparse.Namespace) -> list[Row]:
    """Rows of everything that needs no GPU."""
    judge = Judge()
    try:
        every = (*machine.exhibits(), *source.exhibits(), *host.exhibits())
        rows = judged((e for e in every if e.name.startswith(options.only)), judge, "cpu")
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
        for number, candidate in enumerate(device.schedules(name, -(-count // len(names)))):
            kernel = candidate.kernel
            validator = validator or Validator(kernel.cubin, kernel.name)
            finding, _ = scan_cubin(kernel.cubin, kernel.name)
            ok = validator.check(kernel.cubin).ok and finding is None
            of = honest(f"schedule_{name}_{number}", candidate.recipe["honest"], "cubin")
            rows.append(row(of, "accepted" if ok else "flagged", str(finding or ""), 0.0, "cpu"))
    return rows


def honest_gemm() -> list[Row]:
    """Our own HGEMM sources: the scan of CUDA text must accept all of them."""
    from sassafras.evaluate.scan import scan_cuda
    from sassafras.gemm.build.cubins import source as text
    from sassafras.gemm.configs.registry import INSTANCES

    rows = []
    for instance in INSTANCES:
        finding = scan_cuda(text(instance))
        of = honest(f"gemm_{instance.name}", "GEMM source", "source")
        rows.append(row(of, "flagged" if finding else "accepted", str(finding or ""), 0.0, "cpu"))
    return rows


def on_gpu(options: argparse.Namespace) -> list[Row]:
    """Rows of device code that has to run, of Python candidates there, and of honest schedules that ran."""
    from sassafras.evaluate import SourceEvaluator
    from sassafras.evaluate.gpu import CudaDevice, Limits
    from sassafras.evaluate.host import HostSource
    from sassafras.targets import load

    def wanted(exhibits: Iterable[Exhibit]) -> list[Exhibit]:
        return [e for e in exhibits if e.name.startswith(options.only)]

    workload = load(f"{ROOT / 'benchmarks/gallery/subject.py'}:workload")
    case = workload.cases[0]
    with CudaDevice(limits=Limits(candidate_s=3.0), bitwise=False) as gpu:
        baseline = workload.build(case, gpu.arch)
        gpu.open(workload, case, baseline)
        evaluator = SourceEvaluator(gpu, workload, case, baseline)
        rows = judged(wanted(device.exhibits()), lambda e: said(evaluator.evaluate(e.make())), "gpu")
    with host.judge(device="cuda", call_s=30.0) as judging:
        python = wanted(host.on_gpu())
        rows += judged(python, lambda e: said(judging.evaluate(HostSource(e.make()))), "gpu")
    if not ("honest".startswith(options.only) and options.honest):
        return rows
    names = device.suite_names()
    with CudaDevice() as gpu:
        for name in names:
            opened = load(f"suite:{name}")
            for number, candidate in enumerate(device.schedules(name, -(-options.honest // len(names)))):
                if number == 0:
                    gpu.open(opened, opened.cases[0], candidate.kernel)
                of = honest(f"schedule_{name}_{number}", candidate.recipe["honest"], "cubin")
                rows.append(row(of, *said(gpu.run(candidate)), 0.0, "gpu"))
    return rows


def said(outcome: Any) -> tuple[str, str]:
    """(verdict, detail) of an outcome."""
    return str(outcome.verdict), outcome.detail[:160]


def summarise(rows: list[Row]) -> Row:
    """The counts that docs quote. What both parts judge is one candidate, judged rightly if each does so."""
    ok: dict[tuple[str, str], bool] = {}
    for r in rows:
        ok[r["kind"], r["name"]] = ok.get((r["kind"], r["name"]), True) and r["ok"]
    cheats = [right for (kind, _), right in ok.items() if kind == "cheat"]
    honest = [right for (kind, _), right in ok.items() if kind == "honest"]
    return {
        "cheats": len(cheats),
        "cheats_caught": sum(cheats),
        "honest": len(honest),
        "honest_flagged": len(honest) - sum(honest),
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


def section(words: str, rows: list[Row]) -> list[str]:
    """Exhibits of one kind: cheats by what catches them, then what is honest."""
    groups: dict[tuple[str, str], list[str]] = {}
    for r in (r for r in rows if r["kind"] == "cheat"):
        title = r["title"].split(" (")[0] + ("" if r["ok"] else " **missed**")  # (of which kernel)
        groups.setdefault((r["verdict"], r["by"]), []).append(title)
    cheats = {group: "; ".join(dict.fromkeys(found)) for group, found in sorted(groups.items())}
    if len(cheats) == 1 and all(r["ok"] for r in rows):
        lines = [f"{words} Each is caught by {by} (`{v}`): {what}." for (v, by), what in cheats.items()]
    else:
        lines = [words, "", "| verdict | caught by | candidates |", "|---|---|---|"]
        lines += [f"| `{verdict}` | {by} | {what} |" for (verdict, by), what in cheats.items()]
    honest = [r for r in rows if r["kind"] == "honest"]
    passed = [r["title"] + (f" ({r['by']})" if r["by"] else "") for r in honest if r["ok"]]
    if passed:
        lines += ["", f"Honest, and not flagged: {'; '.join(passed)}."]
    return lines + [f"**missed**: {r['title']} (`{r['verdict']}`)" for r in honest if not r["ok"]]


def docs(path: Path) -> str:
    """docs/reference/cheats.md as text."""
    data = json.loads(path.read_text())
    rows, summary = data["rows"], data["summary"]
    singles = [r for r in rows if not r["name"].startswith(("schedule_", "gemm_"))]
    many: dict[tuple[str, str], list[Row]] = {}
    for one in rows:
        if one["name"].startswith(("schedule_", "gemm_")):
            many.setdefault((one["name"].split("_")[0], one["where"]), []).append(one)
    on = "a CPU and a GPU" if "gpu" in summary["where"] else "a CPU"
    lines = [
        "# The cheat gallery",
        "",
        "Generated by `python benchmarks/cheats.py docs` from `benchmarks/results/cheats.json` "
        f"({data['date']}), last table excepted.",
        "",
        f"**{summary['cheats_caught']} of {summary['cheats']} cheats were caught, {summary['honest_flagged']} of "
        f"{summary['honest']} honest candidates were flagged**, on {on}.",
        "",
        "A cheat is caught when it ends with the expected verdict. Tricks that gain nothing under this evaluator, such "
        "as a patched clock, count as honest. `benchmarks/gallery/` has the code of each under the words used here.",
        "",
    ]
    titles = {
        "cubin": ("Machine code", "Patched schedules of two suite kernels."),
        "source": ("Source text", "Scanned, then built in confinement ([how](../concepts/evaluator.md))."),
        "python": (
            "Python candidates",
            "Run on the CPU without the scan of their text, to test confinement and checks.",
        ),
        "python_scan": ("Python candidates that the scan refuses", "Streams, graphs, libraries, limits."),
        "gpu": ("Device code", "Judged on a GPU as source candidates."),
        "python_gpu": ("Python candidates on a GPU", "Run without the scan of their text."),
    }
    for how, (title, words) in titles.items():
        if own := [r for r in singles if r["how"] == how]:
            lines += [f"## {title}", "", *section(words, own), ""]
    if many:
        lines += ["## Honest candidates in bulk", "", "| candidates | on | accepted |", "|---|---|---|"]
        names = {
            "schedule": "original and random legal schedules of the suite's kernels",
            "gemm": "GEMM kernels of Sassafras",
        }
        for (what, where), group in sorted(many.items()):
            lines.append(f"| {names[what]} | {where} | {sum(r['ok'] for r in group)} of {len(group)} |")
        lines.append("")
    _, heading, rest = PAGE.read_text(encoding="utf-8").partition(BY_HAND)
    return "\n".join([*lines, heading + rest])


def main(arguments: list[str] | None = None) -> int:
    """See the module; 0 when every cheat was caught and nothing honest flagged."""
    parser = command_line(__doc__)
    parser.add_argument("step", choices=("cpu", "gpu", "docs"))
    parser.add_argument("--only", default="", help="exhibits whose names begin so")
    parser.add_argument("--honest", type=int, default=204, help="honest schedules")
    options = parser.parse_args(arguments)
    path = options.out / "cheats.json"
    if options.step == "docs":
        PAGE.write_text(docs(path), encoding="utf-8")
        return 0
    if options.step == "gpu" and not gpu_count():
        print("no GPU here")
        return 2
    from sassafras.cuda.environment import environment

    found = environment()
    rows = (on_cpu if options.step == "cpu" else on_gpu)(options)
    everything = merged(path, rows, options.step, options.only)
    if path.exists():  # rows that ran keep the GPU that they ran on
        old = json.loads(path.read_text())["environment"]
        if options.step == "cpu" and old.get("gpu"):
            found = old
        elif options.only and "gpu" in {r["where"] for r in everything}:
            found = one_gpu([found, old if old.get("gpu") else None])
    summary = summarise(everything)
    command = "; ".join(f"python benchmarks/cheats.py {where}" for where in summary["where"])
    write("cheats", everything, summary, {**found, "command": command}, out=options.out, command=command)
    print(json.dumps(summary, indent=1))
    return 1 if summary["missed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
