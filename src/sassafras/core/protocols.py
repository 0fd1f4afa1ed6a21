"""A Strategy searches a Space with an Evaluator. These three contracts are all that search knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from .evaluation import Candidate, Outcome
from .kernel import Kernel
from .workload import Case, Workload

State = TypeVar("State")
Move = TypeVar("Move")
MoveOut = TypeVar("MoveOut", covariant=True)
StateIn = TypeVar("StateIn", contravariant=True)


@runtime_checkable
class Space(Protocol[State, Move]):
    """What can be changed. States are immutable values: undo is keeping the old one."""

    def start(self) -> State:
        """The baseline's state; its candidate is the baseline, byte for byte."""
        ...

    def sample(self, state: State, rng: np.random.Generator) -> Move | None:
        """One legal change of `state`, or None where none was found."""
        ...

    def apply(self, state: State, move: Move) -> State:
        """The changed state; `state` itself stays as it was."""
        ...

    def candidate(self, state: State) -> Candidate:
        """The recipe to evaluate."""
        ...


@runtime_checkable
class Enumerable(Protocol[StateIn, MoveOut]):
    """A space that can list its legal moves."""

    def moves(self, state: StateIn) -> Sequence[MoveOut]:
        """Every legal move of `state`."""
        ...


@runtime_checkable
class Observable(Protocol[StateIn]):
    """A space that an agent can look at."""

    def features(self, state: StateIn) -> np.ndarray:
        """A float32 array, one row an instruction (or one vector), fixed width for the space."""
        ...


@runtime_checkable
class Playable(Protocol[StateIn, MoveOut]):
    """A space that an agent can act in: an action is a row of `features` and a verb."""

    @property
    def verbs(self) -> tuple[str, ...]:
        """What may be done with a row, the same for the whole space."""
        ...

    def features(self, state: StateIn) -> np.ndarray:
        """See `Observable`; float32 (rows, columns), the same shape in every state of a space."""
        ...

    def links(self, state: StateIn) -> np.ndarray:
        """int32 (rows, k): rows that each row depends on or that depend on it, -1 for none."""
        ...

    def legal(self, state: StateIn) -> np.ndarray:
        """bool (rows, verbs): what may be tried in this state."""
        ...

    def act(self, state: StateIn, row: int, verb: int) -> tuple[MoveOut, int] | None:
        """The move that this is, for `Space.apply`, and the row where the thing moved then stands; None
        where it turns out not to be one."""
        ...


@runtime_checkable
class Evaluator(Protocol):
    """What a candidate is worth."""

    def evaluate(self, candidate: Candidate) -> Outcome:
        """Judge one candidate. Never raises for a candidate's fault: the verdict says it."""
        ...


class Device(Protocol):
    """Where candidates run (CudaDevice) or are modelled (ModelDevice).

    A device is opened for one workload case and baseline, judges candidates one at a time, and is closed.
    """

    #: "NVIDIA H200", or "timing model of sm_90"
    name: str
    #: the arch that it runs, for example "sm_90a"
    arch: str
    #: True when results are modelled, not measured
    modelled: bool

    def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
        """Prepare inputs and the baseline. Raises DeviceError."""
        ...

    def run(self, candidate: Candidate) -> Outcome:
        """Run or model one candidate that was validated already."""
        ...

    def environment(self) -> dict[str, Any]:
        """What every result file must embed: GPU, driver, CUDA, ptxas, versions, clocks."""
        ...

    def close(self) -> None:
        """Give everything back; safe to call twice."""
        ...
