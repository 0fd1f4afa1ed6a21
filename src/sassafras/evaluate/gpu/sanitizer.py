"""compute-sanitizer on one kernel, where it is installed: run, and read its report.

Its lines begin with nine equals signs; each tool ends with a summary of its own. Only the kernel under test
is instrumented (``--kernel-regex``), so that libraries' kernels neither slow it down nor report. Failed calls
of the host are no findings: libraries ask the driver for functions that it may lack (``cuGetProcAddress``).
A launch that fails is told by `single` itself (`LAUNCH_FAILED`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sassafras.core import Case, Kernel, Workload
from sassafras.cuda.worker_process import package_path

from .protocol import kernel_facts

#: how a single report begins
_REPORT = r"Invalid|Uninitialized|Error|Warning|Race|Barrier|Divergent|Misaligned|Program hit|Out-of"
#: a call by which a library asks what the driver can do; its failure is an answer
_PROBE = r"Program hit \S+ .*on CUDA API call to cuGetProcAddress(_v\d+)?\b"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: options of single tools. Only memcheck reports failed API calls (its manual's table of options)
OPTIONS = {"memcheck": ("--report-api-errors=no",)}
#: how `single` begins the line that tells of a launch that failed; a finding, whatever the tool says
LAUNCH_FAILED = "the kernel's launch failed: "
#: arguments of Python that run `sanitizer_target`
TARGET = ("-m", "sassafras.evaluate.gpu.sanitizer_target")


@dataclass(frozen=True, slots=True)
class SanitizerFinding:
    """What one tool said.

    Attributes:
        tool: of `TOOLS`.
        errors: errors or hazards; None when it did not come to an end.
        first: the first report's lines, joined.
        detail: why it did not come to an end, or ``""``.
    """

    tool: str
    errors: int | None
    first: str = ""
    detail: str = ""

    @property
    def clean(self) -> bool:
        """It ran, and found nothing."""
        return self.errors == 0


def program(name: str = "compute-sanitizer") -> str | None:
    """Where a tool of the CUDA toolkit is, or None."""
    for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if root and (found := Path(root, "bin", name)).is_file():
            return str(found)
    return shutil.which(name)


def run_under(tool: Sequence[str], target: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a Python program under a tool of the CUDA toolkit.

    Args:
        tool: its command with options.
        target: arguments of Python.
        seconds: limit.

    Raises:
        OSError, subprocess.TimeoutExpired: it does not start, or not end.
    """
    return subprocess.run(
        [*tool, sys.executable, "-P", *target],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, **package_path()},
    )


def sanitize(
    workload: Workload, case: Case, kernel: Kernel, *, tools: Sequence[str] = TOOLS, seconds: float = 300.0
) -> list[SanitizerFinding]:
    """Run each tool on a few launches of the kernel. Needs a GPU and `program`.

    Args:
        workload, case: what to launch it on; the workload needs a source.
        kernel: what to launch.
        seconds: limit of each tool.
    """
    path = program()
    if path is None:
        return [SanitizerFinding(tool, None, detail="compute-sanitizer is not installed") for tool in tools]
    findings = []
    with tempfile.TemporaryDirectory(prefix="sassafras-sanitizer-") as folder:
        facts, cubin = Path(folder, "facts.json"), Path(folder, "kernel.cubin")
        facts.write_text(json.dumps(kernel_facts(kernel)))
        cubin.write_bytes(kernel.cubin)
        for tool in tools:
            command = [
                path,
                f"--tool={tool}",
                *OPTIONS.get(tool, ()),
                "--kernel-regex",
                f"kns={kernel.name}",
                "--error-exitcode=0",
                "--print-limit=20",
            ]
            target = [*TARGET, str(workload.source), case.name, "2", str(facts), str(cubin)]
            try:
                done = run_under(command, target, seconds)
            except subprocess.TimeoutExpired:
                findings.append(SanitizerFinding(tool, None, detail=f"not done within {seconds:g} s"))
                continue
            findings.append(parse(tool, done.stdout + "\n" + done.stderr, done.returncode))
    return findings


def parse(tool: str, text: str, status: int = 0) -> SanitizerFinding:
    """Read a report.

    The summary decides, less failed questions to the driver; a launch that failed is an error of its own. A
    report without a summary (the tool or the program died) counts as not done.
    """
    lines = [
        line.removeprefix("=========").strip() for line in text.splitlines() if line.startswith("=========")
    ]
    errors: int | None = None
    for line in lines:
        if found := re.match(r"ERROR SUMMARY: (\d+) error", line):
            errors = int(found[1])
        elif found := re.match(
            r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warn", line
        ):
            errors = int(found[2]) + int(found[3])
    if errors:  # those beyond the print limit are unknown, and stay findings
        errors = max(0, errors - sum(bool(re.match(_PROBE, line)) for line in lines))
    reports = [
        index
        for index, line in enumerate(lines)
        if re.match(_REPORT, line)
        and not re.match(_PROBE, line)
        and not line.startswith(("ERROR SUMMARY", "RACECHECK SUMMARY"))
    ]
    first = ""
    if reports:
        block = []
        for line in lines[reports[0] : reports[0] + 4]:
            if not line:
                break
            block.append(line)
        first = "; ".join(block)
    words = [line.strip() for line in text.splitlines() if line.strip()]
    if failed := next((line for line in words if line.startswith(LAUNCH_FAILED)), ""):
        return SanitizerFinding(tool, max(1, errors or 0), first or failed)
    last = words[-1][:200] if words else "no output"
    if errors is None:
        return SanitizerFinding(tool, None, first, f"no summary (status {status}): {last}")
    if errors == 0 and status != 0:
        return SanitizerFinding(tool, None, first, f"the program ended with status {status}: {last}")
    return SanitizerFinding(tool, errors, first)
