"""The timing model asked about different programs: a stand-in where there is no GPU, and nothing more.

The model was compared with an H200 for schedules of one program only. Its ratio between two programs is a
guess, its results are `Modelled`, and it judges no correctness.
"""

from __future__ import annotations

import time
from typing import Any

from sassafras.core import (
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
)
from sassafras.device.model import ModelDevice


class ProgramModel:
    """Models each candidate as a program of its own. Implements `core.Device`.

    Args:
        arch: ``sm_90`` or ``sm_90a``.

    Raises:
        UnsupportedArch: another architecture.
    """

    modelled = True

    def __init__(self, arch: str = "sm_90a") -> None:
        self._baseline = ModelDevice(arch)
        self.arch = arch
        self.name = "timing model of sm_90, between programs"
        self._what: tuple[Workload, Case] | None = None
        self._cycles = 0.0

    def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
        """Model the baseline. Raises as `ModelDevice.open`."""
        self._what = (workload, case)
        self._cycles = self._measure(baseline)

    def run(self, candidate: Candidate) -> Modelled:
        """Model one candidate; ``unsupported`` with a reason when it cannot be."""
        began = time.perf_counter()
        cycles, verdict, detail = None, None, ""
        try:
            cycles = self._measure(candidate.kernel)
        except (DeviceError, CubinError, DisassemblyError, UnsupportedArch) as error:
            verdict, detail = Verdict.UNSUPPORTED, f"not modelled: {error}"
        return Modelled(
            candidate.digest, verdict, cycles, self._cycles, detail, time.perf_counter() - began,
            {"warning": "the model was never compared with a GPU between different programs"},
        )  # fmt: skip

    def _measure(self, kernel: Kernel) -> float:
        if self._what is None:
            raise DeviceError("no kernel is open", where=self.name, hint="call open() first")
        device = ModelDevice(self.arch)
        device.open(*self._what, kernel)
        outcome = device.run(Candidate(kernel))
        if outcome.cycles is None:
            raise DeviceError(outcome.detail, where=kernel.name)
        return outcome.cycles

    def environment(self) -> dict[str, Any]:
        """The model's version and constants."""
        return {**self._baseline.environment(), "device": self.name}

    def close(self) -> None:
        """Forget the workload."""
        self._what = None
