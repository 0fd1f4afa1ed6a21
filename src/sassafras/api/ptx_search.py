"""`optimize(..., space="ptx")`: a search over what ptxas makes of one PTX, judged by results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from sassafras.core import Candidate, Device, Evaluation, Kernel, Modelled, Outcome, SearchError, Verdict
from sassafras.deploy.check import LaunchFacts, other_code
from sassafras.evaluate import KernelEvaluator
from sassafras.jobs.job import Job
from sassafras.jobs.result import Result
from sassafras.llm.program_model import ProgramModel
from sassafras.sass import Program
from sassafras.sass.polling import polls
from sassafras.timing_model import ModelDevice


def device_for(opened: Device) -> Device:
    """The device of a search over PTX: the timing model has to take candidates for programs of their own."""
    return ProgramModel(opened.arch) if type(opened) is ModelDevice else opened


class PtxJudge:
    """`core.Evaluator` of a `PtxSpace`: refusals have their verdict, everything else runs on the device.

    Args:
        device: opened before the first candidate; a GPU compares outputs with the baseline's bit by bit.
        baseline: the frontend's own kernel.
    """

    def __init__(self, device: Device, baseline: Kernel) -> None:
        self.inner = KernelEvaluator(device, None, baseline)
        self.closer = self.inner.closer

    def evaluate(self, candidate: Candidate) -> Outcome:
        """Judge one candidate. Never raises for its fault. Raises DeviceError."""
        if (why := candidate.recipe.get("refused")) is None:
            return self.inner.evaluate(candidate)
        kind = Modelled if self.inner.device.modelled else Evaluation
        return self.inner.settle(candidate, kind(candidate.digest, Verdict.COMPILE_ERROR, detail=why))


@dataclass
class PtxJob(Job):
    """A `Job` over a `PtxSpace`. No proof relates two of ptxas's outputs: results are compared bitwise."""

    grounds: ClassVar[str] = "none against the original: other PTX or options of ptxas, judged by results"

    def _result(self, *args: Any, **more: Any) -> Result:
        made = super()._result(*args, **more)
        notes, facts = [*made.notes], {**made.facts, **self._proof(made.recipe)}
        if made.modelled:
            notes.append("nothing was run or checked: the model may prefer a kernel that is wrong")
        elif made.improved and (why := self._not_deployed(made)):
            notes.append(f"running programs keep the original: {why}")
        return replace(made, notes=tuple(notes), facts=facts)

    def _proof(self, recipe: Mapping[str, Any]) -> dict[str, str]:
        """What a result says instead of the validator's answer."""
        return {"proof": "compared bit by bit, nothing is proved"}

    def _keep(self, result: Result) -> None:
        if self.store is not None and result.improved:
            self.store.put_cubin(result.cubin)  # of the run's result, whether a program may load it or not
            if not self._not_deployed(result):
                super()._keep(result)

    def _not_deployed(self, result: Result) -> str:
        """Why the winner cannot take the original's place in a program; empty for nothing."""
        launch = LaunchFacts(name=self.baseline.name)
        return other_code(result.kernel, self.baseline.cubin, launch, polls=self._polls) or ""

    @cached_property
    def _polls(self) -> bool:
        return polls(Program.parse(self.baseline.cubin).function(self.baseline.name))

    def _grounds(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        return {**super()._grounds(recipe), "polls": self._polls}


def check_asked(space: str, ptxas_options: Any, cluster: Any, strategy: Any) -> None:
    """Raise SearchError for options of `optimize` that do not go with this space."""
    if ptxas_options is not None:
        raise SearchError(
            f"the space {space} contains the options of ptxas", hint="leave out --ptxas-options"
        )
    if cluster is not None:
        raise SearchError(f"the space {space} is searched on one machine", hint="leave out --cluster")
    if space == "compiler" and strategy is not None:
        raise SearchError(
            "the space compiler has a strategy of its own",
            hint="leave out --strategy and --preset; --set schedule=NAME chooses that of its schedules",
        )
