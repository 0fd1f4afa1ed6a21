"""A single search, from the store's record to the result that is reported."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from sassafras import __version__, refusal, search
from sassafras.core import (
    VALIDATOR_RULES,
    Budget,
    Candidate,
    Case,
    Device,
    DeviceError,
    Evaluation,
    Evaluator,
    Interval,
    Kernel,
    Modelled,
    Outcome,
    SearchError,
    Space,
    StoreError,
    Verdict,
    Workload,
    workload_digest,
)
from sassafras.report import Result
from sassafras.search import Finished, Found, Progress, Recorded, Recorder, Strategy
from sassafras.store import Store

#: how many of the search's leaders are looked at again, and how often, before one is chosen (measured only):
#: the best of thousands of noisy figures owes its place to luck
SELECTION_LEADERS, SELECTION_ROUNDS = 8, 7
#: verdicts that a schedule which the validator approved must never get
FAILURES = (Verdict.WRONG_RESULT, Verdict.CRASHED, Verdict.TIMED_OUT, Verdict.CHEATED)


class StoreRecorder:
    """A run of the store, as the search's record."""

    def __init__(self, store: Store, run_id: int) -> None:
        self._store, self._run_id = store, run_id

    def known(self, digest: str) -> Recorded | None:
        """What the store holds of this candidate in this run."""
        found = self._store.known(self._run_id, digest)
        return None if found is None else Recorded(*found)

    def record(self, candidate: Candidate, outcome: Outcome, took: float) -> Recorded:
        """Append the outcome; see `Store.record`."""
        self._store.record(self._run_id, candidate, outcome, took)
        kept = self.known(candidate.digest)
        assert kept is not None
        return kept


def correlation(workload: str, case: str) -> Mapping[str, Any] | None:
    """How well the timing model ranks schedules of this kernel, or None where that was not measured."""
    from sassafras.device.model import correlation as published

    return published(workload, case)


@dataclass
class Job:
    """One search of one kernel, wired together.

    Attributes:
        workload, case, baseline: what is optimised.
        strategy, budget, seed: how it is searched.
        device: where candidates run; open from `run` on.
        space: what can be changed.
        store: where everything is kept, or None.
        say: called with a line of text when another part of the work begins.
        about: notes that every result carries.
        run_id: the run in the store, once begun.
        final: the outcome that the result stands on.
        failed_later: verdicts of approved candidates that failed after the search.
    """

    workload: Workload
    case: Case
    baseline: Kernel
    strategy: Strategy
    budget: Budget
    seed: int
    device: Device
    space: Space[Any, Any]
    store: Store | None
    say: Callable[[str], None]
    about: tuple[str, ...] = ()
    run_id: int | None = None
    final: Outcome | None = None
    failed_later: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise SearchError(f"a seed is a whole number from 0 up, got {self.seed}")

    def spec(self) -> dict[str, Any]:
        """Everything that makes two searches the same, apart from the budget."""
        return {
            "workload": self.workload.name,
            "source_hash": self.baseline.meta.get("source_hash", ""),
            "contents": workload_digest(self.workload),
            "case": self.case.name,
            "arch": self.baseline.arch,
            "baseline": self.baseline.digest,
            "entry": self.baseline.name,
            "strategy": self.strategy.name,
            "settings": search.settings_of(self.strategy),
            "seed": self.seed,
            "device": self.device.name,
            "space": _describe(self.space),
            "sassafras": __version__,
            **{
                k: v
                for k, v in self.device.environment().items()
                if k in ("model_version", "constants", "objective")
            },
        }

    def begin(self, fresh: bool) -> None:
        """Find this search in the store, or begin it there."""
        if self.store is None:
            return
        self.run_id = self.store.begin_run(
            self.spec(), kernel=self.baseline, workload=self.workload.name, case=self.case.name,
            device=self.device.name, modelled=self.device.modelled, strategy=self.strategy.name,
            seed=self.seed, environment=self._environment(), fresh=fresh,
        )  # fmt: skip

    def _environment(self) -> dict[str, Any]:
        """What the device says of itself, and enough of the case to model this run again without its file."""
        from sassafras.frontend.description import describe

        return self.device.environment() | {"case": describe(self.case), "target": self.workload.source}

    def stored_result(self, fresh: bool) -> Result | None:
        """The result of this very search, if it finished with this budget before."""
        self.begin(fresh)
        if self.store is None or self.run_id is None:
            return None
        record = self.store.run(self.run_id)
        if record.result is None or record.finished_budget != str(self.budget):
            return None
        try:
            cubin = self.store.cubin(record.result["kernel"]["digest"])
            stored = Result.from_json(record.result, self.baseline, cubin)
        except (StoreError, KeyError):
            return None  # pruned since: the record is walked again, which costs little
        if not self._validator().check(cubin).ok:
            return None  # found before the validator learnt better
        if not stored.modelled:
            return stored
        return replace(stored, correlation=correlation(self.workload.name, self.case.name))

    def run(self, progress: Callable[[Progress], None] | None) -> Result:
        """Search, choose, prove, measure, keep."""
        self.device.open(self.workload, self.case, self.baseline)
        self.say("getting ready (the first use on a machine compiles for some seconds)")
        found = self.search(progress)
        if self.device.modelled:
            result = self._modelled(found)
        else:
            result = self._measured(found)
        if self.store is not None and self.run_id is not None:
            self._keep(result)
            if found.reason != "interrupted":
                self.store.finish_run(self.run_id, str(self.budget), result.to_json())
        return result

    def search(
        self,
        progress: Callable[[Progress], None] | None,
        *,
        recorder: Recorder | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Finished[Any]:
        """The search alone, on the open device; `recorder` is by default the store's run."""
        evaluator = self._evaluator()
        self._warm_up()
        if recorder is None and self.store is not None and self.run_id is not None:
            recorder = StoreRecorder(self.store, self.run_id)
        self.say(f"searching {self.budget} with {self.strategy.name} on {self.device.name}")
        return search.run(
            self.strategy, self.space, evaluator, self.budget, seed=self.seed, recorder=recorder,
            progress=progress, keep=SELECTION_LEADERS, stop=stop,
        )  # fmt: skip

    def _warm_up(self) -> None:
        """Let what is compiled on first use be compiled before the budget's clock starts."""
        state = self.space.start()
        move = self.space.sample(state, np.random.default_rng(0))
        if move is not None:
            self.space.candidate(self.space.apply(state, move))
        if self.device.modelled:
            self.device.run(Candidate(self.baseline))

    def _evaluator(self) -> Evaluator:
        from sassafras.evaluate import Evaluator as Judge

        validator = self._validator()
        report = validator.check(self.baseline.cubin)
        if not report.ok:
            supported = getattr(report, "supported", True)
            what = "a defect of ours" if supported else "nothing can be proved about it, so it stays as it is"
            raise SearchError(
                f"the validator refuses the unmodified kernel: {_first(report.violations)}",
                where=f"{self.workload.name}, case {self.case.name}",
                hint=f"{what}; {refusal.kept(self.baseline)}",
            )
        # no store: the search's record is kept by the loop, which knows what each outcome took
        made: Evaluator = Judge(self.device, lambda _, candidate: validator.check(candidate), self.baseline)
        return made

    def _validator(self) -> Any:
        from sassafras.validate import Validator

        validator = Validator(self.baseline.cubin, self.baseline.name)
        for copy in getattr(self.space, "via", ()):
            if not (report := validator.via(copy)).ok:
                raise SearchError(
                    f"the copy that was to be searched is not proved: {_first(report.violations)}",
                    where=f"{self.workload.name}, case {self.case.name}",
                    hint="another --space",
                )
        return validator

    def _contenders(self, found: Finished[Any], notes: list[str]) -> list[Found[Any]]:
        """Leaders that beat the baseline and that a new validator accepts, best first."""
        self.say("validating the leaders from scratch")
        validator = self._validator()
        # a GPU's single look at the baseline may have been a lucky one
        limit = found.baseline.cost if self.device.modelled else max(found.baseline.cost, 1.0)
        contenders = []
        for leader in found.leaders:
            digest = leader.candidate.digest
            if leader.cost >= limit or digest == self.baseline.digest:
                continue
            report = validator.check(leader.candidate.kernel.cubin)
            if report.ok:
                contenders.append(leader)
            else:
                notes.append(
                    f"{digest[:16]} was refused by the final validation: {_first(report.violations)}"
                )
        return contenders

    def _modelled(self, found: Finished[Any]) -> Result:
        notes: list[str] = []
        contenders = self._contenders(found, notes)
        winner = contenders[0] if contenders else found.baseline
        outcome = winner.outcome
        assert isinstance(outcome, Modelled)
        ratio = outcome.modelled_ratio if contenders else 1.0
        return self._result(
            found, winner.candidate, notes, improved=bool(contenders), ratio=ratio, final=outcome
        )

    def _measured(self, found: Finished[Any]) -> Result:
        notes: list[str] = []
        contenders = self._contenders(found, notes)
        self.say("choosing among the search's leaders")
        for candidate in self._select(contenders, notes):
            self.say("measuring the winner in fresh processes")
            final = self._remeasure(candidate)
            if not final.verdict.ok:
                self._failed(final, notes)
                continue
            if _beats(final):
                return self._result(found, candidate, notes, improved=True, final=final)
            notes.append(
                f"the search's best re-measured {final.speedup:.3f}x {final.interval}, "
                f"not outside the null {final.null_interval}"
            )
            break
        self.say("measuring the null experiment in fresh processes")
        final = self._remeasure(found.baseline.candidate)
        if not final.verdict.ok:
            notes.append(f"the null experiment is {final.verdict.value}: {final.detail}")
        return self._result(found, found.baseline.candidate, notes, improved=False, final=final)

    def _failed(self, outcome: Outcome, notes: list[str]) -> None:
        """Count and name a candidate that the validator approved and the search found correct."""
        assert outcome.verdict is not None
        self.failed_later[outcome.verdict.value] += 1
        notes.append(f"{outcome.digest[:16]}, approved, was later {outcome.verdict.value}: {outcome.detail}")

    def _select(self, contenders: Sequence[Found[Any]], notes: list[str]) -> list[Candidate]:
        """The contenders by the median of some new looks, which no luck of the search's has a part in."""
        looks: dict[str, list[float]] = {c.candidate.digest: [] for c in contenders}
        for _ in range(SELECTION_ROUNDS if len(contenders) > 1 else 0):
            for candidate in (c.candidate for c in contenders if c.candidate.digest in looks):
                outcome = self.device.run(candidate)
                if outcome.cost is not None:
                    looks[candidate.digest].append(outcome.cost)
                elif outcome.verdict is not Verdict.UNSTABLE_BASELINE:
                    del looks[candidate.digest]  # once wrong is wrong
                    self._failed(outcome, notes)
        able = [c for c in contenders if c.candidate.digest in looks]
        able.sort(key=lambda c: statistics.median(looks[c.candidate.digest] or [c.cost]))
        return [c.candidate for c in able[:3]]

    def _remeasure(self, candidate: Candidate) -> Evaluation:
        remeasure = getattr(self.device, "remeasure", None)
        if remeasure is None:
            raise DeviceError(
                "the device cannot re-measure a winner in fresh processes",
                where=self.device.name,
                hint="a device that measures needs `remeasure(candidate) -> Evaluation`",
            )
        outcome = remeasure(candidate)
        if not isinstance(outcome, Evaluation):
            raise DeviceError("re-measuring gave no measurement", where=self.device.name)
        return outcome

    def _result(
        self,
        found: Finished[Any],
        candidate: Candidate,
        notes: Sequence[str],
        *,
        improved: bool,
        final: Outcome,
        ratio: float | None = None,
    ) -> Result:
        self.final = final
        measured = final if isinstance(final, Evaluation) and final.verdict.ok else None
        speedup, interval = (measured.speedup, measured.interval) if measured else (None, None)
        if not self.device.modelled and not improved:
            speedup, interval = 1.0, Interval(1.0, 1.0)  # the baseline is itself, byte for byte
        modelled = self.device.modelled
        failed = sum(found.verdicts.get(v.value, 0) + self.failed_later[v.value] for v in FAILURES)
        return Result(
            workload=self.workload.name,
            case=self.case.name,
            arch=self.baseline.arch,
            strategy=self.strategy.name,
            settings=search.settings_of(self.strategy),
            seed=self.seed,
            budget=str(self.budget),
            device=self.device.name,
            modelled=modelled,
            baseline=self.baseline,
            kernel=candidate.kernel if improved else self.baseline,
            improved=improved,
            speedup=speedup,
            interval=interval,
            null=measured.null if measured else None,
            null_interval=measured.null_interval if measured else None,
            baseline_us=measured.baseline_us if measured else None,
            time_us=measured.time_us if measured else None,
            samples=measured.samples if measured else 0,
            modelled_ratio=ratio,
            correlation=correlation(self.workload.name, self.case.name) if modelled else None,
            evaluations=found.evaluations,
            replayed=found.replayed,
            seconds=found.seconds,
            verdicts=dict(found.verdicts),
            reason=found.reason,
            failed_after_validation=failed,
            notes=(*self.about, *notes),
            recipe=dict(candidate.recipe) if improved else {},
            environment=self.device.environment(),
            facts=dict(final.facts),
            run=self.run_id,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _keep(self, result: Result) -> None:
        """Save the winner, if there is one, among the measured or among the modelled ones."""
        if not result.improved or self.store is None:
            return
        candidate = Candidate(result.kernel, result.recipe)
        facts = {
            "validator": "legal", "rules": VALIDATOR_RULES, "environment": result.environment,
            "strategy": result.strategy, "recipe": result.recipe, "facts": result.facts,
        }  # fmt: skip
        place: dict[str, Any] = {"workload": result.workload, "case": result.case}
        place |= {"run_id": self.run_id, "facts": facts}
        if isinstance(self.final, Modelled):
            self.store.save_modelled_winner(
                self.baseline, candidate, self.final, model=result.device, **place
            )
        elif isinstance(self.final, Evaluation):
            self.store.save_winner(self.baseline, candidate, self.final, gpu=result.device, **place)


def _beats(final: Evaluation) -> bool:
    """A speed-up counts only when its interval lies wholly above the null's."""
    if final.interval is None or final.null_interval is None:
        return False
    return final.interval.low > max(final.null_interval.high, 1.0)


def _first(violations: Any) -> str:
    return "; ".join(str(violation) for violation in list(violations)[:3])


def _describe(space: Space[Any, Any]) -> str:
    """What a space is made of, as text; a space may say it itself (`description`)."""
    own = getattr(space, "description", None)
    kind = f"{type(space).__module__}.{type(space).__qualname__}"
    return f"{kind}: {own}" if isinstance(own, str) else kind
