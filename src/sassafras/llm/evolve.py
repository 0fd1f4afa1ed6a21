"""The strategy ``evolve``: show contrasting variants, ask for another, judge it, keep what is better.

After CUDA-L1 and CUDA-L2 (arXiv 2507.14111, 2512.02551): earlier variants of distinct speed are shown with
their scores, so that the proposer can tell what made them fast. Without a proposer the same loop edits the
chosen parent by chance (`mutate.Mutation`), which is the control.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, asdict, dataclass, field
from typing import Any, ClassVar

from sassafras.core import Candidate, Modelled, Outcome, SearchError, Verdict
from sassafras.search.contract import Evaluate, Session

from .answer import AnswerError, read_answer
from .archive import Archive, ArchivedSource
from .mutate import Mutation
from .prompt import Promptable
from .proposer import NoAnswerYet, Proposer, ProposerError, Reply, Request, SpendingCap
from .record import DUPLICATE, UNREADABLE, Record, Task, digest_of
from .reward import RewardWeights, reward
from .rounds import Plan, Retrieve, Rounds

_NOT_COMPILED = {v.value for v in (Verdict.COMPILE_ERROR, Verdict.CHEATED, Verdict.TIMED_OUT)}
#: seconds between two looks for answers
_LOOK = 1.0
#: leaders that are judged again when a run that was taken up ends
_LEADERS = 3


@dataclass
class ProposalTally:
    """What became of the proposals.

    Attributes:
        proposed: answers, repairs included.
        unreadable: without usable text in them.
        duplicate: compiled to a kernel that was tried already.
        compiled: compiled to a new kernel.
        correct: of those, judged correct (or modelled, on the timing model).
        faster: of those, faster than the reference in the search's one look.
        cheated: refused as cheats, before or after compiling.
    """

    proposed: int = 0
    unreadable: int = 0
    duplicate: int = 0
    compiled: int = 0
    correct: int = 0
    faster: int = 0
    cheated: int = 0

    def count(self, variant: ArchivedSource) -> None:
        """Count one answer."""
        self.proposed += 1
        self.unreadable += variant.verdict == UNREADABLE
        self.duplicate += variant.verdict == DUPLICATE
        self.cheated += variant.verdict == Verdict.CHEATED.value
        self.compiled += variant.verdict not in (UNREADABLE, DUPLICATE, *_NOT_COMPILED)
        self.correct += variant.score is not None
        self.faster += (variant.score or 0.0) > 1.0


@dataclass(eq=False)
class Evolve:
    """See the module. A `search.Strategy` for spaces that are `Promptable`.

    Args:
        asks: answers requests; None for random edits (the control).

    Attributes:
        exemplars: variants shown beside the parent.
        contrastive: show variants with scores; False shows the parent alone (the ablation).
        sections: ask for analysis and design before the code.
        metrics: show ncu's metrics of the shown variants.
        retrieval: show passages of the user's folders, where some are given.
        explore: probability that the parent is one of the shown variants instead of the best.
        temperature, max_tokens: of each request.
        repairs: how often a proposal that failed goes back to its author with the reason.
        edits: most random edits of one proposal, without a proposer.
        give_up: useless answers in a row after which the search ends, 0 for never.
        proposals: most answers altogether, 0 for no limit.
        width: proposals of a generation: they are asked for together and see the same variants.
        speed, rms, largest, length: weights of the reward (`reward.RewardWeights`).
        proposer: the proposer's name.
        record: what the search knows; one in memory unless another is put here.
        task: what is asked for; by default as the space says.
        retrieve, profile: find passages; measure candidates (`evaluate.gpu.profile`). None for neither.
        reference: facts of this sitting: device, and a ``rival`` with its time relative to the baseline's.
        wait: seconds to wait for answers that come later.
        ahead: False to leave new prompts to another machine, where what they retrieve from is.
        tally, archive: what became of the last search's proposals, and its variants.
        stopped: why the last search ended by itself; empty when its budget did it.
        waiting: prompts that the last search left without an answer.

    Raises:
        SearchError: a setting makes no sense.
    """

    name: ClassVar[str] = "evolve"
    asks: InitVar[Proposer | None]
    exemplars: int = 3
    contrastive: bool = True
    sections: bool = True
    metrics: bool = True
    retrieval: bool = True
    explore: float = 0.5
    temperature: float = 0.8
    max_tokens: int = 1024
    repairs: int = 1
    edits: int = 3
    give_up: int = 40
    proposals: int = 0
    width: int = 1
    speed: float = 1.0
    rms: float = 0.01
    largest: float = 0.001
    length: float = 0.001
    proposer: str = field(default="mutation", init=False)

    def __post_init__(self, asks: Proposer | None) -> None:
        least = min(self.exemplars, self.repairs, self.edits - 1, self.give_up, self.max_tokens - 1)
        if min(least, self.width - 1, self.proposals) < 0 or self.temperature < 0:
            raise SearchError("evolve's settings must be positive", hint="see docs/guides/evolve.md")
        if not 0 <= self.explore <= 1:
            raise SearchError(f"explore is a probability, not {self.explore}")
        self._weights = RewardWeights(self.speed, self.rms, self.largest, self.length)
        self.asks_of: Proposer = Mutation(self.edits) if asks is None else asks
        self.proposer = self.asks_of.name
        self.record = Record()
        self.task: Task | None = None
        self.retrieve: Retrieve | None = None
        self.profile: Callable[[Sequence[Candidate]], list[dict[str, Any]]] | None = None
        self.reference: Mapping[str, Any] = {}
        self.wait, self.ahead = 0.0, True
        self.tally, self.archive, self.stopped, self.waiting = ProposalTally(), Archive(), "", 0

    @property
    def rival(self) -> float:
        """The faster of the baseline's and the rival's time, relative to the baseline's."""
        return min(1.0, (self.reference.get("rival") or {}).get("ratio", 1.0))

    def count(self) -> None:
        """Bring `tally` and `archive` up to what is recorded."""
        self.tally, self.archive = ProposalTally(), self.record.archive()
        for number in sorted(self.record.judged):
            if number:
                self.tally.count(self.record.judged[number])

    def reward(self, score: float | None, text: str, measured: Mapping[str, Any]) -> float:
        """What a candidate of this score, text and measurement is worth."""
        rms, largest = measured.get("errors") or (0.0, 0.0)
        return reward(score, deviation=rms, largest=largest, characters=len(text), weights=self._weights)

    def search(self, space: Any, evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`.

        Raises:
            ProposerError: the proposer is dead. What was judged is recorded; the same search resumes.
            RecordError: the record cannot be used.
        """
        self.stopped, self.waiting = "", 0
        if self.record.folder is None:
            self.record = Record()
        turn = _Turn(self, space, evaluate, session)
        try:
            turn.begin()
            while session.more() and not self.stopped:
                turn.generation()
        except SpendingCap as cap:
            self.stopped = cap.what
        except ProposerError as error:
            self.count()
            kind = "modelled " * isinstance(session.best.outcome, Modelled)
            raise ProposerError(
                f"{error.what}; {len(self.archive)} variants were judged, the best at {kind}"
                f"{1 / session.best.cost:.3f}x of the baseline's speed",
                where=error.where,
                hint=error.hint or "the same command resumes",
            ) from error
        finally:
            self.count()
            self.record.save_archive()


class _Turn:
    """One search: its rounds, the states of what was tried, and how an answer is judged."""

    def __init__(
        self, strategy: Evolve, space: Promptable[Any], evaluate: Evaluate[Any], session: Session[Any]
    ) -> None:
        self.strategy, self.space, self.evaluate, self.session = strategy, space, evaluate, session
        self.record = strategy.record
        self.start = getattr(space, "seed", space.start)()
        self.task = strategy.task or Task(space.brief(), space.form, space.show(self.start))
        seed = int(session.rng.integers(1 << 31))
        self.rounds = Rounds(strategy, self.task, self.record, seed, strategy.retrieve)
        self.states: dict[str, Any] = {"": self.start}
        self.useless = 0
        self.control = session.best.outcome

    def begin(self) -> None:
        """Note this sitting's reference, and judge the variant that the first prompts show."""
        control, facts = self.control, dict(self.strategy.reference)
        facts.setdefault("baseline_us", getattr(control, "baseline_us", None))
        self.record.append("reference", **facts, null=_interval(control))
        if 0 not in self.record.judged:
            self._judge(Plan(0, 0, "", (), 0, 0), self.start, "")

    def generation(self) -> None:
        """Ask for what is open in the present generation, and judge what is answered."""
        numbers = self.rounds.open()
        if not numbers:
            self._finish(f"{len(self.record.judged) - 1} proposals were made")
            return
        self._profile(numbers)
        if not self.strategy.ahead and any(number not in self.record.prompts for number in numbers):
            self.strategy.waiting = len(numbers)
            self.strategy.stopped = "the next prompts are to be written where retrieval is installed"
            return
        asked = {number: self.rounds.ask(number) for number in numbers}
        end = time.monotonic() + self.strategy.wait
        while asked and self.session.more():
            replies, problem = self._replies(asked)
            self._build(replies)
            for plan, reply in replies:
                if not self.session.more():
                    return
                self._answered(plan, reply)
                del asked[plan.number]
                if self.strategy.give_up and self.useless >= self.strategy.give_up:
                    self._finish(f"{self.useless} answers in a row gave no new kernel")
                    return
            if problem is not None:
                raise problem
            if asked and time.monotonic() >= end:
                self.strategy.waiting = len(asked)
                self.strategy.stopped = f"waiting for {len(asked)} answers"
                return
            if asked:
                time.sleep(_LOOK)

    def _replies(
        self, asked: Mapping[int, tuple[Plan, Request]]
    ) -> tuple[list[tuple[Plan, Reply]], ProposerError | None]:
        """The answers that there are, and what kept the proposer from giving the rest for good."""
        found: list[tuple[Plan, Reply]] = []
        for plan, request in asked.values():
            try:
                kept = None if self.record.folder is None else self.record.answer(plan.number)
                reply = None if kept is None else Reply(kept)  # it was paid for before the run was cut off
                found.append((plan, reply or self.strategy.asks_of.propose(request)))
            except NoAnswerYet:
                continue
            except ProposerError as error:
                return found, error
        return found, None

    def _build(self, replies: Sequence[tuple[Plan, Reply]]) -> None:
        """Build several answers at once, where the space can: compiling takes longer than judging."""
        if (prepare := getattr(self.space, "prepare", None)) is None or len(replies) < 2:
            return
        states = []
        for plan, reply in replies:
            with suppress(AnswerError):
                states.append(self.space.read(reply.text, self._state(plan.parent)))
        prepare(states)

    def _finish(self, why: str) -> None:
        """Of a run that was taken up, the best are judged again here: only what is can be re-measured."""
        best = sorted((v for v in self.record.archive() if v.score), key=lambda v: -v.worth)[:_LEADERS]
        for variant in best if self.record.folder is not None else ():
            self.evaluate(self._state(variant.digest))
        self.strategy.stopped = why

    def _answered(self, plan: Plan, reply: Reply) -> None:
        """Judge an answer; one that is no text for its place is recorded as such."""
        self.record.write(plan.number, "answer", reply.text)
        answer = digest_of(reply.text)
        origin = self.strategy.asks_of.name
        try:
            state = self.space.read(reply.text, self._state(plan.parent), origin)
            self._judge(plan, state, answer)
        except AnswerError as error:
            said = read_answer(reply.text)
            note = " ".join(said.design.split())[:300]
            text = "\n".join(f"```{label}\n{body}\n```" for label, body in said.blocks)
            variant = ArchivedSource("", plan.parent, text, None, UNREADABLE, str(error), origin, note)
            self._keep(plan, variant, answer)
        fruitless = self.record.judged[plan.number].verdict in (UNREADABLE, DUPLICATE, *_NOT_COMPILED)
        self.useless = self.useless + 1 if fruitless else 0

    def _judge(self, plan: Plan, state: Any, answer: str) -> None:
        """Evaluate a state and record it. Raises AnswerError where its text does not fit its hole."""
        outcome = self.evaluate(state)
        text = self.space.show(state)
        origin, note = str(getattr(state, "origin", self.strategy.proposer)), str(getattr(state, "note", ""))
        first = next((v for v in self.record.judged.values() if v.digest == outcome.digest), None)
        if first is not None and plan.number:
            detail = f"compiles to the kernel of prompt {first.number}; propose something else"
            variant = ArchivedSource(outcome.digest, plan.parent, text, None, DUPLICATE, detail, origin, note)
        else:
            self.states[outcome.digest] = state
            score = None if outcome.cost is None else self.strategy.rival / outcome.cost
            verdict = "modelled" if outcome.verdict is None else outcome.verdict.value
            measured = self._measured(outcome)
            variant = ArchivedSource(
                outcome.digest,
                plan.parent,
                text,
                score,
                verdict,
                outcome.detail[:2000],
                origin,
                note,
                measured=measured,
                reward=self.strategy.reward(score, text, measured),
            )
        self._keep(plan, variant, answer)

    def _keep(self, plan: Plan, variant: ArchivedSource, answer: str) -> None:
        facts = asdict(variant) | {
            "number": plan.number,
            "generation": plan.generation,
            "repairs": plan.repairs,
            "answer": answer,
        }
        self.record.judge(ArchivedSource(**facts))

    def _measured(self, outcome: Outcome) -> dict[str, Any]:
        """Figures of an outcome as JSON, with this sitting's A/A control."""
        if outcome.cost is None:
            return {}
        found: dict[str, Any] = {"speedup": 1 / outcome.cost, **_interval(outcome)}
        for name in ("time_us", "baseline_us"):
            if (value := getattr(outcome, name, None)) is not None:
                found[name] = value
        found |= {"null": _interval(self.control)}
        if (errors := outcome.facts.get("errors")) is not None:
            found["errors"] = list(errors)
        return found

    def _state(self, digest: str) -> Any:
        """The state of a variant, read from its text where another process tried it."""
        if digest not in self.states:
            variant = next(v for v in self.record.judged.values() if v.digest == digest)
            same = variant.number == 0 or variant.text == self.task.start
            self.states[digest] = self.start if same else self.space.read(variant.text, self.start)
        return self.states[digest]

    def _profile(self, numbers: Sequence[int]) -> None:
        """Measure what the next prompts will show and no earlier one did."""
        strategy = self.strategy
        if strategy.profile is None or not strategy.metrics:
            return
        wanted: dict[str, None] = {}
        for number in numbers:
            if number not in self.record.prompts:
                plan = self.rounds.plan(number)
                wanted |= dict.fromkeys(digest for digest in (*plan.shown, plan.parent) if digest)
        archive = self.rounds.archive(numbers[0])
        todo = [
            digest
            for digest in wanted
            if digest not in self.record.metrics and (v := archive.get(digest)) is not None and v.score
        ]
        if todo:
            found = strategy.profile([self.space.candidate(self._state(digest)) for digest in todo])
            for digest, metrics in zip(todo, found, strict=True):
                self.record.append("metrics", digest=digest, metrics=metrics)


def _interval(outcome: Outcome) -> dict[str, Any]:
    """A ratio with its interval as JSON; empty where there is none."""
    if outcome.cost is None:
        return {}
    interval = getattr(outcome, "interval", None)
    bounds = {} if interval is None else {"low": interval.low, "high": interval.high}
    return {"speedup": 1 / outcome.cost, **bounds}
