"""A search on a Ray cluster of this machine's GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import sassafras
from sassafras.store import Store

#: it starts a cluster of its own, which a test beside it would find and join
pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def test_a_worker_searches_and_the_winner_is_measured_on_it(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    result = sassafras.optimize(
        "suite:softmax", cluster="auto", workers=1, device="cuda", budget="60e", store=tmp_path / "s.sqlite"
    )
    assert not result.modelled and result.evaluations == 60 and set(result.verdicts) == {"correct"}
    assert result.failed_after_validation == 0 and result.null_interval is not None
    with Store.open(tmp_path / "s.sqlite") as store:
        assert sorted(len(list(store.recorded(run.id))) for run in store.runs()) == [0, 60]
