"""What was tried, what of it is shown, and what it is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sassafras.core import SassafrasError
from sassafras.llm.archive import Archive, ArchivedSource
from sassafras.llm.reward import FAILED, reward


def variant(name: str, score: float | None, parent: str = "") -> ArchivedSource:
    return ArchivedSource(name, parent, f"code of {name}", score, "correct" if score else "wrong_result")


def full() -> Archive:
    archive = Archive()
    for index in range(40):
        archive.add(variant(f"v{index}", 0.8 + 0.01 * index, f"v{index - 1}" if index else ""))
    archive.add(variant("broken", None, "v3"))
    return archive


def test_binaries_are_kept_once() -> None:
    archive = full()
    assert not archive.add(variant("v3", 2.0))
    assert len(archive) == 41
    assert archive.best is not None and archive.best.digest == "v39"
    assert "broken" in archive and archive.get("none") is None


def test_exemplars_come_from_distinct_buckets_slowest_first() -> None:
    archive = full()
    width = 0.02
    for seed in range(20):
        chosen = archive.exemplars(4, np.random.default_rng(seed))
        scores = [v.score or 0 for v in chosen]
        assert len(chosen) == 4 and scores == sorted(scores)
        assert len({math.floor(math.log(s) / width + 1e-9) for s in scores}) == 4


def test_fast_buckets_are_shown_more_often_the_colder_the_choice() -> None:
    archive = full()
    rng = np.random.default_rng(0)
    mean = {}
    for t in (0.2, 1.0, 50.0):
        mean[t] = np.mean([archive.exemplars(1, rng, temperature=t)[0].score for _ in range(300)])
    assert mean[0.2] > mean[1.0] > mean[50.0]
    assert abs(mean[50.0] - np.mean([v.score for v in archive if v.score])) < 0.04


def test_few_buckets_give_few_exemplars() -> None:
    archive = Archive()
    assert archive.exemplars(3, np.random.default_rng(0)) == []
    archive.add(variant("only", 1.0))
    archive.add(variant("same", 1.001))
    assert len(archive.exemplars(3, np.random.default_rng(0))) == 1


def test_round_trip(tmp_path) -> None:
    archive = full()
    archive.save(tmp_path / "a.jsonl")
    again = Archive.load(tmp_path / "a.jsonl")
    assert list(again) == list(archive)
    for damaged in (b'{"digest": 1}', b"\xff", b"[]", b"[" * 100_000):
        (tmp_path / "a.jsonl").write_bytes(damaged + b"\n")
        with pytest.raises(SassafrasError, match="not an archive"):
            Archive.load(tmp_path / "a.jsonl")


def test_every_correct_kernel_beats_every_wrong_one() -> None:
    worst = reward(1e-9, deviation=1e9, characters=10**9)
    assert reward(None) == FAILED == -1.5 < worst
    assert worst == pytest.approx(-1.02)


def test_the_reward_is_the_clipped_logarithm_with_small_tie_breaks() -> None:
    assert reward(1.0) == 0.0
    assert reward(1.1) == pytest.approx(math.log(1.1))
    assert reward(100.0) == 1.0
    assert reward(1.1, characters=2000) == pytest.approx(math.log(1.1) - 0.002)
    assert reward(1.1) > reward(1.1, deviation=0.1) > reward(1.1, deviation=0.1, characters=500)
    assert reward(1.03, deviation=1.0, characters=9000) > reward(1.0)  # 3 % count for more than any tie-break


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.inf, math.nan])
def test_a_ratio_that_is_none_is_an_error(ratio: float) -> None:
    with pytest.raises(SassafrasError, match="no reward"):
        reward(ratio)
