"""`CudaDevice`: the parent's side. Everything that touches CUDA happens in worker processes."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from sassafras.core import Candidate, Case, DeviceError, Evaluation, Kernel, Verdict, Workload
from sassafras.cuda import ahead
from sassafras.cuda.environment import available, clocks, environment, probe
from sassafras.cuda.fork_server import ForkServer
from sassafras.cuda.worker_process import WorkerDied, WorkerProcess

from .fresh_processes import end, in_turn
from .protocol import WORKER, JudgeSettings, kernel_facts
from .reports import (
    SampleReport,
    broken_sample,
    frozen_evaluation,
    lost,
    quick_evaluation,
    sample_report,
)

#: one slice of sampling; the worker answers after each, so that a hang is noticed
_SLICE_SECONDS = 2.0
_SPECIAL_EVERY = 16
#: fresh processes of a re-measurement, and seconds that one of them measures
PROCESSES, MEASURE_S = 5, 0.7
#: how often a candidate is judged again whose worker was killed from outside: no kernel sends SIGKILL
_KILLED_AGAIN = 2
#: what a process may come to take of the GPU's memory over what it took when it had opened a workload
_GROWTH = 1.4


@dataclass(frozen=True, slots=True)
class Limits:
    """Hard limits of a worker.

    Attributes:
        candidate_s: seconds a candidate may take, all of its checks and timing included.
        open_s: seconds that starting a worker and preparing a workload may take.
        host_bytes: host memory (resident) that a worker may hold.
    """

    candidate_s: float = 5.0
    open_s: float = 300.0
    host_bytes: int = 32 << 30


def first_seed(bitwise: bool) -> int:
    """The first seed of inputs where none was chosen; secret where candidates are no schedules."""
    return 0 if bitwise else secrets.randbits(48)


class CudaDevice:
    """A GPU that judges candidates. Implements `core.protocols.Device`.

    Args:
        limits: hard limits of the workers.
        seeds: input sets that every candidate is checked on.
        pairs: most baseline/candidate pairs that a quick evaluation times.
        stop_above: relative runtime above which quick timing stops early.
        bitwise: candidates must reproduce the baseline's bytes (schedules). False: within the workload's
            tolerance of its reference (other programs: source text, GEMM configurations), on inputs that
            are drawn: programs could know inputs that are the same every time.

    Raises:
        DeviceError: there is no usable GPU; the message says what is missing.
    """

    modelled = False
    #: the module that its worker processes run
    worker = WORKER

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        seeds: int = 2,
        pairs: int = 12,
        stop_above: float = 1.05,
        bitwise: bool = True,
    ) -> None:
        self.name, self.arch = self._find()
        self._server: ForkServer | None = None
        self._serve()
        # nvidia-smi, ptxas and git are asked while the caller compiles
        asking = ThreadPoolExecutor(1)
        self._environment = asking.submit(environment)
        asking.shutdown(wait=False)
        self.limits = limits or Limits()
        self._settings = JudgeSettings(seeds, first_seed(bitwise), bitwise, self.limits.candidate_s)
        self.pairs, self._stop_above = pairs, stop_above
        self._worker: WorkerProcess | None = None
        self._opening = False
        self._what: tuple[Workload, Case, Kernel] | None = None
        self._prepared = False
        #: the worker of `begin`, until it opens
        self._begun: list[WorkerProcess] = []
        #: workers that wait for a re-measurement, with the workload imported
        self._spare: list[WorkerProcess] = []
        #: seconds that the last opening took in the worker
        self._open_s = 0.0
        self.facts: dict[str, Any] = {}
        #: the worker's raw answer to the last `run`: times of every pair, milliseconds of every phase
        self.last_answer: dict[str, Any] = {}
        #: workers that were replaced after a crash or a hang
        self.restarts = 0

    def _find(self) -> tuple[str, str]:
        """Name and arch of the GPU. Raises DeviceError when there is none."""
        usable, reason = available()
        if not usable:
            raise DeviceError(
                f"no usable GPU: {reason}",
                hint="--device model, where a command takes it",
            )
        found = probe()
        return str(found["gpu"]), str(found["arch"])

    def _serve(self) -> None:
        """Have a fork server, also after `close`; without one, each worker is started by itself."""
        if self._server is None:
            with contextlib.suppress(DeviceError):
                self._server = ahead.server(self.worker)

    def _new_worker(self) -> WorkerProcess:
        """A fresh process without a CUDA context: forked, or started where the fork server is gone."""
        if self._server is not None and self._server.alive:
            with contextlib.suppress(DeviceError):
                return WorkerProcess(self.worker, memory_bytes=self.limits.host_bytes, server=self._server)
        return WorkerProcess(self.worker, memory_bytes=self.limits.host_bytes)

    # -- opening ------------------------------------------------------------------------------------------

    def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
        """Prepare inputs and the baseline in a worker process.

        Raises:
            DeviceError: the workload cannot be loaded again (`source` missing), the baseline differs from its
                reference, does not fit, or the GPU is unusable.
        """
        what = self._what or (None, None, None)
        if not self._prepared or what[0] is not workload or what[1] is not case or what[2] is not baseline:
            self.prepare(workload, case, baseline)
        self._prepared = False
        self._ready()

    def begin(self, workload: Workload, case: Case) -> None:
        """Have the worker make its context and compile the other cases while the caller compiles `case`."""
        self._serve()
        if workload.source and self._worker is None and not self._begun:
            with contextlib.suppress(DeviceError):  # `prepare` tries again, and raises
                self._begun.append(self._new_worker())
                self._begun[0].send("load", source=workload.source, all_but=case.name)

    def prepare(self, workload: Workload, case: Case, baseline: Kernel) -> None:
        """Begin what `open` ends, and do not wait for it. Raises DeviceError: `source` is missing."""
        if not workload.source:
            raise DeviceError(
                "a GPU worker loads the workload again from its file, and this one has none",
                where=workload.name,
                hint="load it with sassafras.targets.load('file.py:attribute')",
            )
        self._serve()
        same_worker = self._worker is not None and self._worker.alive and not self._opening
        self._what = (workload, case, baseline)
        if same_worker and self._worker is not None:
            self._send_open(self._worker)
            self._opening = True
        else:
            self._stop()
            self._start()
        self._prepared = True

    def prefork(self) -> None:
        """Fork the processes of a re-measurement, which import the open workload and make no context yet."""
        workload, _, _ = self._opened()
        with contextlib.suppress(DeviceError):  # a re-measurement forks what is missing
            while self._server is not None and self._server.alive and len(self._spare) < PROCESSES:
                self._spare.append(self._new_worker())
                self._spare[-1].send("load", source=workload.source)

    def _fresh(self) -> WorkerProcess:
        """A process without a context, one of `prefork` if there is one that could load the workload."""
        return self._loaded(self._spare)

    def _loaded(self, waiting: list[WorkerProcess]) -> WorkerProcess:
        """The first of these, taken out, that could load the workload; a new one if there is none."""
        while waiting:
            worker = waiting.pop(0)
            try:
                worker.receive(self.limits.open_s)
                return worker
            except DeviceError:
                worker.kill()
        return self._new_worker()

    def _start(self) -> None:
        self._worker = self._loaded(self._begun)
        self._send_open(self._worker)
        self._opening = True

    def _send_open(
        self, worker: WorkerProcess, settings: JudgeSettings | None = None, cold: Kernel | None = None
    ) -> None:
        workload, case, baseline = self._opened()
        worker.send(
            "open",
            [baseline.cubin] + ([cold.cubin] if cold else []),
            source=workload.source,
            case=case.name,
            baseline=kernel_facts(baseline),
            cold=kernel_facts(cold) if cold else None,
            settings=asdict(settings or self._settings),
        )

    def _opened(self) -> tuple[Workload, Case, Kernel]:
        if self._what is None:
            raise DeviceError("the device is not open", hint="call open(workload, case, baseline) first")
        return self._what

    def _ready(self) -> WorkerProcess:
        """The worker, after its pending ``open`` was answered; started afresh if it is gone."""
        self._opened()
        for attempt in range(1 + _KILLED_AGAIN):
            try:
                if self._worker is None or not (self._worker.alive or self._opening):
                    self._stop()
                    self._start()
                assert self._worker is not None
                if self._opening:
                    self.facts = self._worker.receive(self.limits.open_s)
                    self._open_s = float(self.facts["seconds_in_worker"])
                    self._opening = False
                return self._worker
            except DeviceError as error:
                self._stop()
                if attempt == _KILLED_AGAIN or not _killed_from_outside(error):
                    raise
        raise AssertionError("unreachable")

    def _replace(self) -> None:
        """Kill the worker and start another; its preparation overlaps with whatever the caller does next."""
        self._lose()
        self._start()

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = None
        self._opening = False

    def close(self) -> None:
        """Give everything back; safe to call twice."""
        end(self._spare)
        end(self._begun)
        self._stop()  # a GPU process takes a second to end by itself, and has nothing to save
        if self._server is not None:
            self._server.close()
        self._server = self._what = None
        self._prepared = False

    def __enter__(self) -> CudaDevice:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- judging ------------------------------------------------------------------------------------------

    def run(self, candidate: Candidate) -> Evaluation:
        """Check and time one candidate (see docs/measurement). Never raises for the candidate's fault."""
        begin = time.perf_counter()
        for attempt in range(1 + _KILLED_AGAIN):
            try:
                return self._run(candidate)
            except WorkerDied as error:  # by SIGKILL, which no kernel sends
                self._lose()
                if attempt == _KILLED_AGAIN:
                    return lost(candidate, error, time.perf_counter() - begin)
        raise AssertionError("unreachable")

    def _lose(self) -> None:
        self.restarts += 1
        self._stop()

    def _run(self, candidate: Candidate) -> Evaluation:
        """`run`, but a worker that was killed from outside is raised as WorkerDied."""
        worker = self._ready()
        begin = time.perf_counter()
        try:
            worker.send(
                "run",
                [candidate.kernel.cubin],
                kernel=kernel_facts(candidate.kernel),
                pairs=self.pairs,
                stop_above=self._stop_above,
            )
            digest = candidate.digest  # hashed while the GPU works
            answer = worker.receive(self.limits.candidate_s)
        except DeviceError as error:
            if _killed_from_outside(error):
                raise
            self._replace()
            # torch in the worker raises errors of its own
            verdict = error.verdict or (Verdict.CRASHED if "CUDA error" in str(error) else None)
            if verdict is None:
                raise
            seconds = time.perf_counter() - begin
            return Evaluation(candidate.digest, verdict, detail=str(error), seconds=seconds)
        self.last_answer = answer
        evaluation = quick_evaluation(candidate, answer, time.perf_counter() - begin, digest)
        if answer.get("sticky") or answer.get("restart"):
            self._replace()
        return evaluation

    def confirmation_s(self) -> float:
        """Seconds that `remeasure` and the choice before it will take: processes open at a time, as long as
        this worker's opening took, and measure one after another."""
        return 1.0 + 1.2 * self._open_s + MEASURE_S * PROCESSES

    def remeasure(
        self, candidate: Candidate, *, processes: int = PROCESSES, rounds: int = 100, cold_l2: bool = True
    ) -> Evaluation:
        """Measure a frozen candidate in fresh processes, beside the A/A control: the figure to report.

        Every process launches the candidate before anything else (cold), checks all cases on seeds of its
        own, then times baseline, candidate and identity rewrite interleaved. All processes are made ready
        first; then they measure one after another, with nothing else of ours on the GPU.

        Args:
            candidate: of the open baseline.
            processes: fresh processes, at least 2 for an interval (5 for a claim).
            rounds: interleaved rounds a process.
            cold_l2: also time single launches on an evicted L2.
        """
        workload, case, _ = self._opened()
        self._ready()
        begin = time.perf_counter()
        workers: list[WorkerProcess] = []
        limits = self.limits.open_s, self.limits.candidate_s + 30.0
        before, answers, count = None, list[dict[str, Any]](), max(1, processes)
        try:
            for first in range(0, count, together := self._together()):
                for index in range(first, min(first + together, count)):
                    seed = self._settings.base_seed + 5000 + 100 * index
                    workers.append(self._fresh())
                    settings = replace(self._settings, base_seed=seed, cases=self.facts["cases"])
                    self._send_open(workers[-1], settings, candidate.kernel)
                before = before or clocks()  # nvidia-smi, while the workers open
                some = in_turn(workers, candidate, limits, rounds=rounds, cold_l2=cold_l2)
                end(workers)
                if some[0]["verdict"] != Verdict.CORRECT:
                    answers = some
                    break
                answers += some
        finally:
            end(workers)
        facts = {
            "device": self.name,
            "case": case.name,
            "workload": workload.name,
            "clocks_before": before,
            "clocks_after": clocks(),
            "cases_checked": self.facts.get("cases", []),
            "notes": self.facts.get("notes", []),
            "processes_asked": count,
            "open_s": self._open_s,
        }
        return frozen_evaluation(candidate, answers, time.perf_counter() - begin, facts)

    def _together(self) -> int:
        """How many processes that have opened this workload find room in the GPU's memory beside ours."""
        room = self.facts["bytes_free"] / (_GROWTH * self.facts["bytes_taken"])
        return max(1, int(room))

    def sample(
        self,
        candidate: Candidate,
        *,
        seconds: float | None = None,
        count: int | None = None,
        seed: int = 1,
        stop: Callable[[], bool] | None = None,
    ) -> SampleReport:
        """Probabilistic testing: launches on fresh inputs, every output byte compared on the GPU.

        Args:
            seconds, count: stop after so long, or so many samples; give at least one.
            seed: which stream of inputs; different seeds never share a sample.
            stop: asked every two seconds whether to end with what was sampled by then.
        """
        if seconds is None and count is None:
            raise DeviceError("sampling needs seconds, a count, or both")
        worker = self._ready()
        _, case, _ = self._opened()
        spent = 0.0
        answer: dict[str, Any] = {}
        key = f"{candidate.digest}:{seed}:{time.monotonic_ns()}"
        while not answer or (
            (seconds is None or spent < seconds)
            and (count is None or answer["samples"] < count)
            and not (stop is not None and stop())
        ):
            left = _SLICE_SECONDS if seconds is None else min(_SLICE_SECONDS, seconds - spent)
            try:
                answer = worker.ask(
                    "sample",
                    left + 2 * self.limits.candidate_s,
                    [candidate.kernel.cubin],
                    kernel=kernel_facts(candidate.kernel),
                    slice_s=left,
                    most=count,
                    seed=seed,
                    key=key,
                )
            except DeviceError as error:
                if not error.sticky:
                    raise
                self._replace()
                return broken_sample(answer, spent, lost(candidate, error, spent))
            spent += float(answer["seconds"])
            if answer["mismatches"] or answer.get("spoilt"):
                break
        return sample_report({**answer, "seconds": spent}, case.name, _SPECIAL_EVERY)

    def environment(self) -> dict[str, Any]:
        """What every result file must embed: GPU, driver, CUDA, ptxas, versions, clocks, commit, date."""
        return dict(self._environment.result())


def _killed_from_outside(error: DeviceError) -> bool:
    """The worker was ended by SIGKILL, and not by us."""
    return isinstance(error, WorkerDied) and error.signal == signal.SIGKILL
