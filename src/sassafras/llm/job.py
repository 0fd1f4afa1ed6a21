"""A search run whose candidates are rewritten sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from sassafras.core import Candidate, Evaluation, Evaluator
from sassafras.jobs.job import Job
from sassafras.jobs.result import Result

from .evolve import Evolve
from .spending import Meter

#: what a tally's words mean where nothing ran
_UNCHECKED = {"correct": "accepted unchecked", "faster": "modelled faster"}


@dataclass
class SourceJob(Job):
    """A `Job` whose candidates are rewritten sources: judged by results, since no proof relates two programs.

    Attributes:
        proposals: what proposes, for the run's identity.
        caps: the whole budget, tokens and money included.
        meter: what was spent.
    """

    proposals: Mapping[str, Any] = field(default_factory=dict)
    caps: str = ""
    meter: Meter = field(default_factory=Meter)

    def spec(self) -> dict[str, Any]:
        """See `Job.spec`."""
        return {**super().spec(), **self.proposals}

    def _evaluator(self) -> Evaluator:
        made: Evaluator = self.space  # type: ignore[assignment]
        return made

    def _validator(self) -> Any:
        return SimpleNamespace(check=lambda cubin: SimpleNamespace(ok=True, violations=()))

    def _warm_up(self) -> None:
        """Nothing to prepare: every proposal is compiled in a process of its own."""

    def _result(self, *args: Any, **more: Any) -> Result:
        made = super()._result(*args, **more)
        strategy = self.strategy
        assert isinstance(strategy, Evolve)
        notes = [*made.notes]
        if made.modelled:
            notes.append("nothing was run or checked: the model may prefer a kernel that is wrong")
        if strategy.stopped:
            notes.append(f"the search ended early: {strategy.stopped}")
        words = _UNCHECKED if made.modelled else {}
        counted = ", ".join(f"{n} {words.get(what, what)}" for what, n in strategy.tally.to_json().items())
        notes.append(f"proposals by {strategy.proposer}: {counted}")
        facts = {**made.facts, "caps": self.caps, "spent": self.meter.facts()}
        facts["proposals"] = strategy.tally.to_json()
        facts["proof"] = "compared with the reference, nothing is proved"
        # no validator approved anything here, so nothing is its failure
        return replace(made, failed_after_validation=0, notes=tuple(notes), facts=facts)

    def stored_result(self, fresh: bool) -> Result | None:
        """See `Job.stored_result`; tokens and money are part of the budget too."""
        stored = super().stored_result(fresh)
        return stored if stored is not None and stored.facts.get("caps") == self.caps else None

    def _keep(self, result: Result) -> None:
        """Only a measured winner: the timing model cannot tell a rewritten kernel from a wrong one."""
        if not result.improved or self.store is None or not isinstance(self.final, Evaluation):
            return
        candidate = Candidate(result.kernel, result.recipe)
        facts = {
            "validator": "none: a rewritten source, judged by results on fresh inputs",
            "environment": result.environment,
            "strategy": result.strategy,
            "recipe": result.recipe,
            "facts": result.facts,
        }
        place: dict[str, Any] = {"workload": result.workload, "case": result.case}
        place |= {"run_id": self.run_id, "facts": facts}
        self.store.save_winner(self.baseline, candidate, self.final, gpu=result.device, **place)
