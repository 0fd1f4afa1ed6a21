"""A search run whose candidates are proposals: rewritten sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sassafras.jobs.job import Job
from sassafras.jobs.result import Result
from sassafras.search import Finished

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
        deploys: a measured winner may take the baseline's place in programs (`sassafras.install`).
    """

    strategy: Evolve
    proposals: Mapping[str, Any] = field(default_factory=dict)
    caps: str = ""
    meter: Meter = field(default_factory=Meter)
    deploys: bool = True

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
        facts["waiting"] = strategy.waiting
        facts["proof"] = "compared with the reference, nothing is proved"
        return replace(made, notes=tuple(notes), facts=facts)

    def stored_result(self, fresh: bool) -> Result | None:
        """See `Job.stored_result`; tokens and money are part of the budget too; runs in folders go on."""
        stored = super().stored_result(fresh)
        if stored is None or stored.facts.get("caps") != self.caps:
            return None
        return None if stored.facts.get("waiting") or stored.facts.get("unfinished") else stored

    def _confirmed(self, found: Finished[Any]) -> Result:
        """See `Job._confirmed`; nothing is re-measured while the run's record waits for answers or time."""
        strategy = self.strategy
        unfinished = strategy.record.folder is not None and (strategy.waiting or not strategy.stopped)
        if unfinished:
            base, kind = found.baseline, "modelled " * self.device.modelled
            made = self._result(found, base.candidate, [], improved=False, final=base.outcome)
            told = f"the run goes on with the same command: its best so far is {kind}"
            told += f"{1 / found.best.cost:.3f}x as selected, not re-measured"
            return replace(made, facts={**made.facts, "unfinished": told})
        made = super()._confirmed(found)
        if strategy.record.folder is not None and not made.modelled:
            strategy.record.append(
                "confirmed",
                digest=made.kernel.digest,
                improved=made.improved,
                speedup=made.speedup,
                over_best=None if made.speedup is None else made.speedup * strategy.rival,
                interval=made.interval and made.interval.ends,
                null=made.null,
                null_interval=made.null_interval and made.null_interval.ends,
            )
        return made

    def _keep(self, result: Result) -> None:
        if self.deploys:
            super()._keep(result)
