"""A search run whose candidates are proposals: rewritten sources, or other configurations of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sassafras.core import Evaluation
from sassafras.jobs.job import Job
from sassafras.jobs.result import Result

from .evolve import Evolve
from .spending import Meter

#: what a tally's words mean where nothing ran
_UNCHECKED = {"correct": "accepted unchecked", "faster": "modelled faster"}


@dataclass
class SourceJob(Job):
    """A `Job` with a `judge`: candidates are judged by results, since no proof relates two programs.

    Attributes:
        strategy: asks the proposer.
        proposals: what proposes, for the run's identity.
        caps: the whole budget, tokens and money included.
        meter: what was spent.
        install: takes a measured winner instead of the store's tuned kernels.
    """

    strategy: Evolve
    proposals: Mapping[str, Any] = field(default_factory=dict)
    caps: str = ""
    meter: Meter = field(default_factory=Meter)
    install: Callable[[Result], None] | None = None

    def spec(self) -> dict[str, Any]:
        """See `Job.spec`."""
        return {**super().spec(), **self.proposals}

    def _result(self, *args: Any, **more: Any) -> Result:
        made = super()._result(*args, **more)
        strategy, tally = self.strategy, asdict(self.strategy.tally)
        notes = [*made.notes]
        if made.modelled:
            notes.append("nothing was run or checked: the model may prefer a kernel that is wrong")
        if strategy.stopped:
            notes.append(f"the search ended early: {strategy.stopped}")
        words = _UNCHECKED if made.modelled else {}
        counted = ", ".join(f"{count} {words.get(what, what)}" for what, count in tally.items())
        notes.append(f"proposals by {strategy.proposer}: {counted}")
        facts = {**made.facts, "caps": self.caps, "spent": self.meter.facts(), "proposals": tally}
        facts["proof"] = "compared with the reference, nothing is proved"
        return replace(made, notes=tuple(notes), facts=facts)

    def stored_result(self, fresh: bool) -> Result | None:
        """See `Job.stored_result`; tokens and money are part of the budget too."""
        stored = super().stored_result(fresh)
        return stored if stored is not None and stored.facts.get("caps") == self.caps else None

    def _keep(self, result: Result) -> None:
        if self.install is None:
            super()._keep(result)
        elif result.improved and isinstance(self.final, Evaluation):
            self.install(result)
