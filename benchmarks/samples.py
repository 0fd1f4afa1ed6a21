"""Samples a second of the suite's kernels, beside what their launches alone allow: writes samples.json.

    python benchmarks/samples.py [--seconds 3] [--counters] [--limit-s S] [--resume JOURNAL] [--out FOLDER]

Each kernel's headline case is sampled against itself: fresh inputs a sample, every output byte compared. The
bound is 1 / (t_candidate + t_reference), both timed as graphs of launches. A mismatch is a defect of ours
or of the kernel, and fails the run. With `--counters` ncu then counts the bytes of the kernel between two
samples, the slowest kernels first, beside those that it has to move at least.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from common import code_digest, command_line, journal_of, journal_options, shared, write

from sassafras import suite
from sassafras.core import Case, Custom
from sassafras.cuda.environment import available, environment
from sassafras.evaluate.gpu.guarded_buffers import BufferLayout
from sassafras.evaluate.gpu.random_tests import SPECIAL_EVERY

Row = dict[str, Any]
HERE = Path(__file__).resolve()
#: share of the words of a kept buffer that gets new values, on average: all twice, a seventh otherwise
RENEWED = (2 + (SPECIAL_EVERY - 2) / 7) / SPECIAL_EVERY


def least(case: Case, kept: dict[str, float]) -> Row:
    """Bytes that a step between two samples has to read and to write.

    Args:
        kept: in/out buffers of which a launch changes little, with the share that it changes.
    """
    read = written = 0.0
    for segment in BufferLayout.of(case).segments:
        buffer, size = segment.buffer, segment.buffer.nbytes
        read += 2 * size * (buffer.role != "in")
        if buffer.role != "out" and not isinstance(buffer.fill, Custom):
            share = 1.0
            if segment.name in kept:
                share = RENEWED + (1 - RENEWED) * kept[segment.name]
            written += share * size * (2 if buffer.role == "inout" else 1)
    return {"least_read_bytes": round(read), "least_written_bytes": round(written)}


def opened(name: str) -> tuple[Any, Any, Any]:
    """A judge of the headline case, a sampler, and microseconds of a candidate's and a reference's launch."""
    from sassafras.cuda.environment import probe
    from sassafras.evaluate.gpu.judge import KernelJudge
    from sassafras.evaluate.gpu.protocol import JudgeSettings
    from sassafras.evaluate.gpu.random_tests import Sampler, launch_pair_us

    workload = suite.load(name)
    kernel = workload.build(workload.cases[0], probe()["arch"])
    judge = KernelJudge(workload, workload.cases[0], kernel, JudgeSettings(seeds=1, cases=()))
    return judge, Sampler(judge, kernel, seed=1), launch_pair_us(judge, kernel)


def measured(name: str, seconds: float) -> Row:
    """Rates of one kernel on this process's GPU."""
    judge, sampler, (candidate, reference) = opened(name)
    sampler.slice(0.0)  # the first replay uploads the graph
    before = sampler.taken
    answer = sampler.slice(seconds)
    rate, bound = (sampler.taken - before) / answer["seconds"], 1e6 / (candidate + reference)
    sampler.close()
    return {
        "candidate_us": candidate, "reference_us": reference, "samples": answer["samples"],
        "seconds": answer["seconds"], "per_second": rate, "bound_per_second": bound, "share": rate / bound,
        "step_us": 1e6 / rate - candidate - reference, "ten_million_s": 1e7 / rate,
        "mismatches": answer["mismatches"], "spoilt": answer.get("spoilt", ""),
        "fixed": sampler.fixed, "kept": sampler.kept, **least(judge.headline.case, sampler.kept),
    }  # fmt: skip


def counted(name: str) -> Row:
    """ncu's metrics of one step between two samples, by a process of its own."""
    from sassafras.evaluate.gpu.profile import launches

    target = [str(HERE), "--launch", name]
    which = ("--kernel-name", "regex:^sassafras_step$", "--launch-skip", "2", "--launch-count", "1")
    (metrics,) = launches(target, *which, seconds=120.0)
    return {"counters": metrics}


def merged(records: dict[str, Row], names: list[str]) -> list[Row]:
    """A row a kernel: its rates and, where ncu looked, its counters."""
    those = [name for name in names if name in records]
    rows = [{**records[n], **records.get(f"{n} counters", {}), "kernel": n} for n in those]
    return [{key: value for key, value in row.items() if key != "shape"} for row in rows]


def summarise(rows: list[Row]) -> Row:
    """Totals, the lowest share of the bound, and bytes that ncu counted over those that must be moved."""
    good = [row for row in rows if "share" in row]
    lowest = min(good, key=lambda row: row["share"], default={"share": None, "kernel": None})
    over = {
        row["kernel"]: (found["dram_read_bytes"] + found["dram_write_bytes"])
        / (row["least_read_bytes"] + row["least_written_bytes"])
        for row in good
        if {"dram_read_bytes", "dram_write_bytes"} <= set(found := row.get("counters", {}))
    }
    return {
        "kernels": len(good), "samples": sum(row["samples"] for row in good),
        "mismatches": sum(row["mismatches"] for row in good),
        "lowest_share": lowest["share"], "lowest": lowest["kernel"],
        "at_least_half": sum(row["share"] >= 0.5 for row in good),
        "below_half": [row["kernel"] for row in good if row["share"] < 0.5],
        "ten_million_least_s": min((row["ten_million_s"] for row in good), default=None),
        "ten_million_most_s": max((row["ten_million_s"] for row in good), default=None),
        "dram_bytes_over_least": over,
        "failed": {row["kernel"]: row["error"] for row in rows if "error" in row},
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Sample, count and write; 1 when anything differed or failed, 2 without a GPU."""
    begin = time.monotonic()
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of sampling a kernel")
    parser.add_argument("--only", nargs="+", choices=suite.names(), default=list(suite.names()))
    parser.add_argument("--counters", action="store_true", help="ask ncu")
    parser.add_argument("--launch", help=argparse.SUPPRESS)  # what `counted` runs
    journal_options(parser)
    given = parser.parse_args(arguments)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    if given.launch:
        judge, sampler, _ = opened(given.launch)
        sampler.enqueue()  # ncu sees each launch of a stream
        judge.gpu.sync()
        return 0
    usable, reason = available()
    if not usable and not given.dry_run:
        print(reason)
        return 2
    where = environment()
    name = "samples" + "-dry" * given.dry_run
    header = {"gpu": where["gpu"], "sassafras": code_digest("evaluate", "suite")[:16]}
    header["seconds"] = given.seconds
    journal = journal_of(given, name, header)

    def one(key: str, work: Any) -> None:
        """A record, unless there is one or the time is up; a failure does not cost the others."""
        if key in journal.done() or time.monotonic() - begin > given.limit_s:
            return
        try:
            found = work()
        except Exception as error:
            what = "error" if key in given.only else "counters_error"
            found = {what: f"{type(error).__name__}: {error}"[:300]}
        journal.add({"shape": key, **found})
        print(f"{time.monotonic() - begin:6.1f} s {key}: {found}", flush=True)

    for kernel in shared(given.only, given):
        if given.dry_run:
            one(kernel, lambda kernel=kernel: least(suite.load(kernel).cases[0], {}))
        else:
            one(kernel, lambda kernel=kernel: measured(kernel, given.seconds))
    if given.counters:
        slowest = sorted(merged(journal.done(), given.only), key=lambda row: row.get("share", 0.0))
        for row in slowest:
            one(f"{row['kernel']} counters", lambda row=row: counted(row["kernel"]))
    rows = merged(journal.done(), list(suite.names()))
    summary = summarise(rows)
    write(name, rows, summary, where, out=given.out)
    print(*(f"{key}: {value}" for key, value in summary.items()), sep="\n", flush=True)
    return int(bool(summary["mismatches"] or summary["failed"] or any(row.get("spoilt") for row in rows)))


if __name__ == "__main__":
    sys.exit(main())
