"""A strategy may say what schedule space it wants; settings that do not change a search do not count."""

from __future__ import annotations

import pytest

from sassafras import search
from sassafras.core import SearchError


def test_ppo_is_known_by_name_without_torch_and_asks_for_its_moves() -> None:
    assert "ppo" in search.names()
    assert search.get("ppo").space_options == {"moves": "memory", "view": "paper"}  # type: ignore[attr-defined]
    chosen = search.get("ppo", {"moves": "all", "horizon": 8})
    assert chosen.horizon == 8  # type: ignore[attr-defined]
    assert chosen.space_options == {"moves": "all", "view": "paper"}  # type: ignore[attr-defined]
    with pytest.raises(SearchError, match="ppo has no setting 'policy'"):
        search.get("ppo", {"policy": "pretrained"})


def test_where_metrics_go_is_not_part_of_a_searchs_identity() -> None:
    one = search.get("ppo", {"tensorboard": "/somewhere"})
    assert search.settings_of(one) == search.settings_of(search.get("ppo"))
    assert search.settings_of(one) != search.settings_of(search.get("ppo", {"moves": "all"}))
