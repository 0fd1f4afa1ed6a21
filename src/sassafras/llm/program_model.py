"""The timing model asked about different programs: a stand-in where there is no GPU, and nothing more.

The model was compared with an H200 for schedules of one program only. Its ratio between two programs is a
guess, its results are `Modelled`, and it judges no correctness.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

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
from sassafras.timing_model import ModelDevice
from sassafras.timing_model.draws import LOOK_MOST, Draws, DrawSet, redraw
from sassafras.timing_model.simulate import Deadlock


class ProgramModel:
    """Models each candidate as a program of its own. Implements `core.Device` and `core.Redrawing`.

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
        self._own: Draws | None = None

    def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
        """Model the baseline. Raises as `ModelDevice.open`."""
        self._what = (workload, case)
        self._own = self._draws(baseline)

    def run(self, candidate: Candidate) -> Modelled:
        """Model one candidate; ``unsupported`` with a reason when it cannot be."""
        return self._judged(candidate, lambda draws: self._mean(draws, DrawSet.SEARCH, 0, draws.last))

    def closer(self, candidate: Candidate, level: int) -> None:
        """See `core.Redrawing`: building a program takes longer than modelling it closely at once."""

    def look(self, candidate: Candidate, turn: int) -> Modelled:
        """See `core.Redrawing`."""
        count = LOOK_MOST
        return self._judged(
            candidate, lambda draws: self._mean(draws, DrawSet.CHOICE, turn * count, (turn + 1) * count)
        )

    def remeasure(self, candidate: Candidate) -> Modelled:
        """See `core.Redrawing`."""

        def found(draws: Draws) -> dict[str, Any]:
            new = redraw(
                lambda a, b: self._baseline_of(DrawSet.REPORT, a, b),
                lambda a, b: draws.baseline(DrawSet.REPORT, a, b),
                lambda a, b: self._baseline_of(DrawSet.NULL, a, b),
            )
            return {
                "cycles": new.cycles,
                "baseline_cycles": new.baseline_cycles,
                "interval": new.interval,
                "null": new.null,
                "null_interval": new.null_interval,
                "draws": new.draws,
            }

        return self._judged(candidate, found)

    def _judged(self, candidate: Candidate, figures: Callable[[Draws], dict[str, Any]]) -> Modelled:
        began = time.perf_counter()
        found: dict[str, Any] = {}
        verdict, detail = None, ""
        try:
            found = figures(self._draws(candidate.kernel))
        except Deadlock:
            verdict, detail = Verdict.UNSUPPORTED, "not modelled: a barrier never opens on the predicted path"
        except (DeviceError, CubinError, DisassemblyError, UnsupportedArch) as error:
            verdict, detail = Verdict.UNSUPPORTED, f"not modelled: {error}"
        return Modelled(
            candidate.digest,
            verdict,
            detail=detail,
            seconds=time.perf_counter() - began,
            facts={"warning": "the model was never compared with a GPU between different programs"},
            **found,
        )

    def _mean(self, draws: Draws, part: DrawSet, begin: int, end: int) -> dict[str, Any]:
        return {
            "cycles": float(draws.baseline(part, begin, end).mean()),
            "baseline_cycles": float(self._baseline_of(part, begin, end).mean()),
            "draws": end - begin,
        }

    def _baseline_of(self, part: DrawSet, begin: int, end: int) -> np.ndarray:
        assert self._own is not None
        return self._own.baseline(part, begin, end)

    def _draws(self, kernel: Kernel) -> Draws:
        if self._what is None:
            raise DeviceError("no kernel is open", where=self.name, hint="call open() first")
        device = ModelDevice(self.arch)
        device.open(*self._what, kernel)
        return device.draws

    def environment(self) -> dict[str, Any]:
        """The model's version and constants."""
        return {**self._baseline.environment(), "device": self.name}

    def close(self) -> None:
        """Forget the workload."""
        self._what = self._own = None
