"""`verify`: all checks that can find a kernel wrong; lists those that are not possible here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sassafras.core import Candidate, Case, DeviceError, Kernel, SassafrasError, StoreError, Verdict, Workload
from sassafras.core.statistics import failure_bound
from sassafras.cuda.environment import available
from sassafras.evaluate.gpu import CudaDevice
from sassafras.evaluate.gpu.protocol import launch_key
from sassafras.evaluate.gpu.sanitizer import program, sanitize
from sassafras.evaluate.scan import scan_cubin
from sassafras.jobs.opening import DEFAULT_ARCH, load_workload, read_store
from sassafras.store import Store, Winner, default_path

from .validate import prove

Status = Literal["passed", "failed", "not done"]
#: samples in all, shared among the cases of the variant
SAMPLES = 1_000_000
#: names of the steps
PROOF, TABLES, PROCESSES, SAMPLING, SANITIZER = (
    "the validator's proof",
    "the binary's tables",
    "every case in fresh processes",
    "sampling",
    "compute-sanitizer",
)


@dataclass(frozen=True, slots=True)
class VerificationStep:
    """One thing that was done.

    Attributes:
        name: short.
        status: ``passed``, ``failed`` or ``not done``.
        detail: what was found, how much was done, or why it was not.
        facts: figures, JSON-able.
    """

    name: str
    status: Status
    detail: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verification:
    """What came of `verify`.

    Attributes:
        kernel, digest: what was verified.
        original: digest of what it was compared with.
        what: in words, where it came from.
        cases: cases that select this variant, headline first.
        steps: in the order in which they were done.
    """

    kernel: str
    digest: str
    original: str
    what: str
    cases: tuple[str, ...]
    steps: tuple[VerificationStep, ...]

    @property
    def failed(self) -> bool:
        """Some step found it wrong."""
        return any(step.status == "failed" for step in self.steps)

    @property
    def complete(self) -> bool:
        """Every step was done."""
        return all(step.status != "not done" for step in self.steps)

    def summary(self) -> str:
        """Lines for a human."""
        marks = {"passed": "passed  ", "failed": "FAILED  ", "not done": "not done"}
        lines = [f"{self.kernel} {self.digest[:16]} ({self.what})"]
        lines += [f"  {marks[step.status]}  {step.name}: {step.detail}" for step in self.steps]
        if self.failed:
            lines.append("It is wrong.")
        elif self.complete:
            lines.append("Nothing was found wrong with it.")
        else:
            missing = ", ".join(step.name for step in self.steps if step.status == "not done")
            lines.append(f"Nothing was found wrong with it as far as was looked; not done: {missing}.")
        return "\n".join(lines)


def verify(
    target: str | Workload | None = None,
    cubin: bytes | str | Path | Kernel | None = None,
    *,
    stored: int | None = None,
    store: str | Path | Store | None = None,
    case: str | None = None,
    arch: str | None = None,
    samples: int = SAMPLES,
    seconds: float | None = None,
    sanitizer: bool = True,
    say: Callable[[str], None] | None = None,
) -> Verification:
    """Verify a tuned kernel against its original, as thoroughly as this machine allows.

    Steps: the validator's proof; the binary's tables; on a GPU every case of the variant (boundary and
    non-multiple shapes) with poisoned outputs, guard bands and special values, before, inside and after
    timing, and a cold first launch, in fresh processes; massive sampling on fresh inputs made and compared on
    the GPU; compute-sanitizer.

    Args:
        target: the workload; may be left out with `stored`, whose facts name it.
        cubin: what to verify; by default the best winner that the store holds for the target's kernel, and
            the original itself where it holds none.
        stored: id of a winner in the store.
        store: path or `Store`; None for the default.
        case: the workload's case, by default its first.
        arch: architecture to compile the original for, by default the GPU's, or ``sm_90a``.
        samples, seconds: stop sampling after so many samples in all, or so long.
        sanitizer: run compute-sanitizer where it is installed.
        say: called with a line of text when another step begins.

    Raises:
        SassafrasError: the target or the stored kernel cannot be found or built.
    """
    tell = say or (lambda text: None)
    usable, missing = available()
    device = CudaDevice(seeds=4) if usable else None
    with nullcontext() if device is None else closing(device):
        subject = _subject(
            target, cubin, stored, store, case, arch or (device.arch if device else DEFAULT_ARCH)
        )
        tuned = subject.tuned
        tell(f"verifying {tuned.name} {tuned.digest[:16]} ({subject.origin})")
        steps = [_prove(subject), _tables(tuned)]
        cases: tuple[str, ...] = (subject.case.name,)
        rest = (PROCESSES, SAMPLING, SANITIZER)
        if any(step.status == "failed" for step in steps):
            steps += [VerificationStep(name, "not done", "what is not proved is not run") for name in rest]
        elif device is None:
            steps += [VerificationStep(name, "not done", f"no usable GPU: {missing}") for name in rest]
        else:
            tell("every case, cold, in fresh processes")
            device.open(subject.workload, subject.case, subject.original)
            steps.append(_processes(device, subject.candidate))
            cases = tuple(steps[-1].facts["cases"] or cases)
            tell("sampling")
            steps.append(_sample(device, subject, cases, samples, seconds))
            device.close()
            steps.append(_sanitize(subject, sanitizer, tell))
    return Verification(
        tuned.name, tuned.digest, subject.original.digest, subject.origin, cases, tuple(steps)
    )


# -- what is verified ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is verified, beside which original, where it came from in words, why nothing is proved of it."""

    workload: Workload
    case: Case
    original: Kernel
    tuned: Kernel
    origin: str
    unproved: str = ""

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.tuned, {"verify": True})


def _subject(
    target: str | Workload | None, cubin: Any, stored: int | None, store: Any, case: str | None, arch: str
) -> _Subject:
    if stored is not None and cubin is not None:
        raise SassafrasError(f"the stored kernel {stored} and a cubin are both given", hint="give one")
    winner = None if stored is None else _winner(stored, store)
    if target is None:
        if winner is None:
            raise SassafrasError("nothing to verify", hint="give a target, or the id of a stored kernel")
        target = (winner.facts.get("environment") or {}).get("target")
        if not target:
            raise StoreError(
                f"the stored kernel {stored} does not say which workload it came from",
                hint="give the target too: sassafras verify TARGET --stored ID",
            )
        case = case or winner.case
    workload = load_workload(target)
    which = workload.case(case)
    original = workload.build(which, arch)
    if winner is not None and winner.original != original.digest:
        raise StoreError(
            f"the stored kernel {stored} replaces {winner.original[:16]}, the target compiles to "
            f"{original.digest[:16]} here",
            hint="another compiler or source made it: optimise again",
        )
    origin = "as given"
    if winner is None and cubin is None:
        winner = _best(original, store)
    if winner is not None:
        tuned, origin = winner.kernel, f"stored, {winner.origin}, {winner.created[:10]}"
    elif cubin is None:
        tuned, origin = original, "the original itself: the store holds nothing tuned for it"
    elif isinstance(cubin, Kernel):
        tuned = cubin
    elif isinstance(cubin, bytes):
        tuned = original.with_cubin(cubin)
    else:
        path = Path(cubin)
        if not path.is_file():
            raise SassafrasError("no such cubin", where=str(path))
        tuned, origin = original.with_cubin(path.read_bytes()), path.name
    grounds = "" if winner is None else str(winner.facts.get("validator", ""))
    return _Subject(workload, which, original, tuned, origin, grounds if grounds.startswith("none") else "")


def _winner(stored: int, store: Any) -> Winner:
    with read_store(store) as kept:
        for winner in kept.winners():
            if winner.id == stored:
                return winner
    raise StoreError(f"the store holds no measured kernel {stored}", hint="see `sassafras store list`")


def _best(original: Kernel, store: Any) -> Winner | None:
    try:
        opened = read_store(store)
    except StoreError:
        if store is None and not os.path.lexists(default_path()):
            return None  # nothing was tuned yet
        raise
    with opened as kept:
        return next(iter(kept.winners(original=original.digest)), None)


# -- steps --------------------------------------------------------------------------------------------------


def _prove(subject: _Subject) -> VerificationStep:
    original, tuned = subject.original, subject.tuned
    if launch_key(tuned) != launch_key(original):
        return VerificationStep(PROOF, "failed", "its launch facts differ from the original's")
    if subject.unproved:
        return VerificationStep(PROOF, "not done", subject.unproved)
    _, report = prove(original.cubin, tuned.cubin, original.name)
    if report.ok:
        same = (
            "byte for byte the original" if tuned.cubin == original.cubin else "same data flow, legal timing"
        )
        return VerificationStep(PROOF, "passed", f"{same}, on every path")
    violations = [str(violation) for violation in report.violations]
    more = f"; {len(violations) - 1} more" if violations[1:] else ""
    return VerificationStep(PROOF, "failed", f"{violations[0]}{more}", {"violations": violations[:20]})


def _tables(tuned: Kernel) -> VerificationStep:
    finding, binary = scan_cubin(tuned.cubin, tuned.name)
    facts = {"undefined": list(binary.undefined), "state_bytes": binary.state_bytes}
    if finding is not None:
        return VerificationStep(TABLES, "failed", str(finding), facts)
    state = f"; {binary.state_bytes} bytes of global variables survive launches" if binary.state_bytes else ""
    return VerificationStep(TABLES, "passed", f"no launches of its own, no foreign symbols{state}", facts)


def _processes(device: Any, candidate: Candidate) -> VerificationStep:
    outcome = device.remeasure(candidate, processes=2, rounds=12, cold_l2=False)
    cases = list(outcome.facts.get("cases_checked", []))
    facts = {"cases": cases, "launches_compared": outcome.samples, "notes": outcome.facts.get("notes", [])}
    # an unsteady clock is no fault of the kernel's results
    if outcome.verdict not in (Verdict.CORRECT, Verdict.UNSTABLE_BASELINE):
        return VerificationStep(PROCESSES, "failed", outcome.detail, facts)
    detail = (
        f"{outcome.samples} launches on {', '.join(cases)}: cold first launch, poisoned outputs, guard "
        "bands, special values, before, inside and after timing"
    )
    return VerificationStep(PROCESSES, "passed", detail, facts)


def _sample(
    device: Any, subject: _Subject, cases: Sequence[str], samples: int, seconds: float | None
) -> VerificationStep:
    reports = []
    for name in cases:
        device.open(subject.workload, subject.workload.case(name), subject.original)
        if not device.facts.get("exact", True):
            why = "the original differs from itself, so bytes cannot be compared"
            return VerificationStep(SAMPLING, "not done", why)
        each = None if seconds is None else seconds / len(cases)
        report = device.sample(subject.candidate, count=-(-samples // len(cases)), seconds=each)
        reports.append(report)
        if report.verdict is not Verdict.CORRECT:
            return VerificationStep(SAMPLING, "failed", f"{name}: {report.verdict}: {report.detail}")
    taken, spent = sum(r.samples for r in reports), sum(r.seconds for r in reports)
    bound = failure_bound(taken)
    share = [r.per_second / r.bound_per_second for r in reports if r.bound_per_second]
    rate = f", {min(share):.0%} of what the launches alone allow" if share else ""
    detail = (
        f"{taken} launches on fresh inputs, every output byte equal, in {spent:.1f} s{rate}; failure "
        f"probability a launch below {bound:.1e} (95 %). {reports[0].scope}"
    )
    facts = {
        "samples": taken,
        "seconds": spent,
        "failure_bound": bound,
        "scope": [r.scope for r in reports],
        "per_second": [r.per_second for r in reports],
        "bound_per_second": [r.bound_per_second for r in reports],
    }
    return VerificationStep(SAMPLING, "passed", detail, facts)


def _sanitize(subject: _Subject, wanted: bool, tell: Callable[[str], None]) -> VerificationStep:
    """compute-sanitizer, if it is `wanted`."""
    if not wanted:
        return VerificationStep(SANITIZER, "not done", "left out as asked")
    if program() is None:
        return VerificationStep(SANITIZER, "not done", "compute-sanitizer is not installed")
    tell("compute-sanitizer")
    try:
        findings = sanitize(subject.workload, subject.case, subject.tuned)
    except DeviceError as error:
        return VerificationStep(SANITIZER, "not done", str(error))
    facts = {f.tool: {"errors": f.errors, "first": f.first, "detail": f.detail} for f in findings}
    if bad := [f for f in findings if f.errors]:
        return VerificationStep(SANITIZER, "failed", f"{bad[0].tool}: {bad[0].first}", facts)
    clean = ", ".join(f.tool for f in findings if f.clean)
    if unfinished := [f for f in findings if f.errors is None]:
        why = "; ".join(f"{f.tool}: {f.detail}" for f in unfinished)
        return VerificationStep(SANITIZER, "not done", f"{why}{'; clean: ' + clean if clean else ''}", facts)
    return VerificationStep(SANITIZER, "passed", f"nothing reported by {clean}", facts)
