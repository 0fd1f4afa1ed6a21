"""Guided annealing: proposals by experience, on a real kernel and the timing model."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sassafras import search
from sassafras.core import Budget, Candidate, Evaluation, Interval, Outcome, SearchError, Verdict
from sassafras.search.contract import Recorded
from sassafras.search.experience import Experience
from sassafras.search.guided import Proposals, noise
from tests.search.ppo.small_kernel import Judge, best, space
from tests.search.tour import Lengths, Tours


class Memory:
    """A search's record in memory, and the order in which it was asked."""

    def __init__(self, held: dict[str, Recorded] | None = None) -> None:
        self.held = held if held is not None else {}
        self.asked: list[str] = []

    def known(self, digest: str) -> Recorded | None:
        self.asked.append(digest)
        return self.held.get(digest)

    def record(self, candidate: Candidate, outcome: Outcome, took: float) -> Recorded:
        return self.held.setdefault(candidate.digest, Recorded(outcome, took))


def walk(
    evaluations: int, seed: int = 0, record: Memory | None = None, **settings: Any
) -> tuple[list[str], Any]:
    """Digests in the order of their evaluation, and what came of the search."""
    memory = record or Memory()
    strategy = search.get("guided", settings)
    budget = Budget(evaluations=evaluations)
    found = search.run(strategy, space(), Judge(), budget, seed=seed, recorder=memory)
    # by construction the validator refuses nothing (the judge asserts it, too)
    assert found.evaluations == evaluations == len(memory.asked) and found.verdicts == {
        "modelled": evaluations
    }
    return memory.asked, found


def test_it_finds_what_there_is_without_a_network_and_is_a_function_of_its_seed() -> None:
    first, found = walk(400)
    assert first == walk(400)[0]
    assert first[:40] != walk(40, seed=1)[0]
    assert found.best.cost <= best() + 1e-9  # (the best of all orders of its memory operations, at least)


def test_a_search_taken_up_again_walks_the_same_path() -> None:
    first = Memory()
    whole, _ = walk(90, record=first)
    half = Memory({digest: first.held[digest] for digest in whole[:35]})
    again, found = walk(90, record=half)
    assert again == whole and found.replayed == 35


def test_it_is_what_optimize_does_by_itself_and_needs_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import sassafras\n"
        "result = sassafras.optimize('suite:kv_append', budget='6e', device='model', store=False)\n"
        "print(result.strategy, result.evaluations)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split() == ["guided", "6"], done.stderr


def test_no_action_is_drawn_twice_in_a_state() -> None:
    schedules, rng = space(), np.random.default_rng(0)
    state = schedules.start()
    legal = schedules.legal(state).reshape(-1)
    proposals = Proposals(schedules, 1.0, 0.995)
    drawn = [proposals.draw(rng) for _ in range(int(legal.sum()))]
    assert sorted(drawn) == np.flatnonzero(legal).tolist()
    assert proposals.draw(rng) == -1
    proposals.enter(state)
    assert proposals.draw(rng) in drawn


@pytest.mark.parametrize("learn", [0.0, 1.0])
def test_what_has_paid_is_proposed_more_often_unless_nothing_is_to_be_learnt(learn: float) -> None:
    schedules, rng = space(), np.random.default_rng(1)
    state = schedules.start()
    proposals = Proposals(schedules, learn, 1.0)
    proposals.enter(state)
    liked = proposals.draw(rng)
    for action in np.flatnonzero(schedules.legal(state).reshape(-1)):
        proposals.learn(int(action), int(action) == liked)
    share = 0
    for _ in range(400):
        proposals.enter(state)
        share += proposals.draw(rng) == liked
    usual = 400 / int(schedules.legal(state).sum())
    assert (share > 3 * usual) if learn else (share < 3 * usual)


def test_experience_prefers_what_paid_and_forgets() -> None:
    experience = Experience(4, 3, keep=1.0)
    assert np.allclose(experience.rates(), experience.rates()[0, 0])
    for _ in range(5):
        experience.learn(2, 1, True)
        experience.learn(0, 0, False)
    rates = experience.rates()
    assert rates.min() > 0 and rates.argmax() == 2 * 3 + 1 and rates.argmin() == 0
    assert rates[2, 0] > rates[3, 0]  # the thing, under an action never tried on it
    assert rates[3, 1] > rates[3, 2] > rates[3, 0]  # the action, on a thing never tried
    forgetful = Experience(2, 2, keep=0.5)
    forgetful.learn(0, 0, True)
    for _ in range(30):
        forgetful.learn(1, 1, False)
    assert forgetful.wins[0, 0] < 1e-6 and forgetful.tries.sum() < 2.0


def test_experience_goes_with_the_instruction_not_with_its_place() -> None:
    schedules = space()
    state, rng = schedules.start(), np.random.default_rng(0)
    assert schedules.things(state).tolist() == list(range(len(state.order)))
    for _ in range(5):
        move = schedules.sample(state, rng)
        assert move is not None
        state = schedules.apply(state, move)
    proposals = Proposals(schedules, 1.0, 0.995)
    proposals.enter(state)
    action = proposals.draw(rng)
    proposals.learn(action, True)
    row, kind = divmod(action, proposals.actions)
    assert proposals.experience.wins[state.order[row], kind] == 1.0 == proposals.experience.wins.sum()


def test_a_change_within_the_measurements_own_noise_has_not_paid() -> None:
    measured = Evaluation("d", Verdict.CORRECT, speedup=1.0, interval=Interval(0.998, 1.002))
    assert noise(measured, 1.0) == pytest.approx(0.002)
    assert noise(SimpleNamespace(cost=1.0), 1.0) == 0.0  # type: ignore[arg-type]


def test_bad_settings_and_spaces_that_cannot_be_played_are_refused() -> None:
    for settings in ({"start": 0.0}, {"uniform": 1.5}, {"patience": 0}, {"end": 0.0}):
        with pytest.raises(SearchError, match="guided cannot run"):
            search.get("guided", settings)
    with pytest.raises(SearchError, match="no setting 'policy'"):
        search.get("guided", {"policy": "pretrained"})
    tours = Tours()
    with pytest.raises(SearchError, match="Tours cannot be played"):
        search.run(search.get("guided"), tours, Lengths(tours), Budget(evaluations=5))
