"""Everything that can be done to find a kernel wrong: `verify`. What could not be done is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sassafras.core import Candidate, Case, DeviceError, Kernel, SassafrasError, StoreError, Verdict, Workload
from sassafras.store import Store, Winner

Status = Literal["passed", "failed", "not done"]
#: samples in all, shared among the cases of the variant
SAMPLES = 1_000_000


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
    cluster: str | None = None,
    workers: int | None = None,
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
        cluster: sample on every GPU of a Ray cluster (``"auto"`` or ``HOST:PORT``: `docs/guides/cluster.md`);
            where this machine has no GPU the cases are checked on one of them, too.
        workers: how many of the cluster's GPUs; None for all.
        say: called with a line of text when another step begins.

    Raises:
        SassafrasError: the target or the stored kernel cannot be found or built.
        DeviceError: the cluster cannot be used.
    """
    tell = say or (lambda text: None)
    if workers is not None and cluster is None:
        raise SassafrasError("there are workers only in a cluster", hint="--cluster auto, or HOST:PORT")
    with ExitStack() as stack:
        device, missing = _device()
        if device is not None:
            stack.callback(device.close)
        pool = None if cluster is None else stack.enter_context(_pool(cluster, workers, device))
        judge = device if device is not None or pool is None else _worker(pool)
        chosen_arch = arch or (judge.arch if judge is not None else "sm_90a")
        workload, which, original, tuned, what = _subject(target, cubin, stored, store, case, chosen_arch)
        tell(f"verifying {tuned.name} {tuned.digest[:16]} ({what})")
        steps = [_prove(original, tuned), _tables(tuned)]
        cases: tuple[str, ...] = (which.name,)
        rest = ("every case in fresh processes", "sampling", "compute-sanitizer")
        if any(step.status == "failed" for step in steps):
            steps += [VerificationStep(name, "not done", "what is not proved is not run") for name in rest]
        elif judge is None:
            steps += [VerificationStep(name, "not done", f"no usable GPU: {missing}") for name in rest]
        else:
            candidate = Candidate(tuned, {"verify": True})
            tell("every case, cold, in fresh processes")
            judge.open(workload, which, original)
            steps.append(_processes(judge, candidate))
            cases = tuple(steps[-1].facts["cases"] or cases)
            tell("sampling")
            if pool is None:
                steps.append(_sample(device, workload, cases, original, candidate, samples, seconds))
            else:
                judge.close()  # a worker of this host may have the same GPU
                steps.append(_sample_on(pool, workload, cases, original, candidate, samples, seconds, tell))
                pool.close()
            if device is not None:
                device.close()
            if not sanitizer:
                steps.append(_no_sanitizer())
            elif device is None:
                steps.append(
                    VerificationStep("compute-sanitizer", "not done", f"it runs on this machine: {missing}")
                )
            else:
                steps.append(_sanitize(workload, which, tuned, tell))
    return Verification(tuned.name, tuned.digest, original.digest, what, cases, tuple(steps))


def _device() -> tuple[Any, str]:
    from sassafras.cuda.environment import available
    from sassafras.evaluate.gpu import CudaDevice

    usable, reason = available()
    return (CudaDevice(seeds=4), "") if usable else (None, reason)


def _pool(cluster: str, workers: int | None, device: Any) -> Any:
    """The cluster's workers; of this machine's kind of GPU, if it has one, since one binary is verified."""
    from sassafras.cluster import Pool

    pool = Pool(cluster, workers=workers)
    if device is not None and pool.facts["arch"] != device.arch:
        pool.close()
        raise DeviceError(
            f"the cluster's GPUs are {pool.facts['arch']}, this machine's is {device.arch}",
            where=cluster,
            hint="one cubin is verified: use a cluster of the same architecture, or none",
        )
    return pool


def _worker(pool: Any) -> Any:
    from sassafras.cluster.islands import PoolDevice

    return PoolDevice(pool)


# -- what is verified ---------------------------------------------------------------------------------------


def _subject(
    target: str | Workload | None, cubin: Any, stored: int | None, store: Any, case: str | None, arch: str
) -> tuple[Workload, Case, Kernel, Kernel, str]:
    """Workload, case, original, what to verify, and where that came from."""
    from sassafras.targets import load

    winner = _winner(stored, store) if stored is not None else None
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
    workload = target if isinstance(target, Workload) else load(target)
    which = workload.case(case)
    original = workload.build(which, arch)
    if winner is not None:
        if winner.original != original.digest:
            raise StoreError(
                f"the stored kernel {stored} replaces {winner.original[:16]}, the target compiles to "
                f"{original.digest[:16]} here",
                hint="another compiler or source made it: optimise again",
            )
        return workload, which, original, winner.kernel, f"stored, {winner.origin}, {winner.created[:10]}"
    if isinstance(cubin, Kernel):
        return workload, which, original, cubin, "as given"
    if isinstance(cubin, bytes):
        return workload, which, original, original.with_cubin(cubin), "as given"
    if cubin is not None:
        path = Path(cubin)
        if not path.is_file():
            raise SassafrasError("no such cubin", where=str(path))
        return workload, which, original, original.with_cubin(path.read_bytes()), path.name
    best = _best(original, store)
    if best is not None:
        return workload, which, original, best.kernel, f"stored, {best.origin}, {best.created[:10]}"
    return workload, which, original, original, "the original itself: the store holds nothing tuned for it"


def _opened(store: Any) -> tuple[Store, bool]:
    return (store, False) if isinstance(store, Store) else (Store.open(store, readonly=True), True)


def _winner(stored: int, store: Any) -> Winner:
    kept, ours = _opened(store)
    try:
        for winner in kept.winners():
            if winner.id == stored:
                return winner
    finally:
        if ours:
            kept.close()
    raise StoreError(f"the store holds no measured kernel {stored}", hint="see `sassafras store list`")


def _best(original: Kernel, store: Any) -> Winner | None:
    try:
        kept, ours = _opened(store)
    except StoreError:
        return None  # there is no store yet
    try:
        return next(iter(kept.winners(original=original.digest)), None)
    finally:
        if ours:
            kept.close()


# -- steps --------------------------------------------------------------------------------------------------


def _prove(original: Kernel, tuned: Kernel) -> VerificationStep:
    from sassafras.evaluate.evaluator import _launch_key
    from sassafras.validate import Validator

    name = "the validator's proof"
    if _launch_key(tuned) != _launch_key(original):
        return VerificationStep(name, "failed", "its launch facts differ from the original's")
    report = Validator(original.cubin, original.name).check(tuned.cubin)
    if report.ok:
        same = (
            "byte for byte the original" if tuned.cubin == original.cubin else "same data flow, legal timing"
        )
        return VerificationStep(name, "passed", f"{same}, on every path")
    violations = [str(violation) for violation in report.violations]
    more = f"; {len(violations) - 1} more" if violations[1:] else ""
    return VerificationStep(name, "failed", f"{violations[0]}{more}", {"violations": violations[:20]})


def _tables(tuned: Kernel) -> VerificationStep:
    from sassafras.evaluate.scan import scan_cubin

    finding, binary = scan_cubin(tuned.cubin, tuned.name)
    facts = {"undefined": list(binary.undefined), "state_bytes": binary.state_bytes}
    if finding is not None:
        return VerificationStep("the binary's tables", "failed", str(finding), facts)
    state = f"; {binary.state_bytes} bytes of global variables survive launches" if binary.state_bytes else ""
    return VerificationStep(
        "the binary's tables", "passed", f"no launches of its own, no foreign symbols{state}", facts
    )


def _processes(device: Any, candidate: Candidate) -> VerificationStep:
    outcome = device.remeasure(candidate, processes=2, rounds=12, cold_l2=False)
    cases = list(outcome.facts.get("cases_checked", []))
    facts = {"cases": cases, "launches_compared": outcome.samples, "notes": outcome.facts.get("notes", [])}
    # an unsteady clock is no fault of the kernel's results
    good = outcome.verdict in (Verdict.CORRECT, Verdict.UNSTABLE_BASELINE)
    detail = (
        outcome.detail
        if not good
        else (
            f"{outcome.samples} launches on {', '.join(cases)}: cold first launch, poisoned outputs, guard "
            "bands, special values, before, inside and after timing"
        )
    )
    return VerificationStep("every case in fresh processes", "passed" if good else "failed", detail, facts)


def _sample(
    device: Any,
    workload: Workload,
    cases: Sequence[str],
    original: Kernel,
    candidate: Candidate,
    samples: int,
    seconds: float | None,
) -> VerificationStep:
    taken, spent, reports = 0, 0.0, []
    for name in cases:
        device.open(workload, workload.case(name), original)
        if not device.facts.get("exact", True):
            why = "the original differs from itself, so bytes cannot be compared"
            return VerificationStep("sampling", "not done", why)
        report = device.sample(
            candidate,
            count=-(-samples // len(cases)),
            seconds=None if seconds is None else seconds / len(cases),
        )
        reports.append(report)
        taken, spent = taken + report.samples, spent + report.seconds
        if report.verdict is not Verdict.CORRECT:
            return VerificationStep("sampling", "failed", f"{name}: {report.verdict}: {report.detail}")
    from sassafras.core.statistics import failure_bound

    bound = failure_bound(taken)
    share = [r.per_second / r.bound_per_second for r in reports if r.bound_per_second]
    rate = f", {min(share):.0%} of what the launches alone allow" if share else ""
    detail = (
        f"{taken} launches on fresh inputs, every output byte equal, in {spent:.1f} s{rate}; failure "
        f"probability a launch below {bound:.1e} (95 %). {reports[0].scope}"
    )
    return VerificationStep(
        "sampling",
        "passed",
        detail,
        {
            "samples": taken,
            "seconds": spent,
            "failure_bound": bound,
            "scope": [r.scope for r in reports],
            "per_second": [r.per_second for r in reports],
            "bound_per_second": [r.bound_per_second for r in reports],
        },
    )


def _sample_on(
    pool: Any,
    workload: Workload,
    cases: Sequence[str],
    original: Kernel,
    candidate: Candidate,
    samples: int,
    seconds: float | None,
    tell: Callable[[str], None],
) -> VerificationStep:
    """`_sample` on all workers of a cluster."""
    from sassafras.cluster.random_tests import sample

    try:
        found = sample(pool, workload, cases, original, candidate, samples=samples, seconds=seconds, say=tell)
    except DeviceError as error:
        return VerificationStep("sampling", "not done", str(error))
    facts = found.facts()
    if found.fault is not None and found.fault.report is not None:
        where, report = found.fault, found.fault.report
        detail = f"{where.shard}, on {where.place}: {report.verdict}: {report.detail}"
        return VerificationStep("sampling", "failed", detail, facts)
    if found.inexact is not None:
        why = f"{found.inexact}: the original differs from itself, so bytes cannot be compared"
        return VerificationStep("sampling", "not done", why, facts)
    gpus = "1 GPU" if found.gpus == 1 else f"{found.gpus} GPUs"
    detail = (
        f"{found.samples} launches on fresh inputs, every output byte equal, on {gpus} in "
        f"{found.seconds:.1f} s; failure probability a launch below {found.failure_bound:.1e} (95 %). "
        f"{facts['scope'][0]}"
    )
    return VerificationStep("sampling", "passed", detail, facts)


def _sanitize(workload: Workload, case: Case, tuned: Kernel, tell: Callable[[str], None]) -> VerificationStep:
    from sassafras.evaluate.gpu.sanitizer import program, sanitize

    if program() is None:
        return VerificationStep("compute-sanitizer", "not done", "compute-sanitizer is not installed")
    tell("compute-sanitizer")
    try:
        findings = sanitize(workload, case, tuned)
    except DeviceError as error:
        return VerificationStep("compute-sanitizer", "not done", str(error))
    facts = {f.tool: {"errors": f.errors, "first": f.first, "detail": f.detail} for f in findings}
    if bad := [f for f in findings if f.errors]:
        return VerificationStep("compute-sanitizer", "failed", f"{bad[0].tool}: {bad[0].first}", facts)
    clean = ", ".join(f.tool for f in findings if f.clean)
    if unfinished := [f for f in findings if f.errors is None]:
        why = "; ".join(f"{f.tool}: {f.detail}" for f in unfinished)
        return VerificationStep(
            "compute-sanitizer", "not done", f"{why}{'; clean: ' + clean if clean else ''}", facts
        )
    return VerificationStep("compute-sanitizer", "passed", f"nothing reported by {clean}", facts)


def _no_sanitizer() -> VerificationStep:
    return VerificationStep("compute-sanitizer", "not done", "left out as asked")
