"""The proposer protocol: a request in, a reply out; a language model, a policy, or random edits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from sassafras.core import SassafrasError

Message = Mapping[str, str]


class ProposerError(SassafrasError):
    """A proposer cannot go on: a dead endpoint, a refused key, a model that does not load."""


class NoAnswerYet(ProposerError):
    """The answer will come later: the proposer is asked again by the same run or by the next one."""


class SpendingCap(ProposerError):
    """The next request could pass the cap on tokens or money, so it is not made."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question to a proposer.

    Attributes:
        messages: chat messages, each ``{"role": "system" | "user" | "assistant", "content": text}``.
        max_tokens: longest answer, in tokens.
        temperature: of sampling; 0 is greedy.
        seed: of sampling, for proposers that honour it; also tells equal requests apart.
        number: of the prompt in its run, from 1; 0 outside of runs.
        parent: the variant that is to be changed, as the messages show it.
    """

    messages: tuple[Message, ...]
    max_tokens: int = 1024
    temperature: float = 0.8
    seed: int = 0
    number: int = 0
    parent: str = ""

    @property
    def text(self) -> str:
        """All messages as one text, as a file shows them."""
        return "\n\n".join(m["content"].strip() for m in self.messages) + "\n"

    @property
    def digest(self) -> str:
        """sha256 of everything that makes two requests the same."""
        said = [dict(m) for m in self.messages]
        what: list[Any] = [said, self.max_tokens, self.temperature, self.seed]
        return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()

    @property
    def characters(self) -> int:
        """Characters of all messages."""
        return sum(len(m["content"]) for m in self.messages)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    Attributes:
        text: the answer.
        model: what answered.
        prompt_tokens, answer_tokens: as the proposer counted them.
        dollars: what it cost; 0 where the meter's prices say it, or nothing is charged.
        seconds: wall time, retries included.
        truncated: the answer ended at ``max_tokens``.
    """

    text: str
    model: str = ""
    prompt_tokens: int = 0
    answer_tokens: int = 0
    dollars: float = 0.0
    seconds: float = 0.0
    truncated: bool = False


@runtime_checkable
class Proposer(Protocol):
    """Anything that answers requests."""

    @property
    def name(self) -> str:
        """What it is, for records: kind and model, never a key."""
        ...

    def propose(self, request: Request) -> Reply:
        """Answer one request.

        Raises:
            NoAnswerYet: it answers later; the run goes on with its other requests.
            ProposerError: it cannot answer, now or later; the run ends with what it has.
        """
        ...
