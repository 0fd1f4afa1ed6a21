"""The strategy ``evolve``: show contrasting variants, ask for another, judge it, keep what is better.

After CUDA-L1 and CUDA-L2 (arXiv 2507.14111, 2512.02551): earlier variants of distinct speed are shown with
their scores, so that the proposer can tell what made them fast. Without a proposer the same loop mutates the
chosen parent by chance, which is the control.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar

from sassafras.core import Outcome, SearchError, Verdict
from sassafras.search.contract import Evaluate, Session

from .answer import AnswerError
from .archive import Archive, ArchivedSource
from .prompt import Promptable, feedback, messages
from .proposer import Message, Proposer, ProposerError, Request, SpendingCap

#: verdicts after which the author is asked to repair the proposal
REPAIRABLE = frozenset(
    {
        Verdict.COMPILE_ERROR,
        Verdict.WRONG_RESULT,
        Verdict.UNSUPPORTED,
        Verdict.OUT_OF_RESOURCES,
        Verdict.CRASHED,
        Verdict.CHEATED,
    }
)
_NOT_COMPILED = (Verdict.COMPILE_ERROR, Verdict.CHEATED, Verdict.TIMED_OUT)


@dataclass
class ProposalTally:
    """What became of the proposals.

    Attributes:
        proposed: answers, repairs included.
        unreadable: without usable text in them.
        duplicate: compiled to a kernel that was tried already.
        compiled: compiled to a new kernel.
        correct: of those, judged correct (or modelled, on the timing model).
        faster: of those, faster than the baseline in the search's one look.
        cheated: refused as cheats, before or after compiling.
    """

    proposed: int = 0
    unreadable: int = 0
    duplicate: int = 0
    compiled: int = 0
    correct: int = 0
    faster: int = 0
    cheated: int = 0


@dataclass(eq=False)
class Evolve:
    """See the module. A `search.Strategy` for spaces that are `Promptable`.

    Args:
        asks: answers requests; None for random edits of the same space (the control).

    Attributes:
        exemplars: variants shown beside the parent.
        contrastive: show variants with scores; False shows the parent alone (the ablation).
        sections: ask for analysis and design before the code.
        explore: probability that the parent is one of the shown variants instead of the best.
        temperature, max_tokens: of each request.
        repairs: how often a proposal that failed goes back to its author with the reason.
        edits: most random edits of one proposal, without a proposer.
        give_up: useless answers in a row after which the search ends.
        proposals: most answers altogether, 0 for no limit.
        proposer: the proposer's name.
        tally, archive: what became of the last search's proposals, and its variants.
        stopped: why the last search ended by itself; empty when its budget did it.

    Raises:
        SearchError: a setting makes no sense.
    """

    name: ClassVar[str] = "evolve"
    asks: InitVar[Proposer | None]
    exemplars: int = 3
    contrastive: bool = True
    sections: bool = True
    explore: float = 0.5
    temperature: float = 0.8
    max_tokens: int = 1024
    repairs: int = 1
    edits: int = 3
    give_up: int = 40
    proposals: int = 0
    proposer: str = field(default="mutation", init=False)

    def __post_init__(self, asks: Proposer | None) -> None:
        least = min(self.exemplars, self.repairs, self.edits - 1, self.give_up - 1, self.max_tokens - 1)
        if least < 0 or self.temperature < 0:
            raise SearchError("evolve's settings must be positive", hint="see docs/guides/evolve.md")
        if not 0 <= self.explore <= 1:
            raise SearchError(f"explore is a probability, not {self.explore}")
        self._asks = asks
        if asks is not None:
            self.proposer = asks.name
        self._begin()

    def _begin(self) -> None:
        self.tally, self.archive, self.stopped = ProposalTally(), Archive(), ""

    def search(self, space: Any, evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`.

        Raises:
            ProposerError: the proposer is dead. What was judged is recorded; the same search resumes.
        """
        self._begin()
        turn = _Turn(self, space, evaluate, session)
        useless = 0
        while session.more():
            before = self.tally.compiled
            try:
                turn.mutate() if self._asks is None else turn.propose(self._asks)
            except SpendingCap as cap:
                self.stopped = cap.what
                return
            except ProposerError as error:
                raise ProposerError(
                    f"{error.what}; {len(self.archive)} variants were judged, the best at "
                    f"{1 / session.best.cost:.3f}x of the baseline's speed",
                    where=error.where,
                    hint=error.hint or "the same command resumes",
                ) from error
            if self.enough():
                self.stopped = f"{self.tally.proposed} proposals were made"
                return
            useless = 0 if self.tally.compiled > before else useless + 1
            if useless >= self.give_up:
                self.stopped = f"{useless} answers in a row gave no new kernel"
                return

    def enough(self) -> bool:
        """Whether all `proposals` were made."""
        return 0 < self.proposals <= self.tally.proposed


class _Turn:
    """One search: what was tried, by digest, and how another variant is made."""

    def __init__(
        self, strategy: Evolve, space: Promptable[Any], evaluate: Evaluate[Any], session: Session[Any]
    ) -> None:
        self.strategy, self.space, self.evaluate, self.session = strategy, space, evaluate, session
        self.archive, self.tally = strategy.archive, strategy.tally
        self.states: dict[str, Any] = {}
        self._keep(session.best.state, session.best.outcome, "")

    # -- one proposal, with its repairs -------------------------------------------------------------------

    def propose(self, proposer: Proposer) -> None:
        """Ask for one variant; when it fails, give the reason back."""
        strategy = self.strategy
        parent, shown = self._choose()
        known = self.archive.get(parent)
        talk: tuple[Message, ...] = messages(
            self.space,
            self.space.show(self.states[parent]),
            shown,
            contrastive=strategy.contrastive,
            parent_score=known.score if known else None,
            sections=strategy.sections,
        )
        for _ in range(1 + strategy.repairs):
            request = Request(
                talk,
                self.space.schema,
                strategy.max_tokens,
                strategy.temperature,
                int(self.session.rng.integers(1 << 31)),
                self.space.choices(),
            )
            reply = proposer.propose(request)
            problem = self._judge(reply.text, parent, proposer.name)
            if problem is None or strategy.enough() or not self.session.more():
                return
            talk = (
                *talk,
                {"role": "assistant", "content": reply.text},
                {"role": "user", "content": feedback(*problem)},
            )

    def _judge(self, text: str, parent: str, origin: str) -> tuple[str, str] | None:
        """Evaluate an answer; (kind, reason) when its author should try again."""
        self.tally.proposed += 1
        try:
            return self._try(self.space.read(text, self.states[parent], origin), parent)
        except AnswerError as error:
            self.tally.unreadable += 1
            return "answer", str(error)

    def mutate(self) -> None:
        """Change a parent by a few random edits."""
        parent, _ = self._choose()
        state = self.states[parent]
        rng = self.session.rng
        self.tally.proposed += 1
        try:
            for _ in range(int(rng.integers(1, self.strategy.edits + 1))):
                move = self.space.sample(state, rng)
                if move is None:
                    break
                state = self.space.apply(state, move)
            self._try(state, parent)
        except AnswerError:
            self.tally.unreadable += 1

    def _try(self, state: Any, parent: str) -> tuple[str, str] | None:
        """Evaluate a state. Raises AnswerError where its text does not fit its hole."""
        tally = self.tally
        outcome = self.evaluate(state)
        if outcome.digest in self.archive:
            tally.duplicate += 1
            return "duplicate", "propose something else"
        self._keep(state, outcome, parent)
        verdict = outcome.verdict
        tally.cheated += verdict is Verdict.CHEATED
        tally.compiled += verdict not in _NOT_COMPILED
        if outcome.cost is not None:
            tally.correct += 1
            tally.faster += outcome.cost < 1.0
        return (str(verdict), outcome.detail) if verdict in REPAIRABLE else None

    # -- what is chosen and kept --------------------------------------------------------------------------

    def _choose(self) -> tuple[str, list[ArchivedSource]]:
        """(the parent's digest, the variants to show)."""
        rng = self.session.rng
        shown = self.archive.exemplars(self.strategy.exemplars, rng)
        best = self.archive.best
        assert best is not None  # the baseline is in it
        if shown and rng.random() < self.strategy.explore:
            return shown[int(rng.integers(len(shown)))].digest, shown
        return best.digest, shown

    def _keep(self, state: Any, outcome: Outcome, parent: str) -> None:
        self.states[outcome.digest] = state
        self.archive.add(
            ArchivedSource(
                outcome.digest,
                parent,
                self.space.show(state),
                None if outcome.cost is None else 1 / outcome.cost,
                "modelled" if outcome.verdict is None else outcome.verdict.value,
                outcome.detail[:500],
                str(getattr(state, "origin", self.strategy.proposer)),
                str(getattr(state, "note", "")),
            )
        )
