"""Python candidates: functions of tensors that may run anything on the host. Nothing they say is believed.

A candidate runs in a confined process (see `sandbox`); this process, the judge, owns the clock, the inputs
and the expected outputs. They meet in shared memory: the judge writes fresh random inputs, asks for calls,
takes the wall time until the answer, and compares what lies in the place for outputs. What a candidate does
to its own interpreter (patched timers, `torch` functions, threads, lazy tensors) cannot reach any of that.

The figure is wall time from request to answer, outputs copied to the host included, the same for baseline and
candidate, interleaved. That is conservative: it pulls every ratio towards 1. For the GPU time of a kernel use
`Source`, whose candidates have no host side at all.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sassafras.core import Buffer, Case, DeviceError, Evaluation, Verdict, Workload
from sassafras.core.statistics import bootstrap_median, paired_ratios

from .sandbox import ConfinedProcess, Confinement
from .scan import scan_python

#: device files and facts that CUDA needs, for confined processes on a GPU
CUDA_READABLE = ("/proc/driver/nvidia", "/sys/bus/pci", "/sys/class/drm", "/sys/module/nvidia", "/etc/nvidia")
CUDA_WRITABLE = (
    *(f"/dev/nvidia{index}" for index in range(16)), "/dev/nvidiactl", "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools", "/dev/nvidia-caps", "/dev/nvidia-modeset", "/dev/shm", "/proc/self/task",
)  # fmt: skip
#: calls that are sent together; outputs of all of them are due at the answer
BATCH = 4
#: a candidate that profits this much from repeated inputs, or from several calls at once, beyond the baseline
SUSPICIOUS = 2.0
#: and by at least this many microseconds a call
SUSPICIOUS_US = 300.0


@dataclass(frozen=True, slots=True)
class HostSource:
    """A Python module whose function takes the case's inputs by name and returns its outputs.

    Attributes:
        text: the module. It may import torch, triton, numpy and little else.
        entry: the function: inputs (tensors) and scalars by argument name in; the output tensor, a tuple in
            the order of the case's outputs, or a dict by name out.
        recipe: provenance.
    """

    text: str = field(repr=False)
    entry: str = "run"
    recipe: Mapping[str, Any] = field(default_factory=dict)


class _Lost(Exception):
    """The candidate's process is of no more use; what that says of the candidate."""

    def __init__(self, verdict: Verdict, text: str) -> None:
        self.verdict = verdict
        super().__init__(text)


class _Child:
    """A confined process and the memory shared with it."""

    def __init__(
        self, source: HostSource, layout: Mapping[str, Any], scalars: Mapping[str, Any], device: str,
        limits: Confinement, call_s: float,
    ) -> None:  # fmt: skip
        import sassafras

        self._call_s = call_s
        self._begin = time.monotonic()
        self._memory_fd = os.memfd_create("sassafras-arena")
        os.ftruncate(self._memory_fd, layout["bytes"])
        self.memory = mmap.mmap(self._memory_fd, layout["bytes"])
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        self._pending = b""
        self._next = 0
        root = str(Path(str(sassafras.__file__)).resolve().parent.parent)
        words = ["-m", "sassafras.evaluate.host_child", str(to_child), str(from_child), str(self._memory_fd)]
        try:
            self.process = ConfinedProcess(
                [sys.executable, *words], limits, environment={"PYTHONPATH": root},
                descriptors=(to_child, from_child, self._memory_fd),
            )  # fmt: skip
        finally:
            os.close(to_child)
            os.close(from_child)
        self._send(
            {**layout, "text": source.text, "entry": source.entry, "scalars": scalars, "device": device}
        )
        self._ready = False

    def ready(self) -> None:
        """Wait until it has loaded the source. Raises _Lost."""
        if not self._ready:
            self.receive(max(60.0, self._call_s))
            self._ready = True

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            data = (json.dumps(message) + "\n").encode()
            while data:
                data = data[os.write(self._write, data) :]
        except OSError as error:
            raise self._died() from error

    def ask(self, do: str, slots: Sequence[int]) -> float:
        """Seconds from the request to its answer. Raises _Lost."""
        self._next += 1
        begin = time.perf_counter()
        self._send({"do": do, "slots": list(slots), "id": self._next})
        answer = self.receive(self._call_s)
        seconds = time.perf_counter() - begin
        if answer.get("done") != self._next:
            raise _Lost(Verdict.CHEATED, "it answered for the harness, and wrongly")
        return seconds

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next answer. Raises _Lost."""
        deadline = time.monotonic() + seconds
        looked = time.monotonic()
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._read], [], [], max(0.0, min(left, 0.05)))
            if ready:
                part = os.read(self._read, 65536)
                if not part:
                    raise self._died()
                self._pending += part
                if len(self._pending) > 1 << 20:
                    raise _Lost(Verdict.CHEATED, "it floods the harness's pipe")
                continue
            if left <= 0:
                raise _Lost(Verdict.TIMED_OUT, f"no answer within {seconds:g} s")
            if time.monotonic() - looked > 0.04:
                looked = time.monotonic()
                self._judge_limits()
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise _Lost(Verdict.CHEATED, "it writes into the harness's pipe") from error
        if "error" in answer:
            verdict = {"refused": Verdict.CHEATED, "memory": Verdict.OUT_OF_RESOURCES}.get(
                str(answer.get("kind")), Verdict.COMPILE_ERROR if answer.get("loading") else Verdict.CRASHED
            )
            what = "tried what is not allowed: " if verdict is Verdict.CHEATED else ""
            raise _Lost(verdict, what + str(answer["error"])[:1000])
        return dict(answer)

    def _judge_limits(self) -> None:
        exceeded = self.process.exceeded()
        verdict = {
            "time": Verdict.TIMED_OUT, "memory": Verdict.OUT_OF_RESOURCES, "processes": Verdict.CHEATED
        }.get(exceeded)  # fmt: skip
        if verdict is not None:
            raise _Lost(verdict, f"its process exceeded its limit: {exceeded}")

    def _died(self) -> Exception:
        deadline = time.monotonic() + 2.0
        while self.process.status is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if error := self.process.refused():
            return error
        status, words = self.process.status, self.process.words(500).splitlines()
        verdict = Verdict.TIMED_OUT if status == -24 else Verdict.CRASHED
        return _Lost(verdict, f"its process ended ({status}){': ' + words[-1] if words else ''}")

    def tired(self) -> bool:
        """True when half of its wall time is used up."""
        return time.monotonic() - self._begin > self.process.limits.wall_s / 2

    def close(self) -> None:
        """End the process, give the memory back."""
        self.process.close()
        for fd in (self._write, self._read, self._memory_fd):
            os.close(fd)


class HostEvaluator:
    """Judges Python candidates against a baseline and the workload's reference.

    Args:
        workload: with a reference; its tolerance applies.
        case: whose buffers are the inputs (role ``in``) and outputs (``out``).
        baseline: the function that candidates are compared with; trusted, but run alike.
        device: ``cpu`` or ``cuda``.
        rounds: interleaved rounds of fresh inputs that are timed.
        call_s: seconds that a request of `BATCH` calls may take.
        confinement: of the processes.
        scan: refuse by the text first; False leaves everything to confinement and checks.
        floor_us: no honest call is faster (see `roofline`); None for no bound.
        gpu_fraction: share of the GPU's memory that a process may allocate through torch.
        seed: of the inputs.

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
        floor_us: float | None = None,
        gpu_fraction: float = 0.5,
        seed: int = 0,
    ) -> None:
        if workload.reference is None:
            raise DeviceError("Python candidates need a reference", where=workload.name)
        buffers = {name: arg for name, arg in case.args.items() if isinstance(arg, Buffer)}
        if any(buffer.role == "inout" for buffer in buffers.values()):
            raise DeviceError("Python candidates cannot have inout buffers", where=f"case {case.name}")
        self.workload, self.case, self.baseline, self.device = workload, case, baseline, device
        self.rounds, self.call_s, self.scan, self.floor_us, self.seed = rounds, call_s, scan, floor_us, seed
        self.gpu_fraction = gpu_fraction
        limits = confinement or Confinement(wall_s=300.0, cpu_s=600, memory_bytes=None, processes=4)
        if device == "cuda":
            limits = replace(
                limits, memory_bytes=None, readable=(*limits.readable, *CUDA_READABLE),
                writable=(*limits.writable, *CUDA_WRITABLE),
            )  # fmt: skip
        self.confinement = limits
        self._inputs = {name: b for name, b in buffers.items() if b.role == "in"}
        self._outputs = {name: b for name, b in buffers.items() if b.role == "out"}
        self._scalars = {n: a for n, a in case.args.items() if not isinstance(a, Buffer)} | dict(
            case.constants
        )
        self._layout = self._lay_out()
        self._standing: _Child | None = None

    def close(self) -> None:
        """End the baseline's process; safe to call twice."""
        if self._standing is not None:
            self._standing.close()
        self._standing = None

    def __enter__(self) -> HostEvaluator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _child(self, source: HostSource) -> _Child:
        return _Child(source, self._layout, self._scalars, self.device, self.confinement, self.call_s)

    def _baseline_child(self) -> _Child:
        """The baseline's process: started once, again when it was lost or is about to reach its limits."""
        if self._standing is not None and (
            self._standing.process.status is not None or self._standing.tired()
        ):
            self.close()
        if self._standing is None:
            self._standing = self._child(self.baseline)
        return self._standing

    def _lay_out(self) -> dict[str, Any]:
        from sassafras.device.cuda.arena import TORCH_DTYPES

        at, slots = 4096, []
        for _ in range(BATCH):
            slot: dict[str, list[dict[str, Any]]] = {"inputs": [], "outputs": []}
            for kind, buffers in (("inputs", self._inputs), ("outputs", self._outputs)):
                for name, buffer in buffers.items():
                    slot[kind].append({
                        "name": name, "offset": at, "bytes": buffer.nbytes, "shape": list(buffer.shape),
                        "dtype": TORCH_DTYPES[buffer.dtype],
                    })  # fmt: skip
                    at = -(-(at + buffer.nbytes) // 4096) * 4096 + 4096
            slots.append(slot)
        return {"slots": slots, "bytes": at, "gpu_fraction": self.gpu_fraction}

    # -- judging --------------------------------------------------------------------------------------------

    def evaluate(self, source: HostSource) -> Evaluation:
        """Judge one candidate. Never raises for its fault."""
        import hashlib

        digest = hashlib.sha256(f"{source.entry}\n{source.text}".encode()).hexdigest()
        begin = time.perf_counter()

        def ended(verdict: Verdict, detail: str, **more: Any) -> Evaluation:
            seconds = time.perf_counter() - begin
            return Evaluation(digest, verdict, detail=detail, seconds=seconds, **more)

        if self.scan and (finding := scan_python(source.text, "python")):
            return ended(finding.verdict, f"refused before running: {finding}")
        session = _Session(self)
        try:
            session.start(source)
            session.check()
            return ended(Verdict.CORRECT, "", **session.measure())
        except _Lost as error:
            return ended(error.verdict, str(error), samples=session.samples)
        finally:
            session.close()


class _Session:
    """One candidate beside the baseline: their processes, the inputs written last, what is expected."""

    def __init__(self, judge: HostEvaluator) -> None:
        self.judge = judge
        self.samples = 0
        self._children: list[_Child] = []
        self._seed = judge.seed * 1_000_003
        self._written: list[dict[str, np.ndarray]] = [{} for _ in range(BATCH)]
        self._expected: list[dict[str, np.ndarray]] = [{} for _ in range(BATCH)]
        self._earlier: list[dict[str, np.ndarray]] = []

    def start(self, source: HostSource) -> None:
        self._children = [self.judge._baseline_child(), self.judge._child(source)]  # both start at once
        try:
            self._children[0].ready()
        except _Lost as error:
            self.judge.close()
            raise DeviceError(f"the baseline cannot be run: {error}") from error
        self._children[1].ready()

    def close(self) -> None:
        for child in self._children[1:]:
            child.close()

    def fresh(self, slots: Sequence[int]) -> None:
        """Write new inputs to these slots of both processes, and find out what is expected."""
        import torch

        from sassafras.device.cuda.arena import Segment, fill, view

        judge = self.judge
        assert judge.workload.reference is not None
        for slot in slots:
            self._seed += 1
            tensors: dict[str, Any] = dict(judge._scalars)
            for index, (name, buffer) in enumerate(judge._inputs.items()):
                generator = torch.Generator().manual_seed(self._seed * 131 + index)
                made = fill(Segment(name, 0, buffer), generator, "cpu").view(buffer.shape)
                tensors[name] = made
                self._written[slot][name] = made.contiguous().view(torch.uint8).numpy().reshape(-1).copy()
            for name, buffer in judge._outputs.items():
                blank = torch.zeros(buffer.nbytes, dtype=torch.uint8)
                tensors[name] = view(blank, Segment(name, 0, buffer))
            if self._expected[slot]:
                self._earlier = [*self._earlier[-7:], self._expected[slot]]
            wanted = judge.workload.reference(tensors)
            self._expected[slot] = {n: wanted[n].detach().to(torch.float64).numpy() for n in judge._outputs}
        self.write(slots)

    def write(self, slots: Sequence[int]) -> None:
        """Put the inputs (again) where both processes read them; poison the outputs."""
        for child in self._children:
            for slot in slots:
                for row in self.judge._layout["slots"][slot]["inputs"]:
                    child.memory[row["offset"] : row["offset"] + row["bytes"]] = self._written[slot][
                        row["name"]
                    ].data
                for row in self.judge._layout["slots"][slot]["outputs"]:
                    child.memory[row["offset"] : row["offset"] + row["bytes"]] = b"\xff" * row["bytes"]
        for which in range(len(self._children)):
            self._ask(which, "load", slots)

    def _ask(self, which: int, do: str, slots: Sequence[int]) -> float:
        """`_Child.ask`; what befalls the baseline is no fault of the candidate's."""
        try:
            return self._children[which].ask(do, slots)
        except _Lost as error:
            if which == 0:
                self.judge.close()
                raise DeviceError(
                    f"the baseline was lost: {error}", where=self.judge.workload.name
                ) from error
            raise

    def compare(self, slots: Sequence[int], when: str) -> None:
        """Raise _Lost unless the candidate's outputs are right and its inputs untouched."""
        layout, memory = self.judge._layout, self._children[1].memory
        for slot in slots:
            self.samples += 1
            for row in layout["slots"][slot]["inputs"]:
                raw = np.frombuffer(memory, np.uint8, row["bytes"], row["offset"])
                if not np.array_equal(raw, self._written[slot][row["name"]]):
                    raise _Lost(Verdict.WRONG_RESULT, f"{when}: it modified its input {row['name']}")
            for row in layout["slots"][slot]["outputs"]:
                problem = self._distance(row, memory, self._expected[slot][row["name"]])
                if problem is None:
                    continue
                if any(self._distance(row, memory, old[row["name"]]) is None for old in self._old(slot)):
                    raise _Lost(Verdict.CHEATED, f"{when}: {row['name']} is the result of earlier inputs")
                raise _Lost(Verdict.WRONG_RESULT, f"{when}: {problem}")

    def _old(self, slot: int) -> list[dict[str, np.ndarray]]:
        return self._earlier + [e for index, e in enumerate(self._expected) if index != slot and e]

    def _distance(self, row: Mapping[str, Any], memory: mmap.mmap, wanted: np.ndarray) -> str | None:
        import torch

        raw = np.frombuffer(memory, np.uint8, row["bytes"], row["offset"]).copy()
        got = (
            torch.from_numpy(raw)
            .view(getattr(torch, row["dtype"]))
            .view(row["shape"])
            .to(torch.float64)
            .numpy()
        )
        tolerance = self.judge.workload.tolerance
        allowed = tolerance.atol + tolerance.rtol * np.abs(wanted)
        with np.errstate(invalid="ignore"):
            close = (np.abs(got - wanted) <= allowed) | (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        if close.all():
            return None
        return f"{int((~close).sum())} of {close.size} elements of {row['name']} differ"

    def check(self) -> None:
        """Fresh inputs in every slot, several times over the same memory; then one alone."""
        for number in range(3):
            self.fresh(range(BATCH))
            self._ask(1, "calls", range(BATCH))
            self.compare(range(BATCH), "on its first calls" if number == 0 else "on later calls")
        self.fresh([0])
        self._ask(1, "calls", [0])
        self.compare([0], "on a single call")

    def measure(self) -> dict[str, Any]:
        """Time fresh batches interleaved; repeated inputs and single calls beside them, to compare."""
        fresh, again, alone = (self._condition(name) for name in ("fresh", "again", "alone"))
        self._suspect("repeated inputs", "fresh", "again", fresh, again)
        self._suspect("several calls at once", "alone", "fresh", alone, fresh)
        base, mine = fresh
        wall = float(np.median(mine))
        floor = self.judge.floor_us
        if floor is not None and wall < floor:
            text = f"{wall:.2f} us a call is faster than the machine allows ({floor:.2f} us)"
            raise _Lost(Verdict.CHEATED, text)
        ratios = paired_ratios(base, mine)
        return {
            "time_us": wall, "baseline_us": float(np.median(base)),
            "speedup": float(np.median(ratios)), "interval": bootstrap_median(ratios),
            "samples": self.samples,
            "facts": {
                "wall_time": True, "device": self.judge.device, "calls_a_request": BATCH,
                "single_call_us": [float(np.median(times)) for times in alone],
                "repeated_inputs_us": [float(np.median(times)) for times in again],
                "not_fenced": dict(self._children[1].process.missing),
            },
        }  # fmt: skip

    def _timed(self, slots: list[int], rounds: int, *, refill: bool) -> tuple[list[float], list[float]]:
        """Microseconds a call of baseline and candidate, A B B A; every candidate batch is compared."""
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds):
            if refill:
                self.fresh(slots)
            else:
                self.write(slots)
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                times[which].append(1e6 * self._ask(which, "calls", slots) / len(slots))
            self.compare(slots, "during timing")
        return times

    def _condition(self, name: str) -> tuple[list[float], list[float]]:
        """Times under a condition: ``fresh`` inputs, one call's ``again`` and again, or a call ``alone``."""
        rounds = max(4, self.judge.rounds // 2) if name == "again" else self.judge.rounds
        slots = {"alone": [0], "again": [0] * BATCH}.get(name, list(range(BATCH)))
        return self._timed(slots, rounds, refill=name != "again")

    def _suspect(self, what: str, plain: str, favoured: str, first: Any, second: Any) -> None:
        """Raise _Lost when the candidate gains far more than the baseline where `what` favours it.

        Looks three times, since a busy machine can make one of two medians twice as long.
        """
        for attempt in range(3):
            if attempt:
                first, second = self._condition(plain), self._condition(favoured)
            (base, mine), (base_after, mine_after) = (map(np.median, pair) for pair in (first, second))
            gain, usual = float(mine / mine_after), max(1.0, float(base / base_after))
            if gain <= SUSPICIOUS * usual or float(mine - mine_after) <= SUSPICIOUS_US:
                return
        text = f"it is {gain:.1f} times faster with {what}, the baseline {usual:.1f} times"
        raise _Lost(Verdict.CHEATED, text)
