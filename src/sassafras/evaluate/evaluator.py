"""The one path from a candidate to its outcome: validate, run isolated, check, time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from sassafras.core import Candidate, Device, Evaluation, Kernel, Modelled, Outcome, Redrawing, Verdict
from sassafras.evaluate.gpu.protocol import launch_key

if TYPE_CHECKING:
    from sassafras.validate import Report


#: ``validator(original cubin, candidate cubin) -> report``
ValidatorLike = Callable[[bytes, bytes], "Report"]
#: verdicts that no approved candidate may have
FAILURES = (Verdict.WRONG_RESULT, Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.CHEATED)
#: failures of one kernel's schedules whose code is kept
_KEPT = 8


class ApprovedFailure(NamedTuple):
    """A candidate that the validator approved and that failed on the device: what a report of it needs."""

    digest: str
    verdict: str
    detail: str
    cubin: bytes
    original: bytes


class KernelEvaluator:
    """Implements `core.protocols.Evaluator` on a device that is open already.

    A candidate goes through: the cache of this run (by cubin digest), the comparison of its launch facts
    with the baseline's, the validator, the device.

    Args:
        device: an open `CudaDevice` or `ModelDevice`.
        validator: proves candidates legal; None only for candidates that are no schedules of the baseline
            (GEMM programs, source text), which a device judges by results alone.
        baseline: the unmodified kernel.
        implausible: says why a time in microseconds cannot be true (see `roofline`), or ``""``.
    """

    def __init__(
        self,
        device: Device,
        validator: ValidatorLike | None,
        baseline: Kernel,
        *,
        implausible: Callable[[float], str] | None = None,
    ) -> None:
        self.device, self.validator, self.baseline = device, validator, baseline
        self._implausible = implausible
        self._seen: dict[tuple[str, str], Outcome] = {}
        #: the first candidates that failed although the validator had approved them
        self.failures: list[ApprovedFailure] = []

    def evaluate(self, candidate: Candidate) -> Outcome:
        """Judge one candidate. Never raises for a candidate's fault: the verdict says it.

        Raises:
            DeviceError: the device itself failed.
        """
        if (known := self._seen.get((candidate.digest, launch_key(candidate.kernel)))) is not None:
            return known
        outcome = self._refuse(candidate)
        if outcome is None:
            outcome = self._plausible(self.device.run(candidate))
            self.note(candidate, outcome)
        return self.settle(candidate, outcome)

    def note(self, candidate: Candidate, outcome: Outcome) -> None:
        """Keep the code of a candidate that failed although the validator had approved it."""
        cubin, original, verdict = candidate.kernel.cubin, self.baseline.cubin, outcome.verdict
        approved = self.validator is not None and cubin != original
        if approved and verdict in FAILURES and len(self.failures) < _KEPT:
            failure = ApprovedFailure(candidate.digest, str(verdict), outcome.detail, cubin, original)
            self.failures.append(failure)

    def closer(self, candidate: Candidate, level: int) -> Outcome | None:
        """A look at more draws on a device that draws; see `core.Redrawing.closer`.

        Of a candidate that `evaluate` found usable. The last look is the one that is remembered.
        """
        if not isinstance(self.device, Redrawing):
            return None
        outcome = self.device.closer(candidate, level)
        if outcome is not None:
            self._seen[candidate.digest, launch_key(candidate.kernel)] = outcome
        return outcome

    def _plausible(self, outcome: Outcome) -> Outcome:
        """The outcome, or `cheated` when its time cannot be true."""
        if self._implausible is None or not isinstance(outcome, Evaluation) or outcome.time_us is None:
            return outcome
        why = self._implausible(outcome.time_us)
        if not why:
            return outcome
        return Evaluation(
            outcome.digest,
            Verdict.CHEATED,
            samples=outcome.samples,
            detail=why,
            seconds=outcome.seconds,
            facts=outcome.facts,
        )

    def settle(self, candidate: Candidate, outcome: Outcome) -> Outcome:
        """Remember an outcome, also one that was found elsewhere (a source that did not build)."""
        return self._seen.setdefault((candidate.digest, launch_key(candidate.kernel)), outcome)

    def _refuse(self, candidate: Candidate) -> Outcome | None:
        """An outcome without running, or None when the device may run the candidate."""
        if self.validator is None or candidate.kernel.cubin == self.baseline.cubin:
            return None
        begin = time.perf_counter()
        if launch_key(candidate.kernel) != launch_key(self.baseline):
            why = "a schedule must keep the baseline's launch: name, block, grid, memory, cluster, overlap"
            return self._refusal(candidate, Verdict.ILLEGAL_SCHEDULE, why, begin)
        report = self.validator(self.baseline.cubin, candidate.kernel.cubin)
        if report.ok:
            return None
        violations = list(report.violations)
        detail = str(violations[0]) if violations else "the validator refused it without saying why"
        if len(violations) > 1:
            detail += f"; {len(violations) - 1} more violations"
        return self._refusal(candidate, Verdict.ILLEGAL_SCHEDULE, detail, begin)

    def _refusal(self, candidate: Candidate, verdict: Verdict, detail: str, begin: float) -> Outcome:
        seconds = time.perf_counter() - begin
        if self.device.modelled:
            return Modelled(candidate.digest, verdict, detail=detail, seconds=seconds)
        return Evaluation(candidate.digest, verdict, detail=detail, seconds=seconds)
