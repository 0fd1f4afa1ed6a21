"""What a modelled ratio is worth, in words that every output shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sassafras.core import Interval
from sassafras.timing_model.correlation import correlation

__all__ = ["LEAST_CORRELATION", "correlation", "correlation_words", "ratio_words", "refusal"]

#: rank correlation with a GPU below which a modelled ratio is no evidence
LEAST_CORRELATION = 0.3


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
