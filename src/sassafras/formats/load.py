"""Reads problems and solutions, and tells by the file's name and contents in which format they are."""

from __future__ import annotations

from pathlib import Path

from sassafras.core import WorkloadError
from sassafras.core.errors import reason
from sassafras.evaluate.host import HostSource

from . import flashinfer, kernelbench
from .problem import Problem

_FORMS = "a KernelBench file (.py) or a flashinfer-bench file (.json)"


def load(
    path: str | Path,
    workloads: str | Path | None = None,
    *,
    case: str | None = None,
    device: str = "cpu",
    tolerance: float | None = None,
) -> Problem:
    """A problem from its file; its reference is executed in this process, as a workload file is.

    Args:
        path: a KernelBench problem (``.py``) or the Definition of flashinfer-bench (``.json``).
        workloads: the Definition's workloads (``.jsonl``); not needed where all its axes are constant.
        case: only the workload with this uuid.
        device: where the reference runs, ``cpu`` or ``cuda``.
        tolerance: relative and absolute, instead of the format's own.

    Raises:
        WorkloadError: the file cannot be read, is in neither format, or cannot be judged.
    """
    path = Path(path)
    text = read(path)
    if path.suffix == ".py":
        if workloads is not None or case is not None:
            raise WorkloadError(
                "a KernelBench problem has one set of inputs",
                where=str(path),
                hint="workloads and cases belong to flashinfer-bench",
            )
        return kernelbench.problem(text, str(path), path.stem, device=device, tolerance=tolerance)
    if path.suffix == ".json":
        lines = None if workloads is None else (read(Path(workloads)), str(workloads))
        return flashinfer.problem(text, path, lines, case=case, device=device, tolerance=tolerance)
    raise WorkloadError("cannot tell what this is", where=str(path), hint=f"a problem is {_FORMS}")


def read_solution(problem: Problem, path: str | Path) -> HostSource:
    """A solution of a problem from its file. Nothing of it is executed.

    Raises:
        WorkloadError: it cannot be read, or is no solution of this problem.
    """
    path = Path(path)
    due = ".py" if problem.format == "kernelbench" else ".json"
    if path.suffix != due:
        raise WorkloadError(
            f"a solution of a {problem.format} problem is a {due} file", where=str(path), hint=_FORMS
        )
    return problem.solution(read(path), str(path))


def read(path: Path) -> str:
    """The text of a file. Raises WorkloadError."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise WorkloadError(f"it is no text: byte {error.start} is no UTF-8", where=str(path)) from error
    except OSError as error:
        raise WorkloadError(f"cannot read the file: {reason(error)}", where=str(path)) from error
