"""`ModelDevice`: the timing model behind the same contract as a GPU. It judges no correctness."""

from __future__ import annotations

import dataclasses
import math
import platform
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
from sassafras.sass import Program

from . import simulate as sim
from .constants import H200, Constants
from .draws import REPORT_MOST, Draws, DrawSet, redraw
from .kernel_model import KernelModel, UnknownWords

#: raised when the same candidate would get another figure
MODEL_VERSION = 3

#: looks at leaders before one is chosen (`jobs.confirm.select`: 32, then half of them after each of 7 rounds)
CONFIRMATION_LOOKS = 72
#: copies whose reading is kept
_COPIES = 4
_ARCHES = ("sm_90", "sm_90a")


class ModelDevice:
    """A timing model of a Hopper SM.

    Deterministic. Implements `core.Device` and `core.Redrawing`; results are `core.Modelled`, never
    measurements.

    Args:
        arch: ``sm_90`` or ``sm_90a``.
        constants: other constants than those of the H200.

    Raises:
        UnsupportedArch: another architecture.
    """

    modelled = True

    def __init__(self, arch: str = "sm_90a", constants: Constants | None = None) -> None:
        _check(arch, "device")
        self.arch = arch
        self.name = "timing model of sm_90"
        self.constants = constants or H200
        self._model: KernelModel | None = None
        self._copies: list[KernelModel] = []
        self._draws: Draws | None = None
        #: (digest, cycles) of the last look of a search, which a closer one goes on from
        self._last: tuple[str, np.ndarray] = "", np.empty(0)

    def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
        """Parse the baseline, predict its path and model it a few times.

        Raises:
            UnsupportedArch: the kernel is not for sm_90 or sm_90a.
            DeviceError: it cannot be launched (no CTA fits) or waits for a barrier for ever.
            CubinError, DisassemblyError, ToolMissing: it cannot be read.
        """
        where = f"{workload.name}, case {case.name}"
        _check(baseline.arch, where)
        program = Program.parse(baseline.cubin)
        _check(program.arch, where)
        model = KernelModel(program, baseline, case, self.constants)
        words = model.code(baseline.cubin)
        try:
            draws = Draws(model, model.steps(words, model.order(words)))
        except sim.Deadlock as error:
            raise DeviceError(
                "on the path that the model predicts, a barrier never opens",
                where=where,
                hint="kernels whose warps do different things are beyond the model",
            ) from error
        self._model, self._draws, self._copies, self._last = model, draws, [], ("", np.empty(0))

    @property
    def model(self) -> KernelModel:
        """The opened kernel. Raises DeviceError when none is."""
        if self._model is None:
            raise DeviceError("no kernel is open", where=self.name, hint="call open() first")
        return self._model

    @property
    def draws(self) -> Draws:
        """The draws of the opened kernel. Raises DeviceError when none is."""
        if self._draws is None:
            raise DeviceError("no kernel is open", where=self.name, hint="call open() first")
        return self._draws

    def run(self, candidate: Candidate) -> Modelled:
        """Model one candidate, on as few draws of the search's set as will do for a first look.

        A candidate that cannot be modelled gets the verdict ``unsupported`` (or ``illegal_schedule`` for one
        that dead-locks) and a reason; nothing is raised for its faults.
        """
        return self._mean(candidate, DrawSet.SEARCH, 0, self.draws.first)

    def closer(self, candidate: Candidate, level: int) -> Modelled | None:
        """See `core.Redrawing`: twice as many draws with each level."""
        count = self.draws.level(level)
        return None if count is None else self._mean(candidate, DrawSet.SEARCH, 0, count)

    def closest(self, candidate: Candidate) -> Modelled:
        """The last of these looks, at once."""
        return self._mean(candidate, DrawSet.SEARCH, 0, self.draws.last)

    def look(self, candidate: Candidate, turn: int) -> Modelled:
        """See `core.Redrawing`."""
        count = self.draws.a_look
        return self._mean(candidate, DrawSet.CHOICE, turn * count, (turn + 1) * count)

    def remeasure(self, candidate: Candidate) -> Modelled:
        """See `core.Redrawing`: the model's counterpart of a re-measurement in fresh processes."""

        def found(digest: str) -> dict[str, Any]:
            draws = self.draws
            new = redraw(
                lambda a, b: draws.baseline(DrawSet.REPORT, a, b),
                lambda a, b: self.drawn(candidate, DrawSet.REPORT, a, b),
                lambda a, b: draws.baseline(DrawSet.NULL, a, b),
            )
            return dict(vars(new))

        return self._judged(candidate, found)

    def confirmation_s(self) -> float:
        """Seconds that a search's confirmation will take at most, by the time of a few draws."""
        count, began = 4, time.perf_counter()
        self.drawn(Candidate(self.model.kernel), DrawSet.OTHER, 0, count)
        a_draw = (time.perf_counter() - began) / count
        return a_draw * (CONFIRMATION_LOOKS * self.draws.a_look + 3 * REPORT_MOST)

    def drawn(self, candidate: Candidate, part: DrawSet, begin: int, end: int) -> np.ndarray:
        """Cycles of a schedule on draws `begin` to `end` of one set: float64.

        Raises:
            simulate.Deadlock, kernel_model.UnknownWords, CubinError, DisassemblyError: it cannot be modelled.
        """
        return self.draws.of(*self._steps(candidate.kernel), part, begin, end)

    def _mean(self, candidate: Candidate, part: DrawSet, begin: int, end: int) -> Modelled:
        def found(digest: str) -> dict[str, Any]:
            known = np.empty(0)
            if part is DrawSet.SEARCH and self._last[0] == digest:
                known = self._last[1][:end]
            more = self.drawn(candidate, part, begin + len(known), end)
            all_of_it = np.concatenate([known, more])
            if part is DrawSet.SEARCH:
                self._last = digest, all_of_it
            return {
                "cycles": float(all_of_it.mean()),
                "baseline_cycles": float(self.draws.baseline(part, begin, end).mean()),
                "draws": end - begin,
                "facts": {"error": self.draws.spread / math.sqrt(end - begin)},
            }

        return self._judged(candidate, found)

    def _judged(self, candidate: Candidate, figures: Callable[[str], dict[str, Any]]) -> Modelled:
        """An outcome with these figures, or with the reason why there are none."""
        began = time.perf_counter()
        model, digest = self.model, candidate.digest
        verdict: Verdict | None = None
        found: dict[str, Any] = {"baseline_cycles": float(self.draws.baseline(DrawSet.SEARCH, 0, 1)[0])}
        detail = ""
        try:
            found = figures(digest)
        except sim.Deadlock:
            verdict, detail = Verdict.ILLEGAL_SCHEDULE, "a barrier never opens on the predicted path"
        except (UnsupportedArch, CubinError, DisassemblyError, UnknownWords) as error:
            verdict, detail = Verdict.UNSUPPORTED, f"not modelled: {error}"
        facts = model.facts() | found.pop("facts", {})
        return Modelled(
            digest, verdict, detail=detail, seconds=time.perf_counter() - began, facts=facts, **found
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
        return float(sim.drawn(model, model.steps(words, model.order(words)), model.starts).mean())

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
        self._model, self._draws, self._copies = None, None, []


def _check(arch: str, where: str) -> None:
    if arch not in _ARCHES:
        raise UnsupportedArch(
            f"the timing model knows {' and '.join(_ARCHES)}, not {arch}",
            where=where,
            hint="measure on a GPU of that architecture instead",
        )
