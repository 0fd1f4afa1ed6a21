"""Blind mutants that the validator refuses, run by random tests all the same; writes blind-mutants.json.

    python benchmarks/blind_mutants.py --run-refused --limit-s 540                     # one GPU
    python benchmarks/blind_mutants.py --run-refused --limit-s 540 --resume blind-mutants.rows.jsonl

Would SIP's tests have found what the validator refuses? Of each kernel, mutants are drawn as SIP draws them
(`mutants/blind.py`) until the validator has refused its share of `--count`; up to `--approved` that it
approves on the way run too, and must pass. Each mutant runs on fresh random inputs beside the original, all
output bytes compared (`CudaDevice.sample`), until the first sample that differs: first `STAGES[0]` samples
of every mutant, then of those that passed up to `STAGES[1]`, refused ones first. Samples come in graphs of
hundreds, so that a mutant may have had some thousands more; the first that differs is known exactly.

Refused candidates run nowhere else in this tree. They may hang, crash and write anywhere: `--run-refused` is
this script's only door, and all runs are in worker processes with hard limits. What a mutant leaves could
spoil the tests of the next: after each that differs the original has to pass in the same worker, after each
that passes a kernel that writes nothing has to be found; else the mutant is judged again in a fresh worker.

Outcomes: ``passed``; ``wrong`` (outputs differ); ``stray`` (outputs equal, but inputs or guard bands were
written); ``crashed``; ``hung``; ``unsound`` (both judgements spoilt). Each is a line of
blind-mutants.rows.jsonl in --out at once. --resume takes over lines of the same mutants. The
second model judges all mutants as well (`blind.second`): where it finds one equal, the refusal is caution.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common import Lines, command_line, write
from mutants import blind
from mutants.blind import BlindMutant
from mutants.fates import counted, grouped, passes, shown, summed
from mutants.pool import Event, Job, Pool, Say

from sassafras.core import Candidate, Case, DeviceError, Kernel, Verdict, Workload
from sassafras.cuda.environment import environment
from sassafras.evaluate.gpu import CudaDevice
from sassafras.evaluate.gpu.device import Limits
from sassafras.evaluate.gpu.reports import SampleReport
from sassafras.targets import load

Row = dict[str, Any]
NAME = "blind-mutants"
#: SIP's two kernels (attention at a shape of the same code that is short enough to sample), and two more
KERNELS = (
    *("gemm_leakyrelu/512x512x2048", "attention_long/1x4x1024x64"),
    *("batched_gemm/4x512x512x2048", "feed_forward/512x512x2048"),
)
#: samples up to which each stage runs
STAGES = (1_000, 100_000)
#: seconds of one mutant's samples in a stage at most, and that a job may be silent
_SAMPLING_S, _SILENT_S = 60.0, 240.0
#: mutants of a kernel that follow each other, so that kernels take turns and workers seldom reopen
_TURN = 40
#: lost jobs (a GPU that cannot be opened) after which the run ends
_LOST = 12


# -- in worker processes of the pool ------------------------------------------------------------------------


class Unproved(CudaDevice):
    """A device for what the validator refused.

    Args:
        hang_s: seconds beyond its slice that a worker may take.
        stand_in: a worker module that answers instead of a GPU.
    """

    def __init__(self, hang_s: float, stand_in: str | None) -> None:
        self.stand_in = stand_in
        if stand_in is not None:
            self.worker = stand_in
        super().__init__(limits=Limits(candidate_s=hang_s / 2, open_s=90.0))

    def _find(self) -> tuple[str, str]:
        return super()._find() if self.stand_in is None else ("pretended", "sm_90a")

    def begin_case(self, workload: Workload, case: Case, baseline: Kernel) -> None:
        """Open one case alone: the others' references cost time at each crash."""
        self._settings = replace(self._settings, cases=[case.name])
        self.open(workload, case, baseline)

    def ready(self) -> None:
        """Open it again where its worker was lost."""
        self._ready()

    def fresh(self) -> None:
        """Another worker process."""
        self._replace()


_opened: list[Any] = []


def judge(
    say: Say, target: str, baseline: Kernel, nothing: bytes, mutant: bytes, count: int, seed: int,
    hang_s: float, stand_in: str | None,
) -> Row:  # fmt: skip
    """Sample one mutant.

    Args:
        target: kernel of the suite and case.
        nothing: a copy that writes nothing (`blind.empty`).
        count: samples.
        seed: of the inputs.
    """
    if not _opened:
        _opened[:] = [Unproved(hang_s, stand_in), ""]
    device = _opened[0]
    if _opened[1] != target:
        name, _, case = target.partition("/")
        workload = load(f"suite:{name}")
        device.begin_case(workload, workload.case(case), baseline)
        if not device.facts["exact"]:
            raise DeviceError("the original differs from itself", where=target)
        for code, wanted in ((baseline.cubin, "passed"), (nothing, "wrong")):
            found = sampled(device, baseline.with_cubin(code), 1, seed)
            if found["outcome"] != wanted:
                raise DeviceError(f"a control is not {wanted}: {found}", where=target)
        _opened[1] = target
    begin = time.perf_counter()
    return settled(device, baseline, nothing, mutant, count, seed) | {
        "seconds": round(time.perf_counter() - begin, 3)
    }


def settled(device: Unproved, baseline: Kernel, nothing: bytes, mutant: bytes, count: int, seed: int) -> Row:
    """What became of a mutant, by a worker that judges what is known rightly afterwards."""
    for _ in range(2):
        found = sampled(device, baseline.with_cubin(mutant), count, seed)
        if found["outcome"] in ("crashed", "hung"):
            return found
        passed = found["outcome"] == "passed"
        control = sampled(device, baseline.with_cubin(nothing) if passed else baseline, 1, seed)
        if control["outcome"] == ("wrong" if passed else "passed"):
            return found
        device.fresh()
    # (a mutant that damages its own worker is found both times, each time by a fresh one)
    return {**found, "outcome": "unsound"} if passed else {**found, "damages": True}


def sampled(device: Unproved, kernel: Kernel, count: int, seed: int) -> Row:
    """The outcome of one kernel's samples."""
    device.ready()
    try:
        report = device.sample(Candidate(kernel), count=count, seconds=_SAMPLING_S, seed=seed)
    except DeviceError as error:  # the worker lives and contradicts itself, or refuses the code
        device.fresh()
        return {"outcome": "crashed", "samples": 0, "detail": str(error)[:300]}
    return told(report)


def told(report: SampleReport) -> Row:
    """A report as a row."""
    row: Row = {"samples": report.samples, "detail": report.detail[:300]}
    if report.verdict is Verdict.CORRECT:
        return {**row, "outcome": "passed"}
    if report.verdict is Verdict.WRONG_RESULT:
        if report.first is None:
            return {**row, "outcome": "stray"}
        return {**row, "outcome": "wrong", "first": report.first}
    return {**row, "outcome": "hung" if report.verdict is Verdict.TIMED_OUT else "crashed"}


# -- the parent ---------------------------------------------------------------------------------------------


class Subject:
    """A kernel with its mutants, and what is known of them: lines by (number, stage), and `blind.second`."""

    def __init__(self, target: str, options: argparse.Namespace, share: int) -> None:
        self.target = target
        name, _, case = target.partition("/")
        workload = load(f"suite:{name}")
        self.baseline = workload.build(workload.case(case), "sm_90a")
        self.nothing = blind.empty(self.baseline)
        self.mutants = blind.draw(self.baseline, options.seed, share, options.approved)
        self.marks = {m.number: marked(m.cubin) for m in self.mutants}
        self.lines: dict[tuple[int, int], Row] = {}
        self.second: dict[int, str] = {}

    def left(self, stage: int) -> list[BlindMutant]:
        """Mutants that this stage is still to run."""
        waiting = [m for m in self.mutants if (m.number, stage) not in self.lines]
        if stage:
            before = [self.lines.get((m.number, stage - 1), {}) for m in waiting]
            passed = [line.get("outcome") == "passed" for line in before]
            waiting = [m for m, ok in zip(waiting, passed, strict=True) if ok]
        return waiting

    def job(self, mutant: BlindMutant, stage: int, options: argparse.Namespace) -> Job:
        """The stage's run: samples that the stages before have not drawn."""
        before = sum(self.lines[mutant.number, s]["samples"] for s in range(stage))
        count, seed = STAGES[stage] - before, options.seed * len(STAGES) + stage + 1
        given = (self.target, self.baseline, self.nothing, mutant.cubin, count, seed)
        return Job(
            (self.target, mutant.number, stage), judge, (*given, options.hang_s, options.pretend), _SILENT_S
        )

    def fate(self, mutant: BlindMutant) -> Row:
        """A mutant's outcome over its stages, "" where it never ran, and how many samples it passed."""
        passed, outcome, detail = 0, "", ""
        for stage in range(len(STAGES)):
            line = self.lines.get((mutant.number, stage))
            if line is None:
                break
            outcome, detail = line["outcome"], line["detail"]
            equal: int = 0 if outcome in ("stray", "unsound") else line["samples"]
            passed += line.get("first", equal)
        return {"outcome": outcome, "samples": passed, "detail": detail}

    def row(self) -> Row:
        """The result's row."""
        fates = {m.number: self.fate(m) for m in self.mutants}
        refused = [m for m in self.mutants if m.rule]
        approved = [fates[m.number] for m in self.mutants if not m.rule]
        name, _, case = self.target.partition("/")
        ran = [of for of in approved if of["outcome"]]
        return {
            "kernel": name, "case": case, **counted([fates[m.number] for m in refused]),
            "by_move": grouped(refused, fates, lambda m: m.kind),
            "by_rule": grouped(refused, fates, lambda m: m.rule),
            "by_second": grouped(refused, fates, lambda m: self.second[m.number]),
            "approved": len(approved), "approved_ran": len(ran),
            "approved_failed": sum(of["outcome"] != "passed" for of in ran),
            "approved_samples": [of["samples"] for of in ran],
            "unnoticed": [
                shown(m, self.second[m.number], fates[m.number])
                for m in refused if passes(fates[m.number], STAGES[0])
            ],
            "failures": [
                shown(m, self.second[m.number], fates[m.number])
                for m in self.mutants if not m.rule and fates[m.number]["outcome"] not in ("", "passed")
            ],
        }  # fmt: skip


def work(subjects: Sequence[Subject], options: argparse.Namespace) -> Iterator[Job]:
    """All jobs in order: stages, refused mutants before approved ones in later stages, kernels in turns."""
    for stage in range(len(STAGES)):
        listed = [
            (bool(stage) and not mutant.rule, turn // _TURN, index, turn, mutant)
            for index, subject in enumerate(subjects)
            for turn, mutant in enumerate(subject.left(stage))
        ]
        for *_, index, _, mutant in sorted(listed, key=lambda one: one[:4]):
            yield subjects[index].job(mutant, stage, options)


def run(subjects: Sequence[Subject], options: argparse.Namespace, journal: Lines, settings: Row) -> str:
    """Run what is left, a line each, within the time; why it ended early, or ``""``."""
    until = time.time() + options.limit_s
    of = {subject.target: subject for subject in subjects}
    lost: list[str] = []
    for _ in range(len(STAGES) + 2):  # a pool ends with its jobs; later stages need the earlier's answers
        jobs = list(work(subjects, options))
        if not jobs or time.time() > until or len(lost) >= _LOST:
            break
        stage = jobs[0].key[2]
        queue = [job for job in jobs if job.key[2] == stage][::-1]
        print(f"{len(queue)} mutants up to {STAGES[stage]:,} samples", flush=True)

        def following(queue: list[Job] = queue) -> Job | None:
            return queue.pop() if queue and len(lost) < _LOST else None

        for event in Pool(options.workers).run(following, until):
            if event.kind == "done":
                target, number, stage = event.key
                of[target].lines[number, stage] = event.value
                mark = of[target].marks[number]
                line = {"settings": settings[target], "target": target, "number": number, "mutant": mark}
                journal.add({**line, "stage": stage, **event.value})
            elif event.kind == "failed" or (event.kind == "killed" and time.time() < until):
                lost.append(_said(event))
                print(lost[-1], flush=True)
    if len(lost) >= _LOST:
        return f"{len(lost)} jobs were lost, the last one: {lost[-1]}"
    return "not complete: the same command with --resume goes on" if any(work(subjects, options)) else ""


def _said(event: Event) -> str:
    return f"{event.key[0]}, mutant {event.key[1]}: {event.value}"


def settings_of(subject: Subject, options: argparse.Namespace) -> list[Any]:
    """What a line of the journal has to belong to, to be taken over."""
    return [subject.baseline.digest, options.seed, list(STAGES)]


def marked(cubin: bytes) -> str:
    """What a mutant's lines are known by, whichever validator has refused it."""
    return hashlib.blake2b(cubin, digest_size=8).hexdigest()


def taken_over(subjects: Sequence[Subject], settings: Row, lines: Sequence[Row]) -> int:
    """Put a journal's lines where they belong; how many did."""
    of, count = {subject.target: subject for subject in subjects}, 0
    for line in lines:
        target, number, mark = line.pop("target"), line.pop("number"), line.pop("mutant", None)
        if line.pop("settings") == settings.get(target) and of[target].marks.get(number, "") == mark:
            of[target].lines[number, line.pop("stage")] = line
            count += 1
    return count


def main() -> int:
    """See the module; 0 where no approved mutant failed and nothing is left to run."""
    parser = command_line(__doc__, out=".")
    parser.add_argument("--run-refused", action="store_true", help="run what the validator refuses")
    parser.add_argument("--count", type=int, default=1000, help="refused mutants of all kernels together")
    parser.add_argument("--approved", type=int, default=25, help="approved mutants of a kernel, at most")
    parser.add_argument("--only", default=",".join(KERNELS), help="KERNEL/CASE of the suite, by commas")
    parser.add_argument("--limit-s", type=float, default=1e7, help="end after so many seconds")
    parser.add_argument("--resume", type=Path, help="rows.jsonl of an earlier run to go on with")
    parser.add_argument("--workers", type=int, default=6, help="processes that share the GPU")
    parser.add_argument("--hang-s", type=float, default=4.0, help="seconds until a launch counts as hung")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pretend", metavar="MODULE", help="a worker that stands in for a GPU")
    options = parser.parse_args()
    if not options.run_refused:
        parser.error("the validator refused these candidates: --run-refused runs them all the same")
    began = time.time()
    targets = options.only.split(",")
    share = -(-options.count // len(targets))
    subjects = [Subject(target, options, share) for target in targets]
    settings = {subject.target: settings_of(subject, options) for subject in subjects}
    name = NAME + ("-pretended" if options.pretend else "")
    journal = Lines(options.out / f"{name}.rows.jsonl", options.resume)
    known = taken_over(subjects, settings, journal.rows)
    drawn = sum(len(subject.mutants) for subject in subjects)
    print(f"{drawn} mutants drawn in {time.time() - began:.0f} s; {known} lines of the journal", flush=True)
    options.limit_s -= time.time() - began
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # while the GPU is at work
        asked = [pool.submit(blind.second, subject.baseline, subject.mutants) for subject in subjects]
        ended = run(subjects, options, journal, settings)
        for subject, verdicts in zip(subjects, asked, strict=True):
            subject.second = verdicts.result()
    rows = [subject.row() for subject in subjects]
    summary = summed(rows)
    where = {"gpu": "pretended"} if options.pretend else environment()
    path = write(name, rows, summary, where, seed=options.seed, out=options.out)
    print(json.dumps(summary, indent=1), f"\nwrote {path.name}", ended, sep="\n")
    return 1 if summary["approved_failed"] else 2 if ended else 0


if __name__ == "__main__":
    raise SystemExit(main())
