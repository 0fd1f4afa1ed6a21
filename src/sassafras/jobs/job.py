"""A single search, from the store's record to the result that is reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

import numpy as np

from sassafras import __version__, search
from sassafras.core import (
    VALIDATOR_RULES,
    Budget,
    Candidate,
    Case,
    Device,
    Evaluation,
    Evaluator,
    Interval,
    Kernel,
    Modelled,
    Outcome,
    Redrawing,
    SearchError,
    Space,
    StoreError,
    Workload,
    beats,
    workload_digest,
)
from sassafras.core import refused_cubin as refused
from sassafras.evaluate import FAILURES, KernelEvaluator
from sassafras.frontend.description import describe
from sassafras.jobs.confirm import leaders_of, remeasure, select
from sassafras.jobs.result import Result
from sassafras.jobs.waiting import confirmation_s, search_budget, with_confirmation
from sassafras.search import Finished, Found, Progress, Recorded, Recorder, Strategy
from sassafras.store import Store, redrawn_facts
from sassafras.timing_model.evidence import correlation, refusal
from sassafras.validate import Validator


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
        judge: judges candidates by their results, where no proof relates them to the baseline (rewritten
            sources, other kernels); None: the validator proves every candidate before it runs.
        began: when the user's wait began (`time.monotonic`), which a time budget limits; None: the budget
            limits the search alone.
        run_id: the run in the store, once begun.
        final: the outcome that the result stands on.
        failed_later: verdicts of approved candidates that failed after the search.
        evaluator: what judges candidates, once the search began.
        grounds: what a winner of a `judge` rests on, kept with it.
    """

    grounds: ClassVar[str] = "none: a rewritten source, judged by results on fresh inputs"
    #: candidates that are chosen and re-measured at the end
    frozen: ClassVar[int] = 1

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
    judge: Evaluator | None = None
    began: float | None = None
    run_id: int | None = None
    final: Outcome | None = None
    failed_later: Counter[str] = field(default_factory=Counter)
    evaluator: Evaluator | None = None

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
        self.run_id = self._begin(self.spec(), self.seed, fresh)

    def _begin(self, spec: Mapping[str, Any], seed: int, fresh: bool) -> int | None:
        """The number of a run of this spec in the store."""
        if self.store is None:
            return None
        return self.store.begin_run(
            spec,
            kernel=self.baseline,
            workload=self.workload.name,
            case=self.case.name,
            device=self.device.name,
            modelled=self.device.modelled,
            strategy=self.strategy.name,
            seed=seed,
            environment=self._environment(),
            fresh=fresh,
        )

    def _environment(self) -> dict[str, Any]:
        """What the device says of itself, and enough of the case to model this run again without its file."""
        return self.device.environment() | {"case": describe(self.case), "target": self.workload.source}

    def stored_result(self, fresh: bool) -> Result | None:
        """The result of this very search, if it finished with this budget before."""
        self.begin(fresh)
        if self.store is None or self.run_id is None:
            return None
        return self._stored() if self.store.run(self.run_id).finished_budget == str(self.budget) else None

    def _stored(self) -> Result | None:
        """The result of this very search with any budget, if its code is there and still proved."""
        if self.store is None or self.run_id is None or (kept := self.store.run(self.run_id).result) is None:
            return None
        try:
            cubin = self.store.cubin(kept["kernel"]["digest"])
            stored = Result.from_json(kept, self.baseline, cubin)
        except (StoreError, KeyError):
            return None  # pruned since: the record is walked again, which costs little
        if self.judge is None and not self._validator().check(cubin).ok:
            return None  # found before the validator learnt better
        known = correlation(self.workload.name, self.case.name) if stored.modelled else None
        return replace(stored, correlation=known)

    def run(self, progress: Callable[[Progress], None] | None) -> Result:
        """Search, choose, prove, measure, keep."""
        self.say("getting ready (the first use on a machine compiles for some seconds)")
        if (prepare := getattr(self.device, "prepare", None)) is not None:
            prepare(self.workload, self.case, self.baseline)
            self._warm_up()  # meanwhile
        self.device.open(self.workload, self.case, self.baseline)
        if (prefork := getattr(self.device, "prefork", None)) is not None:
            prefork()
        if why := self._refusal():
            self.say(why)
        found = self.search(progress)
        result = self._confirmed(found)
        if self.store is not None and self.run_id is not None:
            self._keep(result)
            earlier = self._stored()
            if earlier is not None and earlier.outlasts(result):
                return earlier.instead_of(result)
            whole = found.reason != "interrupted"
            if whole or result.improved:
                self.store.finish_run(self.run_id, str(self.budget) if whole else None, result.to_json())
        return result

    def search(
        self,
        progress: Callable[[Progress], None] | None,
        *,
        recorder: Recorder | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Finished[Any]:
        """The search alone, on the open device; `recorder` is by default the store's run."""
        self.evaluator = self.judge or self._evaluator()
        self._warm_up()
        if self.device.modelled and self.judge is None:
            self.device.run(Candidate(self.baseline))
        if recorder is None and self.store is not None and self.run_id is not None:
            recorder = StoreRecorder(self.store, self.run_id)
        reserved = self.frozen * confirmation_s(self.device)
        budget = search_budget(self.budget, self.began, reserved, self.store, self.run_id)
        self.say(f"searching {budget} with {self.strategy.name} on {self.device.name}")
        return search.run(
            self.strategy,
            self.space,
            self.evaluator,
            budget,
            seed=self.seed,
            recorder=recorder,
            progress=with_confirmation(progress, reserved),
            keep=leaders_of(self.device),
            stop=stop,
        )

    def _warm_up(self) -> None:
        """Let what is compiled on first use be compiled before the search's clock starts."""
        if self.judge is not None:
            return  # others build every candidate in a process of its own
        state = self.space.start()
        move = self.space.sample(state, np.random.default_rng(0))
        if move is not None:
            self.space.candidate(self.space.apply(state, move))

    def _evaluator(self) -> Evaluator:
        validator = self._validator()
        report = validator.check(self.baseline.cubin)
        if not report.ok:
            supported = getattr(report, "supported", True)
            what = "a defect of ours" if supported else "nothing can be proved about it, so it stays as it is"
            raise SearchError(
                f"the validator refuses the unmodified kernel: {_first(report.violations)}",
                where=f"{self.workload.name}, case {self.case.name}",
                hint=f"{what}; {refused.kept(self.baseline)}",
            )
        # no store: the search's record is kept by the loop, which knows what each outcome took
        return KernelEvaluator(self.device, lambda _, candidate: validator.check(candidate), self.baseline)

    def _validator(self) -> Any:
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
        # a GPU's single look at the baseline may have been a lucky one
        limit = 1.0 if self.device.modelled else max(found.baseline.cost, 1.0)
        if self.judge is not None:
            own = self.baseline.digest
            return [one for one in found.leaders if one.cost < limit and one.candidate.digest != own]
        self.say("validating the leaders from scratch")
        validator = self._validator()
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

    def _refusal(self) -> str:
        """Why what the device says of this kernel is no evidence; empty where it is."""
        if not self.device.modelled:
            return ""
        return refusal(correlation(self.workload.name, self.case.name))

    def _confirmed(self, found: Finished[Any]) -> Result:
        """The leader that new looks choose, if figures taken once more put it beyond the baseline's null."""
        notes: list[str] = []
        contenders = [] if self._refusal() else self._contenders(found, notes)
        if self.device.modelled and not isinstance(self.device, Redrawing):
            best = contenders[0] if contenders else found.baseline  # reported as what was selected
            return self._result(found, best.candidate, notes, improved=bool(contenders), final=best.outcome)
        self.say("choosing among the search's leaders")
        ranked = select(self.device, contenders, lambda one, outcome: self._failed(one, outcome, notes))
        return self._settled(found, ranked, notes)

    def _remeasure(self, candidate: Candidate, what: str) -> Evaluation | Modelled:
        doing, how = ("modelling", "draws") if self.device.modelled else ("measuring", "processes")
        self.say(f"{doing} {what} in fresh {how}")
        return remeasure(self.device, candidate)

    def _settled(self, found: Finished[Any], ranked: Sequence[Candidate], notes: list[str]) -> Result:
        """The result of the first of these that is not wrong, or of the baseline where it gains nothing."""
        for candidate in ranked:
            final = self._remeasure(candidate, "the winner")
            if final.cost is None:
                self._failed(candidate, final, notes)
                continue
            if beats(final):
                return self._result(found, candidate, notes, improved=True, final=final)
            notes.append(
                f"the search's best re-{'drawn' if self.device.modelled else 'measured'} "
                f"{1 / final.cost:.3f}x {final.interval}, not outside the null {final.null_interval}"
            )
            if final.null_interval is not None:  # the null experiment of the baseline was made beside it
                return self._result(found, found.baseline.candidate, notes, improved=False, final=final)
            break
        final = self._remeasure(found.baseline.candidate, "the null experiment")
        if final.cost is None and final.verdict is not None:
            notes.append(f"the null experiment is {final.verdict.value}: {final.detail}")
        return self._result(found, found.baseline.candidate, notes, improved=False, final=final)

    def _failed(self, candidate: Candidate, outcome: Outcome, notes: list[str]) -> None:
        """Count, name and keep a candidate that the validator approved and the search found correct."""
        assert outcome.verdict is not None
        self.failed_later[outcome.verdict.value] += 1
        if (note := getattr(self.evaluator, "note", None)) is not None:
            note(candidate, outcome)
        notes.append(f"{outcome.digest[:16]}, approved, was later {outcome.verdict.value}: {outcome.detail}")

    def _result(
        self,
        found: Finished[Any],
        candidate: Candidate,
        notes: Sequence[str],
        *,
        improved: bool,
        final: Outcome,
    ) -> Result:
        self.final = final
        modelled = self.device.modelled
        measured = final if isinstance(final, Evaluation) and final.verdict.ok else None
        ratio = None if final.cost is None else 1 / final.cost
        interval = final.interval if final.cost is not None else None
        own = improved or final.digest == self.baseline.digest
        if not improved:
            ratio, interval = 1.0, Interval(1.0, 1.0)  # the baseline is itself, byte for byte
        known = correlation(self.workload.name, self.case.name) if modelled else None
        if refusal(known):
            ratio = interval = None
        failed = 0  # where no validator approved anything, nothing is its failure
        if self.judge is None:
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
            speedup=None if modelled else ratio,
            interval=interval,
            null=None if final.cost is None else final.null,
            null_interval=None if final.cost is None else final.null_interval,
            baseline_us=measured.baseline_us if measured else None,
            time_us=None if measured is None else measured.time_us if own else measured.baseline_us,
            samples=measured.samples if measured and own else 0,
            modelled_ratio=ratio if modelled else None,
            correlation=known,
            evaluations=found.evaluations,
            replayed=found.replayed,
            seconds=found.seconds,
            verdicts=dict(found.verdicts),
            reason=found.reason,
            failed_after_validation=failed,
            notes=(*self.about, *notes),
            recipe=dict(candidate.recipe) if improved else {},
            environment=self.device.environment(),
            facts={**final.facts, **({} if own else {"measured": final.digest})},
            run=self.run_id,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            draws=final.draws if isinstance(final, Modelled) else 0,
            failures=tuple(getattr(self.evaluator, "failures", ())),
        )

    def _grounds(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """What a winner rests on."""
        legal = {"validator": "legal", "rules": VALIDATOR_RULES}
        return legal if self.judge is None else {"validator": self.grounds}

    def _keep(self, result: Result) -> None:
        """Save the winner, if there is one, among the measured or among the modelled ones.

        Of a `judge` only measured ones: the timing model cannot tell a rewritten kernel from a wrong one.
        """
        if not result.improved or self.store is None:
            return
        candidate = Candidate(result.kernel, result.recipe)
        facts = {
            **self._grounds(result.recipe),
            "environment": result.environment,
            "strategy": result.strategy,
            "recipe": result.recipe,
            "facts": result.facts,
        }
        place: dict[str, Any] = {"workload": result.workload, "case": result.case}
        place |= {"run_id": self.run_id, "facts": facts}
        if isinstance(self.final, Modelled):
            if self.judge is not None:
                return
            facts["redrawn"] = redrawn_facts(self.final)
            self.store.save_modelled_winner(
                self.baseline, candidate, self.final, model=result.device, **place
            )
        elif isinstance(self.final, Evaluation):
            self.store.save_winner(self.baseline, candidate, self.final, gpu=result.device, **place)


def _first(violations: Any) -> str:
    return "; ".join(str(violation) for violation in list(violations)[:3])


def _describe(space: Space[Any, Any]) -> str:
    """What a space is made of, as text; a space may say it itself (`description`)."""
    own = getattr(space, "description", None)
    kind = f"{type(space).__module__}.{type(space).__qualname__}"
    return f"{kind}: {own}" if isinstance(own, str) else kind
