"""`evaluate`: one candidate of a workload, judged and re-measured; without one, the baseline alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sassafras import __version__
from sassafras.comparison.cubins import from_evaluation
from sassafras.core import (
    Candidate,
    Case,
    Device,
    DeviceError,
    Evaluation,
    Evaluator,
    Kernel,
    Outcome,
    SassafrasError,
    Workload,
    beats,
    workload_digest,
)
from sassafras.evaluate import KernelEvaluator
from sassafras.evaluate.gpu import CudaDevice
from sassafras.evaluate.gpu.profile import profile
from sassafras.jobs.confirm import remeasure
from sassafras.jobs.opening import DEFAULT_ARCH, load_workload, open_device, opened_store
from sassafras.report.listing import outcome_json
from sassafras.store import Store
from sassafras.timing_model.evidence import correlation, refusal
from sassafras.validate import Validator

from .evolve import device_named, source_target, subject

#: most characters of a source, and bytes of a cubin
MOST_TEXT, MOST_CUBIN = 1 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of `evaluate`.

    Attributes:
        workload, case: what it was judged on.
        device: where.
        baseline: the unmodified kernel.
        outcome: the verdict; where it is correct, the re-measurement beside the A/A control.
        doubt: why a modelled ratio is no evidence for this kernel, or empty.
        brief: the task in words with the baseline's source; empty for a raw cubin.
        metrics: ncu's, of the baseline and of the candidate, where they were asked for.
        run: number in the store under which it was recorded, None without a store.
    """

    workload: str
    case: str
    device: str
    baseline: Kernel
    outcome: Outcome
    doubt: str = ""
    brief: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    run: int | None = None

    @property
    def decided(self) -> str:
        """``faster``, ``slower``, ``no difference`` or ``not comparable``; modelled ones say so."""
        if isinstance(self.outcome, Evaluation):
            return from_evaluation(self.outcome, 0, 0).decided
        if self.outcome.cost is None or self.doubt:
            return "not comparable"
        return "modelled faster" if beats(self.outcome) else "not modelled faster"

    def to_json(self) -> dict[str, Any]:
        """Plain values, intervals as pairs; the code is named by its digest."""
        found = outcome_json(self.outcome)
        for name in ("interval", "null_interval"):
            found[name] = found[name] and list(found[name].values())
        if self.outcome.modelled:
            found["modelled_ratio"] = getattr(self.outcome, "modelled_ratio", None)
        if self.doubt:
            found |= dict.fromkeys(("modelled_ratio", "interval", "null", "null_interval"))
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "outcome"}
        return {"decided": self.decided, **own, "baseline": self.baseline.digest, **found}


def evaluate(
    target: str | Path | Workload,
    source: str | None = None,
    *,
    cubin: bytes | None = None,
    case: str | None = None,
    arch: str | None = None,
    device: str | Device = "auto",
    metrics: bool = False,
    store: str | Path | Store | bool | None = None,
    stage: Callable[[str], None] | None = None,
) -> Judged:
    """Judge one candidate, record it in the store, and re-measure it beside the A/A control if it is correct.

    Args:
        target: a workload, or what `sassafras.load` reads.
        source: a whole source in the workload's language, built in confinement and compared with the
            reference, as by `sassafras.evolve`.
        cubin: a schedule of the baseline, which the validator has to prove before it runs. Neither: the
            baseline itself, whose figures are those of the A/A control.
        case: the workload's case, by default its first.
        arch: architecture to compile for.
        device: as for `sassafras.optimize`.
        metrics: measure ncu's metrics of a correct candidate and of the baseline; needs a GPU.
        store: path or `Store`; None for the default, False for none.
        stage: called with a line of text when another part of the work begins.

    Raises:
        SassafrasError: one of its subclasses; never for the candidate's fault, which the verdict says.
    """
    say = stage or (lambda text: None)
    if source is not None and cubin is not None:
        raise SassafrasError("a source and a cubin are two candidates", hint="give one of them")
    for what, given, most in (("source", source, MOST_TEXT), ("cubin", cubin, MOST_CUBIN)):
        if given is not None and not 0 < len(given) <= most:
            raise SassafrasError(f"a {what} of {len(given)} characters", hint=f"1 to {most}")
    with ExitStack() as stack:
        opened = open_device(device, arch) if source is None else device_named(device, arch)
        if opened is not device:
            stack.enter_context(closing(opened))
        if metrics and not isinstance(opened, CudaDevice):
            raise DeviceError("profiling needs a GPU: ncu reads its counters", where=opened.name)
        workload = load_workload(target if source is None else source_target(target)[0])
        kept = stack.enter_context(opened_store(store))
        try:
            workload, which, baseline, space = subject(workload, opened, case, arch, True, say)
            brief = "" if source is not None or cubin is not None else space.brief()
        except SassafrasError:
            if source is not None:
                raise
            which, brief = workload.case(case), ""  # a raw cubin has no source
            baseline = workload.build(which, arch or getattr(opened, "arch", None) or DEFAULT_ARCH)
        say(f"opening {opened.name}")
        opened.open(workload, which, baseline)
        judge: Evaluator
        began = time.monotonic()
        if source is not None:
            judge = space
            candidate = space.candidate(space.state({"source": source}, space.start(), "given", ""))
        else:
            validator = Validator(baseline.cubin, baseline.name)
            judge = KernelEvaluator(opened, lambda _, given: validator.check(given), baseline)
            kernel = baseline if cubin is None else baseline.with_cubin(cubin)
            candidate = Candidate(kernel, {"origin": "baseline" if cubin is None else "given"})
        say("judging the candidate")
        outcome = judge.evaluate(candidate)
        if outcome.cost is not None:
            say("re-measuring beside the A/A control" if not opened.modelled else "modelling on fresh draws")
            outcome = remeasure(opened, candidate)
        run = None
        if kept is not None:
            run = _recorded(kept, workload, which, baseline, opened)
            kept.record(run, candidate, outcome, time.monotonic() - began)
        measured: dict[str, Any] = {}
        if metrics and outcome.cost is not None:
            say("profiling")
            both = profile(workload, which, [baseline, candidate.kernel])
            measured = dict(zip(("baseline", "candidate"), both, strict=True))
        doubt = refusal(correlation(workload.name, which.name)) if opened.modelled else ""
        return Judged(workload.name, which.name, opened.name, baseline, outcome, doubt, brief, measured, run)


def _recorded(store: Store, workload: Workload, case: Case, baseline: Kernel, device: Device) -> int:
    """The run that holds all candidates that were judged alone for this baseline on this device."""
    what: dict[str, Any] = {"workload": workload.name, "case": case.name, "device": device.name}
    return store.begin_run(
        {
            **what,
            "baseline": baseline.digest,
            "contents": workload_digest(workload),
            "sassafras": __version__,
        },
        kernel=baseline,
        modelled=device.modelled,
        strategy="evaluate",
        seed=0,
        environment=device.environment() | {"target": workload.source},
        **what,
    )
