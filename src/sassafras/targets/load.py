"""Targets: what a user may write after ``sassafras optimize``."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
import re
import sys
import traceback
from pathlib import Path
from types import FunctionType, ModuleType

from sassafras import suite
from sassafras.core import Case, Kernel, SassafrasError, Workload, WorkloadError
from sassafras.core.errors import os_errors, reason
from sassafras.frontend import description
from sassafras.frontend.captured import files, workloads

_FORMS = (
    "file.py[:attribute], description.toml, captured.json[:KERNEL], suite:NAME[/CASE], "
    "or gemm:MxNxK[/CONFIGURATION]"
)
_PYTHON = "name a file that ends in .py"
#: beginnings of targets that lie in no file of the user's
NAMED = ("suite:", "gemm:", "gemm-source:")
#: path of a capture's index, and a kernel in it
_INDEX = re.compile(r"(.*\.json)(?::(.*))?", re.DOTALL)


def load(target: str) -> Workload:
    """The workload that a target names, with `Workload.source` set so that another process can load it again.

    Args:
        target: ``path/to/file.py[:attribute]`` (attribute defaults to ``workload``; it may be a `Workload` or
            a function without arguments that returns one), ``path/to/description.toml`` (a raw cubin or a
            CUDA source with a description of its launch), ``captured.json[:KERNEL]`` (of a capture; by
            default the kernel with the most GPU time), ``suite:NAME[/CASE]`` (one of
            `sassafras.suite.names()`; with a case, that case alone), or ``gemm:MxNxK[/CONFIGURATION]`` (one
            of our HGEMM kernels, by default the tuned one), or ``gemm-source:MxNxK[/CONFIGURATION]`` (a
            product that other sources are to compute; that kernel is the baseline).

    Raises:
        WorkloadError: the target cannot be read, found, executed, or is no workload.
    """
    if target.startswith("suite:"):
        return _suite(target)
    if target.startswith("gemm:"):
        from sassafras.gemm.select.workload import load as gemm

        return gemm(target)
    if target.startswith("gemm-source:"):
        from sassafras.gemm.select.source_workload import load as gemm_source

        return gemm_source(target)
    if index := _INDEX.fullmatch(target):
        return _captured(Path(index[1]), index[2] or "")
    text, _, attribute = target.partition(".py:")
    path = Path(text + ".py") if attribute else Path(target)
    if path.suffix == ".cubin":
        raise WorkloadError(
            "a cubin alone does not say how it is launched",
            where=target,
            hint="describe its launch in a .toml file (see docs/reference/file-formats.md), and name that",
        )
    if path.suffix not in (".py", ".toml"):
        what = "a folder is no target" if path.is_dir() else "cannot tell what this is"
        raise WorkloadError(what, where=target, hint=f"a target is {_FORMS}")
    why = ""
    try:
        path = path.expanduser().resolve()
        there = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # no path, or an unknown user's
        there, why = False, f": {reason(error)}"
    if not there:
        raise WorkloadError(f"no such file{why}", where=str(path), hint=f"a target is {_FORMS}")
    if path.suffix == ".toml":
        return dataclasses.replace(description.read(path), source=str(path))
    attribute = attribute or "workload"
    module = execute(path)
    value = getattr(module, attribute, None)
    if value is None or (isinstance(value, FunctionType) and value.__module__.startswith("sassafras.")):
        # (what makes workloads may be imported as `workload`)
        found = [name for name, value in vars(module).items() if isinstance(value, Workload)]
        raise WorkloadError(
            f"the file defines no {attribute!r}",
            where=str(path),
            hint=f"it has {', '.join(f'{path.name}:{n}' for n in found)}" if found else "define a workload",
        )
    if hasattr(value, "forward") and hasattr(value, "named_parameters"):
        raise WorkloadError(
            f"{attribute!r} is a torch.nn.Module, not a Workload",
            where=str(path),
            hint="record its call in Python: sassafras.workload_of(lambda: model(x))",
        )
    if not isinstance(value, Workload) and callable(value) and not hasattr(value, "arg_names"):
        try:
            value = value()
        except Exception as error:
            raise located(error, path) from error
    if not isinstance(value, Workload):
        raise WorkloadError(
            f"{attribute!r} is a {type(value).__name__}, not a Workload",
            where=str(path),
            hint="make one with sassafras.frontend.triton.workload(kernel, cases=[...]), or from a call: "
            "sassafras.workload_of(lambda: kernel[grid](...))",
        )
    return dataclasses.replace(value, source=f"{path}:{attribute}")


def variants(workload: Workload, arch: str) -> list[tuple[Kernel, list[Case]]]:
    """The distinct kernels that the workload's cases select, each with its cases, in the cases' order.

    Cases whose code and launch facts are identical are one variant: what is tuned for one serves the others.

    Args:
        workload: all of its cases are compiled.
        arch: for this architecture, for example ``"sm_90a"``.

    Raises:
        UnsupportedArch, WorkloadError, CompileError: as the workload's frontend raises them.
    """
    groups: dict[object, tuple[Kernel, list[Case]]] = {}
    for case in workload.cases:
        kernel = workload.build(case, arch)
        key = (
            kernel.digest,
            kernel.name,
            kernel.threads,
            kernel.shared_bytes,
            kernel.cluster,
            kernel.parameters,
        )
        groups.setdefault(key, (kernel, []))[1].append(case)
    return list(groups.values())


def _captured(path: Path, which: str) -> Workload:
    """One kernel of a capture; the one with the most GPU time where none is named."""
    captured = files.read(path)
    variant = captured.find(which) if which else captured.variants[0]
    return workloads.workload(captured, variant)


def _suite(target: str) -> Workload:
    name, _, case = target.removeprefix("suite:").partition("/")
    loaded = suite.load(name)
    if case:
        loaded = dataclasses.replace(loaded, cases=(loaded.case(case),))
    return dataclasses.replace(loaded, source=target)


def execute(path: Path) -> ModuleType:
    """Run a user's file as a fresh module; files beside it can be imported.

    Raises:
        WorkloadError: it cannot be read, or raises; with the line.
    """
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    name = f"sassafras_workload_{path.stem}_{digest}"
    with os_errors("cannot read the file", path, WorkloadError, hint=_PYTHON):
        text = path.read_bytes()
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WorkloadError("this is no Python file", where=str(path), hint=_PYTHON)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        # (kept bytecode is known by whole seconds and size, and may be of the text before)
        exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise located(error, path) from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def located(error: BaseException, path: Path) -> WorkloadError:
    """An error that a user's file or its functions raised, with the line of the file."""
    if isinstance(error, SyntaxError) and error.filename:
        return WorkloadError(f"syntax error: {error.msg}", where=f"{error.filename}:{error.lineno}")
    lines = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
    where = f"{path}:{lines[-1].lineno}" if lines else str(path)
    raised = "" if isinstance(error, SassafrasError) else f"the file raised {type(error).__name__}: "
    return WorkloadError(f"{raised}{error}", where=where)
