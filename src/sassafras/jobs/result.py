"""The result of an optimisation: one line of text, a cubin, and a JSON file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from sassafras.core import Interval, Kernel, StoreError
from sassafras.core.errors import os_errors
from sassafras.core.files import write_whole
from sassafras.evaluate import ApprovedFailure
from sassafras.jobs.rates import rates
from sassafras.timing_model.evidence import correlation_words, ratio_words, refusal

#: of names of files, which may have 255 with what follows
_STEM_BYTES = 180


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of `sassafras.optimize`.

    Attributes:
        workload: name of the workload.
        case: name of its case.
        arch: architecture of the code.
        strategy: name of the strategy.
        settings: its settings.
        seed: seed of the search.
        budget: the budget, as text.
        device: "NVIDIA H200", or "timing model of sm_90".
        modelled: True when nothing here was measured.
        baseline: the unmodified kernel.
        kernel: the winner; the baseline itself where nothing beat it.
        improved: the winner is not the baseline.
        speedup: baseline time / winner's time, re-measured in fresh processes after the search; exactly 1
            for the baseline itself; None on the timing model.
        interval: 95 % interval of `speedup`, or of `modelled_ratio` (see `core.Modelled.interval`).
        null: speed-up of the identity rewrite, measured beside it; on the timing model the ratio of the
            baseline to itself on other draws of start times.
        null_interval: its 95 % interval.
        baseline_us: GPU time of the baseline, microseconds a launch.
        time_us: the same of the winner.
        samples: launches of the winner whose outputs were compared byte by byte.
        modelled_ratio: modelled baseline cycles / modelled winner's cycles, on draws of start times that
            nothing was selected on; exactly 1 for the baseline itself; None where measured, and where it is
            no evidence (`refusal`). Without an interval it is what the search selected on, not re-drawn.
        correlation: how well the timing model ranks schedules of this kernel: kendall_tau, ceiling,
            schedules, date, gpu; None where that was never measured.
        evaluations: outcomes, earlier sittings included.
        replayed: how many of them came from the store.
        seconds: seconds of budget spent, earlier sittings included.
        verdicts: outcomes by verdict.
        reason: why the search ended: budget, exhausted, returned, interrupted.
        failed_after_validation: candidates that the validator approved and that then crashed, hung, or gave
            a wrong result, during the search or after it. Anything but 0 is a defect of the validator.
        notes: what else should be known, for example a best candidate that did not survive re-measuring.
        recipe: how the winner came about.
        environment: GPU, driver, versions.
        facts: further facts of the final measurement.
        command: what was asked for.
        run: number of the run in the store, None without one.
        date: UTC, ISO 8601.
        from_store: the search was not run again: this is the stored result.
        draws: draws of start times behind `modelled_ratio`.
        failures: the first of ``failed_after_validation``, with their code.
    """

    workload: str
    case: str
    arch: str
    strategy: str
    settings: Mapping[str, Any]
    seed: int
    budget: str
    device: str
    modelled: bool
    baseline: Kernel = field(repr=False)
    kernel: Kernel = field(repr=False)
    improved: bool
    speedup: float | None
    interval: Interval | None
    null: float | None
    null_interval: Interval | None
    baseline_us: float | None
    time_us: float | None
    samples: int
    modelled_ratio: float | None
    correlation: Mapping[str, Any] | None
    evaluations: int
    replayed: int
    seconds: float
    verdicts: Mapping[str, int]
    reason: str
    failed_after_validation: int
    notes: tuple[str, ...]
    recipe: Mapping[str, Any] = field(repr=False)
    environment: Mapping[str, Any] = field(repr=False)
    facts: Mapping[str, Any] = field(repr=False)
    run: int | None
    date: str
    from_store: bool = False
    draws: int = 0
    failures: tuple[ApprovedFailure, ...] = field(default=(), repr=False)

    @property
    def refusal(self) -> str:
        """Why the modelled ratio is no evidence for this kernel, in one sentence; empty where it may be
        quoted."""
        return refusal(self.correlation) if self.modelled else ""

    def outlasts(self, made: Result) -> bool:
        """Whether it stays where the same search ended again with another budget: what beat the baseline
        does, unless a search of as many evaluations or more has a winner, too. Which of two measured faster
        does not count: the better draw would be chosen."""
        return self.improved and (not made.improved or self.evaluations > made.evaluations)

    @property
    def cubin(self) -> bytes:
        """The winner's code, approved by the validator."""
        return self.kernel.cubin

    @property
    def rate(self) -> float:
        """Evaluations a second of budget."""
        return self.evaluations / self.seconds if self.seconds > 0 else 0.0

    def instead_of(self, made: Result) -> Result:
        """This result in place of one that it `outlasts`: as that one ended, with its failures."""
        less = "searched less" if made.improved else "found nothing faster"
        note = f"this is the result of budget {self.budget}: budget {made.budget} {less}"
        return replace(
            self,
            from_store=False,
            reason=made.reason,
            notes=(*self.notes, note),
            failed_after_validation=max(self.failed_after_validation, made.failed_after_validation),
            failures=made.failures,
            facts={**self.facts, **{k: v for k, v in made.facts.items() if k == "waiting"}},
        )

    def summary(self) -> str:
        """The result in one line."""
        if told := self.facts.get("unfinished"):  # of a run of proposals, whose best is not chosen yet
            return str(told)
        if self.modelled:
            return self._modelled_summary()
        assert self.speedup is not None
        null = f"null {self.null:.3f} {self.null_interval}" if self.null is not None else "null not measured"
        if not self.improved:
            return f"1.00x on {self.device}: nothing beat the baseline, which stays; {null}"
        cold = self.facts.get("cold_l2_speedup")
        # cache hints may win only where each launch finds what the one before it left
        less = cold is not None and 2 * (cold - 1) < self.speedup - 1
        return (
            f"{self.speedup:.3f}x {self.interval} on {self.device}, {null}, "
            + (f"on a cold L2 {cold:.3f}x, " if less else "")
            + f"{self.samples} samples equal, {self.facts.get('proof', 'validator: legal')}"
        )

    def _modelled_summary(self) -> str:
        if self.refusal:
            return f"{self.refusal}; {'' if self.improved else 'the baseline stays'}".removesuffix("; ")
        about = f"{self.device}, not a measurement; {correlation_words(self.correlation)}"
        if not self.improved:
            null = "" if self.null is None else f", null {self.null:.3f} {self.null_interval}"
            return f"modelled 1.00x{null} ({about}): nothing beat the baseline, which stays"
        assert self.modelled_ratio is not None
        figure = ratio_words(self.modelled_ratio, self.interval, self.null, self.null_interval, self.draws)
        return f"modelled {figure} ({about})"

    def rates(self) -> str:
        """Microseconds, GB/s or TFLOP/s and the share of the bound; ``""`` where nothing was measured."""
        work = self.facts.get("work", {})
        return "" if self.modelled else rates(self.time_us, self.baseline_us, work, self.device)

    def stages(self) -> list[str]:
        """A line a stage of a search by stages: re-measured or re-drawn, and what it was selected on."""
        what = "modelled " if self.modelled else ""
        lines = []
        for row in self.facts.get("stages", ()):
            line = f"after {row['stage']} ({row['evaluations']} evaluations): {what}{row['ratio']:.3f}x"
            if "as_selected" in row:
                ends = (row[key] for key in ("interval", "null_interval"))
                interval, null = (Interval(*each) if each else "not measured" for each in ends)
                line += f" {interval}, null {null}, {row['retained']:.3f} of the {row['as_selected']:.3f}x "
                line += f"as selected; {row['corrected']:.3f}x corrected for {row['candidates']} candidates"
            lines.append(line)
        if over := self.facts.get("over_settings"):
            lines.append(f"over the best settings: {what}{over['ratio']:.3f}x {Interval(*over['interval'])}")
        return lines

    def assumptions(self) -> list[str]:
        """What the timing model took for granted, a line each; nothing for a measurement."""
        if not self.modelled:
            return []
        lines = [
            f"loop {loop['start']:#06x}-{loop['end']:#06x} runs {loop['trips']} times "
            f"({'given by the case' if loop['from'] == 'case' else 'assumed'})"
            for loop in self.facts.get("loop_trips", [])
        ]
        if branches := self.facts.get("branches"):
            lines.append(str(branches))
        if "ctas_per_sm" in self.facts:
            lines.append(f"{self.facts['ctas_per_sm']} blocks an SM, data in {self.facts.get('data', '?')}")
        return lines

    def save(self, directory: str | Path) -> tuple[Path, Path]:
        """Write ``<workload>-<case>-<strategy>-s<seed>.cubin`` and ``.json`` into `directory`, replacing
        earlier ones, and beside them ``-failed-<digest>.cubin`` and ``-failed-<digest>-of.cubin``: approved
        candidates that failed, and what the validator compared them with.

        Returns:
            The two paths.

        Raises:
            SassafrasError: they cannot be written.
        """
        stem = file_stem(f"{self.workload}-{self.case}-{self.strategy}-s{self.seed}")
        directory = Path(directory)
        cubin, facts = directory / f"{stem}.cubin", directory / f"{stem}.json"
        with os_errors("cannot write the result", directory):
            write_whole(cubin, self.cubin)
            write_whole(facts, json.dumps(self.to_json(), indent=2, sort_keys=True, default=str) + "\n")
            for one in self.failures:
                failed = f"{stem}-failed-{one.digest[:16]}"
                write_whole(directory / f"{failed}.cubin", one.cubin)
                write_whole(directory / f"{failed}-of.cubin", one.original)
        return cubin, facts

    def to_json(self) -> dict[str, Any]:
        """Everything but the code itself, JSON-able; cubins appear as their digests."""
        out: dict[str, Any] = {"summary": self.summary()}
        if self.refusal:
            out["refusal"] = self.refusal
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Kernel):
                value = _kernel_json(value)
            elif isinstance(value, Interval):
                value = value.ends
            elif isinstance(value, Mapping):
                value = dict(value)
            elif isinstance(value, tuple):
                value = list(value)
            if each.name == "failures":
                value = [{"digest": f.digest, "verdict": f.verdict, "detail": f.detail} for f in value]
            if each.name != "from_store":
                out[each.name] = value
        return out

    @classmethod
    def from_json(cls, facts: Mapping[str, Any], baseline: Kernel, cubin: bytes) -> Result:
        """The inverse of `to_json`, given the code.

        Raises:
            StoreError: the facts are not those of a result, or of other code.
        """
        values = {key: value for key, value in facts.items() if key not in ("summary", "refusal", "failures")}
        values["baseline"], values["kernel"] = baseline, baseline.with_cubin(cubin)
        try:
            for key in ("interval", "null_interval"):
                values[key] = None if values[key] is None else Interval(*values[key])
            values["notes"] = tuple(values["notes"])
            found = cls(**values, from_store=True)
            if found.kernel.digest != facts["kernel"]["digest"]:
                raise ValueError("the cubin is another")
        except (TypeError, KeyError, ValueError) as error:
            raise StoreError(f"the stored result cannot be read: {error}") from error
        return found


def file_stem(name: str) -> str:
    """A name as that of a file: without slashes, spaces and the like; long ones (C++) cut, with a digest."""
    stem = re.sub(r"[^\w.+-]+", "_", name).lstrip(".")
    if len(data := stem.encode()) <= _STEM_BYTES:
        return stem
    return f"{data[:_STEM_BYTES].decode(errors='ignore')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _kernel_json(kernel: Kernel) -> dict[str, Any]:
    return {
        "digest": kernel.digest,
        "name": kernel.name,
        "arch": kernel.arch,
        **kernel.launch_facts(),
        "meta": dict(kernel.meta),
    }
