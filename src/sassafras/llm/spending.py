"""Cost of proposals: parses budgets, counts tokens and dollars, enforces caps and the request rate."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sassafras.core import Budget, SearchError

from .proposer import Reply, Request, SpendingCap

#: evaluations that stand for "no limit" where a budget names tokens or money alone
_MANY = 1_000_000
#: characters that a token has at the very least on average, for the worst case of a prompt not yet counted
_LEAST_CHARACTERS_A_TOKEN = 2


@dataclass(frozen=True, slots=True)
class Spend:
    """A budget in seconds and evaluations, and caps on tokens and dollars."""

    budget: Budget
    tokens: int | None = None
    dollars: float | None = None

    @classmethod
    def parse(cls, text: str) -> Spend:
        """Read ``60s,200e,100000t,2.5usd``: any of seconds, evaluations, tokens, dollars.

        Raises:
            SearchError: a part cannot be read, or a cap is not positive.
        """
        rest, tokens, dollars = [], None, None
        for part in (p.strip() for p in text.split(",")):
            if found := re.fullmatch(r"(\d+)(k|M)?t(?:okens)?", part):
                tokens = int(found[1]) * {None: 1, "k": 1000, "M": 1_000_000}[found[2]]
            elif found := re.fullmatch(r"\$?(\d+(?:\.\d+)?)(?:usd|\$)|\$(\d+(?:\.\d+)?)", part):
                dollars = float(found[1] or found[2])
            else:
                rest.append(part)
        if 0 in (tokens, dollars):
            raise SearchError(f"a budget must be positive, got {text!r}")
        try:
            budget = Budget.parse(",".join(rest)) if rest else Budget(evaluations=_MANY)
        except SearchError as error:
            hint = error.hint if "no unit" in error.what else "for example 10m,200e,500kt,2.5usd"
            raise SearchError(error.what, hint=hint) from error
        return cls(budget, tokens, dollars)

    @property
    def endless(self) -> bool:
        """Neither seconds nor evaluations are limited."""
        return self.budget.evaluations == _MANY and self.budget.seconds is None

    def __str__(self) -> str:
        parts = [] if self.endless else [str(self.budget)]
        parts += [f"{self.tokens}t"] if self.tokens is not None else []
        parts += [f"{self.dollars:g}usd"] if self.dollars is not None else []
        return ",".join(parts)


@dataclass
class Meter:
    """Counts tokens and money; refuses a request whose worst case would pass a cap.

    Attributes:
        tokens_cap: most tokens, prompts and answers together; None for no cap.
        dollars_cap: most money; None for no cap.
        prompt_price, answer_price: dollars a million tokens.
        tokens, dollars, requests: spent so far.
    """

    tokens_cap: int | None = None
    dollars_cap: float | None = None
    prompt_price: float = 0.0
    answer_price: float = 0.0
    tokens: int = 0
    dollars: float = 0.0
    requests: int = 0
    _held_tokens: int = field(default=0, repr=False)
    _held_dollars: float = field(default=0.0, repr=False)
    _free: threading.Condition = field(default_factory=threading.Condition, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not min(self.prompt_price, self.answer_price) >= 0:
            raise SpendingCap(f"prices are from 0 up, not {self.prompt_price:g} and {self.answer_price:g}")
        if self.dollars_cap is not None and not (self.prompt_price or self.answer_price):
            raise SpendingCap(
                "a cap on money needs prices, or it would never be reached",
                hint="give the price of a million prompt tokens and of a million answer tokens",
            )

    @contextmanager
    def asking(self, request: Request) -> Iterator[None]:
        """Hold a request's worst case while it is made, so that concurrent requests keep the caps too.

        One that fits once others have been answered waits for them.

        Raises:
            SpendingCap: it could pass one of the caps, were it alone.
        """
        prompt = request.characters // _LEAST_CHARACTERS_A_TOKEN + 16 * len(request.messages)
        tokens = prompt + request.max_tokens
        dollars = self.price(prompt, request.max_tokens)
        with self._free:
            while not self._fits(tokens + self._held_tokens, dollars + self._held_dollars):
                if not self._fits(tokens, 0.0):
                    raise SpendingCap(
                        f"{self.tokens} tokens are spent, and the next request may take {tokens} more: over "
                        f"the cap of {self.tokens_cap}"
                    )
                if not self._fits(0, dollars):
                    raise SpendingCap(
                        f"${self.dollars:.4f} is spent, and the next request may pass the cap of "
                        f"${self.dollars_cap:.4f}"
                    )
                self._free.wait()
            self._held_tokens += tokens
            self._held_dollars += dollars
        try:
            yield
        finally:
            with self._free:
                self._held_tokens -= tokens
                self._held_dollars = self._held_dollars - dollars if self._held_tokens else 0.0
                self._free.notify_all()

    def _fits(self, tokens: int, dollars: float) -> bool:
        if self.tokens_cap is not None and self.tokens + tokens > self.tokens_cap:
            return False
        return self.dollars_cap is None or self.dollars + dollars <= self.dollars_cap

    def price(self, prompt_tokens: int, answer_tokens: int) -> float:
        """Dollars."""
        return (prompt_tokens * self.prompt_price + answer_tokens * self.answer_price) / 1e6

    def charge(self, reply: Reply) -> None:
        """Count a reply (also one from a journal, which was charged when it was made)."""
        with self._free:
            self.tokens += reply.prompt_tokens + reply.answer_tokens
            self.dollars += reply.dollars
            self.requests += 1

    def facts(self) -> dict[str, Any]:
        """JSON-able."""
        return {"tokens": self.tokens, "dollars": round(self.dollars, 6), "requests": self.requests}


@dataclass
class RateLimit:
    """At most so many requests in any minute.

    Attributes:
        per_minute: requests; None for no limit.
        clock, sleep: time, replaceable.
    """

    per_minute: int | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _sent: deque[float] = field(default_factory=deque)
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def wait(self) -> float:
        """Wait until one more request may be sent; returns the seconds waited."""
        if self.per_minute is None:
            return 0.0
        waited = 0.0
        with self._turn:
            while len(self._sent) >= self.per_minute:
                left = self._sent[0] + 60.0 - self.clock()
                if left <= 0:
                    self._sent.popleft()
                    continue
                self.sleep(left)
                waited += left
            self._sent.append(self.clock())
        return waited
