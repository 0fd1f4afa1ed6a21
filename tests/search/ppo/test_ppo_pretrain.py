"""Training on several kernels: it lowers its loss, and resumes bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")

from sassafras.core import SearchError
from sassafras.search.ppo import checkpoint
from sassafras.search.ppo.pretrain import Board, Lessons, Trainer
from tests.search.ppo.board import Judge, space

LESSONS = Lessons(width=16, depth=1, boards=2, moves=4, looks=6, batch=4, play_steps=4)


def board() -> Board:
    judge, made = Judge(), space(moves="all")
    return Board("small", "softmax", made, lambda state: judge.evaluate(made.candidate(state)))


def trainer(path: Path | None = None, lessons: Lessons = LESSONS) -> Trainer:
    return Trainer({"softmax": [board]}, lessons, seed=4, path=path)


def test_training_taken_up_again_ends_as_if_it_never_stopped(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole.npz")
    whole.train(look=3, play=2, say=lambda _: None)
    part = tmp_path / "part.npz"
    trainer(part).train(look=2, play=0, say=lambda _: None)
    resumed = trainer(part)
    assert resumed.iteration == 2
    resumed.train(look=3, play=2, say=lambda _: None)
    assert resumed.log == whole.log and [r["lesson"] for r in whole.log] == ["look"] * 3 + ["play"] * 2
    first, _ = checkpoint.load(tmp_path / "whole.npz")
    second, facts = checkpoint.load(part)
    assert first.keys() == second.keys() and any(name.startswith("adam/") for name in first)
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value, err_msg=name)
    assert facts["iteration"] == 5 and facts["lessons"]["width"] == 16
    with pytest.raises(SearchError, match="other lessons"):
        trainer(part, Lessons(width=8))


def test_looking_around_teaches_which_moves_gain() -> None:
    pupil = trainer(lessons=Lessons(width=32, depth=2, boards=2, moves=6, looks=12, batch=6, rate=3e-3))
    rows = [pupil.look_around() for _ in range(14)]
    early, late = (np.mean([r["gain_over_uniform"] for r in part]) for part in (rows[:4], rows[-4:]))
    assert late > early and late > 0
