"""Guided annealing: proposals of a network and of experience, on a real kernel and the timing model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sassafras import search
from sassafras.core import Budget, Candidate, Evaluation, Interval, Outcome, SearchError, Verdict
from sassafras.search.contract import Recorded
from sassafras.search.experience import Experience
from sassafras.search.guided import Guided, Odds, noise
from tests.search.ppo.board import Judge, best, space
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
    strategy = search.get("guided", {"policy": "none"} | settings)
    board = space(**strategy.space_options)  # type: ignore[attr-defined]
    found = search.run(strategy, board, Judge(), Budget(evaluations=evaluations), seed=seed, recorder=memory)
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


@pytest.mark.parametrize("policy", ["none", "untrained", "pretrained"])
def test_a_search_taken_up_again_walks_the_same_path(policy: str) -> None:
    if policy != "none":
        pytest.importorskip("sb3_contrib")
    first = Memory()
    whole, _ = walk(90, policy=policy, record=first)
    half = Memory({digest: first.held[digest] for digest in whole[:35]})
    again, found = walk(90, policy=policy, record=half)
    assert again == whole and found.replayed == 35


def test_a_network_changes_where_it_looks_and_what_was_trained_is_part_of_its_identity() -> None:
    pytest.importorskip("sb3_contrib")
    paths = {policy: tuple(walk(30, policy=policy)[0]) for policy in ("none", "untrained", "pretrained")}
    assert len(set(paths.values())) == 3
    trained, *others = (
        search.get("guided", {"policy": name}) for name in ("pretrained", "untrained", "none")
    )
    assert search.settings_of(trained)["digest"]
    assert not any(search.settings_of(other)["digest"] for other in others)
    assert trained.space_options == {"moves": "all", "view": "all"}  # type: ignore[attr-defined]


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


def test_the_network_is_asked_once_a_state_and_no_action_is_drawn_twice() -> None:
    board, rng = space(), np.random.default_rng(0)
    state = board.start()
    legal = board.legal(state).reshape(-1)
    asked: list[Any] = []

    def logits(state: Any, cost: float, touched: int) -> np.ndarray:
        asked.append((cost, touched))
        return np.zeros(board.legal(state).shape)

    around = Odds(board, logits, Guided(policy="none")).around(state, 0.99, 3)
    drawn = [around.draw(rng) for _ in range(int(legal.sum()))]
    assert sorted(drawn) == np.flatnonzero(legal).tolist()
    assert around.draw(rng) == -1 and asked == [(0.99, 3)]


def test_an_answer_goes_with_the_instructions_for_some_proposals() -> None:
    board, rng = space(), np.random.default_rng(0)
    asked: list[Any] = []

    def logits(state: Any, cost: float, touched: int) -> np.ndarray:
        asked.append(state)
        return np.repeat(np.arange(len(state.order))[:, None], len(board.verbs), axis=1) / 7.0

    odds = Odds(board, logits, Guided(policy="none", every=3))
    first = board.start()
    odds.around(first, 1.0, -1).draw(rng)
    move = board.sample(first, rng)
    assert move is not None
    second = board.apply(first, move)
    around = odds.around(second, 1.0, -1)
    around.draw(rng)
    assert asked == [first]
    kept = odds.logits(second, 1.0, -1, board.things(second))
    np.testing.assert_array_equal(kept[:, 0], second.order / 7.0)
    around.draw(rng)
    odds.around(first, 1.0, -1).draw(rng)
    assert asked == [first, first]  # three proposals later
    assert [odds.around(second, 1.0, -1).draw(rng) >= 0 for _ in range(3)] == [True] * 3
    assert asked == [first, first, second]


def test_what_the_network_likes_is_proposed_more_often_and_heat_makes_it_less_sure() -> None:
    board, state = space(), space().start()
    actions = np.flatnonzero(board.legal(state).reshape(-1))
    liked = np.zeros(board.legal(state).size)
    liked[actions[0]] = np.log(len(actions) - 1)  # as likely as all others together

    def share(heat: float) -> float:
        odds = Odds(
            board, lambda *_: liked.reshape(board.legal(state).shape), Guided(policy="none", heat=heat)
        )
        rng = np.random.default_rng(1)
        return float(np.mean([odds.around(state, 1.0, -1).draw(rng) == actions[0] for _ in range(400)]))

    assert 0.4 < share(1.0) < 0.6 and share(4.0) < 0.2


def test_the_prior_sees_what_the_game_shows() -> None:
    pytest.importorskip("sb3_contrib")
    import torch

    from sassafras.search.ppo.game import AssemblyGame
    from sassafras.search.ppo.prior import Prior

    board, judge = space(), Judge()
    prior = Prior(board, None, seed=5)
    game = AssemblyGame(board, lambda s: judge.evaluate(board.candidate(s)), noise=0.0)
    observation, _ = game.reset(seed=0)
    with torch.no_grad():
        logits = prior.network.forward_actor(torch.from_numpy(observation[None]))[0, :-1]
    found = prior.logits(game.state, game.cost, -1)
    assert found.shape == board.legal(game.state).shape
    np.testing.assert_allclose(found.reshape(-1), logits.numpy(), rtol=1e-5, atol=1e-6)
    assert not np.array_equal(found, Prior(board, None, seed=6).logits(game.state, game.cost, -1))


def test_experience_prefers_what_paid_and_forgets() -> None:
    experience = Experience(4, 3, keep=1.0)
    assert np.allclose(experience.rates(), experience.rates()[0, 0])
    for _ in range(5):
        experience.learn(2, 1, True)
        experience.learn(0, 0, False)
    rates = experience.rates()
    assert rates.min() > 0 and rates.argmax() == 2 * 3 + 1 and rates.argmin() == 0
    assert rates[2, 0] > rates[3, 0]  # the thing, under a verb never tried on it
    assert rates[3, 1] > rates[3, 2] > rates[3, 0]  # the verb, on a thing never tried
    forgetful = Experience(2, 2, keep=0.5)
    forgetful.learn(0, 0, True)
    for _ in range(30):
        forgetful.learn(1, 1, False)
    assert forgetful.wins[0, 0] < 1e-6 and forgetful.tries.sum() < 2.0


def test_experience_goes_with_the_instruction_not_with_its_place() -> None:
    board = space()
    state, rng = board.start(), np.random.default_rng(0)
    assert board.things(state).tolist() == list(range(len(state.order)))
    for _ in range(5):
        move = board.sample(state, rng)
        assert move is not None
        state = board.apply(state, move)
    odds = Odds(board, None, Guided(policy="none"))
    around = odds.around(state, 1.0, -1)
    action = around.draw(rng)
    around.learn(action, True)
    row, verb = divmod(action, odds.verbs)
    assert odds.experience.wins[state.order[row], verb] == 1.0 == odds.experience.wins.sum()


def test_a_change_within_the_measurements_own_noise_has_not_paid() -> None:
    measured = Evaluation("d", Verdict.CORRECT, speedup=1.0, interval=Interval(0.998, 1.002))
    assert noise(measured, 1.0) == pytest.approx(0.002)
    assert noise(SimpleNamespace(cost=1.0), 1.0) == 0.0  # type: ignore[arg-type]


def test_bad_settings_and_spaces_that_cannot_be_played_are_refused(tmp_path: Path) -> None:
    for settings in ({"heat": 0.0}, {"uniform": 1.5}, {"patience": 0}, {"end": 0.0}):
        with pytest.raises(SearchError, match="guided cannot run"):
            search.get("guided", {"policy": "none", **settings})
    with pytest.raises(SearchError, match="CuAsmRL"):
        search.get("guided", {"policy": "fresh"})
    with pytest.raises(SearchError, match="there is no policy"):
        search.get("guided", {"policy": str(tmp_path / "none.npz")})
    tours = Tours()
    with pytest.raises(SearchError, match="Tours cannot be played"):
        search.run(search.get("guided", {"policy": "none"}), tours, Lengths(tours), Budget(evaluations=5))
