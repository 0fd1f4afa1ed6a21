"""Training on several kernels: it teaches, resumes bit for bit, and many processes learn what one does."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from sassafras.cluster.remote import interruptible

pytest.importorskip("gymnasium")
pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")

from sassafras.core import SearchError
from sassafras.search.ppo import checkpoint
from sassafras.training.holdout import Holdout, compare
from sassafras.training.loop import Trainer
from sassafras.training.random_walks import TrainingKernel, TrainingSettings
from sassafras.training.walk_workers import WalkTable, WalkWorkers
from tests.search.ppo.small_kernel import Judge, space

SETTINGS = TrainingSettings(width=16, depth=1, kernels=2, moves=4, samples_per_state=6, batch=4)


def small_kernel() -> TrainingKernel:
    judge, made = Judge(), space(moves="all")
    return TrainingKernel("small", "softmax", made, lambda state: judge.evaluate(made.candidate(state)))


def unusable() -> TrainingKernel:
    raise SearchError("the timing model does not know this instruction")


def trainer(path: Path | None = None, settings: TrainingSettings = SETTINGS, **rest: int) -> Trainer:
    return Trainer({"softmax": [small_kernel]}, settings, seed=4, path=path, **rest)


def same(first: Path, second: Path) -> None:
    a, b = checkpoint.load(first)[0], checkpoint.load(second)[0]
    assert a.keys() == b.keys() and any(name.startswith("adam/") for name in a)
    for name, value in a.items():
        np.testing.assert_array_equal(b[name], value, err_msg=name)


def test_training_taken_up_again_ends_as_if_it_never_stopped(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole.npz")
    whole.train(iterations=5, say=lambda _: None)
    part = tmp_path / "part.npz"
    trainer(part).train(iterations=2, say=lambda _: None)
    resumed = trainer(part)
    assert resumed.iteration == 2
    resumed.train(iterations=5, say=lambda _: None)
    assert resumed.log == whole.log and [r["iteration"] for r in whole.log] == [1, 2, 3, 4, 5]
    same(tmp_path / "whole.npz", part)
    facts = checkpoint.load(part)[1]
    assert facts["iteration"] == 5 and facts["settings"]["width"] == 16
    with pytest.raises(SearchError, match="other settings"):
        trainer(part, TrainingSettings(width=8))


def test_many_processes_and_threads_learn_what_one_does(tmp_path: Path) -> None:
    """Two kernels in other processes, one of them unusable, against the same walked here, bit for bit."""
    makers = {"broken": [unusable], "softmax": [small_kernel, small_kernel]}
    logs = []
    for workers, threads in ((1, 1), (2, 2)):
        path = tmp_path / f"{workers}.npz"
        with Trainer(makers, SETTINGS, seed=3, path=path, workers=workers, threads=threads) as one:
            one.train(iterations=3, say=lambda _: None)
            assert one.unusable == {("broken", 0): "the timing model does not know this instruction"}
            logs.append(one.log)
    assert logs[0] == logs[1] and len(logs[0]) == 3
    same(tmp_path / "1.npz", tmp_path / "2.npz")


def test_what_is_stopped_in_the_middle_keeps_its_last_whole_iteration(tmp_path: Path) -> None:
    """SIGTERM while an iteration learns: the checkpoint is that of the iteration before."""
    path, policies = tmp_path / "kept.npz", []
    one = trainer(path)
    step, calls = one.learner.step, []

    def interrupted(shown):  # type: ignore[no-untyped-def]
        calls.append(one.iteration)
        found = step(shown)  # the weights have changed already
        if one.iteration == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    one.learner.step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt), interruptible():
        one.train(iterations=9, say=lambda _: None, saved=lambda: policies.append(one.iteration))
    assert calls.count(2) >= 1 and policies == [2]
    whole = trainer(tmp_path / "whole.npz")
    whole.train(iterations=2, say=lambda _: None)
    same(path, tmp_path / "whole.npz")


def test_kernels_that_cannot_be_used_are_passed_over() -> None:
    table = WalkTable({"broken": [unusable], "softmax": [small_kernel]})
    found, failed = table.first([("broken", 0), ("softmax", 0)])
    assert found.name == "small" and list(failed) == [("broken", 0)]
    with pytest.raises(SearchError, match="none can be used"):
        table.first([("broken", 0)])
    with pytest.raises(SearchError, match="no kernel to score"):
        Holdout.prepare(WalkWorkers({"broken": [unusable]}))


def test_imitation_teaches_which_moves_gain(tmp_path: Path) -> None:
    settings = TrainingSettings(
        width=32, depth=2, kernels=2, moves=6, samples_per_state=12, batch=6, rate=3e-3
    )
    pupil = trainer(settings=settings)
    holdout = Holdout.prepare(WalkWorkers({"broken": [unusable], "softmax": [small_kernel]}))
    assert list(holdout.unusable) == [("broken", 0)] and len(holdout.walks) == 1
    before = holdout.score(pupil.network, pupil.layout)
    pupil.save(tmp_path / "before.npz", optimizer=False)
    rows = [pupil.iterate() for _ in range(14)]
    early, late = (np.mean([r["gain_over_uniform"] for r in part]) for part in (rows[:4], rows[-4:]))
    assert late > early and late > 0
    after = holdout.score(pupil.network, pupil.layout)
    assert (
        abs(before["held_out_gain"])
        < after["held_out_gain"]
        < holdout.best
        == pytest.approx(after["held_out_best"], abs=1e-4)
    )
    assert after["held_out_gain_softmax"] == after["held_out_gain"]
    pupil.save(tmp_path / "after.npz", optimizer=False)
    first, second = compare(holdout, [tmp_path / "before.npz", tmp_path / "after.npz"])
    assert first["held_out_gain"] == before["held_out_gain"] and "difference" not in first
    gained = after["held_out_gain"] - before["held_out_gain"]
    assert second["difference"] == pytest.approx(gained, abs=2e-4)
    assert second["interval"] == [second["difference"]] * 2  # of one kernel
