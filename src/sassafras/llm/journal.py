"""A proposer's answers on disk, so that a run taken up again neither asks nor pays twice."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from .proposer import Proposer, ProposerError, Reply, Request
from .spending import Meter


class Remembered:
    """Answers known requests from a JSON Lines file, and appends new answers before they are used.

    Equal requests are the same request: give samples of one prompt different seeds.

    Args:
        proposer: asked for what is not in the file.
        path: the journal; a last line cut short by a kill is dropped.
        meter: also charged with remembered answers, so that caps hold over all sittings.

    Raises:
        ProposerError: the file is no such journal.
    """

    def __init__(self, proposer: Proposer, path: str | Path, meter: Meter | None = None) -> None:
        self._proposer, self._path, self._meter = proposer, Path(path), meter
        self._known: dict[str, Reply] = {}
        self.replayed = 0
        if self._path.exists():
            self._load()
        self._path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def name(self) -> str:
        """The proposer's own name."""
        return self._proposer.name

    def propose(self, request: Request) -> Reply:
        """See `Proposer.propose`."""
        digest = request.digest
        if (reply := self._known.get(digest)) is not None:
            self.replayed += 1
            if self._meter is not None:
                self._meter.charge(reply)
            return reply
        reply = self._proposer.propose(request)
        line = json.dumps({"request": digest, "by": self.name, "reply": asdict(reply)})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._known[digest] = reply
        return reply

    def _load(self) -> None:
        text = self._path.read_text(encoding="utf-8")
        lines = text.split("\n")
        whole, rest = lines[:-1], lines[-1]
        for number, line in enumerate(whole, 1):
            try:
                entry = json.loads(line)
                self._known[str(entry["request"])] = Reply(**entry["reply"])
            except (ValueError, KeyError, TypeError) as error:
                raise ProposerError(
                    f"not a journal of proposals: {error}", where=f"{self._path}:{number}"
                ) from error
        if rest:  # killed while writing
            self._path.write_text("".join(line + "\n" for line in whole), encoding="utf-8")
