"""A strategy may say what schedule space it wants; settings that do not change a search do not count."""

from __future__ import annotations

import pytest

from sassafras import search
from sassafras.core import SearchError


def test_ppo_is_known_by_name_without_torch_and_asks_for_its_moves() -> None:
    assert "ppo" in search.names()
    fresh, untrained = search.get("ppo", {"policy": "fresh"}), search.get("ppo", {"policy": "untrained"})
    assert fresh.space_options == {"moves": "memory", "view": "paper"}  # type: ignore[attr-defined]
    assert untrained.space_options == {"moves": "all", "view": "all"}  # type: ignore[attr-defined]
    chosen = search.get("ppo", {"policy": "untrained", "moves": "memory", "horizon": 8})
    assert chosen.preset.horizon == 8  # type: ignore[attr-defined]
    assert chosen.space_options["moves"] == "memory"  # type: ignore[attr-defined]
    with pytest.raises(SearchError, match="ppo has no setting 'nonsense'"):
        search.get("ppo", {"nonsense": 1})


def test_where_metrics_go_is_not_part_of_a_searchs_identity() -> None:
    one = search.get("ppo", {"policy": "untrained", "tensorboard": "/somewhere"})
    other = search.get("ppo", {"policy": "untrained"})
    assert search.settings_of(one) == search.settings_of(other)
    assert search.settings_of(one) != search.settings_of(search.get("ppo", {"policy": "fresh"}))
