"""The summary of the sampling benchmark."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import samples


def test_the_lowest_fraction_is_reported_and_failures_are_named() -> None:
    rows = [
        {"kernel": "a", "samples": 1000, "mismatches": 0, "per_second": 1e5, "fraction_of_bound": 0.7},
        {"kernel": "b", "samples": 500, "mismatches": 2, "per_second": 5e4, "fraction_of_bound": 0.4},
        {"kernel": "c", "error": "lost"},
    ]
    found = samples.summarise(rows)
    assert (found["samples"], found["mismatches"]) == (1500, 2)
    assert (found["lowest"], found["fraction_of_bound"], found["at_least_half"]) == ("b", 0.4, 1)
    assert found["ten_million_take_s"] == {"a": 100.0, "b": 200.0}
    assert found["failed"] == ["c"]
    assert samples.summarise([])["fraction_of_bound"] is None
