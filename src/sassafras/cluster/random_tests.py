"""Sampling on a cluster: every worker launches its part, on inputs that no other part draws.

A part is a case, a seed and a count. The same seed draws the same inputs wherever it runs, and different
seeds never share one (see `CudaDevice.sample`): a part whose worker was lost is done again elsewhere and
counted once, and what all parts took adds up to one number of samples.
"""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sassafras.core import Candidate, DeviceError, Kernel, SassafrasError, Verdict, Workload
from sassafras.core.statistics import failure_bound
from sassafras.evaluate.gpu import CudaDevice
from sassafras.evaluate.gpu.reports import SampleReport

from .payload import JobSubject, describe
from .pool import Pool, Task
from .worker import Context

#: seed of the first part
FIRST_SEED = 1


@dataclass(frozen=True, slots=True)
class Shard:
    """What one worker is asked for.

    Attributes:
        case: of the workload.
        seed: which stream of inputs.
        count: samples.
        seconds: at most so long, or None.
    """

    case: str
    seed: int
    count: int
    seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.case}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class SampleShard:
    """What came of a shard.

    Attributes:
        shard: what was asked for.
        host, gpu: where it ran; `gpu` as ``CUDA_VISIBLE_DEVICES`` names it there.
        report: what was found; None where the original differs from itself, so that bytes cannot be compared.
    """

    shard: Shard
    host: str
    gpu: str
    report: SampleReport | None

    @property
    def good(self) -> bool:
        """Sampled, and nothing found."""
        return self.report is not None and self.report.verdict is Verdict.CORRECT

    @property
    def place(self) -> str:
        """Host and GPU in words."""
        return f"{self.host} (GPU {self.gpu})" if self.gpu else self.host


@dataclass(frozen=True, slots=True)
class Merged:
    """All parts as one; see `merge`.

    Attributes:
        parts: by seed.
        samples, mismatches: of all.
        seconds: what the slowest GPU spent sampling.
        gpus: how many took part.
        failure_bound: upper 95 % bound of the failure probability a launch; 1 where something else than a
            difference ended a part (a crash, a spoilt guard band).
        fault: the part with the least seed that found something, or None.
        inexact: a case whose original differs from itself, or None.
    """

    parts: tuple[SampleShard, ...]
    samples: int
    mismatches: int
    seconds: float
    gpus: int
    failure_bound: float
    fault: SampleShard | None
    inexact: str | None

    @property
    def per_second(self) -> float:
        """Samples a second of all GPUs together."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def facts(self) -> dict[str, Any]:
        """Figures, JSON-able; one row a part."""
        known = [(part, part.report) for part in self.parts if part.report is not None]
        return {
            "samples": self.samples,
            "mismatches": self.mismatches,
            "seconds": self.seconds,
            "failure_bound": self.failure_bound,
            "per_second": self.per_second,
            "gpus": self.gpus,
            "scope": list({part.shard.case: report.scope for part, report in reversed(known)}.values())[::-1],
            "parts": [
                {
                    "case": part.shard.case,
                    "seed": part.shard.seed,
                    "host": part.host,
                    "gpu": part.gpu,
                    "samples": report.samples,
                    "seconds": report.seconds,
                    "verdict": report.verdict.value,
                    "per_second": report.per_second,
                    "bound_per_second": report.bound_per_second,
                }
                for part, report in known
            ],
        }


def plan(cases: Sequence[str], workers: int, samples: int, seconds: float | None = None) -> list[Shard]:
    """Cases times workers: equal parts of `samples` (one a case at least), each with a seed of its own.

    `seconds` are shared among the cases, and every worker has all of a case's.
    """
    if not cases or workers < 1:
        raise DeviceError(f"nothing to sample: {len(cases)} cases on {workers} workers")
    shards: list[Shard] = []
    for case, of_case in zip(cases, _equal(max(samples, len(cases)), len(cases)), strict=True):
        for count in filter(None, _equal(of_case, workers)):
            each = None if seconds is None else seconds / len(cases)
            shards.append(Shard(case, FIRST_SEED + len(shards), count, each))
    return shards


def _equal(total: int, parts: int) -> list[int]:
    return [total // parts + (index < total % parts) for index in range(parts)]


def merge(parts: Sequence[SampleShard]) -> Merged:
    """Samples and mismatches add up, in whatever order the parts came; time is that of the slowest GPU."""
    ordered = tuple(sorted(parts, key=lambda part: part.shard.seed))
    reports = [part.report for part in ordered if part.report is not None]
    spent: defaultdict[tuple[str, str], float] = defaultdict(float)
    for part in ordered:
        if part.report is not None:
            spent[part.host, part.gpu] += part.report.seconds
    samples, mismatches = sum(r.samples for r in reports), sum(r.mismatches for r in reports)
    broken = any(r.verdict is not Verdict.CORRECT and not r.mismatches for r in reports)
    return Merged(
        ordered,
        samples,
        mismatches,
        max(spent.values(), default=0.0),
        len(spent),
        1.0 if broken else failure_bound(samples, mismatches),
        next((part for part in ordered if part.report is not None and not part.good), None),
        next((part.shard.case for part in ordered if part.report is None), None),
    )


# -- on the worker ------------------------------------------------------------------------------------------


def sample_shard(payload: Mapping[str, Any], context: Context) -> Iterator[SampleShard]:
    """One shard, on a worker: yields what came of it."""
    device = context.device
    shard: Shard = payload["shard"]
    if not isinstance(device, CudaDevice):
        raise DeviceError(
            "the timing model computes no results, so there is nothing to sample",
            where=socket.gethostname(),
            hint="sampling needs workers with a GPU",
        )
    report = None
    with JobSubject(payload["subject"]) as subject:
        device.open(subject.workload, subject.case, subject.baseline)
        if device.facts.get("exact", True):
            report = device.sample(
                payload["candidate"],
                count=shard.count,
                seconds=shard.seconds,
                seed=shard.seed,
                stop=context.stop.is_set,
            )
    yield SampleShard(shard, socket.gethostname(), os.environ.get("CUDA_VISIBLE_DEVICES", ""), report)


# -- on the driver ------------------------------------------------------------------------------------------


class Enough(SassafrasError):
    """What was heard ends the sampling."""


class SampleTally:
    """What was heard of each shard, which counts once however often it is said."""

    def __init__(self) -> None:
        self._parts: dict[Shard, SampleShard] = {}

    def hear(self, part: SampleShard) -> None:
        """What a worker says. Raises Enough where the part found something, or cannot be sampled."""
        # a shard that is done again draws the same inputs: it counts once, unless only now it finds something
        if part.shard not in self._parts or not part.good:
            self._parts[part.shard] = part
        if not part.good:
            raise Enough("sampling found something", where=str(part.shard))

    def merged(self) -> Merged:
        """All parts heard of."""
        return merge(list(self._parts.values()))


def sample(
    pool: Pool,
    workload: Workload,
    cases: Sequence[str],
    original: Kernel,
    candidate: Candidate,
    *,
    samples: int,
    seconds: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Merged:
    """Probabilistic testing on all workers; the first fault stops the rest.

    Args:
        pool: of GPUs.
        cases: all that select this variant of the kernel.
        samples, seconds: stop after so many in all, or about so long.
        say: called with a line of text when a worker is lost.

    Raises:
        DeviceError: a worker has no GPU, cannot open the workload, or worker after worker was lost.
        WorkloadError: the workload cannot travel.
        KeyboardInterrupt: it was interrupted.
    """
    tally = SampleTally()
    subjects = {name: describe(workload, workload.case(name), original) for name in cases}

    def payload(shard: Shard) -> dict[str, Any]:
        return {"subject": subjects[shard.case], "candidate": candidate, "shard": shard}

    tasks = [
        Task(str(shard), "sassafras.cluster.random_tests:sample_shard", partial(payload, shard))
        for shard in plan(cases, pool.size, samples, seconds)
    ]
    try:
        done = pool.run(
            tasks,
            lambda task, part: tally.hear(part),
            on_lost=lambda task, why: say(f"{task.name} lost its worker and is done again: {why}"),
        )
    except Enough:
        done = True
    if not done:
        raise KeyboardInterrupt
    return tally.merged()
