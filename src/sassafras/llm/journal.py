"""A proposer's answers, counted and kept on disk: a resumed run repeats no request."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from sassafras.core.errors import os_errors
from sassafras.core.files import write_whole

from .proposer import Proposer, ProposerError, Reply, Request
from .spending import Meter


class Remembered:
    """Holds a proposer to a meter's caps, and answers known requests from a JSON Lines file.

    New answers are written before they are used. Equal requests are the same request: give samples of one
    prompt different seeds.

    Args:
        proposer: asked for what is not in the file.
        meter: counts and caps; charged with remembered answers too, so that caps hold over all sittings.
        path: the journal; a last line cut short by a kill is dropped. None for none.

    Raises:
        ProposerError: the file is no such journal.
    """

    def __init__(self, proposer: Proposer, meter: Meter, path: str | Path | None = None) -> None:
        self._proposer, self._meter = proposer, meter
        self._path = Path(path) if path is not None else None
        self._known: dict[str, Reply] = {}
        self.replayed = 0
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists():
                self._load(self._path)

    @property
    def name(self) -> str:
        """The proposer's own name."""
        return self._proposer.name

    def propose(self, request: Request) -> Reply:
        """See `Proposer.propose`. Raises SpendingCap where the request might pass a cap."""
        digest = request.digest
        if (reply := self._known.get(digest)) is not None:
            self.replayed += 1
            self._meter.charge(reply)
            return reply
        with self._meter.asking(request):
            reply = self._proposer.propose(request)
            dollars = reply.dollars or self._meter.price(reply.prompt_tokens, reply.answer_tokens)
            reply = replace(reply, dollars=dollars)
            if self._path is not None:
                line = json.dumps({"request": digest, "by": self.name, "reply": asdict(reply)})
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
                self._known[digest] = reply
            self._meter.charge(reply)
        return reply

    def _load(self, path: Path) -> None:
        with os_errors("the journal of proposals cannot be read", path, ProposerError):
            *whole, rest = path.read_bytes().split(b"\n")
        for number, line in enumerate(whole, 1):
            try:
                entry = json.loads(line)
                reply = Reply(**entry["reply"])
                if (
                    not isinstance(reply.text, str)
                    or sum((reply.prompt_tokens, reply.answer_tokens, reply.dollars)) < 0
                ):
                    raise TypeError("an answer's text or cost")
                self._known[str(entry["request"])] = reply
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise ProposerError(
                    f"not a journal of proposals: {error}", where=f"{path}:{number}"
                ) from error
        if rest:  # killed while writing
            with os_errors("the journal of proposals cannot be mended", path, ProposerError):
                write_whole(path, b"".join(line + b"\n" for line in whole))
