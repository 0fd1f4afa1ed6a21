"""`GemmDevice`: a GPU that judges configurations of our HGEMM kernels beside cuBLASLt's best algorithm."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sassafras.core import (
    Candidate,
    Case,
    DeviceError,
    Evaluation,
    Kernel,
    Modelled,
    Outcome,
    Verdict,
    Workload,
)
from sassafras.core.statistics import (
    bootstrap_median,
    hierarchical_bootstrap,
    hierarchical_median,
    paired_ratios,
)
from sassafras.cuda.environment import available, environment, probe

from .options import Options
from .worker_client import WorkerClient

#: fresh processes of a re-measurement
PROCESSES = 5
#: seconds after which a configuration hangs
STALL = 30.0
#: SM clock at which the modelled clock's microseconds count as cycles
_MHZ = 1755.0


class GemmDevice:
    """Implements `core.Device` for `GemmSpace`: the baseline is not a kernel of ours but cuBLASLt.

    Every configuration runs in a process that may die; its C is compared with FP64 before and after timing.

    Args:
        dry: on the modelled clock, without a GPU: outcomes are `Modelled`.
        cache: folder of compiled kernels.
        seed: of the inputs.
        processes: fresh processes of `remeasure`.

    Raises:
        DeviceError: there is no GPU.
    """

    arch = "sm_90a"

    def __init__(
        self, *, dry: bool = False, cache: Path | None = None, seed: int = 0, processes: int = PROCESSES
    ) -> None:
        self.modelled = dry
        self.name = "modelled clock of our HGEMM kernels"
        if not dry:
            usable, reason = available()
            if not usable:
                raise DeviceError(f"no usable GPU: {reason}", hint="--device model rehearses without one")
            self.name = str(probe()["gpu"])
        self._processes = processes
        self._plan = {
            "options": asdict(Options(seed=seed)),
            "cache": str(cache) if cache else None,
            "dry": dry,
        }
        self._child = WorkerClient({**self._plan, "mode": "judge"}, stall=STALL)
        self._shape = ""
        #: cuBLASLt's algorithm that everything is compared with, once it was chosen
        self.baseline: dict[str, Any] | None = None
        #: microseconds of every contestant of the last re-measurement, median over its processes
        self.last_times: dict[str, float] = {}

    @property
    def header(self) -> dict[str, Any]:
        """Versions that the figures belong to, once something was judged; see `ShapeWorker.header`."""
        return self._child.header

    def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
        """Note the shape, which is the case's name; operands and cuBLASLt's best come with the first look."""
        if case.name != self._shape:
            self._shape, self.baseline = case.name, None

    def run(self, candidate: Candidate) -> Outcome:
        """Judge one configuration (``recipe["config"]``). See `core.Device`."""
        found = self._child.ask({"shape": self._shape, "config": candidate.recipe["config"]})
        seconds = float(found.get("seconds", 0.0))
        if "error" in found:
            if not found.get("lost") and "CudaError" not in found["error"]:
                raise DeviceError(found["error"], where=self._shape)
            return self._outcome(candidate, Verdict.CRASHED, found["error"], seconds)
        self.baseline = self.baseline or found["baseline"]
        verdict = Verdict(found["verdict"])
        if not verdict.ok:
            return self._outcome(candidate, verdict, found["detail"], seconds)
        facts = {"rms_ratio": found["rms_ratio"], "baseline": self.baseline}
        if self.modelled:
            facts["warning"] = "a static estimate against a made-up baseline: nothing was run"
            us, baseline_us = found["us"], found["baseline_us"]
            return Modelled(candidate.digest, None, us * _MHZ, baseline_us * _MHZ, "", seconds, facts)
        return Evaluation(
            candidate.digest,
            verdict,
            found["us"],
            found["baseline_us"],
            statistics.median(found["ratios"]),
            bootstrap_median(found["ratios"]),
            samples=2,
            seconds=seconds,
            facts=facts,
        )

    def _outcome(self, candidate: Candidate, verdict: Verdict, detail: str, seconds: float) -> Outcome:
        kind = Modelled if self.modelled else Evaluation
        return kind(candidate.digest, verdict, detail=detail, seconds=seconds)

    def remeasure(self, candidate: Candidate) -> Evaluation:
        """A frozen configuration and the frozen baseline in fresh processes, the null beside them.

        Raises:
            DeviceError: nothing was judged before, so that there is no baseline yet.
        """
        times, error = self.confirm(candidate.recipe["config"])
        if error:
            return Evaluation(candidate.digest, Verdict.UNSTABLE_BASELINE, detail=error)
        ratios = [paired_ratios(one["lt"], one["ours"]).tolist() for one in times]
        null = [paired_ratios(one["lt"], one["null"]).tolist() for one in times]
        self.last_times = {
            contestant: statistics.median(statistics.median(one[contestant]) for one in times)
            for contestant in times[0]
        }
        return Evaluation(
            candidate.digest,
            Verdict.CORRECT,
            self.last_times["ours"],
            self.last_times["lt"],
            hierarchical_median(ratios),
            hierarchical_bootstrap(ratios),
            hierarchical_median(null),
            hierarchical_bootstrap(null),
            samples=2 * len(times),
            facts={"baseline": self.baseline, "processes": len(times), "times_us": self.last_times},
        )

    def confirm(self, config: dict[str, Any]) -> tuple[list[dict[str, list[float]]], str]:
        """(rounds of every contestant, a dictionary a process; what went wrong, or nothing).

        Raises:
            DeviceError: there is no baseline yet.
        """
        if self.baseline is None:
            raise DeviceError("nothing was judged yet, so there is no baseline", where=self._shape)
        question = {"shape": self._shape, "config": config, "lt": self.baseline}
        times = []
        for process in range(self._processes):
            child = WorkerClient({**self._plan, "mode": "confirm", "process": process})
            try:
                found = child.ask(question)
            finally:
                child.close()
            if "error" in found:
                return [], str(found["error"])
            times.append(found["times"])
        return times, ""

    def environment(self) -> dict[str, Any]:
        """See `core.Device`; with the versions that the figures belong to."""
        return {**environment(), "device": self.name, "cublaslt": self._child.header.get("cublaslt")}

    def close(self) -> None:
        """End the process. Safe to call twice."""
        self._child.close()
