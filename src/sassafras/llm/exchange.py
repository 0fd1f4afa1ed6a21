"""Proposers that answer from a run's folder: files written there by any answerer, or a recorded run."""

from __future__ import annotations

from .proposer import NoAnswerYet, ProposerError, Reply, Request
from .record import Record, RecordError, digest_of


class Exchange:
    """Answers come as files, ``0001.answer.md`` to ``0001.prompt.md``, from any model, program or person.

    A run reads the answers in its folder before it asks its proposer, which leaves nothing to be done here.
    """

    name = "exchange"

    def propose(self, request: Request) -> Reply:
        """See `Proposer.propose`. Always raises NoAnswerYet."""
        raise NoAnswerYet(f"prompt {request.number} has no answer")


class Replay:
    """Answers as a recorded run got them. A request that differs from the recorded one is refused.

    Args:
        record: of the recorded run, in its folder.

    Raises:
        RecordError: there is no run in this folder.
    """

    def __init__(self, record: Record) -> None:
        if not record.settings or not record.prompts:
            raise RecordError("there is no recorded run here", where=str(record.folder))
        self.record = record

    @property
    def name(self) -> str:
        """``replay``."""
        return "replay"

    def propose(self, request: Request) -> Reply:
        """See `Proposer.propose`.

        Raises:
            NoAnswerYet: the recorded run had no answer to this prompt.
            ProposerError: the recorded prompt is another one.
            RecordError: the folder cannot be used.
        """
        known = self.record.prompts.get(request.number)
        path = self.record.path(request.number, "prompt")
        if known is None:
            raise NoAnswerYet(
                f"the recorded run has no prompt {request.number}", where=str(self.record.folder)
            )
        on_disk = path.read_text(encoding="utf-8") if path.exists() else ""
        if digest_of(request.text) != known["sha256"] or digest_of(on_disk) != known["sha256"]:
            raise ProposerError(f"prompt {request.number} is not the recorded one", where=str(path))
        text = self.record.answer(request.number)
        if text is None:
            raise NoAnswerYet(f"prompt {request.number} has no answer", where=str(self.record.folder))
        return Reply(text, self.name)
