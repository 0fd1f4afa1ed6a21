"""Budgets of runs that also spend tokens and money, and proposers as the command line names them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sassafras.core import Budget, SearchError

from .proposer import Proposer
from .spending import Meter

#: evaluations that stand for "no limit" where a budget names tokens or money alone
_MANY = 1_000_000


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
        if (tokens is not None and tokens <= 0) or (dollars is not None and dollars <= 0):
            raise SearchError(f"a budget must be positive, got {text!r}")
        try:
            budget = Budget.parse(",".join(rest)) if rest else Budget(evaluations=_MANY)
        except SearchError as error:
            raise SearchError(error.what, hint="for example 10m,200e,500kt,2.5usd") from error
        return cls(budget, tokens, dollars)

    def __str__(self) -> str:
        parts = [] if self.budget.evaluations == _MANY and self.budget.seconds is None else [str(self.budget)]
        parts += [f"{self.tokens}t"] if self.tokens is not None else []
        parts += [f"{self.dollars:g}usd"] if self.dollars is not None else []
        return ",".join(parts)


def proposer(
    what: str,
    meter: Meter,
    *,
    base_url: str | None = None,
    key_variable: str = "OPENAI_API_KEY",
    requests_per_minute: int | None = None,
    timeout_s: float = 300.0,
    device: str = "cpu",
) -> Proposer | None:
    """The proposer that a text names; None for ``mutate``.

    Args:
        what: ``mutate``, ``endpoint:MODEL``, or ``local:PATH[+ADAPTER]`` (a folder or a .gguf file).
        meter: counts and caps.
        base_url, key_variable, requests_per_minute, timeout_s: of an endpoint.
        device: of a local model.

    Raises:
        SearchError: it names no proposer.
        ProposerError, ToolMissing: the proposer cannot be made.
    """
    kind, _, rest = what.partition(":")
    if what == "mutate":
        return None
    if kind == "endpoint" and rest:
        from .endpoint import Endpoint, EndpointSettings

        settings = EndpointSettings(
            rest, base_url, key_variable, timeout_s, requests_per_minute=requests_per_minute
        )
        return Endpoint(settings, meter)
    if kind == "local" and rest:
        from .local import LocalModel, LocalSettings

        path, _, adapter = rest.partition("+")
        more: dict[str, Any] = {"adapter": adapter} if adapter else {}
        return LocalModel(LocalSettings(path, device=device, **more), meter)
    raise SearchError(
        f"there is no proposer {what!r}", hint="mutate, endpoint:MODEL, or local:PATH[+ADAPTER]"
    )
