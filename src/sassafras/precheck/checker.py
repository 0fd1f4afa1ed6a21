"""A check of workloads: what can be read off the compiled kernel, and a worker for what has to be run."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Any, Self

from sassafras.capture.roles import roles
from sassafras.core import Buffer, Case, DeviceError, SassafrasError, Workload
from sassafras.cuda.worker_process import WorkerProcess
from sassafras.frontend.captured.workloads import CapturedBuilder
from sassafras.frontend.triton import TritonBuilder
from sassafras.targets import load

from .finding import Checked, Finding

#: blocks along x, y, z that CUDA launches at most
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)
#: seconds for everything but the interpreter: imports, inputs, the reference
_REST_SECONDS = 90.0
_LEVELS = ("wrong", "doubtful", "unchecked")


class Checker:
    """Checks workloads, many with one worker process. A context manager.

    Args:
        seconds: time in Triton's interpreter for one case.
        arch: the architecture that kernels are compiled for; None: they are not compiled again.
    """

    def __init__(self, *, seconds: float = 10.0, arch: str | None = "sm_90a") -> None:
        self.seconds, self.arch = seconds, arch
        self._worker: WorkerProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def check(self, target: str | Workload, case: str | None = None) -> Checked:
        """Check a target's cases. A target that cannot be loaded or compiled is a finding, not an error.

        Args:
            target: what `sassafras.targets.load` reads, or what it gave.
            case: only this case.
        """
        label = target if isinstance(target, str) else target.name
        try:
            workload = load(target) if isinstance(target, str) else target
            cases = workload.cases if case is None else (workload.case(case),)
        except SassafrasError as error:
            return Checked(label, (), (Finding("wrong", "file", str(error)),), {})
        findings: list[Finding] = []
        programs: dict[str, tuple[int, int]] = {}
        for each in cases:
            found, ran = self._case(workload, each)
            findings += found
            if ran is not None:
                programs[each.name] = ran
        findings.sort(key=lambda one: _LEVELS.index(one.level))
        return Checked(label, tuple(c.name for c in cases), tuple(_without_repeats(findings)), programs)

    def _case(self, workload: Workload, case: Case) -> tuple[list[Finding], tuple[int, int] | None]:
        findings, ttir = self._compiled(workload, case)
        if any(one.level == "wrong" for one in findings):
            return findings, None
        answer = self._run(workload, case, ordered=ttir is None or "tt.atomic" in ttir)
        ran = None
        if isinstance(answer, str):
            findings.append(Finding("unchecked", "bounds, values", answer, case.name))
        else:
            findings += [Finding(**one) for one in answer["findings"]]
            if isinstance(workload.build, TritonBuilder):
                ran = (int(answer["programs"][0]), int(answer["programs"][1]))
            else:
                why = "only Triton kernels run without a GPU"
                findings.append(Finding("unchecked", "bounds, roles, values", why, case.name))
        interpreted = ran is not None and ran[0] == ran[1]
        if ttir is not None and not interpreted:
            findings += _roles(case, roles(ttir), {one.about for one in findings if one.level == "wrong"})
        return findings, ran

    def _compiled(self, workload: Workload, case: Case) -> tuple[list[Finding], str | None]:
        """What the case and its compiled kernel say; and the kernel's TTIR, where it is one of Triton's."""
        findings = []
        for axis, blocks, most in zip("xyz", case.grid, _MOST_BLOCKS, strict=True):
            if blocks > most:
                text = f"{blocks} blocks along {axis}, {most} at most"
                findings.append(Finding("wrong", "grid", text, case.name))
        if case.loop_trips is not None and case.loop_trips < 1:
            findings.append(Finding("wrong", "loop_trips", "a positive whole number", case.name))
        buffers = [a for a in case.args.values() if isinstance(a, Buffer)]
        if buffers and all(buffer.role == "in" for buffer in buffers):
            text = "no buffer is an output: nothing that the kernel does would be compared"
            findings.append(Finding("wrong", "role", text, case.name))
        for number in (workload.tolerance.rtol, workload.tolerance.atol):
            if not math.isfinite(number) or number < 0:
                text = "rtol and atol must be finite and not negative"
                findings.append(Finding("wrong", "tolerance", text))
        if self.arch is None or findings:
            return findings, None
        try:
            if isinstance(workload.build, TritonBuilder):
                return findings, workload.build.ttir(case, self.arch)
            workload.build(case, self.arch)
        except SassafrasError as error:
            level: Any = "unchecked" if type(error).__name__ == "ToolMissing" else "wrong"
            findings.append(Finding(level, "compile", str(error), case.name))
        return findings, None

    def _run(self, workload: Workload, case: Case, *, ordered: bool) -> dict[str, Any] | str:
        """The worker's answer, or why there is none."""
        from importlib.util import find_spec

        if isinstance(workload.build, CapturedBuilder):
            return "a recorded kernel has no source to interpret"
        if workload.source is None:
            return "the workload is not in a file that another process can load"
        if find_spec("torch") is None:
            return "torch is not installed (a CPU build will do)"
        try:
            if self._worker is None or not self._worker.alive:
                self._worker = WorkerProcess(
                    "sassafras.precheck.worker",
                    environment={"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
                )
            return self._worker.ask(
                "examine",
                self.seconds + _REST_SECONDS,
                target=workload.source,
                case=case.name,
                seconds=self.seconds,
                ordered=ordered,
            )
        except DeviceError as error:
            self.close()
            return f"the interpreter's process failed: {error}"


def _roles(case: Case, found: Any, known: set[str]) -> list[Finding]:
    """Declared roles that the kernel's TTIR contradicts."""
    findings = []
    for name, argument in case.args.items():
        if not isinstance(argument, Buffer) or found is None or name not in found or name in known:
            continue
        actual, declared = found[name], argument.role
        if declared == "in" and actual == "out":
            findings.append(Finding("wrong", name, 'declared as input, but written: role="out"', case.name))
        elif declared == "in" and actual == "inout":
            text = 'declared as input, but perhaps written: role="inout" is always safe'
            findings.append(Finding("doubtful", name, text, case.name))
        elif declared == "out" and actual == "in":
            findings.append(Finding("wrong", name, "declared as output, but never written", case.name))
        elif declared == "inout" and actual == "in":
            findings.append(Finding("doubtful", name, "declared as inout, but never written", case.name))
    return findings


def _without_repeats(findings: list[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))
