"""A real space that has nothing to do with GPUs: tours of cities, judged exactly.

A candidate's "cubin" is the tour itself, one byte a city. Tours that visit city 1 before city 0 are illegal.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sassafras.core import Candidate, Kernel, Modelled, Outcome, Verdict

Tour = tuple[int, ...]


@dataclass
class Tours:
    """Every order of the cities; a move reverses a stretch of the tour."""

    cities: int = 14

    def start(self) -> Tour:
        return tuple(range(self.cities))

    def sample(self, state: Tour, rng: np.random.Generator) -> tuple[int, int] | None:
        i, j = sorted(int(n) for n in rng.integers(0, self.cities + 1, 2))
        return (i, j) if j - i >= 2 else None

    def apply(self, state: Tour, move: tuple[int, int]) -> Tour:
        i, j = move
        return state[:i] + state[i:j][::-1] + state[j:]

    def candidate(self, state: Tour) -> Candidate:
        return Candidate(Kernel(bytes(state), "tour", "sm_90", 32), {"tour": list(state)})


@dataclass
class Lengths:
    """Judges a tour by its length, as a modelled outcome.

    Attributes:
        delay: seconds that a judgement takes.
        log: file that each judged digest is appended to before the judgement begins.
    """

    space: Tours
    delay: float = 0.0
    log: Path | None = None
    judged: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(20240521)
        self.points = rng.random((self.space.cities, 2))
        self.base = self.length(self.space.start())

    def length(self, tour: Tour) -> float:
        pairs = zip(tour, tour[1:] + tour[:1], strict=True)
        return sum(math.dist(self.points[a], self.points[b]) for a, b in pairs)

    def evaluate(self, candidate: Candidate) -> Outcome:
        digest = candidate.digest
        self.judged.append(digest)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{os.getpid()} {digest}\n")
        if self.delay:
            time.sleep(self.delay)
        tour = tuple(candidate.kernel.cubin)
        if tour.index(1) < tour.index(0):
            return Modelled(digest, Verdict.ILLEGAL_SCHEDULE, detail="city 1 before city 0")
        return Modelled(digest, None, self.length(tour), self.base, facts={"cities": len(tour)})
