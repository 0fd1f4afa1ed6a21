"""`Descent` on a toy: numbers, finer numbers below the best of them, and how the budget is shared."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sassafras.core import At, Budget, Candidate, Kernel, Modelled, SearchError
from sassafras.search import Anneal, Descent, run

#: a coarse number's worth is its closeness to this, a finer one's that and how many of its bits are set
GOAL = 700


class Numbers:
    """From a start on, one more or less, or a bit of a finer number."""

    def __init__(self, parent: int | None, bits: int = 0) -> None:
        self.parent, self.bits = parent, bits

    def start(self) -> tuple[int, int]:
        return (self.parent or 0, 0)

    def sample(self, state: tuple[int, int], rng: np.random.Generator) -> int | None:
        return int(rng.integers(-400, 401)) if self.parent is None else int(rng.integers(max(self.bits, 1)))

    def apply(self, state: tuple[int, int], move: int) -> tuple[int, int]:
        return (state[0] + move, 0) if self.parent is None else (state[0], state[1] ^ 1 << move)

    def candidate(self, state: tuple[int, int]) -> Candidate:
        return Candidate(Kernel(repr(state).encode(), "k", "sm_90", 32), {"state": state})


class Layers(Numbers):
    """Implements `core.Layered`."""

    def __init__(self, bits: int) -> None:
        super().__init__(None)
        self.coarse, self.finest, self.made = Numbers(None), bits, list[int]()
        self.closed: set[int] = set()

    def start(self) -> Any:
        return At(self.coarse, self.coarse.start())

    def candidate(self, state: Any) -> Candidate:
        return state.space.candidate(state.state)

    def sweep(self) -> Sequence[tuple[int, int]]:
        return [(n, 0) for n in range(0, 400, 10)]

    def combined(self, states: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        return [(states[0][0] + states[1][0], 0)]

    def ahead(self, states: Sequence[tuple[int, int]]) -> None:
        self.made += [n for n, _ in states]

    def finer(self, parent: Candidate) -> Sequence[Numbers]:
        coarse = parent.recipe["state"][0]
        return [] if coarse in self.closed else [Numbers(coarse, self.finest)]


class Judge:
    """Notes in which order which numbers were judged."""

    def __init__(self) -> None:
        self.order: list[tuple[int, int]] = []

    def evaluate(self, candidate: Candidate) -> Modelled:
        coarse, fine = candidate.recipe["state"]
        self.order.append((coarse, fine))
        cost = 1.0 if coarse == 0 else 0.5 + abs(GOAL - coarse) / 2000
        noise = int(hashlib.sha256(repr(fine).encode()).hexdigest()[:4], 16) / 1e8
        return Modelled(candidate.digest, None, cost - 0.001 * fine.bit_count() - noise * bool(fine), 1.0)


def searched(
    bits: int = 24, budget: str = "400e", schedule: str = "anneal"
) -> tuple[Judge, Layers, Descent, Any]:
    judge, space, strategy = Judge(), Layers(bits), Descent(schedule=schedule)
    return judge, space, strategy, run(strategy, space, judge, Budget.parse(budget), seed=3)


def test_stages_have_their_shares_and_the_better_half_goes_on() -> None:
    judge, space, strategy, found = searched()
    assert [stage.name for stage in strategy.found] == ["settings", "ptx", "schedule"]
    counts = [stage.verdicts.total() for stage in strategy.found]
    assert sum(counts) == found.evaluations == 400
    assert counts[0] == 41, "the sweep and a pair; what it leaves goes to the others"
    left = 400 - counts[0]
    assert counts[1] == pytest.approx(left * 0.3 / 0.8, abs=2) and set(space.made) >= {0, 10, 390}
    fine = judge.order[sum(counts[:2]) :]
    each = Counter(coarse for coarse, _ in fine)
    assert len(each) == 4 and max(map(len, map(str, each))) == 3
    assert sorted(each) == sorted({one.candidate.recipe["state"][0] for one in leaders(strategy)})
    rung = (len(fine) - 4) / 3
    shares = sorted(count - 1 for count in each.values())
    wanted = [rung / 4, rung / 4, rung / 4 + rung / 2, rung / 4 + rung / 2 + rung]
    assert shares == pytest.approx(wanted, abs=4)
    assert found.best.candidate.recipe["state"][1] and found.best.cost < strategy.found[1].leaders[0].cost


def leaders(strategy: Descent) -> list[Any]:
    both = [one for stage in strategy.found[:2] for one in stage.leaders]
    return sorted(both, key=lambda one: one.cost)[: strategy.kernels]


def test_spaces_that_are_exhausted_leave_their_share_to_the_others() -> None:
    judge, _, _, found = searched(bits=2, budget="1000e")
    each = Counter(coarse for coarse, fine in judge.order if fine)
    assert len(each) == 4 and set(each.values()) == {3} and found.reason == "returned"
    assert found.best.candidate.recipe["state"][1] == 3


def test_a_kernel_without_finer_spaces_takes_no_place() -> None:
    _, space, strategy, found = searched()
    first, _ = found.best.candidate.recipe["state"]
    judge, space = Judge(), Layers(24)
    space.closed = {first}
    run(strategy, space, judge, Budget.parse("400e"), seed=3)
    each = {coarse for coarse, fine in judge.order if fine}
    assert len(each) == strategy.kernels and first not in each


def test_a_seed_gives_the_same_search() -> None:
    first, second = searched()[0].order, searched()[0].order
    assert first == second != searched(schedule="greedy")[0].order


def test_what_it_cannot_search_is_refused() -> None:
    with pytest.raises(SearchError, match="Numbers has no layers"):
        run(Descent(), Numbers(None), Judge(), Budget.parse("9e"))
    for settings in ({"settings": 0.7}, {"ptx": 0.0}, {"kernels": 0}, {"schedule": "sip"}):
        with pytest.raises(SearchError):
            Descent(**settings)  # type: ignore[arg-type]
    assert Descent(schedule=Anneal.name).schedule == "anneal"
