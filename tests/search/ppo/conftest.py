"""The agent's network with few rows: most of these tests' time is arithmetic on its weights."""

from __future__ import annotations

import pytest


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Average the rows down to 2 before the network's last layer, as those of long kernels are to 48."""
    pytest.importorskip("sb3_contrib")
    from sassafras.search.ppo.network import PaperNetwork

    monkeypatch.setattr(PaperNetwork, "ROWS", 2)
