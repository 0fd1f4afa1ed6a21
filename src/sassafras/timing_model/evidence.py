"""What a modelled ratio is worth: rank correlations measured on a GPU, and words that every output shares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

from sassafras.core import Interval

#: rank correlation with a GPU below which a modelled ratio is no evidence
LEAST_CORRELATION = 0.3


@lru_cache(maxsize=1)
def _published() -> dict[str, dict[str, Any]]:
    text = resources.files(__package__).joinpath("correlation.json").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = json.loads(text)
    return loaded


def correlation(workload_name: str, case: str | None = None) -> dict[str, Any] | None:
    """Kendall's tau-b between model and GPU for one kernel, or None where it was never measured.

    Args:
        workload_name: the workload.
        case: one of its cases; None for the case that was measured (a figure of one shape says nothing of
            another, which may select another kernel).

    Returns:
        A dict with kendall_tau, ceiling, schedules, pairs, date and gpu, as `benchmarks/timing_model.py`
        published it.
    """
    table = _published()
    if case is not None:
        return table.get(f"{workload_name}/{case}")
    for key, found in table.items():
        if key == workload_name or key.startswith(workload_name + "/"):
            return found
    return None


def refusal(found: Mapping[str, Any] | None) -> str:
    """Why a modelled ratio of this kernel is no evidence, in one sentence; empty where it may be quoted.

    Args:
        found: as `correlation` gives it; None where none was measured.
    """
    if not found or found["kendall_tau"] >= LEAST_CORRELATION:
        return ""
    return (
        f"the timing model's ratio is no evidence for this kernel: its rank correlation with "
        f"{found['gpu']} is {found['kendall_tau']:.2f}, below {LEAST_CORRELATION}"
    )


def correlation_words(found: Mapping[str, Any] | None) -> str:
    """How well the model ranks schedules of this kernel."""
    if not found:
        return "rank correlation: not measured for this kernel"
    text = f"rank correlation with {found['gpu']} for this kernel: {found['kendall_tau']:.2f}"
    if found.get("ceiling") is not None:
        text += f", noise ceiling {found['ceiling']:.2f}"
    return f"{text}, {found['schedules']} schedules, {found['date']}"


def ratio_words(
    ratio: float, interval: Interval | None, null: float | None, null_interval: Interval | None, draws: int
) -> str:
    """A modelled ratio with its interval and null, or the remark that it was selected and not re-drawn."""
    if interval is None:
        return f"{ratio:.3f}x as selected, not re-drawn"
    text = f"{ratio:.3f}x {interval}"
    if null is not None:
        text += f", null {null:.3f} {null_interval}"
    return f"{text}, {draws} fresh draws" if draws else text
