"""`optimize(..., space="compiler")`: the best of each stage is frozen, then all of them are re-measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from sassafras.core import (
    VALIDATOR_RULES,
    Candidate,
    Evaluation,
    Interval,
    Modelled,
    Outcome,
    Redrawing,
)
from sassafras.core.statistics import expected_excess, quotient_interval
from sassafras.evaluate import FAILURES
from sassafras.jobs.confirm import select
from sassafras.jobs.result import Result
from sassafras.search import Descent, Finished, Found, Stage

from .compiler_space import CompilerSpace, prover
from .ptx_search import PtxJob

#: half of a 95 % interval, in standard errors
_HALF = 1.96


@dataclass
class CompilerJob(PtxJob):
    """A `PtxJob` over a `CompilerSpace`, searched by `search.Descent`.

    The best of each stage is chosen by new looks at the stage's leaders and at the best of the stage before.
    What is chosen is frozen; only then the frozen ones are re-measured, and none of these figures chooses.
    """

    frozen: ClassVar[int] = 3

    strategy: Descent
    space: CompilerSpace
    measured: dict[str, Evaluation | Modelled] = field(default_factory=dict)

    def _warm_up(self) -> None:
        own = self.space.coarse.build(self.space.coarse.start())
        for space in self.space.finer(own):
            state = space.start()
            if (move := space.sample(state, np.random.default_rng(0))) is not None:
                space.candidate(space.apply(state, move))

    def _remeasure(self, candidate: Candidate, what: str) -> Evaluation | Modelled:
        if candidate.digest not in self.measured:
            self.measured[candidate.digest] = super()._remeasure(candidate, what)
        return self.measured[candidate.digest]

    def _confirmed(self, found: Finished[Any]) -> Result:
        if self._refusal() or (self.device.modelled and not isinstance(self.device, Redrawing)):
            return super()._confirmed(found)
        notes = [f"{d[:16]}: its schedules are not searched: {why}" for d, why in self.space.refused.items()]
        self.say("choosing among the leaders of each stage")
        limit = 1.0 if self.device.modelled else max(found.baseline.cost, 1.0)
        before: list[Found[Any]] = []
        chosen: list[list[Candidate]] = []
        for stage in self.strategy.found:
            able = [
                one
                for one in self._proved(stage.leaders, notes)
                if one.cost < limit and one.candidate.digest != self.baseline.digest
            ]
            known = {one.candidate.digest: one for one in (*before, *able)}
            ranked = select(
                self.device, list(known.values()), lambda one, outcome: self._failed(one, outcome, notes)
            )
            before = [known[ranked[0].digest]] if ranked else []
            chosen.append(ranked)
        # where the last stage's are all wrong, the best of the stage before that is not
        either = {one.digest: one for ranked in reversed(chosen) for one in ranked}
        made = self._settled(found, list(either.values()), notes)
        later: list[str] = []
        rows = self._rows(chosen, later)
        return replace(made, notes=(*made.notes, *later), facts={**made.facts, **_summary(made, rows)})

    def _proved(self, leaders: Sequence[Found[Any]], notes: list[str]) -> list[Found[Any]]:
        """Leaders without the schedules that a new validator refuses."""
        provers: dict[str, Any] = {}
        kept = []
        for one in leaders:
            if (parent := one.candidate.recipe.get("parent")) is not None:
                if parent not in provers:
                    provers[parent] = prover(self.space.parents[parent][0].kernel)
                report = provers[parent].check(one.candidate.kernel.cubin)
                if not report.ok:
                    what = f"was refused by the final validation: {report.violations[0]}"
                    notes.append(f"{one.candidate.digest[:16]} {what}")
                    continue
            kept.append(one)
        return kept

    def _rows(self, chosen: Sequence[Sequence[Candidate]], notes: list[str]) -> list[dict[str, Any]]:
        """A row a stage: what it selected on, and what its best was measured at, over the baseline."""
        rows, judged = list[dict[str, Any]](), 0
        searched = {one.candidate.digest: one for each in self.strategy.found for one in each.leaders}
        for stage, ranked in zip(self.strategy.found, chosen, strict=True):
            usable = stage.verdicts["correct"] + stage.verdicts["modelled"]
            judged += usable
            row = {"stage": stage.name, "evaluations": stage.verdicts.total(), "budget": stage.until}
            row |= {"verdicts": dict(stage.verdicts)}
            best = self._measured(ranked, stage, notes)
            if best is None:  # the baseline stays
                rows.append({**row, "ratio": 1.0, "digest": self.baseline.digest})
                continue
            final = self.measured[best.digest]
            assert final.cost is not None
            look = searched[best.digest]
            row |= {"digest": best.digest, "recipe": dict(best.recipe), "ratio": 1 / final.cost}
            row |= {"interval": final.interval and final.interval.ends, "null": final.null}
            row |= {
                "null_interval": final.null_interval and final.null_interval.ends,
                "as_selected": 1 / look.cost,
            }
            corrected = 1 / look.cost - expected_excess(_error(look.outcome), judged)
            row |= {"corrected": corrected, "candidates": judged, "retained": look.cost / final.cost}
            rows.append(row)
        return rows

    def _measured(self, ranked: Sequence[Candidate], stage: Stage, notes: list[str]) -> Candidate | None:
        """The first of a stage's choice that is not wrong when re-measured; None where there is none."""
        for candidate in ranked:
            known = candidate.digest in self.measured
            final = self._remeasure(candidate, f"the best of {stage.name}")
            if final.cost is not None:
                return candidate
            if not known:
                self._failed(candidate, final, notes)
        return None

    def _result(self, *args: Any, **more: Any) -> Result:
        made = super()._result(*args, **more)
        counts = [stage.verdicts for stage in self.strategy.found if stage.name == "schedule"]
        failed = sum(some[verdict.value] for some in (*counts, self.failed_later) for verdict in FAILURES)
        return replace(made, failed_after_validation=failed)

    def _failed(self, candidate: Candidate, outcome: Outcome, notes: list[str]) -> None:
        if "parent" in candidate.recipe:
            super()._failed(candidate, outcome, notes)
        else:
            notes.append(f"{outcome.digest[:16]} was later {outcome.verdict}: {outcome.detail}")

    def _grounds(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        parent = recipe.get("parent")
        if parent == self.baseline.digest:
            return {"validator": "legal", "rules": VALIDATOR_RULES}
        if parent is None:
            return super()._grounds(recipe)
        more = f"; its schedule is proved against ptxas's output {parent[:16]}"
        return {**super()._grounds(recipe), "validator": self.grounds + more, "rules": VALIDATOR_RULES}

    def _proof(self, recipe: Mapping[str, Any]) -> dict[str, str]:
        parent = recipe.get("parent")
        if parent == self.baseline.digest:
            return {}
        if parent is None:
            return super()._proof(recipe)
        words = f"the schedule is proved against ptxas's output {parent[:12]}, which is compared bit by bit"
        return {"proof": words}


def _summary(made: Result, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Facts of a result: its stages, and what the winner gains over the best of the settings alone."""
    ratio = made.modelled_ratio if made.modelled else made.speedup
    if len(rows) < 2 or not made.improved or made.interval is None or ratio is None:
        return {"stages": rows}
    first, intervals = rows[0], [made.interval]
    if first["digest"] == made.kernel.digest:
        return {"stages": rows, "over_settings": {"ratio": 1.0, "interval": [1.0, 1.0]}}
    if first["ratio"] > 1.0 and first["interval"]:
        intervals.append(Interval(*first["interval"]))
        ratio /= first["ratio"]
    over = quotient_interval(ratio, *intervals)
    return {"stages": rows, "over_settings": {"ratio": ratio, "interval": over.ends}}


def _error(look: Outcome) -> float:
    """The standard error of the ratio that a candidate was selected on."""
    if isinstance(look, Evaluation):
        return (look.interval.high - look.interval.low) / 2 / _HALF if look.interval else 0.0
    return float(look.facts.get("error", 0.0)) * (look.modelled_ratio or 0.0)
