"""The environment: what is seen, what may be done, what is paid, and how episodes end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

import sassafras.api.assembly_game  # noqa: F401, E402 (registers the game)
from sassafras.core import Evaluation, Interval, SearchError, Verdict  # noqa: E402
from sassafras.search.ppo.game import OWN_COLUMNS, AssemblyGame  # noqa: E402
from tests.search.ppo.small_kernel import Judge, space, workload  # noqa: E402


def game(moves: str = "memory", judge: Any = None, **options: Any) -> AssemblyGame:
    schedules = space(moves=moves)
    judge = judge or Judge()
    return AssemblyGame(schedules, lambda state: judge.evaluate(schedules.candidate(state)), **options)


def act(played: AssemblyGame, rng: np.random.Generator) -> int:
    """Any legal action but stop."""
    return int(rng.choice(np.flatnonzero(played.action_masks()[:-1])))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gymnasium_makes_it_and_finds_nothing_to_object_to() -> None:
    from gymnasium.utils.env_checker import check_env

    made = gymnasium.make("sassafras/AssemblyGame-v0", workload=workload(), device="model", moves="all")
    check_env(made.unwrapped, skip_render_check=False)
    made.reset(seed=1)
    mask = made.get_wrapper_attr("action_masks")()
    assert mask.dtype == bool and mask.shape == (made.action_space.n,) and mask[-1] and mask.sum() > 1
    made.close()


def test_gymnasium_makes_several_side_by_side() -> None:
    several = gymnasium.make_vec(
        "sassafras.api.assembly_game:sassafras/AssemblyGame-v0", num_envs=2, vectorization_mode="sync",
        workload=workload(), device="model",
    )  # fmt: skip
    seen, _ = several.reset(seed=0)
    assert seen.shape == (2, *several.single_observation_space.shape)
    stop = several.single_action_space.n - 1
    assert several.step(np.array([stop, stop]))[2].all()
    several.close()


def test_masked_actions_are_exactly_the_moves_of_the_space() -> None:
    played = game("memory")
    schedules, rng = played.space, np.random.default_rng(0)
    played.reset(seed=0)
    for _ in range(12):
        listed = {(m.i, m.j) for m in schedules.moves(played.state)}
        mask = played.action_masks()[:-1].reshape(-1, 2)
        assert {(int(p), int(p) + (1 if v else -1)) for p, v in np.argwhere(mask)} == listed
        _, _, ended, late, _ = played.step(act(played, rng))
        assert not ended and not late


def test_all_moves_play_many_episodes_without_a_refusal() -> None:
    played, rng = game("all", horizon=25), np.random.default_rng(1)  # the judge asserts the validator's yes
    kinds = np.zeros(len(played.space.actions), dtype=int)
    for seed in range(8):
        played.reset(seed=seed)
        late = False
        while not late:
            action = act(played, rng)
            state = played.state
            _, _, ended, late, _ = played.step(action)
            assert not ended
            if played.state is not state:
                kinds[action % len(kinds)] += 1
    assert (kinds > 0).all() and played.counts["refused"] == 0
    assert played.counts["moves"] + played.counts["no_moves"] == 200
    assert played.counts["no_moves"] < 20


def test_an_action_that_came_to_nothing_is_masked_while_the_state_stays() -> None:
    played = game("all")
    played.reset(seed=0)
    impossible = int(np.flatnonzero(~played.action_masks())[0])
    before = played.state
    _, reward, ended, _, _ = played.step(impossible)
    assert reward == 0 and not ended and played.state is before and not played.action_masks()[impossible]


def test_observations_show_the_space_padding_and_progress() -> None:
    played = game("all", rows=200, horizon=10)
    seen, _ = played.reset(seed=0)
    schedules, layout = played.space, played.layout
    count = len(schedules.function)
    assert seen.shape == (200, layout.width) and layout.choices == 200 * 8 + 1
    np.testing.assert_array_equal(seen[:count, : layout.columns], schedules.features(schedules.start()))
    np.testing.assert_array_equal(
        seen[:count, layout.columns + len(OWN_COLUMNS) :], schedules.links(schedules.start())
    )
    assert seen[:count, layout.columns].all() and not seen[count:, : layout.columns + 4].any()
    after, *_ = played.step(act(played, np.random.default_rng(3)))
    assert after[:, layout.columns + 1].sum() == 1  # the row that was touched
    assert after[0, layout.columns + 3] == pytest.approx(0.9)


def test_links_name_dependences_that_hold_in_every_schedule() -> None:
    schedules, rng = space(moves="all"), np.random.default_rng(2)
    state = schedules.start()
    for _ in range(30):
        state = schedules.apply(state, schedules.sample(state, rng))
    for p, (links, instruction) in enumerate(zip(schedules.links(state), state.order, strict=True)):
        above, below = links[:4], links[4:]
        assert (above[above >= 0] < p).all() and (below[below >= 0] > p).all()
        for q in above[above >= 0]:
            assert (int(state.order[q]), int(instruction)) in schedules.graph.order
        assert list(above[above >= 0]) == sorted(above[above >= 0], reverse=True)


class Says:
    """A judge that says what it is told to."""

    def __init__(self, *costs: float | None, width: float = 0.0, verdict: Verdict = Verdict.CRASHED) -> None:
        self.costs, self.width, self.verdict = [1.0, *costs], width, verdict

    def evaluate(self, candidate: Any) -> Evaluation:
        cost = self.costs.pop(0)
        if cost is None:
            return Evaluation(candidate.digest, self.verdict, detail="told so")
        speedup = 1 / cost
        band = Interval(speedup - self.width, speedup + self.width)
        return Evaluation(candidate.digest, Verdict.CORRECT, 1.0, 1.0, speedup, band)


def rewards(played: AssemblyGame, count: int) -> list[float]:
    rng = np.random.default_rng(0)
    played.reset(seed=0)
    return [float(played.step(act(played, rng))[1]) for _ in range(count)]


def test_rewards_are_changes_in_percent_of_the_baseline() -> None:
    paid = rewards(game(judge=Says(0.99, 1.01, 0.95)), 3)
    assert paid == pytest.approx([1.0, -2.0, 6.0])


def test_changes_within_the_noise_are_paid_once_they_add_up() -> None:
    paid = rewards(game(judge=Says(0.998, 0.996, 0.994, 0.998, 0.995, width=0.005)), 5)
    assert paid[:2] == [0.0, 0.0] and paid[2] == pytest.approx(0.6)
    assert paid[3:] == [0.0, 0.0]  # still within the noise of what was paid for
    assert rewards(game(judge=Says(0.998, width=0.005), noise=0.001), 1) == pytest.approx([0.2])


@pytest.mark.parametrize("verdict", [Verdict.CRASHED, Verdict.WRONG_RESULT, Verdict.TIMED_OUT])
def test_a_failure_ends_the_episode_at_minus_one(verdict: Verdict) -> None:
    played = game(judge=Says(None, verdict=verdict))
    played.reset(seed=0)
    _, reward, ended, late, info = played.step(act(played, np.random.default_rng(0)))
    assert reward == -1.0 and ended and not late and played.counts["failures"] == 1
    assert info["episode"]["r"] == -1.0
    with pytest.raises(SearchError, match="over"):
        played.step(0)


def test_a_refusal_by_the_validator_is_our_defect_unless_the_space_promises_nothing() -> None:
    played = game(judge=Says(None, verdict=Verdict.ILLEGAL_SCHEDULE))
    played.reset(seed=0)
    with pytest.raises(SearchError, match="validator refused"):
        played.step(act(played, np.random.default_rng(0)))
    lenient = game(judge=Says(None, verdict=Verdict.ILLEGAL_SCHEDULE), trusted=False)
    lenient.reset(seed=0)
    _, reward, ended, _, _ = lenient.step(act(lenient, np.random.default_rng(0)))
    assert reward == -1.0 and ended and lenient.counts["refused"] == 1


def test_stop_and_horizon_end_episodes() -> None:
    played = game(horizon=2)
    played.reset(seed=0)
    _, reward, ended, late, _ = played.step(played.layout.choices - 1)
    assert reward == 0 and ended and not late and played.counts["stops"] == 1
    played.reset(seed=0)
    rng = np.random.default_rng(0)
    assert played.step(act(played, rng))[2:4] == (False, False)
    assert played.step(act(played, rng))[2:4] == (False, True)


def test_what_cannot_be_played_is_refused() -> None:
    from tests.search.tour import Lengths, Tours

    with pytest.raises(SearchError, match="cannot be played"):
        AssemblyGame(Tours(), lambda state: Lengths(Tours()).evaluate(Tours().candidate(state)))
    with pytest.raises(SearchError, match="more than the 10"):
        game(rows=10)
    unusable = game(judge=Says())
    unusable.evaluate = lambda state: replace(Says().evaluate(space().candidate(state)), speedup=None)
    with pytest.raises(SearchError, match="unmodified kernel"):
        unusable.reset(seed=0)
