"""The strategy ``evolve``: show contrasting variants, ask for another, judge it, keep what is better.

After CUDA-L1 and CUDA-L2 (arXiv 2507.14111, 2512.02551): earlier variants of distinct speed are shown with
their scores, so that the proposer can tell what made them fast. Without a proposer the same loop mutates the
chosen parent by chance, which is the control.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sassafras.core import Outcome, SearchError, Space, Verdict
from sassafras.search.contract import Evaluate, Session

from .answer import AnswerError
from .archive import Archive, ArchivedSource
from .prompt import feedback, messages
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

    def to_json(self) -> dict[str, int]:
        """For records."""
        return asdict(self)


class Evolve:
    """See the module. A `search.Strategy` for spaces that are `Promptable`.

    Args:
        proposer: answers requests; None for random edits of the same space (the control).
        exemplars: variants shown beside the parent.
        contrastive: show variants with scores; False shows the parent alone (the ablation).
        sections: ask for analysis and design before the code.
        explore: probability that the parent is one of the shown variants instead of the best.
        temperature, max_tokens: of each request.
        repairs: how often a proposal that failed goes back to its author with the reason.
        edits: most random edits made at once, without a proposer.
        give_up: useless answers in a row after which the search ends.
        proposals: most answers altogether, 0 for no limit.

    Raises:
        SearchError: a setting makes no sense.
    """

    name = "evolve"

    def __init__(
        self,
        proposer: Proposer | None,
        *,
        exemplars: int = 3,
        contrastive: bool = True,
        sections: bool = True,
        explore: float = 0.5,
        temperature: float = 0.8,
        max_tokens: int = 1024,
        repairs: int = 1,
        edits: int = 3,
        give_up: int = 40,
        proposals: int = 0,
    ) -> None:
        if exemplars < 0 or repairs < 0 or edits < 1 or give_up < 1 or max_tokens < 1 or temperature < 0:
            raise SearchError("evolve's settings must be positive", hint="see docs/guides/evolve.md")
        if not 0 <= explore <= 1:
            raise SearchError(f"explore is a probability, not {explore}")
        self._proposer = proposer
        self.proposer = proposer.name if proposer is not None else "mutation"
        self.exemplars, self.contrastive, self.explore = exemplars, contrastive, explore
        self.sections = sections
        self.temperature, self.max_tokens, self.repairs = temperature, max_tokens, repairs
        self.edits, self.give_up, self.proposals = edits, give_up, proposals
        self._tally = ProposalTally()
        self._archive = Archive()
        self._stopped = ""

    @property
    def tally(self) -> ProposalTally:
        """What became of the proposals of the last search."""
        return self._tally

    @property
    def archive(self) -> Archive:
        """The variants of the last search."""
        return self._archive

    @property
    def stopped(self) -> str:
        """Why the last search ended by itself; empty when its budget did it."""
        return self._stopped

    def take(self, others: Sequence[Evolve]) -> None:
        """Count what other searches of the same kernel did as this one's: tallies, variants, reasons."""
        self._tally, self._archive = ProposalTally(), Archive()
        for other in others:
            for name, count in other.tally.to_json().items():
                setattr(self._tally, name, getattr(self._tally, name) + count)
            for variant in other.archive:
                self._archive.add(variant)
        self._stopped = "; ".join(dict.fromkeys(other.stopped for other in others if other.stopped))

    def search(self, space: Space[Any, Any], evaluate: Evaluate[Any], session: Session[Any]) -> None:
        """See `sassafras.search.contract`.

        Raises:
            ProposerError: the proposer is dead. What was judged is recorded; the same search resumes.
        """
        turn = _Turn(self, space, evaluate, session)
        self._tally, self._archive, self._stopped = turn.tally, turn.archive, ""
        useless = 0
        while session.more():
            before = turn.tally.compiled
            try:
                turn.propose() if self._proposer is not None else turn.mutate()
            except SpendingCap as cap:
                self._stopped = cap.what
                return
            except ProposerError as error:
                raise ProposerError(
                    f"{error.what}; {len(turn.archive)} variants were judged, the best at "
                    f"{1 / session.best.cost:.3f}x of the baseline's speed",
                    where=error.where,
                    hint=error.hint or "the same command resumes",
                ) from error
            if self.proposals and turn.tally.proposed >= self.proposals:
                self._stopped = f"{turn.tally.proposed} proposals were made"
                return
            useless = 0 if turn.tally.compiled > before else useless + 1
            if useless >= self.give_up:
                self._stopped = f"{useless} answers in a row gave no new kernel"
                return


class _Turn:
    """One search's state: what was tried, under which digest."""

    def __init__(self, settings: Evolve, space: Any, evaluate: Evaluate[Any], session: Session[Any]) -> None:
        self.settings, self.space, self.evaluate, self.session = settings, space, evaluate, session
        self.archive, self.tally = Archive(), ProposalTally()
        self.states: dict[str, Any] = {}
        self.asked = 0
        baseline = session.best
        self._keep(baseline.state, baseline.outcome, "")

    # -- one proposal, with its repairs -------------------------------------------------------------------

    def propose(self) -> None:
        """Ask for one variant; when it fails, give the reason back."""
        settings, proposer = self.settings, self.settings._proposer
        assert proposer is not None
        parent, shown = self._choose()
        known = self.archive.get(parent)
        talk: tuple[Message, ...] = messages(
            self.space,
            self.space.show(self.states[parent]),
            shown,
            contrastive=settings.contrastive,
            parent_score=known.score if known else None,
            sections=settings.sections,
        )
        for _ in range(1 + settings.repairs):
            self.asked += 1
            request = Request(
                talk,
                self.space.schema,
                settings.max_tokens,
                settings.temperature,
                int(self.session.rng.integers(1 << 31)),
                self._choices(),
            )
            reply = proposer.propose(request)
            problem = self._judge(reply.text, parent, proposer.name)
            enough = settings.proposals and self.tally.proposed >= settings.proposals
            if problem is None or enough or not self.session.more():
                return
            talk = (
                *talk,
                {"role": "assistant", "content": reply.text},
                {"role": "user", "content": feedback(*problem)},
            )

    def _choices(self) -> tuple[str, ...]:
        """Every answer that can be used, of a space that can list them."""
        listed = getattr(self.space, "choices", None)
        return listed() if listed is not None else ()

    def _judge(self, text: str, parent: str, origin: str) -> tuple[str, str] | None:
        """Evaluate an answer; (kind, reason) when its author should try again."""
        self.tally.proposed += 1
        try:
            state = self.space.read(text, self.states[parent], origin)
        except AnswerError as error:
            self.tally.unreadable += 1
            return "answer", str(error)
        return self._try(state, parent)

    def mutate(self) -> None:
        """Change a parent by a few random edits."""
        parent, _ = self._choose()
        state = self.states[parent]
        rng = self.session.rng
        self.tally.proposed += 1
        for _ in range(int(rng.integers(1, self.settings.edits + 1))):
            move = self.space.sample(state, rng)
            if move is None:
                break
            try:
                state = self.space.apply(state, move)
            except AnswerError:
                self.tally.unreadable += 1
                return
        self._try(state, parent)

    def _try(self, state: Any, parent: str) -> tuple[str, str] | None:
        tally = self.tally
        try:
            outcome = self.evaluate(state)
        except AnswerError as error:
            tally.unreadable += 1
            return "answer", str(error)
        if outcome.digest in self.archive:
            tally.duplicate += 1
            return "duplicate", "propose something else"
        self._keep(state, outcome, parent)
        verdict = outcome.verdict
        if verdict is Verdict.CHEATED:
            tally.cheated += 1
        if verdict not in (Verdict.COMPILE_ERROR, Verdict.CHEATED, Verdict.TIMED_OUT):
            tally.compiled += 1
        if outcome.cost is not None:
            tally.correct += 1
            tally.faster += outcome.cost < 1.0
        if verdict in REPAIRABLE:
            return str(verdict), outcome.detail
        return None

    # -- what is chosen and kept --------------------------------------------------------------------------

    def _choose(self) -> tuple[str, list[ArchivedSource]]:
        """(the parent's digest, the variants to show)."""
        settings, rng = self.settings, self.session.rng
        shown = self.archive.exemplars(settings.exemplars, rng)
        best = self.archive.best
        assert best is not None  # the baseline is in it
        if shown and rng.random() < settings.explore:
            return shown[int(rng.integers(len(shown)))].digest, shown
        return best.digest, shown

    def _keep(self, state: Any, outcome: Outcome, parent: str) -> None:
        self.states[outcome.digest] = state
        verdict = "modelled" if outcome.verdict is None else outcome.verdict.value
        metrics: Mapping[str, float] = dict(outcome.facts.get("metrics", {}))
        self.archive.add(
            ArchivedSource(
                outcome.digest,
                parent,
                self.space.show(state),
                None if outcome.cost is None else 1 / outcome.cost,
                verdict,
                outcome.detail[:500],
                str(getattr(state, "origin", self.settings.proposer)),
                metrics,
                str(getattr(state, "note", "")),
            )
        )
