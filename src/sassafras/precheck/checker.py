"""A check of workloads: what can be read off the compiled kernel, and a worker for what has to be run."""

from __future__ import annotations

import math
import os
import sys
from importlib.util import find_spec
from typing import Any, Self

from sassafras.capture.roles import roles
from sassafras.core import Buffer, Case, DeviceError, SassafrasError, ToolMissing, Workload
from sassafras.cuda.worker_process import WorkerProcess
from sassafras.frontend.captured.workloads import CapturedBuilder
from sassafras.frontend.limit import COMPILE_SECONDS, within
from sassafras.frontend.triton import TritonBuilder
from sassafras.targets import load

from .finding import LEVELS, Checked, Finding, Level

#: blocks along x, y, z that CUDA launches at most
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)
#: seconds for everything but the interpreter: imports, inputs, the reference
_REST_SECONDS = 90.0
#: (declared role, role by the kernel's TTIR) -> how bad, and what to say
_ROLES: dict[tuple[str, str], tuple[Level, str]] = {
    ("in", "out"): ("wrong", 'declared as input, but written: role="out"'),
    ("in", "inout"): ("doubtful", 'declared as input, but perhaps written: role="inout" is always safe'),
    ("out", "in"): ("wrong", 'declared as output, but never written: role="in"'),
    ("inout", "in"): ("doubtful", 'declared as inout, but never written: role="in"'),
}


class Checker:
    """Checks workloads, many with one worker process. A context manager.

    Args:
        seconds: time in Triton's interpreter for one case.
        arch: the architecture that kernels are compiled for.
    """

    def __init__(self, *, seconds: float = 10.0, arch: str = "sm_90a") -> None:
        self.seconds, self.arch = seconds, arch
        self._worker: WorkerProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        findings, programs = list[Finding](), dict[str, tuple[int, int]]()
        for each in cases:
            ttir = self._compiled(workload, each, findings)
            if any(one.level == "wrong" for one in findings if one.case == each.name):
                continue
            ran = self._run(workload, each, ttir, findings)
            if ran is not None:
                programs[each.name] = ran
            if ttir and (ran is None or ran[0] < ran[1]):
                _roles(each, ttir, findings)
        findings.sort(key=lambda one: LEVELS.index(one.level))
        return Checked(label, tuple(c.name for c in cases), tuple(findings), programs)

    def _compiled(self, workload: Workload, case: Case, findings: list[Finding]) -> str:
        """What the case and its compiled kernel say; the kernel's TTIR, where it is one of Triton's."""

        def wrong(about: str, text: str) -> None:
            findings.append(Finding("wrong", about, text, case.name))

        for axis, blocks, most in zip("xyz", case.grid, _MOST_BLOCKS, strict=True):
            if blocks > most:
                wrong("grid", f"{blocks} blocks along {axis}, {most} at most")
        if case.loop_trips is not None and case.loop_trips < 1:
            wrong("loop_trips", "a positive whole number")
        buffers = [a for a in case.args.values() if isinstance(a, Buffer)]
        if buffers and all(buffer.role == "in" for buffer in buffers):
            wrong("role", "no buffer is an output: nothing that the kernel does would be compared")
        if not all(math.isfinite(n) and n >= 0 for n in (workload.tolerance.rtol, workload.tolerance.atol)):
            wrong("tolerance", "rtol and atol must be finite and not negative")
        build, where = workload.build, f"{workload.name}, case {case.name}"
        try:
            if isinstance(build, TritonBuilder):
                return within(COMPILE_SECONDS, lambda: build.ttir(case, self.arch), where)
            within(COMPILE_SECONDS, lambda: build(case, self.arch), where)
        except ToolMissing as error:
            findings.append(Finding("unchecked", "compile", str(error), case.name))
        except SassafrasError as error:
            wrong("compile", str(error))
        return ""

    def _run(
        self, workload: Workload, case: Case, ttir: str, findings: list[Finding]
    ) -> tuple[int, int] | None:
        """Let the worker run a case; how many programs ran, of all, where the kernel is one of Triton's."""
        why = ""
        if isinstance(workload.build, CapturedBuilder):
            why = "a recorded kernel has no source to interpret"
        elif workload.source is None:
            why = "the workload is not in a file that another process can load"
        elif find_spec("torch") is None:
            why = "torch is not installed (a CPU build will do)"
        else:
            try:
                answer = self._ask(workload.source, case.name, ordered="tt.atomic" in ttir)
            except DeviceError as error:
                self.close()
                why = f"the interpreter's process failed: {error}"
            else:
                findings += [Finding(**one) for one in answer["findings"]]
                if isinstance(workload.build, TritonBuilder):
                    return answer["programs"][0], answer["programs"][1]
                why = "only Triton kernels run without a GPU"
        findings.append(Finding("unchecked", "bounds, roles, values", why, case.name))
        return None

    def _ask(self, source: str, case: str, *, ordered: bool) -> dict[str, Any]:
        if self._worker is None or not self._worker.alive:
            self._worker = WorkerProcess(
                "sassafras.precheck.examine",
                environment={
                    "TRITON_INTERPRET": "1",
                    "CUDA_VISIBLE_DEVICES": "",
                    # a workload imports there what it imports here
                    "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
                },
            )
        limit = self.seconds + _REST_SECONDS
        given = {"target": source, "case": case, "seconds": self.seconds, "ordered": ordered}
        return self._worker.ask("examine", limit, **given)


def _roles(case: Case, ttir: str, findings: list[Finding]) -> None:
    """Declared roles that the kernel's TTIR contradicts, unless the interpreter has said so."""
    known = {one.about for one in findings if one.level == "wrong" and one.case == case.name}
    found = roles(ttir) or {}
    for name, argument in case.args.items():
        if isinstance(argument, Buffer) and name not in known:
            said = _ROLES.get((argument.role, found.get(name, "")))
            if said is not None:
                findings.append(Finding(said[0], name, said[1], case.name))
