"""Turning a worker's raw times and counts into evaluations and sample reports."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sassafras.core import Candidate, DeviceError, Evaluation, Verdict
from sassafras.core.statistics import (
    bootstrap_median,
    failure_bound,
    hierarchical_bootstrap,
    hierarchical_median,
    paired_ratios,
)

#: a null experiment further from 1 than this means that this machine cannot tell such kernels apart
NULL_TOLERANCE = 0.02
#: what was seen of a candidate whose times with repeated inputs looked suspicious (`repetition`)
SEEN = ("repeated_inputs_save_us", "repeated_inputs")


@dataclass(frozen=True, slots=True)
class SampleReport:
    """What probabilistic testing found.

    Attributes:
        samples: launches on fresh inputs whose every output byte was compared.
        mismatches: samples that differed.
        seconds: GPU and host time spent sampling.
        failure_bound: upper 95 % bound of the failure probability a launch (rule of three).
        scope: what that bound covers; print it beside the bound.
        bound_per_second: samples a second if only candidate and baseline launches took time.
        verdict: `correct`, `wrong_result`, `crashed` or `timed_out`.
        detail: the first differing sample and where, or the error.
        first: the first sample that differed, None where none did.
    """

    samples: int
    mismatches: int
    seconds: float
    failure_bound: float
    scope: str
    bound_per_second: float | None
    verdict: Verdict
    detail: str = ""
    first: int | None = None

    @property
    def per_second(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0


def quick_evaluation(
    candidate: Candidate, answer: Mapping[str, Any], seconds: float, digest: str | None = None
) -> Evaluation:
    """An `Evaluation` from the worker's answer to ``run``. `digest`: the candidate's, where it is known."""
    verdict = Verdict(answer["verdict"])
    facts = {key: answer[key] for key in ("stopped", "kinds", "errors", *SEEN) if answer.get(key) is not None}
    common: dict[str, Any] = {
        "digest": digest or candidate.digest,
        "verdict": verdict,
        "samples": int(answer.get("samples", 0)),
        "detail": answer.get("detail", ""),
        "seconds": seconds,
    }
    if not verdict.ok:
        return Evaluation(**common, facts=facts)
    ratios = paired_ratios(answer["baseline_us"], answer["candidate_us"])
    return Evaluation(
        **common,
        facts={**facts, "pairs": len(ratios)},
        time_us=float(statistics.median(answer["candidate_us"])),
        baseline_us=float(statistics.median(answer["baseline_us"])),
        speedup=float(statistics.median(ratios.tolist())),
        interval=bootstrap_median(ratios, draws=300),
    )


def frozen_evaluation(
    candidate: Candidate,
    answers: Sequence[Mapping[str, Any]],
    seconds: float,
    facts: Mapping[str, Any],
) -> Evaluation:
    """An `Evaluation` from the answers of several fresh processes to ``measure``.

    The verdict is the first that is not `correct`; `unstable_baseline` when the null experiment is further
    from 1 than `NULL_TOLERANCE`.
    """
    samples = sum(int(answer.get("samples", 0)) for answer in answers)
    for index, answer in enumerate(answers):
        if answer["verdict"] != Verdict.CORRECT:
            return Evaluation(
                candidate.digest,
                Verdict(answer["verdict"]),
                samples=samples,
                detail=f"process {index + 1} of {len(answers)}: {answer['detail']}",
                seconds=seconds,
                facts=facts,
            )
    groups = [paired_ratios(a["baseline_us"], a["candidate_us"]) for a in answers]
    nulls = [paired_ratios(a["baseline_us"], a["null_us"]) for a in answers]
    null = hierarchical_median(nulls)
    steady = abs(null - 1.0) <= NULL_TOLERANCE
    per_process = [
        {
            "speedup": float(np.median(group)),
            "null": float(np.median(other)),
            "baseline_us": float(np.median(answer["baseline_us"])),
            "candidate_us": float(np.median(answer["candidate_us"])),
        }
        for group, other, answer in zip(groups, nulls, answers, strict=True)
    ]
    extra: dict[str, Any] = {"processes": per_process}
    if any(SEEN[0] in answer for answer in answers):
        extra |= {key: [answer.get(key) for answer in answers] for key in SEEN}
    if all("cold_baseline_us" in answer for answer in answers):
        cold = [paired_ratios(a["cold_baseline_us"], a["cold_candidate_us"]) for a in answers]
        extra["cold_l2_speedup"] = hierarchical_median(cold)
        extra["cold_l2_baseline_us"] = float(np.median([np.median(a["cold_baseline_us"]) for a in answers]))
    return Evaluation(
        candidate.digest,
        Verdict.CORRECT if steady else Verdict.UNSTABLE_BASELINE,
        time_us=float(np.median([row["candidate_us"] for row in per_process])),
        baseline_us=float(np.median([row["baseline_us"] for row in per_process])),
        speedup=hierarchical_median(groups),
        interval=hierarchical_bootstrap(groups, seed=1) if len(groups) > 1 else bootstrap_median(groups[0]),
        null=null,
        null_interval=hierarchical_bootstrap(nulls, seed=2) if len(nulls) > 1 else bootstrap_median(nulls[0]),
        samples=samples,
        detail="" if steady else f"the identity rewrite measured {null:.4f} times the baseline's speed",
        seconds=seconds,
        facts={**facts, **extra},
    )


def scope_sentence(case: str, fixed: Sequence[str], special_every: int, kept: Sequence[str] = ()) -> str:
    """What a failure bound from sampling covers."""
    sentence = (
        f"For this input distribution and shape ({case}) only: random inputs as the workload fills them, "
        f"one sample in {special_every} with infinities, NaN, subnormal and huge values"
    )
    if fixed:
        sentence += f"; {', '.join(fixed)} (custom fill) stayed the same in all samples"
    if kept:
        sentence += f"; {', '.join(kept)}: a seventh new in each sample, all in two of 16"
    return sentence + "."


def sample_report(answer: Mapping[str, Any], case: str, special_every: int) -> SampleReport:
    """A `SampleReport` from the worker's last answer to ``sample`` (its seconds: those of all slices)."""
    samples, mismatches = int(answer["samples"]), int(answer["mismatches"])
    detail = ""
    if mismatches:
        detail = f"sample {answer['first']} was the first to differ; a difference at {answer['where']}"
    spoilt = str(answer.get("spoilt", ""))
    return SampleReport(
        samples=samples,
        mismatches=mismatches,
        seconds=float(answer["seconds"]),
        failure_bound=1.0 if spoilt else failure_bound(samples, mismatches),
        scope=scope_sentence(case, answer["fixed"], special_every, answer.get("kept", ())),
        bound_per_second=1e6 / float(answer["pair_us"]),
        verdict=Verdict.WRONG_RESULT if mismatches or spoilt else Verdict.CORRECT,
        detail=detail or spoilt,
        first=answer.get("first"),
    )


def lost(candidate: Candidate, error: DeviceError, seconds: float) -> Evaluation:
    """The evaluation of a candidate whose worker died, hung or held too much memory."""
    return Evaluation(candidate.digest, error.verdict or Verdict.CRASHED, detail=str(error), seconds=seconds)


def broken_sample(answer: Mapping[str, Any], spent: float, ended: Evaluation) -> SampleReport:
    """The report of sampling that ended early; it bounds nothing."""
    return SampleReport(
        samples=int(answer.get("samples", 0)),
        mismatches=int(answer.get("mismatches", 0)),
        seconds=spent,
        failure_bound=1.0,
        scope="None: sampling did not finish.",
        bound_per_second=None,
        verdict=ended.verdict,
        detail=ended.detail,
    )
