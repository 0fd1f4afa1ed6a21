"""Candidates and what an evaluator says of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .kernel import Kernel
from .verdict import Verdict


@dataclass(frozen=True, slots=True)
class Candidate:
    """An immutable recipe for a kernel. The evaluator alone builds, validates, runs and times it.

    Attributes:
        kernel: the code to run and its launch facts.
        recipe: how it came about, JSON-able (moves, parameters, parent digest).
    """

    kernel: Kernel
    recipe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """sha256 of the candidate's cubin."""
        return hashlib.sha256(self.kernel.cubin).hexdigest()


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval, from `low` to `high`."""

    low: float
    high: float

    @property
    def ends(self) -> list[float]:
        """As JSON."""
        return [self.low, self.high]

    def outside(self, other: Interval) -> bool:
        """True when the two intervals do not overlap."""
        return self.low > other.high or self.high < other.low

    def __str__(self) -> str:
        return f"[{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a real device said of a candidate. The only type that reports and deployment accept.

    Attributes:
        digest: the candidate's cubin digest.
        verdict: the outcome; everything below is None unless it is `correct`.
        time_us: GPU time a launch, microseconds (median).
        baseline_us: the same of the baseline, timed interleaved.
        speedup: baseline time / candidate time (median of paired ratios).
        interval: 95 % interval of `speedup`.
        null: speed-up of the identity rewrite in the same process, if it was run.
        null_interval: 95 % interval of `null`.
        samples: launches whose every output byte was compared.
        detail: one line for a human: which check failed, the validator's violation, the CUDA error.
        seconds: wall time the evaluation took.
        facts: further JSON-able facts (device, clocks, per-process figures).
    """

    digest: str
    verdict: Verdict
    time_us: float | None = None
    baseline_us: float | None = None
    speedup: float | None = None
    interval: Interval | None = None
    null: float | None = None
    null_interval: Interval | None = None
    samples: int = 0
    detail: str = ""
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)

    modelled = False

    @property
    def cost(self) -> float | None:
        """Runtime relative to the baseline's (lower is better); None when unusable."""
        return 1.0 / self.speedup if self.verdict.ok and self.speedup else None


@dataclass(frozen=True, slots=True)
class Modelled:
    """What the timing model said of a candidate. Never a measurement, and never correct or wrong.

    Attributes:
        digest: the candidate's cubin digest.
        verdict: `illegal_schedule` or `unsupported` when refused before modelling; None otherwise.
        cycles: modelled cycles of the candidate.
        baseline_cycles: modelled cycles of the baseline.
        detail: why it was refused, or empty.
        seconds: wall time spent.
        facts: assumptions (loop trip counts, occupancy), JSON-able.
        interval: where 100 more draws of start times put `modelled_ratio`, in 95 % of cases; None where the
            ratio comes from the draws that a search selects on, which flatter what was selected.
        null: the same ratio of the baseline to itself, on other draws.
        null_interval: its 95 % interval.
        draws: draws of start times behind the ratio; 0 where it does not rest on any.
    """

    digest: str
    verdict: Verdict | None
    cycles: float | None = None
    baseline_cycles: float | None = None
    detail: str = ""
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    interval: Interval | None = None
    null: float | None = None
    null_interval: Interval | None = None
    draws: int = 0

    modelled = True

    @property
    def modelled_ratio(self) -> float | None:
        """Modelled baseline cycles / modelled candidate cycles."""
        return self.baseline_cycles / self.cycles if self.cycles and self.baseline_cycles else None

    @property
    def cost(self) -> float | None:
        """Modelled runtime relative to the baseline's (lower is better); None when refused."""
        ratio = self.modelled_ratio
        return None if self.verdict is not None or ratio is None else 1.0 / ratio


#: what a strategy sees; it reads only `.cost`, `.verdict` and `.digest`
Outcome = Evaluation | Modelled


class Bounded(Protocol):
    """A ratio with its interval, and the null's."""

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the ratio."""
        ...

    @property
    def null_interval(self) -> Interval | None:
        """That of what no difference looks like."""
        ...


def beats(found: Bounded) -> bool:
    """A gain counts only when its interval lies wholly above its null's and above 1."""
    if found.interval is None or found.null_interval is None:
        return False
    return found.interval.low > max(found.null_interval.high, 1.0)
