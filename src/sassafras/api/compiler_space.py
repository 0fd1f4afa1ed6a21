"""`CompilerSpace`: what ptxas makes of one PTX, and schedules of the best of it, as one space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sassafras.core import At, Candidate, Device, Kernel, Outcome, SassafrasError, Space
from sassafras.evaluate import ApprovedFailure, KernelEvaluator
from sassafras.frontend.ptx import PtxSpace, PtxState
from sassafras.schedule.spaces import space_of
from sassafras.validate import Validator

from .ptx_search import PtxJudge
from .ptxas_options import pairs

#: spaces over the schedules of each of ptxas's best outputs
SCHEDULES = ("swaps", "control")


class CompilerSpace:
    """Implements `core.Layered` and `core.Space`; its states are `core.At`.

    A schedule's candidate names its ``parent``, the output of ptxas that it is a schedule of, by digest.

    Args:
        coarse: options, releases and rewrites; its start is the frontend's own kernel.
        asked_by_name: the user named the architecture on purpose.
    """

    def __init__(self, coarse: PtxSpace, asked_by_name: bool = False) -> None:
        self.coarse, self._by_name = coarse, asked_by_name
        #: outputs of ptxas whose schedules can be searched, and what proves these, by digest
        self.parents: dict[str, tuple[Candidate, Any]] = {}
        #: why those of others cannot, by digest
        self.refused: dict[str, str] = {}
        self._finer: dict[str, list[Space[Any, Any]]] = {}
        self._parent: dict[int, Candidate] = {}
        #: told of each parent, before its first schedule is judged
        self.tell: Callable[[Kernel], None] = lambda parent: None

    @property
    def description(self) -> str:
        """What two searches must share to be the same one."""
        return f"{self.coarse.description}, schedules {', '.join(SCHEDULES)}"

    # -- core.Layered -------------------------------------------------------------------------------------

    def sweep(self) -> Sequence[PtxState]:
        """What `sassafras ptxas-options` tries."""
        return list(self.coarse.sweep())

    def combined(self, states: Sequence[PtxState]) -> Sequence[PtxState]:
        """The options of each two together, where they do not contradict one another."""
        return [PtxState(each) for each in pairs([state.options for state in states])]

    def ahead(self, states: Sequence[PtxState]) -> None:
        """See `PtxSpace.ahead`."""
        self.coarse.ahead(states)

    def finer(self, parent: Candidate) -> Sequence[Space[Any, Any]]:
        """The spaces `SCHEDULES` of one output; none, and a reason in `refused`, where it has none."""
        if parent.digest not in self._finer:
            self._finer[parent.digest] = made = self._opened(parent)
            self._parent |= {id(one): parent for one in made}
        return self._finer[parent.digest]

    def _opened(self, parent: Candidate) -> list[Space[Any, Any]]:
        try:
            made = [space_of(name, Validator, self._by_name)(parent.kernel) for name in SCHEDULES]
            proof = prover(parent.kernel)
        except SassafrasError as error:
            self.refused[parent.digest] = error.what
            return []
        self.parents[parent.digest] = parent, proof
        self.tell(parent.kernel)
        return made

    # -- core.Space ---------------------------------------------------------------------------------------

    def start(self) -> At:
        """The frontend's own kernel."""
        return At(self.coarse, self.coarse.start())

    def sample(self, state: At, rng: np.random.Generator) -> Any:
        """A change of the space that the state is in."""
        return state.space.sample(state.state, rng)

    def apply(self, state: At, move: Any) -> At:
        """The changed state."""
        return At(state.space, state.space.apply(state.state, move))

    def candidate(self, state: At) -> Candidate:
        """The kernel of a state; a parent's own schedule is the parent."""
        made = state.space.candidate(state.state)
        if (parent := self._parent.get(id(state.space))) is None:
            return made
        if made.kernel.cubin == parent.kernel.cubin:
            return parent
        about = {"space": "compiler", "parent": parent.digest, "ptx": dict(parent.recipe)}
        return Candidate(made.kernel, {**made.recipe, **about})


def prover(parent: Kernel) -> Validator:
    """What proves schedules of a kernel.

    Raises:
        SassafrasError: it refuses the kernel itself, or cannot read it.
    """
    validator = Validator(parent.cubin, parent.name)
    if not (report := validator.check(parent.cubin)).ok:
        raise SassafrasError(f"the validator refuses it: {report.violations[0]}", where=parent.name)
    return validator


class CompilerJudge(PtxJudge):
    """`core.Evaluator` of a `CompilerSpace`: a schedule is proved against its parent before it runs; every
    candidate is compared, and timed, with the frontend's own kernel."""

    def __init__(self, device: Device, baseline: Kernel, space: CompilerSpace) -> None:
        super().__init__(device, baseline)
        self.space = space
        space.tell = getattr(device, "schedules_of", space.tell)
        self._judges: dict[str, KernelEvaluator] = {}

    @property
    def failures(self) -> list[ApprovedFailure]:
        """Approved schedules that failed."""
        return [failure for judge in self._judges.values() for failure in judge.failures]

    def note(self, candidate: Candidate, outcome: Outcome) -> None:
        """Keep the code of an approved schedule that failed."""
        self._judges[candidate.recipe["parent"]].note(candidate, outcome)

    def evaluate(self, candidate: Candidate) -> Outcome:
        """Judge one candidate. Never raises for its fault. Raises DeviceError."""
        if (parent := candidate.recipe.get("parent")) is None:
            return super().evaluate(candidate)
        if parent not in self._judges:
            made, validator = self.space.parents[parent]
            device = self.inner.device
            self._judges[parent] = KernelEvaluator(device, lambda _, c: validator.check(c), made.kernel)
        return self._judges[parent].evaluate(candidate)
