"""The same candidates before several evaluators of GPU kernels, for `evaluators.py`.

| module | what it is |
|---|---|
| `cases` | candidates, as KernelBench modules: ours from the gallery, and those that KernelBench publishes |
| `theirs` | the checks of KernelBench, flashinfer-bench and robust-kbench, from a folder of their checkouts |
| `worker` | a process in which one evaluator judges, with a time limit |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Case:
    """One candidate and the problem that it claims to solve.

    Attributes:
        name: short and unique.
        origin: who wrote it.
        kind: ``honest``; ``wrong``: it must never be accepted; ``speed``: it may be accepted, but not with a
            speed-up, since it has none.
        title: what it does.
        problem: text of a KernelBench problem, with ``Model`` and ``get_inputs``.
        candidate: text of a module with ``ModelNew``.
    """

    name: str
    origin: str
    kind: Literal["honest", "wrong", "speed"]
    title: str
    problem: str
    candidate: str

    @property
    def compiles(self) -> bool:
        """Whether nvcc runs when it is imported."""
        return "load_inline(" in self.candidate


@dataclass(frozen=True)
class Said:
    """What an evaluator says of a case.

    Attributes:
        accepted: it would count as a solution.
        speedup: over the problem's own program as this evaluator has measured it; None where it has not.
        text: its own words, shortened.
    """

    accepted: bool
    speedup: float | None
    text: str
