"""The timing model asked about different programs: a stand-in where there is no GPU, and nothing more.

The model was compared with an H200 for schedules of one program only. Its ratio between two programs is a
guess, its results are `Modelled`, and it judges no correctness.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sassafras.core import Candidate, Case, DeviceError, Kernel, Modelled, Verdict, Workload
from sassafras.timing_model import ModelDevice
from sassafras.timing_model.draws import Draws, DrawSet
from sassafras.timing_model.kernel_model import UnknownWords

_WARNING = "the model was never compared with a GPU between different programs"


class ProgramModel(ModelDevice):
    """A `ModelDevice` that models each candidate as a program of its own.

    Args:
        arch: ``sm_90`` or ``sm_90a``.

    Raises:
        UnsupportedArch: another architecture.
    """

    def __init__(self, arch: str = "sm_90a") -> None:
        super().__init__(arch)
        self.name = "timing model of sm_90, between programs"
        self._what: tuple[Workload, Case] | None = None
        self._candidate: tuple[str, Draws] | None = None
        #: programs whose schedules are modelled as such, and their models, by digest
        self._parents: dict[str, Kernel] = {}
        self._models: dict[str, ModelDevice] = {}

    def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
        """Model the baseline. Raises as `ModelDevice.open`."""
        super().open(workload, case, baseline)
        self._what, self._candidate, self._models = (workload, case), None, {}

    def schedules_of(self, parent: Kernel) -> None:
        """From now on, candidates whose recipe names this ``parent`` by digest are schedules of it."""
        self._parents[parent.digest] = parent

    def run(self, candidate: Candidate) -> Modelled:
        """Model one candidate with many draws; ``unsupported`` with a reason when it cannot be."""
        return self.closest(candidate)

    def closer(self, candidate: Candidate, level: int) -> None:
        """See `core.Redrawing`: building a program takes longer than modelling it with many draws."""

    def drawn(self, candidate: Candidate, part: DrawSet, begin: int, end: int) -> np.ndarray:
        """See `ModelDevice.drawn`; on start times of the candidate's own warps."""
        if (parent := self._parents.get(str(candidate.recipe.get("parent")))) is not None:
            if parent.digest not in self._models:
                self._models[parent.digest] = self._opened(parent)
            return self._models[parent.digest].drawn(candidate, part, begin, end)
        if self._candidate is None or self._candidate[0] != candidate.digest:
            self._candidate = candidate.digest, self._opened(candidate.kernel).draws
        return self._candidate[1].baseline(part, begin, end)

    def _opened(self, program: Kernel) -> ModelDevice:
        assert self._what is not None
        device = ModelDevice(self.arch)
        try:
            device.open(*self._what, program)
        except DeviceError as error:
            raise UnknownWords(str(error)) from error
        return device

    def _judged(self, candidate: Candidate, figures: Callable[[str], dict[str, Any]]) -> Modelled:
        made = super()._judged(candidate, figures)
        verdict = Verdict.UNSUPPORTED if made.verdict is not None else None
        error = {key: made.facts[key] for key in ("error",) if key in made.facts}
        return replace(made, verdict=verdict, facts={"warning": _WARNING, **error})
