"""``--set prerank=n`` goes with every strategy, and is part of what makes two searches the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import sassafras
from sassafras.core import SearchError
from sassafras.store import Store


def test_optimize_takes_prerank_and_remembers_it(tmp_path: Path) -> None:
    def search(**settings: int) -> sassafras.Result:
        return sassafras.optimize(
            "suite:kv_append", strategy="greedy", settings=settings, budget="12e", device="model",
            store=tmp_path / "store.sqlite",
        )  # fmt: skip

    ranked, plain = search(prerank=4), search()
    assert not plain.from_store and ranked.evaluations == plain.evaluations == 12
    assert search(prerank=4).from_store and search().from_store
    # the judge is the ranker here, so what it sees is better than what chance proposes
    with Store.open(tmp_path / "store.sqlite") as store:
        costs = [
            sum(outcome.cost or 2.0 for outcome in store.evaluations(result.run or 0))
            for result in (ranked, plain)
        ]
    assert costs[0] < costs[1]
    for wrong in (0, 2.5, "many"):
        with pytest.raises(SearchError, match="whole number"):
            search(prerank=wrong)  # type: ignore[arg-type]
