"""The one path from a candidate to its outcome: validate, run isolated, check, time, record."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sassafras.core import Candidate, Device, Evaluation, Kernel, Modelled, Outcome, Redrawing, Verdict
from sassafras.evaluate.gpu.protocol import kernel_facts


class ReportLike(Protocol):
    """A validator's answer."""

    @property
    def ok(self) -> bool:
        """True when the candidate is proved legal."""
        ...

    @property
    def violations(self) -> Any:
        """What is not, as a sequence whose items print well."""
        ...


#: ``validator(original cubin, candidate cubin) -> report``
ValidatorLike = Callable[[bytes, bytes], ReportLike]


class OutcomeRecorder(Protocol):
    """Where outcomes are kept; the store implements it."""

    def record(self, run_id: Any, candidate: Candidate, outcome: Outcome) -> Any:
        """Append one outcome durably."""
        ...


class KernelEvaluator:
    """Implements `core.protocols.KernelEvaluator` on a device that is open already.

    A candidate goes through: the cache of this run (by cubin digest), the comparison of its launch facts
    with the baseline's, the validator, the device. Its outcome is recorded before it is returned.

    Args:
        device: an open `CudaDevice` or `ModelDevice`.
        validator: proves candidates legal; None only for candidates that are no schedules of the baseline
            (GEMM programs, source text), which a device judges by results alone.
        baseline: the unmodified kernel.
        store: keeps every outcome; None for none.
        run_id: under which the store files them.
        implausible: says why a time in microseconds cannot be true (see `roofline`), or ``""``.

    Attributes:
        verdicts: count of outcomes by verdict (``modelled`` for those of the timing model).
        evaluations: outcomes that a device or the validator gave; cache hits are not counted.
        cached: outcomes answered from the cache.
        validation_seconds: time spent in the validator.
    """

    def __init__(
        self,
        device: Device,
        validator: ValidatorLike | None,
        baseline: Kernel,
        store: OutcomeRecorder | None = None,
        *,
        run_id: Any = None,
        implausible: Callable[[float], str] | None = None,
    ) -> None:
        self.device, self.validator, self.baseline = device, validator, baseline
        self.store, self.run_id = store, run_id
        self._implausible = implausible
        self.verdicts: Counter[str] = Counter()
        self.evaluations = 0
        self.cached = 0
        self.validation_seconds = 0.0
        self._seen: dict[tuple[str, str], Outcome] = {}

    def evaluate(self, candidate: Candidate) -> Outcome:
        """Judge one candidate. Never raises for a candidate's fault: the verdict says it.

        Raises:
            DeviceError: the device itself failed.
            StoreError: the outcome could not be recorded.
        """
        key = (candidate.digest, _launch_key(candidate.kernel))
        if key in self._seen:
            self.cached += 1
            return self._seen[key]
        outcome = self._refuse(candidate)
        if outcome is None:
            outcome = self._plausible(self.device.run(candidate))
        return self.settle(candidate, outcome)

    def closer(self, candidate: Candidate, level: int) -> Outcome | None:
        """A look at more draws on a device that draws; see `core.Redrawing.closer`.

        Of a candidate that `evaluate` found usable. The last look is the one that is remembered.
        """
        if not isinstance(self.device, Redrawing):
            return None
        outcome = self.device.closer(candidate, level)
        if outcome is not None:
            self._seen[candidate.digest, _launch_key(candidate.kernel)] = outcome
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
        """Count, remember and record an outcome that was found elsewhere (a source that did not build)."""
        key = (candidate.digest, _launch_key(candidate.kernel))
        if key in self._seen:
            self.cached += 1
            return self._seen[key]
        self._seen[key] = outcome
        self.evaluations += 1
        self.verdicts["modelled" if outcome.verdict is None else str(outcome.verdict)] += 1
        if self.store is not None:
            self.store.record(self.run_id, candidate, outcome)
        return outcome

    def _refuse(self, candidate: Candidate) -> Outcome | None:
        """An outcome without running, or None when the device may run the candidate."""
        if self.validator is None or candidate.kernel.cubin == self.baseline.cubin:
            return None
        begin = time.perf_counter()
        if _launch_key(candidate.kernel) != _launch_key(self.baseline):
            why = "a schedule must keep the baseline's launch: name, block, grid, memory, cluster, overlap"
            return self._refusal(candidate, Verdict.ILLEGAL_SCHEDULE, why, begin)
        report = self.validator(self.baseline.cubin, candidate.kernel.cubin)
        self.validation_seconds += time.perf_counter() - begin
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

    def known(self, outcomes: Mapping[str, Outcome]) -> None:
        """Fill the cache with outcomes of an earlier part of the same run (by digest): resuming."""
        for digest, outcome in outcomes.items():
            self._seen[(digest, _launch_key(self.baseline))] = outcome


def _launch_key(kernel: Kernel) -> str:
    """What else than its code decides how a kernel runs: everything that travels to a worker."""
    return json.dumps(kernel_facts(kernel), sort_keys=True, default=str)
