"""The progress line, which says what is left of the user's wait."""

from __future__ import annotations

from sassafras import Budget, Evaluation, Interval, Verdict
from sassafras.cli.progress import line
from sassafras.search import Progress, seconds_left

BEST = Evaluation("d", Verdict.CORRECT, 9.5, 10.0, 1.053, Interval(1.05, 1.06))


def test_the_line_says_what_is_left() -> None:
    event = Progress(61.0, 1200, 200, 16.4, {"correct": 1200}, BEST, 0.5, 66.9)
    assert line(event) == (
        "1:01 (50%) | about 1:06 left | 1,200 evaluations, 16/s | 200 from the store | 1,200 correct | "
        "best 1.053x [1.050, 1.060]"
    )
    unknown = Progress(0.0, 1, 0, 0.0, {"correct": 1}, BEST, 0.1)
    assert "left" not in line(unknown)


def test_what_is_left_is_by_the_nearer_end_of_a_budget() -> None:
    both = Budget(seconds=60.0, evaluations=100)
    assert seconds_left(both, 20.0, 50, 10.0) == 5.0 and seconds_left(both, 20.0, 50, 0.1) == 40.0
    assert seconds_left(Budget(evaluations=100), 20.0, 50, 0.0) is None  # no rate yet
    assert seconds_left(Budget(seconds=1.0), 1.5, 50, 10.0) == 0.0
