"""`Comparison`: what was found of two contestants, and what may be said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sassafras.core import Interval


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A. Ratios are time of A / time of B: above 1, B is faster.

    Attributes:
        speedup, interval: median ratio and its 95 % interval (hierarchical bootstrap over `groups`).
        null, null_interval: the same of A against A, prepared separately.
        a_us, b_us: microseconds a call: GPU time in graph replays, or wall time on the CPU.
        groups: independent preparations (fresh processes, or fresh captures in one process).
        rounds: interleaved rounds in each.
        how: what was timed, in words.
        cold_speedup, cold_interval: single calls after the L2 was evicted by reading; None if not measured.
        wall_us: p50 and p99 of the wall time from Python to synchronised, by contestant; empty for cubins.
        equal: ``bitwise``, ``close`` (within rtol 1e-3, atol 1e-3), ``different``, or ``not compared``: what
            A and B returned for the same arguments. Of cubins also ``within the tolerance``, the workload's.
        verdict: of the evaluator, for cubins; None for functions, whose results are only compared.
        detail: why a cubin was not correct, or ``""``.
        facts: clocks before and after, times of every group. JSON-able.
    """

    speedup: float | None
    interval: Interval | None
    null: float | None
    null_interval: Interval | None
    a_us: float | None
    b_us: float | None
    groups: int
    rounds: int
    how: str
    cold_speedup: float | None = None
    cold_interval: Interval | None = None
    wall_us: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    equal: str = "not compared"
    verdict: str | None = None
    detail: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def decided(self) -> Literal["faster", "slower", "no difference", "not comparable"]:
        """What may be said of B: only a difference outside the null's interval, and beyond 1, counts."""
        if self.interval is None or self.null_interval is None:
            return "not comparable"
        if self.interval.low > max(1.0, self.null_interval.high):
            return "faster"
        if self.interval.high < min(1.0, self.null_interval.low):
            return "slower"
        return "no difference"

    def to_json(self) -> dict[str, Any]:
        """What was decided and its figures, JSON-able; intervals as pairs."""
        return {
            "decided": self.decided,
            "speedup": self.speedup,
            "null": self.null,
            "verdict": self.verdict,
            "interval": self.interval and self.interval.ends,
            "null_interval": self.null_interval and self.null_interval.ends,
            "a_us": self.a_us,
            "b_us": self.b_us,
            "cold_l2_speedup": self.cold_speedup,
            "detail": self.detail,
            "facts": dict(self.facts),
        }

    def summary(self) -> str:
        """A few lines for a human."""
        if self.speedup is None or self.null is None:
            return f"not comparable: {self.verdict}: {self.detail}"
        words = {
            "faster": "B is faster",
            "slower": "B is slower",
            "no difference": "no difference that counts",
        }[self.decided]
        lines = [
            f"{words}: {self.speedup:.4f}x {self.interval}, null {self.null:.4f} {self.null_interval}",
            f"A {self.a_us:.3f} us, B {self.b_us:.3f} us "
            f"({self.how}; {self.groups} groups of {self.rounds} rounds)",
        ]
        if self.cold_speedup is not None:
            lines.append(f"cold L2: {self.cold_speedup:.4f}x {self.cold_interval or ''}".rstrip())
        for name, (middle, high) in self.wall_us.items():
            lines.append(
                f"wall time of {name}, Python to synchronised: p50 {middle:.1f} us, p99 {high:.1f} us"
            )
        if self.equal != "not compared":
            lines.append(f"results: {self.equal}")
        return "\n".join(lines)
