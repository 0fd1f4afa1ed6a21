"""`HostEvaluator`: judges Python candidates, one confined process each, beside the baseline's."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from sassafras.core import Buffer, Case, DeviceError, Evaluation, Verdict, Workload
from sassafras.cuda.watcher import Watcher

from ..sandbox import Confinement
from ..scan import scan_python
from .gpu import with_cuda
from .process import HostProcess, HostSource, Lost
from .session import HostSession, HostTask, lay_out, raw_bytes

#: share of the GPU's memory that a process may allocate through torch
GPU_FRACTION = 0.5


class HostEvaluator:
    """Judges Python candidates against a baseline and the workload's reference.

    Args:
        workload: with a reference; its tolerance applies.
        case: whose buffers are the inputs (role ``in``) and outputs (``out``).
        baseline: the function that candidates are compared with; trusted, but run alike.
        device: ``cpu`` or ``cuda``.
        rounds: interleaved rounds of fresh inputs that are timed.
        call_s: seconds that a call may take.
        confinement: of the processes.
        scan: refuse by the text first; False leaves everything to confinement and checks.
        draw: ``draw(seed)``: all inputs by name, as CPU tensors, where they depend on one another.
        control: time a second process of the baseline in the same rounds, for the A/A control.

    Raises:
        DeviceError: no reference, or buffers that are both read and written.
    """

    def __init__(
        self,
        workload: Workload,
        case: Case,
        baseline: HostSource,
        *,
        device: Literal["cpu", "cuda"] = "cpu",
        rounds: int = 8,
        call_s: float = 10.0,
        confinement: Confinement | None = None,
        scan: bool = True,
        draw: Callable[[int], Mapping[str, Any]] | None = None,
        control: bool = False,
    ) -> None:
        if workload.reference is None:
            raise DeviceError("Python candidates need a reference", where=workload.name)
        buffers = {name: arg for name, arg in case.args.items() if isinstance(arg, Buffer)}
        if any(buffer.role == "inout" for buffer in buffers.values()):
            raise DeviceError("Python candidates cannot have inout buffers", where=f"case {case.name}")
        inputs = {name: b for name, b in buffers.items() if b.role == "in"}
        outputs = {name: b for name, b in buffers.items() if b.role == "out"}
        scalars = {n: a for n, a in case.args.items() if not isinstance(a, Buffer)} | dict(case.constants)
        slots, size = lay_out(inputs, outputs)
        self.task = HostTask(workload, inputs, outputs, scalars, slots, size, device, rounds, draw=draw)
        self.baseline, self.call_s, self.scan = baseline, call_s, scan
        # the shared memory counts in what is resident; compilers come in chains of five
        limits = confinement or Confinement(
            wall_s=1800.0 if baseline.builds else 300.0,
            cpu_s=1800 if baseline.builds else 600,
            memory_bytes=None,
            resident_bytes=(8 << 30) + 3 * size,
            processes=12 if baseline.builds else 4,
        )
        # as many for the baseline as for the candidate; a GPU's driver has threads of its own
        limits = replace(limits, cpus=_cpus(2 if device == "cuda" else 1))
        if baseline.builds and (toolkit := os.environ.get("CUDA_HOME")):
            limits = replace(limits, readable=(*limits.readable, toolkit))
        if device == "cuda":
            limits = with_cuda(limits)
        self.confinement = limits
        self._setup: dict[str, Any] = {
            "slots": slots,
            "bytes": size,
            "scalars": scalars,
            "device": device,
            "gpu_fraction": GPU_FRACTION,
            "order": [name for name in case.args if name not in outputs],
        }
        self._standing: HostProcess | None = None
        self._control: HostProcess | None = None
        self._controlled = control
        self._watcher = Watcher()
        if device == "cuda":
            self.task = replace(self.task, alone=self._alone)

    def _alone(self) -> None:
        """Raise `Lost` where work of the candidate is left on the GPU.

        Both processes stand still, so that what runs is a kernel that a request left behind.
        """
        if not self._watcher.idle(3, 0.05):
            raise Lost(Verdict.CHEATED, "it leaves work running on the GPU when it answers")

    def evaluate(self, source: HostSource) -> Evaluation:
        """Judge one candidate. Never raises for its fault.

        Raises:
            DeviceError: the baseline cannot be run, or others use the GPU.
            NotSafe: this machine cannot confine a process.
        """
        digest = source.digest
        begin = time.perf_counter()

        def ended(verdict: Verdict, detail: str, **more: Any) -> Evaluation:
            seconds = time.perf_counter() - begin
            return Evaluation(digest, verdict, detail=detail, seconds=seconds, **more)

        if self.scan:
            language = "python" if source.style == "name" else "module"
            texts = {source.path: source.text, **source.files}
            for text in (text for name, text in texts.items() if name.endswith(".py")):
                if finding := scan_python(text, language):
                    return ended(finding.verdict, f"refused before running: {finding}")
        session: HostSession | None = None
        candidate: HostProcess | None = None
        try:
            # the driver takes a while to end the context of a candidate that was killed
            if self.task.alone is not None and not self._watcher.idle(6, 0.2):
                raise DeviceError("others use the GPU: it cannot be told who leaves work on it")
            baseline = self._baseline()
            first = self._first_inputs(source)
            candidate = self._process(source, first)  # both load at the same time
            with self._trusted():
                baseline.ready()
                if self._control is not None:
                    self._control.ready()
            candidate.ready()
            session = HostSession(self.task, baseline, candidate, self._control)
            if first is not None:
                session.check_first(first)
            session.check()
            return ended(Verdict.CORRECT, "", **session.measure())
        except Lost as error:
            samples = session.samples if session else 0
            return ended(error.verdict, str(error), samples=samples, facts=error.facts)
        except DeviceError:
            self.close()  # the baseline was lost: the next candidate gets a new one
            raise
        finally:
            if candidate is not None:
                candidate.close()

    def _first_inputs(self, source: HostSource) -> Mapping[str, Any] | None:
        """What a source that builds is called with while it loads: inputs of the kind that follow."""
        return self.task.inputs_of(secrets.randbits(62), 0) if source.builds else None

    def _process(self, source: HostSource, first: Mapping[str, Any] | None = None) -> HostProcess:
        rows = self.task.slots[-1]["inputs"] if first is not None else ()
        memory = {row["offset"]: raw_bytes(first[row["name"]]) for row in rows if first is not None}
        return HostProcess(source, self._setup, self.confinement, self.call_s, memory)

    @contextmanager
    def _trusted(self) -> Iterator[None]:
        """What befalls the baseline alone is no fault of the candidate's."""
        try:
            yield
        except Lost as error:
            where = self.task.workload.name
            raise DeviceError(f"the baseline cannot be run: {error}", where=where) from error

    def _baseline(self) -> HostProcess:
        """The baseline's process: started once, again when it was lost or is about to reach its limits.

        The control's with it.
        """
        if any(process is not None and process.tired for process in (self._standing, self._control)):
            self.close()
        if self._standing is None:
            with self._trusted():
                self._standing = self._process(self.baseline, self._first_inputs(self.baseline))
                if self._controlled:
                    self._control = self._process(self.baseline, self._first_inputs(self.baseline))
        return self._standing

    def close(self) -> None:
        """End the baseline's processes, and the one that watches the GPU; safe to call twice."""
        self._watcher.close()
        for process in (self._standing, self._control):
            if process is not None:
                process.close()
        self._standing = self._control = None

    def __enter__(self) -> HostEvaluator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _cpus(count: int) -> tuple[int, ...]:
    """So many of the CPUs that this process may use; other judges on this machine take others."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    first = os.getpid() % max(1, len(usable))
    return tuple(sorted((usable[first:] + usable[:first])[:count]))
