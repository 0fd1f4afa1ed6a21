"""The loop: budgets, exhaustion, resumption in memory, interruption, a strategy of one's own."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tour import Lengths, Tours

from sassafras import search
from sassafras.core import Budget, Candidate, Modelled, Outcome, SearchError, Verdict
from sassafras.search import Recorded
from sassafras.store import Store

HERE = Path(__file__).parent


class Memory:
    """A recorder that keeps everything in a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[str, Recorded] = {}

    def known(self, digest: str) -> Recorded | None:
        return self.rows.get(digest)

    def record(self, candidate: Candidate, outcome: Outcome, took: float) -> Recorded:
        assert candidate.digest not in self.rows, "counted twice"
        return self.rows.setdefault(candidate.digest, Recorded(outcome, took))


def run(strategy: Any, budget: str, seed: int = 0, cities: int = 14, **more: Any) -> tuple[Any, Lengths]:
    space = Tours(cities)
    evaluator = Lengths(space, delay=more.pop("delay", 0.0))
    return search.run(
        search.get(strategy), space, evaluator, Budget.parse(budget), seed=seed, **more
    ), evaluator


#: strategies that ask no more of a space than `core.Space` (ppo's own tests are in tests/search/ppo, guided's
#: in test_guided.py, those that build schedules from scratch in test_constructive.py)
ANY_SPACE = [
    search.Sip(least=0.0) if name == "sip" else name  # by default it ends before its budget
    for name in search.names()
    if name not in ("ppo", "guided", "list")
]


@pytest.mark.parametrize("name", ANY_SPACE)
def test_spends_exactly_its_evaluations(name: Any) -> None:
    found, evaluator = run(name, "250e")
    assert found.evaluations == len(evaluator.judged) == len(set(evaluator.judged)) == 250
    assert sum(found.verdicts.values()) == 250 and found.verdicts["illegal_schedule"] > 0
    assert found.reason == "budget"


@pytest.mark.parametrize("name", ANY_SPACE)
def test_same_seed_same_path_and_other_seed_another(name: Any) -> None:
    (_, a), (_, b), (_, c) = run(name, "200e"), run(name, "200e"), run(name, "200e", seed=1)
    assert a.judged == b.judged != c.judged


def test_leaders_are_distinct_sorted_and_usable() -> None:
    found, evaluator = run("greedy", "400e", keep=5)
    costs = [leader.cost for leader in found.leaders]
    assert len(costs) == 5 and costs == sorted(costs) and found.best is found.leaders[0]
    assert len({leader.candidate.digest for leader in found.leaders}) == 5
    for leader in found.leaders:
        assert leader.cost == pytest.approx(evaluator.length(leader.state) / evaluator.base)


class Noisy(Lengths):
    """Lengths with luck in them: a look's error halves with each level, and belongs to the tour."""

    looks = 0

    def evaluate(self, candidate: Candidate) -> Outcome:
        return self.lucky(super().evaluate(candidate), 0.02)

    def closer(self, candidate: Candidate, level: int) -> Outcome | None:
        self.looks += 1
        return self.lucky(super().evaluate(candidate), 0.02 / 2**level) if level < 6 else None

    def lucky(self, outcome: Outcome, error: float) -> Outcome:
        assert isinstance(outcome, Modelled)
        if outcome.cycles is None or outcome.cycles == outcome.baseline_cycles:
            return outcome
        luck = random.Random(f"{outcome.digest} {error}").gauss(0, error)
        return Modelled(outcome.digest, None, outcome.cycles * (1 + luck), outcome.baseline_cycles)


def test_what_would_be_the_best_is_looked_at_closer() -> None:
    class OneLook(Noisy):
        closer = None  # type: ignore[assignment]

    gaps = {}
    for kind in (Noisy, OneLook):
        space, memory = Tours(14), Memory()
        evaluator = kind(space)
        found = search.run(
            search.get("greedy"), space, evaluator, Budget.parse("400e"), seed=3, recorder=memory, keep=8
        )
        truth = evaluator.length(found.best.state) / evaluator.base
        gaps[kind] = truth / found.best.cost - 1
        # what was recorded is the last look, so that the same search goes the same way again
        again = search.run(
            search.get("greedy"), space, kind(space), Budget.parse("400e"), seed=3, recorder=memory, keep=8
        )
        assert again.replayed == 400 and again.best.cost == found.best.cost
    assert abs(gaps[Noisy]) < 0.003 < gaps[OneLook]


def test_anneal_and_greedy_find_better_tours_than_the_random_walk() -> None:
    def mean(strategy: Any) -> float:
        return sum(run(strategy, "1500e", seed)[0].best.cost for seed in range(2)) / 2

    # tours differ by percents where schedules differ by thousandths: the temperature is set accordingly
    walk, greedy, anneal = mean("random_walk"), mean("greedy"), mean(search.Anneal(start=0.05, end=1e-4))
    assert greedy < walk - 0.05 and anneal < walk - 0.05


def test_a_small_space_is_exhausted_not_walked_forever() -> None:
    found, evaluator = run("random_walk", "1000e", cities=4)
    assert found.reason == "exhausted" and len(evaluator.judged) == found.evaluations <= 24


def test_a_walk_without_patience_does_not_overflow() -> None:
    found, _ = run(search.Anneal(patience=1), "1000e", cities=4)
    assert found.reason == "exhausted"


@pytest.mark.parametrize(
    "strategy", [search.Anneal(start=1e300, end=1e-300), search.Sip(factor=0.1, least=0.0)]
)
def test_a_temperature_that_rounds_to_nothing_ends_no_search(strategy: Any) -> None:
    found, _ = run(strategy, "400e")
    assert (found.reason, found.evaluations) == ("budget", 400)


def test_a_budget_that_ends_before_the_baseline_is_said() -> None:
    with pytest.raises(SearchError, match="1e-09s ended before the unmodified kernel"):
        search.run(search.get("anneal"), Tours(), Lengths(Tours()), Budget(seconds=1e-9))


@pytest.mark.parametrize("strategy", ["anneal", "greedy", "random_walk"])
def test_a_cold_walk_gets_out_of_a_valley_that_it_knows(strategy: str) -> None:
    found, _ = run(strategy, "500e", cities=7)  # 7! / 2 legal tours, some 20 neighbours each
    assert (found.reason, found.evaluations) == ("budget", 500)


def test_seconds_are_kept() -> None:
    begun = time.monotonic()
    found, _ = run("random_walk", "0.4s", delay=0.005)
    assert 0.35 < time.monotonic() - begun < 60 and found.reason == "budget"
    assert 0 < found.evaluations < 90 and 0.3 < found.seconds < 60  # a busy machine may stall


@pytest.mark.parametrize("name", ANY_SPACE)
@pytest.mark.parametrize("cut", [1, 7, 100])
def test_a_replayed_record_continues_the_same_path(name: Any, cut: int) -> None:
    whole, evaluator = run(name, "300e", recorder=Memory())
    memory = Memory()
    # what a killed search leaves behind: the first `cut` outcomes
    run(name, "300e", recorder=memory)
    for digest in list(memory.rows)[cut:]:
        del memory.rows[digest]
    resumed, second = run(name, "300e", recorder=memory)
    assert second.judged == evaluator.judged[cut:]
    assert (resumed.replayed, resumed.evaluations) == (cut, 300)
    assert resumed.best.candidate.digest == whole.best.candidate.digest


def test_replay_does_not_pay_for_time_again() -> None:
    memory = Memory()
    first, _ = run("anneal", "0.5s", recorder=memory, delay=0.004)
    again, evaluator = run("anneal", "0.5s", recorder=memory, delay=0.004)
    assert len(evaluator.judged) <= 2 and again.seconds >= first.seconds
    more, evaluator = run("anneal", "1s", recorder=memory, delay=0.004)
    assert 0.9 < more.seconds < 60 and evaluator.judged


def test_progress_never_moves_without_a_new_outcome_and_reaches_one() -> None:
    seen: list[float] = []

    class Watcher:
        name = "watcher"

        def search(self, space: Any, evaluate: Any, session: Any) -> None:
            state = space.start()
            while session.more():
                before = session.progress
                evaluate(space.start())
                assert session.progress == before
                if (move := space.sample(state, session.rng)) is not None:
                    state = space.apply(state, move)
                    evaluate(state)
                seen.append(session.progress)

    events: list[search.Progress] = []
    found, _ = run(Watcher(), "60e", progress=events.append)
    assert seen == sorted(seen) and seen[-1] == 1.0
    assert [event.evaluations for event in events] == list(range(1, 61))
    assert events[-1].best.cost == found.best.cost and events[-1].verdicts == found.verdicts


def test_a_strategy_that_never_asks_is_stopped() -> None:
    class Stubborn:
        name = "stubborn"

        def search(self, space: Any, evaluate: Any, session: Any) -> None:
            state = space.start()
            while True:
                try:
                    if (move := space.sample(state, session.rng)) is not None:
                        evaluate(space.apply(state, move))
                except Exception:  # even one that swallows every error
                    continue

    found, _ = run(Stubborn(), "40e")
    assert found.evaluations == 40 and found.reason == "budget"


def test_a_strategy_that_returns_early_is_fine() -> None:
    class Idle:
        name = "idle"

        def search(self, space: Any, evaluate: Any, session: Any) -> None:
            return

    found, _ = run(Idle(), "40e")
    assert (found.reason, found.evaluations, found.best.cost) == ("returned", 1, 1.0)
    assert found.best is found.baseline


def test_an_unusable_baseline_is_refused() -> None:
    class Refuses(Lengths):
        def evaluate(self, candidate: Candidate) -> Outcome:
            return Modelled(candidate.digest, Verdict.UNSUPPORTED, detail="no such instruction")

    with pytest.raises(SearchError, match="unsupported: no such instruction"):
        search.run(search.get("anneal"), Tours(), Refuses(Tours()), Budget(evaluations=5))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_the_best_and_the_handlers(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    def progress(event: search.Progress) -> None:
        if event.evaluations == 30:
            os.kill(os.getpid(), number)

    found, _ = run("greedy", "100000e", progress=progress)
    assert found.reason == "interrupted" and 30 <= found.evaluations <= 31
    assert found.best.cost < 1.0 and signal.getsignal(number) is before


def test_registry_names_and_settings() -> None:
    assert search.names() == ["anneal", "greedy", "guided", "list", "ppo", "random_walk", "sip"]
    strategy = search.get("anneal", {"cycles": 7})
    assert search.settings_of(strategy) == {"start": 7e-4, "end": 1e-5, "cycles": 7, "patience": 50}
    assert search.get(strategy) is strategy and search.get(search.Greedy) == search.Greedy()
    for bad, settings, message in [
        ("annealing", {}, "no strategy 'annealing'"),
        ("anneal", {"heat": 1}, "heat"),
        ("anneal", {"cycles": 10**400}, "anneal's cycles is a whole number"),
        ("anneal", {"start": 10**400}, "anneal's start is a number"),
        (strategy, {"cycles": 1}, "finished strategy"),
        (object(), {}, "is no strategy"),
    ]:
        with pytest.raises(SearchError, match=message):
            search.get(bad, settings)  # type: ignore[arg-type]
    assert search.parse_settings(["cycles=5", "note=hot"]) == {"cycles": 5, "note": "hot"}
    with pytest.raises(SearchError, match="cannot read"):
        search.parse_settings(["cycles"])


def test_settings_of_a_users_own_strategy() -> None:
    @dataclass
    class Mine:
        name: str = "mine"
        width: int = 3

        def search(self, space: Any, evaluate: Any, session: Any) -> None: ...

    assert search.settings_of(search.get(Mine)) == {"width": 3}


# -- kill -9 -------------------------------------------------------------------------------------------------


def start(store: Path, log: Path, strategy: str, delay: float, budget: str = "150e") -> subprocess.Popen[str]:
    command = [sys.executable, "tour_search.py", str(store), strategy, budget, "3", str(delay), str(log)]
    return subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return dict(json.loads(output))


@pytest.mark.parametrize("strategy", ["anneal", "greedy"])
def test_kill_9_loses_nothing_and_counts_nothing_twice(tmp_path: Path, strategy: str) -> None:
    whole = finish(start(tmp_path / "whole.sqlite", tmp_path / "whole.log", strategy, 0.0))
    store, log = tmp_path / "killed.sqlite", tmp_path / "killed.log"
    chance, kills, sittings = random.Random(7), 0, 0
    while True:
        before = len(log.read_text().splitlines()) if log.exists() else 0
        process = start(store, log, strategy, 0.015)
        sittings += 1
        goal = before + chance.randint(1, 60)
        while process.poll() is None and (not log.exists() or len(log.read_text().splitlines()) < goal):
            time.sleep(0.001 + chance.random() * 0.01)
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        kills += 1
    resumed = finish(process)
    assert kills >= 2 and resumed == whole
    judged = [line.split()[1] for line in log.read_text().splitlines()]
    expected = [line.split()[1] for line in (tmp_path / "whole.log").read_text().splitlines()]
    assert list(dict.fromkeys(judged)) == expected
    # a kill loses at most the candidate in flight: only that one is ever judged again
    assert len(judged) - len(expected) <= kills
    with Store.open(store) as kept:
        (run_record,) = kept.runs()
        recorded = [outcome.digest for outcome in kept.evaluations(run_record.id)]
    assert recorded == expected


def test_two_processes_on_the_same_search_agree(tmp_path: Path) -> None:
    store = tmp_path / "shared.sqlite"
    with Store.open(store):
        pass
    processes = [start(store, tmp_path / f"{n}.log", "greedy", 0.002) for n in range(2)]
    first, second = (finish(process) for process in processes)
    assert first == second
    with Store.open(store) as kept:
        (run_record,) = kept.runs()
        digests = [outcome.digest for outcome in kept.evaluations(run_record.id)]
    assert len(digests) == len(set(digests)) == 150
