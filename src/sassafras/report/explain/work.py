"""From a tuned kernel to its explanation: reduce it, undo each move alone, look at the waits."""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from sassafras.core import Candidate, Device, Kernel, Redrawing, SassafrasError, Workload, beats
from sassafras.jobs.confirm import SELECTION_ROUNDS
from sassafras.jobs.opening import open_device
from sassafras.schedule import ScheduleSpace, ScheduleState
from sassafras.schedule.tables import touches_memory
from sassafras.store import Store
from sassafras.timing_model import ModelDevice
from sassafras.timing_model.evidence import correlation, refusal
from sassafras.validate import Validator

from .again import redrawn, remeasured, turns
from .changes import Changes, stall_counts, state_of
from .classes import MoveClass, moved_class, passed, went_up
from .explanation import Explained, ExplainedPart, Explanation
from .reduce import Purse, essential
from .subject import ExplainSubject, find
from .timeline import Wait, mean_waits
from .words import moved, named, restalled, shrunk, why

#: schedules judged at most, by default
LIMIT = 600
#: looks at one schedule on a device that measures
LOOKS = 3
#: a gain smaller than this is no difference
_NOTHING = 5e-5


def explain(
    target: str | Path | Workload | ExplainSubject,
    *,
    tuned: str | Path | bytes | None = None,
    case: str | None = None,
    device: str | Device = "auto",
    arch: str | None = None,
    store: str | Path | Store | None = None,
    limit: int = LIMIT,
    keep: float = 0.95,
    remeasure: int = 5,
    stage: Callable[[str], None] | None = None,
) -> Explanation:
    """Say which moves of a tuned schedule gave how much, and why.

    The difference between the two schedules is cut into single changes; those that can be taken back while
    `keep` of the gain stays are dropped; then each move that is left is undone alone (with those that cannot
    stay without it) and judged again. Every schedule on the way is one of the `ScheduleSpace` and approved by
    the validator before it runs. The words stand on the timing model's waits, also where a GPU gave the
    figures.

    Args:
        target: a workload or a target (``file.py``, ``suite:NAME``) whose best stored kernel is explained;
            ``run:N`` for the result of a run in the store; the JSON that `Result.save` wrote, with the
            cubin beside it; or an `ExplainSubject`.
        tuned: the tuned cubin (path or bytes), instead of the store's.
        case: the workload's case, by default its first.
        device: ``"cuda"`` (measured), ``"model"`` (modelled), ``"auto"``, or a `Device` of your own.
        arch: architecture to compile for.
        store: path or `Store`; None for the default.
        limit: schedules judged at most.
        keep: how much of the gain the reduced schedule has to keep.
        remeasure: how many of the largest moves are re-measured in fresh processes, or re-drawn on the timing
            model, beside the null experiment.
        stage: called with a line of text when another part of the work begins.

    Raises:
        SassafrasError: nothing tuned is found, or it is no schedule of the original.
    """
    say = stage or (lambda text: None)
    if limit < 1 or not 0 < keep <= 1:
        raise SassafrasError(f"limit {limit} or keep {keep} cannot be", hint="limit >= 1, 0 < keep <= 1")
    subject = (
        target
        if isinstance(target, ExplainSubject)
        else find(target, tuned=tuned, case=case, arch=arch, store=store)
    )
    opened = open_device(device, subject.baseline.arch)
    with closing(opened):
        return _Work(subject, opened, say).explain(limit, keep, remeasure)


class _Work:
    """One explanation in the making."""

    def __init__(self, subject: ExplainSubject, device: Device, say: Callable[[str], None]) -> None:
        self.subject, self.device, self.say = subject, device, say
        self.drawing = device if device.modelled and isinstance(device, Redrawing) else None
        self.baseline: Kernel = subject.baseline
        self.space = ScheduleSpace(self.baseline, arch_by_name=True)
        self.function = self.space.function
        self.validator = Validator(self.baseline.cubin, self.baseline.name)
        self.model: Any = None
        self.notes: list[str] = []
        self.refused = 0
        self.detail = ""
        #: looks at one schedule on a device that draws
        self.turns = 1

    def explain(self, limit: int, keep: float, remeasure: int) -> Explanation:
        """Reduce, undo, look, measure."""
        tuned = state_of(self.space, self.subject.tuned)
        if violation := self.space.violation(tuned):
            raise SassafrasError(
                f"the tuned cubin is not in the schedule space: {violation}", where=self.baseline.name
            )
        changes = Changes(self.space, tuned)
        self.device.open(self.subject.workload, self.subject.case, self.baseline)
        assumptions = self._open_model()
        purse = Purse(self._cost, limit)
        state, undone = tuned, frozenset[int]()
        found: list[tuple[Explained, ScheduleState]] = []
        complete, full, cost, final = True, 1.0, 1.0, None
        known = correlation(self.subject.workload.name, self.subject.case.name)
        why_not = refusal(known) if self.device.modelled else ""
        if self.model is not None and not self.device.modelled and (doubt := refusal(known)):
            self.notes.append(f"on why moves help: {doubt}")
        if not why_not:
            final = redrawn(self.drawing, self._kernel(tuned))
            self.turns = turns(self.drawing, self._kernel(tuned), final)
            first = purse.cost(tuned)
            if first is None:
                raise SassafrasError(
                    "the tuned schedule is refused", where=self.subject.name, hint=self.detail
                )
            full = cost = first
        if full < 1 and (final is None or beats(final)):
            self.say(f"taking back what can be spared of {len(changes.all)} changes")
            # a third of the evaluations is kept for undoing what is left
            purse.left -= limit // 3
            undone = essential(changes, purse, keep)
            purse.left += limit // 3
            made = changes.without(undone)
            assert made is not None
            state = made[0]
            cost = purse.known(state) or full
            self.say("undoing each move alone")
            found, complete = self._moves(changes, state, undone, cost, purse)
        if self.refused:
            self.notes.append(f"{self.refused} schedules on the way were refused by the validator or failed")
        reduced = self._kernel(state)
        moves = [move for move, _ in found]
        if moves and (not self.device.modelled or self.drawing):
            pairs = [(move, self._kernel(lacking)) for move, lacking in found]
            moves = remeasured(self.device, pairs, reduced, remeasure, self.notes)
        ratio, reduced_ratio = 1 / full, 1 / cost
        if final is not None and final.cost is not None:
            ratio, again = 1 / final.cost, redrawn(self.drawing, reduced)
            reduced_ratio = ratio if again is None or again.cost is None else 1 / again.cost
        return Explanation(
            workload=self.subject.workload.name,
            case=self.subject.case.name,
            kernel=self.baseline.name,
            arch=self.baseline.arch,
            device=self.device.name,
            modelled=self.device.modelled,
            original=self.baseline.digest,
            tuned=hashlib.sha256(self.subject.tuned).hexdigest(),
            reduced=reduced.digest,
            ratio=ratio,
            reduced_ratio=reduced_ratio,
            changes=len(changes.all),
            evaluations=purse.evaluations,
            complete=complete,
            moves=tuple(moves),
            notes=tuple(self.notes),
            assumptions=assumptions,
            cubin=reduced.cubin,
            refusal=why_not,
            interval=None if final is None else final.interval,
            null=None if final is None else final.null,
            null_interval=None if final is None else final.null_interval,
            draws=0 if final is None else final.draws,
        )

    def _open_model(self) -> tuple[str, ...]:
        """The timing model, for the words; without it the figures have to do."""
        if isinstance(self.device, ModelDevice):
            self.model = self.device
        else:
            try:
                self.model = ModelDevice(self.baseline.arch)
                self.model.open(self.subject.workload, self.subject.case, self.baseline)
            except SassafrasError as error:
                self.model = None
                self.notes.append(f"the timing model cannot say why: {error}")
                return ()
        facts = self.model.model.facts()
        loops = [
            f"loop {loop['start']:#06x}-{loop['end']:#06x} runs {loop['trips']} times ({loop['from']})"
            for loop in facts["loop_trips"]
        ]
        return (*loops, f"{facts['ctas_per_sm']} blocks an SM, data in {facts['data']}", facts["branches"])

    def _kernel(self, state: ScheduleState) -> Kernel:
        return self.baseline.with_cubin(self.space.emit(state))

    def _cost(self, state: ScheduleState) -> float | None:
        """The relative runtime of a schedule that the validator approves."""
        candidate = Candidate(self._kernel(state), {"space": "explain"})
        report = self.validator.check(candidate.kernel.cubin)
        if not report.ok:
            self.refused += 1
            self.detail = str(report)
            return None
        costs = []
        drawing = self.drawing
        looks = self.turns if drawing else 1 if self.device.modelled else LOOKS
        for n in range(looks):
            # draws on which no search chose this schedule
            outcome = drawing.look(candidate, SELECTION_ROUNDS + n) if drawing else self.device.run(candidate)
            if outcome.cost is None:
                self.refused += 1
                self.detail = outcome.detail
                return None
            costs.append(outcome.cost)
        return statistics.fmean(costs) if drawing else statistics.median(costs)

    def _moves(
        self, changes: Changes, state: ScheduleState, undone: frozenset[int], cost: float, purse: Purse
    ) -> tuple[list[tuple[Explained, ScheduleState]], bool]:
        """Each move of `state` with the schedule that lacks it, the largest gain first."""
        everything = frozenset(range(len(changes.all)))
        closure: dict[int, frozenset[int]] = {}
        groups: dict[frozenset[int], ScheduleState] = {}
        for n in sorted(everything - undone):
            if (made := changes.without(undone | {n})) is not None:
                if made[0] == state:  # a stall count that re-spacing would raise
                    closure[n] = frozenset((n,))
                    continue
                closure[n] = made[1] - undone
                groups.setdefault(closure[n], made[0])
        if missing := len(everything - undone) - len(closure):
            self.notes.append(f"{missing} changes cannot be taken back alone")
        present = self._waits(state)
        found, complete = [], True
        for group, without in groups.items():
            lost = purse.known(without)
            if lost is None:
                complete = complete and purse.left > 0
                continue
            # what the group cannot do without: everything that takes it along when it goes
            support = group | {n for n, taken in closure.items() if taken >= group}
            alone = changes.without(everything - support)
            single = None
            if alone is not None and not alone[1] & group:
                single = purse.known(alone[0])
            move = self._explained(changes, group, (without, state), lost / cost, single, present)
            found.append((move, without))
        if not complete:
            self.notes.append("the limit on evaluations was reached: not every move was undone")
        return sorted(found, key=lambda pair: -pair[0].gain), complete

    def _waits(self, state: ScheduleState) -> dict[Wait, float]:
        if self.model is None:
            return {}
        return mean_waits(self.model, self.function, state, self._kernel(state))

    def _explained(
        self,
        changes: Changes,
        group: frozenset[int],
        states: tuple[ScheduleState, ScheduleState],
        gain: float,
        alone: float | None,
        present: dict[Wait, float],
    ) -> Explained:
        """One group of changes, given the schedules without and with it."""
        code = self.function.instructions
        members = sorted(
            (changes.all[n] for n in sorted(group)),
            key=lambda m: (m.kind != "reorder", not touches_memory(code[m.instruction])),
        )
        orders = {m.block: [_part(state, *changes.blocks[m.block]) for state in states] for m in members}
        stalls = [stall_counts(state) for state in states]
        parts = []
        for m in members:
            x, (before, after) = m.instruction, orders[m.block]
            figures = before.index(x), after.index(x), int(stalls[0][x]), int(stalls[1][x])
            parts.append(ExplainedPart(x, code[x].offset, code[x].text, *figures))
        lead, x = members[0], members[0].instruction
        crossed: list[int] = []
        if lead.kind == "reorder":
            before, after = orders[lead.block]
            kind = moved_class(self.function, before, after, x)
            above, below = passed(before, after, x)
            crossed = above + below
            hoisted = went_up(before, after, x)
            what = moved(self.function, x, above if hoisted else below, hoisted)
            if others := [m.instruction for m in members[1:]]:
                what += f", together with {named(self.function, others)} (they depend on each other)"
            what += f", block {lead.block}"
        else:
            raised = parts[0].stall_after > parts[0].stall_before
            kind = MoveClass.RAISE_STALL if raised else MoveClass.LOWER_STALL
            what = restalled(self.function, parts, lead.block)
        lacking = self._waits(states[0])
        reason = ""
        if self.model is not None:
            instructions = [m.instruction for m in members]
            reason = why(self.function, instructions, lacking, present, gain > 1 + _NOTHING)
        if reason and not self.device.modelled:
            reason += " (modelled)"
        loops = [] if self.model is None else self.model.model.path.loops
        start = changes.blocks[lead.block][0]
        return Explained(
            kind=str(kind),
            parts=tuple(parts),
            block=lead.block,
            in_loop=any(loop.start <= start <= loop.end for loop in loops),
            passed=dict(Counter(code[y].base for y in crossed)),
            gain=gain,
            alone=None if alone is None else 1 / alone,
            waits=tuple(self._wait_json(row) for row in shrunk(lacking, present)[:5]),
            words=f"{what}: {reason}" if reason else what,
        )

    def _wait_json(self, row: tuple[Wait, float, float]) -> dict[str, Any]:
        wait, before, after = row
        return {
            "instruction": wait.instruction,
            "text": self.function.instructions[wait.instruction].text,
            "reason": wait.reason,
            "setter": None if wait.setter < 0 else wait.setter,
            "setter_text": "" if wait.setter < 0 else self.function.instructions[wait.setter].text,
            "before": before,
            "after": after,
        }


def _part(state: ScheduleState, start: int, end: int) -> list[int]:
    return [int(x) for x in state.order[start:end]]
