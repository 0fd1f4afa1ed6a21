"""A GPU for tests of searches: how fast a kernel is follows from its recipe."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from sassafras.core import Candidate, Evaluation, Interval, Kernel, Verdict


@dataclass
class Bench:
    """Speeds from `slowest` on, `span` wide, by recipe.

    Digests will not do: a cubin of Triton's holds the path of its source.
    """

    name: str = "Bench 1"
    arch: str = "sm_90a"
    modelled: bool = False
    slowest: float = 0.9
    span: float = 0.2
    ran: list[str] = field(default_factory=list)

    def open(self, workload: Any, case: Any, baseline: Kernel) -> None:
        self.own = baseline.digest

    def run(self, candidate: Candidate) -> Evaluation:
        self.ran.append(candidate.digest)
        return self.evaluation(candidate, self.speed(candidate))

    def remeasure(self, candidate: Candidate) -> Evaluation:
        return self.evaluation(candidate, self.speed(candidate))

    def speed(self, candidate: Candidate) -> float:
        assert candidate.kernel.cubin.startswith(b"\x7fELF"), "a stand-in must never run"
        about = {k: v for k, v in candidate.recipe.items() if k not in ("parent", "schedule")}
        luck = int(hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:4], 16)
        return 1.0 if candidate.digest == self.own else self.slowest + self.span * luck / 0x10000

    def evaluation(self, candidate: Candidate, speed: float) -> Evaluation:
        interval, null = Interval(speed - 1e-3, speed + 1e-3), Interval(0.999, 1.001)
        return Evaluation(
            candidate.digest, Verdict.CORRECT, 10 / speed, 10.0, speed, interval, 1.0, null, samples=7
        )

    def environment(self) -> dict[str, Any]:
        return {"gpu": self.name}

    def close(self) -> None:
        pass
