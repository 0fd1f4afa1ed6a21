"""`ModelDevice`: the timing model behind the same contract as a GPU. It judges no correctness."""

from __future__ import annotations

import platform
import time
from typing import Any

import numpy as np

from ...core import (
    Candidate,
    Case,
    CubinError,
    DeviceError,
    DisassemblyError,
    Kernel,
    Modelled,
    UnsupportedArch,
    Verdict,
    Workload,
)  # fmt: skip
from ...sass import Program
from . import simulate as sim
from .constants import H200, Constants
from .kernel_model import MAX_REPLICAS, KernelModel, UnknownWords

#: raised when the same candidate would get another figure
MODEL_VERSION = 2

#: copies whose reading is kept
_COPIES = 4
_ARCHES = ("sm_90", "sm_90a")


class ModelDevice:
    """A timing model of a Hopper SM.

    Deterministic. Implements `core.protocols.Device`; results are `core.Modelled`, never measurements.

    Args:
        arch: ``sm_90`` or ``sm_90a``.
        constants: other constants than those of the H200.
        replicas: most start-time replicas of one evaluation; fewer are faster and more chaotic.

    Raises:
        UnsupportedArch: another architecture.
    """

    modelled = True

    def __init__(
        self, arch: str = "sm_90a", constants: Constants | None = None, replicas: int = MAX_REPLICAS
    ) -> None:
        _check(arch, "device")
        self.arch = arch
        self.name = "timing model of sm_90"
        self.constants = constants or H200
        self.replicas = replicas
        self._model: KernelModel | None = None
        self._copies: list[KernelModel] = []
        self._baseline_cycles = 0.0

    def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
        """Parse the baseline, predict its path and model it once.

        Raises:
            UnsupportedArch: the kernel is not for sm_90 or sm_90a.
            DeviceError: it cannot be launched (no CTA fits) or waits for a barrier for ever.
            CubinError, DisassemblyError, ToolMissing: it cannot be read.
        """
        where = f"{workload.name}, case {case.name}"
        _check(baseline.arch, where)
        program = Program.parse(baseline.cubin)
        _check(program.arch, where)
        model = KernelModel(program, baseline, case, self.constants, self.replicas)
        words = model.code(baseline.cubin)
        try:
            total, _, _ = sim.cycles(model, model.steps(words, model.order(words)))
        except sim.Deadlock as error:
            raise DeviceError(
                "on the path that the model predicts, a barrier never opens", where=where,
                hint="kernels whose warps do different things are beyond the model",
            ) from error  # fmt: skip
        self._model, self._baseline_cycles, self._copies = model, total, []

    @property
    def model(self) -> KernelModel:
        """The opened kernel. Raises DeviceError when none is."""
        if self._model is None:
            raise DeviceError("no kernel is open", where=self.name, hint="call open() first")
        return self._model

    def run(self, candidate: Candidate) -> Modelled:
        """Model one candidate.

        A candidate that cannot be modelled gets the verdict ``unsupported`` (or ``illegal_schedule`` for one
        that dead-locks) and a reason; nothing is raised for its faults.
        """
        began = time.perf_counter()
        model = self.model
        verdict: Verdict | None = None
        total: float | None = None
        detail = ""
        try:
            total, _, _ = sim.cycles(*self._steps(candidate.kernel))
        except sim.Deadlock:
            verdict, detail = Verdict.ILLEGAL_SCHEDULE, "a barrier never opens on the predicted path"
        except (UnsupportedArch, CubinError, DisassemblyError, UnknownWords) as error:
            verdict, detail = Verdict.UNSUPPORTED, f"not modelled: {error}"
        return Modelled(
            digest=candidate.digest,
            verdict=verdict,
            cycles=total,
            baseline_cycles=self._baseline_cycles,
            detail=detail,
            seconds=time.perf_counter() - began,
            facts=model.facts(),
        )

    def trace(self, kernel: Kernel, warp: int = 0) -> sim.Trace:
        """Issue cycles and stall reasons of one warp of the first CTA under this schedule.

        Raises:
            DeviceError: no kernel is open, there is no such warp, or a barrier never opens.
            CubinError, DisassemblyError, UnsupportedArch: the schedule cannot be read.
        """
        resident = self.model.occupancy.warps * self.model.occupancy.slots
        if not 0 <= warp < resident:
            raise DeviceError(f"no warp {warp}", where=self.name, hint=f"0 to {resident - 1}")
        try:
            return sim.trace(*self._steps(kernel), warp)
        except sim.Deadlock as error:
            raise DeviceError("a barrier never opens", where=kernel.name) from error
        except UnknownWords as error:
            raise CubinError(f"not a schedule of the opened kernel: {error}", where=kernel.name) from error

    def cycles(self, words: np.ndarray) -> float:
        """Modelled cycles of encodings by position, uint64 (instructions, 2), for offline fits.

        Raises:
            simulate.Deadlock, kernel_model.UnknownWords: it cannot be modelled.
        """
        model = self.model
        return sim.cycles(model, model.steps(words, model.order(words)))[0]

    def _steps(self, kernel: Kernel) -> tuple[KernelModel, np.ndarray]:
        """Rows along the candidate's path, and the model that they belong to: the baseline's, or that of a
        copy (other registers, instructions moved over branches) of which this is a schedule."""
        model = self.model
        if kernel.name != model.kernel.name:
            raise UnknownWords(f"kernel {kernel.name} is not {model.kernel.name}")
        words = model.code(kernel.cubin)
        for known in (model, *self._copies):
            try:
                return known, known.steps(words, known.order(words))
            except UnknownWords:
                continue
        function = Program.parse(kernel.cubin).function(kernel.name)
        copy = model.copy(function)
        self._copies = [copy, *self._copies[: _COPIES - 1]]
        return copy, copy.steps(words, np.arange(len(words)))

    def environment(self) -> dict[str, Any]:
        """The model's version, constants and what it runs on; no GPU is involved."""
        import dataclasses

        import numba

        return {
            "device": self.name,
            "modelled": True,
            "model_version": MODEL_VERSION,
            "constants": dataclasses.asdict(self.constants),
            "numba": numba.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        }

    def close(self) -> None:
        """Forget the kernel; safe to call twice."""
        self._model, self._copies = None, []


def _check(arch: str, where: str) -> None:
    if arch not in _ARCHES:
        raise UnsupportedArch(
            f"the timing model knows {' and '.join(_ARCHES)}, not {arch}", where=where,
            hint="measure on a GPU of that architecture instead",
        )  # fmt: skip
