"""`check`: a workload's sizes, roles, grid, reference and tolerance, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sassafras.core import Workload, WorkloadError
from sassafras.jobs.opening import DEFAULT_ARCH
from sassafras.precheck import Checked, Checker


def check(
    target: str | Path | Workload, *, case: str | None = None, arch: str | None = None, seconds: float = 10.0
) -> Checked:
    """Check a workload on the CPU: bounds, roles and values in Triton's interpreter, the reference beside it.

    Args:
        target: a workload, or what `sassafras.targets.load` reads.
        case: only this case; by default all.
        arch: architecture to compile for, by default ``sm_90a``.
        seconds: time in Triton's interpreter for each case; what did not run by then is named as unchecked.

    Returns:
        All findings. A target that cannot be loaded is a finding too.
    """
    with Checker(seconds=seconds, arch=arch or DEFAULT_ARCH) as checker:
        return checker.check(target if isinstance(target, Workload) else str(target), case)


def refuse_wrong(
    workload: Workload, case: str, arch: str, say: Callable[[str], None], seconds: float = 5.0
) -> tuple[str, ...]:
    """Check a case before it is modelled, unless it is ours and tested, or recorded from a launch.

    Returns:
        What is doubtful or could not be checked, a note each.

    Raises:
        WorkloadError: something is wrong with it.
    """
    source = workload.source or "suite:"
    if source.startswith(("suite:", "gemm:")) or ".json:" in source:
        return ()
    say("checking the workload in Triton's interpreter")
    found = check(workload, case=case, arch=arch, seconds=seconds)
    if wrong := found.of("wrong"):
        more = f"; {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise WorkloadError(
            f"{wrong[0].about}: {wrong[0].text}{more}",
            where=f"{workload.name}, case {case}",
            hint="`sassafras check` lists all; check=False or --no-check goes on regardless",
        )
    return tuple(str(one) for one in found.findings)
