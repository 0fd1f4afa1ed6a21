"""A Strategy searches a Space with an Evaluator. These three contracts are all that search knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from .evaluation import Candidate, Outcome
from .kernel import Kernel
from .workload import Case, Workload

if TYPE_CHECKING:  # programs that record launches load `core`, and must not load NumPy
    import numpy as np

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
class Playable(Protocol[StateIn, MoveOut]):
    """A space that an agent can act in: a choice is a row of `features` and an action."""

    @property
    def actions(self) -> tuple[str, ...]:
        """What may be done with a row, the same for the whole space."""
        ...

    def features(self, state: StateIn) -> np.ndarray:
        """float32 (rows, columns), a row an instruction, the same shape in every state of a space."""
        ...

    def links(self, state: StateIn) -> np.ndarray:
        """int32 (rows, k): rows that each row depends on or that depend on it, -1 for none."""
        ...

    def legal(self, state: StateIn) -> np.ndarray:
        """bool (rows, actions): what may be tried in this state."""
        ...

    def act(self, state: StateIn, row: int, action: int) -> tuple[MoveOut, int] | None:
        """The move that this is, for `Space.apply`, and the row where the thing moved then stands; None
        where it turns out not to be one."""
        ...


@runtime_checkable
class Tracked(Protocol[StateIn]):
    """A playable space that says which thing stands in each row, so that it is known again elsewhere."""

    def things(self, state: StateIn) -> np.ndarray:
        """int32 (rows,): a number from 0 to rows - 1 that stays with a thing in every state of the space."""
        ...


@runtime_checkable
class Builder(Protocol[State]):
    """Builds states from scratch, one part at a time, by what it expects of them."""

    @property
    def parts(self) -> Sequence[int]:
        """Parts worth a look, those that cost most first."""
        ...

    def priorities(self, state: State, part: int, rule: str) -> np.ndarray:
        """float64 (things in the part,): what comes first by a rule (`rules`), by its place in the start."""
        ...

    def construct(
        self, state: State, part: int, priority: np.ndarray, haste: float, rule: str
    ) -> State | None:
        """`state` with a part put in order greedily: the highest priority of what may come next, less
        `haste` for each cycle of waiting. None where that leads nowhere."""
        ...

    @property
    def rules(self) -> Mapping[str, float]:
        """Names of rules for `priorities`, with the haste that goes with each."""
        ...


@runtime_checkable
class Constructive(Protocol):
    """A space whose states can be built from scratch."""

    @property
    def constructor(self) -> Builder[Any]:
        """What builds them."""
        ...


@runtime_checkable
class Layered(Protocol):
    """A space of several: a coarse one, and finer ones that start from its kernels. Its states are `At`."""

    @property
    def coarse(self) -> Space[Any, Any]:
        """The coarse space, which can assemble several states at a time."""
        ...

    def sweep(self) -> Sequence[Any]:
        """States of the coarse space to try first, in order."""
        ...

    def combined(self, states: Sequence[Any]) -> Sequence[Any]:
        """States of the coarse space that are two of these together."""
        ...

    def ahead(self, states: Sequence[Any]) -> None:
        """Make kernels of the coarse space, so that `Space.candidate` has them at once."""
        ...

    def finer(self, parent: Candidate) -> Sequence[Space[Any, Any]]:
        """Spaces whose start is this kernel; none where it has none."""
        ...


@dataclass(frozen=True, slots=True)
class At:
    """A state of a `Layered` space: one of a space in it."""

    space: Space[Any, Any]
    state: Any


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


@runtime_checkable
class Redrawing(Protocol):
    """A device whose figures depend on draws of chance, with sets of draws that share none.

    `Device.run` looks at few draws of the set that a search selects on.
    """

    def closer(self, candidate: Candidate, level: int) -> Outcome | None:
        """A look at more draws of that set, the more the higher the level (from 1 on); None past the last."""
        ...

    def look(self, candidate: Candidate, turn: int) -> Outcome:
        """A look at draws of a second set, others with every turn (from 0 on)."""
        ...

    def remeasure(self, candidate: Candidate) -> Outcome:
        """The figure to report, from a third set, with its interval and its null."""
        ...
