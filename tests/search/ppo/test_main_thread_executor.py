"""The policy thinks in one thread, the search evaluates in its own: with a store, and with errors."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")

from tests.search.ppo.small_kernel import Judge, space, workload

import sassafras
from sassafras import search
from sassafras.core import Budget, Candidate, Outcome
from sassafras.search.ppo.main_thread_executor import MainThreadExecutor


class Stop(BaseException):
    pass


def thinking() -> bool:
    return any(thread.name == "think" for thread in threading.enumerate())


def test_work_is_done_in_order_in_the_calling_thread() -> None:
    executor, done, here = MainThreadExecutor(), [], threading.current_thread()

    def note(n: int) -> tuple[int, bool]:
        done.append(n)
        return n, threading.current_thread() is here

    def think() -> None:
        futures = [executor.submit(note, n) for n in range(20)]
        assert [f.result(timeout=20) for f in futures] == [(n, True) for n in range(20)]

    executor.run(think)
    assert done == list(range(20))


def test_whatever_ends_the_work_ends_the_thinking() -> None:
    def fail() -> None:
        raise Stop

    executor = MainThreadExecutor()

    def think() -> None:
        for _ in range(3):
            executor.submit(fail).result(timeout=20)

    with pytest.raises(Stop):
        executor.run(think)
    assert not thinking()


def test_an_error_in_thinking_is_raised_by_the_search() -> None:
    def think() -> None:
        raise ValueError("confused")

    with pytest.raises(ValueError, match="confused"):
        MainThreadExecutor().run(think)


def test_a_search_with_a_store_resumes_and_its_result_is_kept(tmp_path: Path) -> None:
    def go(budget: str) -> sassafras.Result:
        return sassafras.optimize(
            workload(),
            strategy="ppo",
            settings={"policy": "untrained", "envs": 2, "steps": 4},
            budget=budget,
            device="model",
            arch="sm_90a",
            store=tmp_path / "store.sqlite",
        )

    first, again = go("20e"), go("20e")
    assert first.evaluations == 20 and again.from_store and not first.from_store
    longer = go("40e")
    assert longer.replayed == 20 and longer.evaluations == 40
    assert set(longer.verdicts) == {"modelled"}


def test_a_failing_evaluator_ends_the_search_with_its_own_error() -> None:
    class Breaks(Judge):
        left = 6

        def evaluate(self, candidate: Candidate) -> Outcome:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("the device is gone")
            return super().evaluate(candidate)

    strategy = search.get("ppo", {"policy": "untrained", "envs": 2, "steps": 4})
    with pytest.raises(RuntimeError, match="device is gone"):
        search.run(strategy, space(), Breaks(), Budget(evaluations=30))
    assert not thinking()
