"""Pre-ranking: fewer evaluations reach the judge, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

from sassafras import search
from sassafras.core import Budget, Candidate, SearchError
from sassafras.search.prerank import Preranked
from tests.search.tour import Lengths, Tours


def space(pool: int, judge: Lengths) -> Preranked:
    return Preranked(Tours(), lambda candidate: judge.evaluate(candidate).cost, pool)


def test_the_best_of_the_pool_is_proposed() -> None:
    judge, rng = Lengths(Tours()), np.random.default_rng(0)
    asked: list[tuple[float, str]] = []

    def score(candidate: Candidate) -> float:
        cost = judge.evaluate(candidate).cost or 9.0  # illegal tours have none
        asked.append((cost, candidate.digest))
        return cost

    ranked = Preranked(Tours(), score, 6)
    start = ranked.start()
    for _ in range(20):
        asked.clear()
        move = ranked.sample(start, rng)
        assert 1 <= len(asked) <= 6
        assert ranked.candidate(ranked.apply(start, move)).digest == min(asked, key=lambda a: a[0])[1]


def test_an_accurate_score_saves_evaluations() -> None:
    def needed(pool: int, seed: int) -> int:
        judge, ranker = Lengths(Tours()), Lengths(Tours())
        curve: list[float] = []
        search.run(
            search.get("greedy"), space(pool, ranker), judge, Budget(evaluations=400), seed=seed,
            progress=lambda p: curve.append(p.best.cost or 1.0),
        )  # fmt: skip
        return next((n for n, cost in enumerate(curve) if cost < 0.72), 400)

    plain = np.mean([needed(1, seed) for seed in range(4)])
    ranked = np.mean([needed(8, seed) for seed in range(4)])
    assert ranked < 0.6 * plain


def test_a_score_without_an_opinion_leaves_the_search_alive() -> None:
    ranked = Preranked(Tours(), lambda _: None, 3)
    rng = np.random.default_rng(1)
    assert any(ranked.sample(ranked.start(), rng) is not None for _ in range(5))
    assert isinstance(ranked.candidate(ranked.start()), Candidate)


def test_a_pool_of_one_is_the_space_itself_and_names_itself() -> None:
    first, second = np.random.default_rng(4), np.random.default_rng(4)
    ranked = Preranked(Tours(), lambda _: pytest.fail("not asked"), 1)
    assert [ranked.sample(ranked.start(), first) for _ in range(9)] == [
        Tours().sample(Tours().start(), second) for _ in range(9)
    ]
    assert ranked.description == "prerank=1" and ranked.cities == 14
    with pytest.raises(SearchError, match="at least 1"):
        Preranked(Tours(), lambda _: None, 0)
