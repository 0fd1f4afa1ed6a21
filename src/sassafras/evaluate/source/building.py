"""From source text to a kernel, in confinement, or to the verdict why there is none."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sassafras.core import (
    Buffer,
    Case,
    CompileError,
    CubinError,
    Kernel,
    SassafrasError,
    ToolMissing,
    Verdict,
)
from sassafras.core.tensor_map import TensorMap

from ..sandbox import COMPILER_READABLE, LIMIT_VERDICTS, Confinement, NotSafe, ProcessEnd, import_path, run
from ..scan import ScanFinding, scan_cubin, scan_cuda, scan_python
from .launching import Forged, launched, ptxas_flags
from .messages import own_messages
from .text import Source


@dataclass(frozen=True, slots=True)
class Built:
    """What building came to: a kernel, or the verdict why there is none.

    Attributes:
        kernel: ready to be judged; None when refused.
        verdict: None with a kernel; else `compile_error`, `cheated`, `unsupported`, `timed_out` or
            `out_of_resources`.
        detail: the reason.
        seconds: wall time.
        facts: warnings, state bytes, fences missing on this machine.
    """

    kernel: Kernel | None
    verdict: Verdict | None
    detail: str
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)


_FLAG = re.compile(
    r"-D\w+(=[\w.+-]*)?|-O[0-3]|--use_fast_math|-use_fast_math|--?maxrregcount=\d+|-?-std=c\+\+(14|17|20)"
    r"|--?fmad=(true|false)|--?ftz=(true|false)|--?prec-(div|sqrt)=(true|false)"
)


def build(
    source: Source,
    case: Case,
    arch: str,
    *,
    confinement: Confinement | None = None,
    fp32_accumulation: bool = False,
) -> Built:
    """Scan, compile in confinement, scan the binary. Never raises for the source's fault.

    Args:
        source: what to build.
        case: shape, arguments and constants.
        arch: for example ``sm_90a``.
        confinement: limits; by default 60 s, 16 GiB of address space, no network, no files of the user.
        fp32_accumulation: refuse FP16 accumulators and packed-half reductions.

    Raises:
        NotSafe: this machine cannot confine a compiler.
        ToolMissing: no compiler is installed.
    """
    begin = time.perf_counter()
    limits = confinement or Confinement()
    if source.language not in ("cuda", "triton"):
        return Built(None, Verdict.UNSUPPORTED, f"unknown language {source.language!r}", 0.0)
    finding = scan_cuda(source.text) if source.language == "cuda" else scan_python(source.text)
    if finding is None and (bad := [flag for flag in source.flags if not _FLAG.fullmatch(flag)]):
        finding = ScanFinding(Verdict.UNSUPPORTED, f"the compiler flag {bad[0]!r} is not allowed")
    if finding is not None:
        text = f"refused before building: {finding}"
        return Built(None, finding.verdict, text, time.perf_counter() - begin)
    try:
        maker = _build_cuda if source.language == "cuda" else _build_triton
        kernel, missing = maker(source, case, arch, limits)
        scanned, binary = scan_cubin(kernel.cubin, kernel.name, fp32_accumulation=fp32_accumulation)
    except _Refused as error:
        return Built(None, error.verdict, str(error), time.perf_counter() - begin)
    except (CompileError, CubinError) as error:
        return Built(None, Verdict.COMPILE_ERROR, str(error), time.perf_counter() - begin)
    except SassafrasError as error:
        if isinstance(error, ToolMissing | NotSafe):
            raise
        return Built(None, Verdict.UNSUPPORTED, str(error), time.perf_counter() - begin)
    seconds = time.perf_counter() - begin
    facts: dict[str, Any] = {"state_bytes": binary.state_bytes, "language": source.language}
    if missing:
        facts["not_fenced"] = dict(missing)
    if scanned is not None:
        return Built(None, scanned.verdict, f"refused after building: {scanned}", seconds, facts)
    return Built(kernel, None, "", seconds, facts)


class _Refused(Exception):
    """A build that ended without a kernel, and why."""

    def __init__(self, verdict: Verdict, text: str) -> None:
        self.verdict = verdict
        super().__init__(text)


def _run(
    what: str,
    command: Sequence[str],
    limits: Confinement,
    *,
    files: Mapping[str, bytes],
    collect: Sequence[str],
    environment: Mapping[str, str] | None = None,
    words: Callable[[str], str] = str,
) -> ProcessEnd:
    """Run a step of a build, confined. Raises _Refused for one that ended without what it was to make.

    Args:
        what: to call it in a reason.
        words: makes a reason of what it printed.
    """
    done = run(command, limits, files=files, collect=collect, environment=environment)
    stopped = "time" if done.status in (-24, 152) else done.stopped  # SIGXCPU
    if stopped:
        did = {
            "time": f"took longer than {limits.wall_s:g} s",
            "memory": f"held more than {limits.resident_bytes >> 20} MiB",
            "disk": f"wrote more than {limits.disk_bytes >> 20} MiB",
            "processes": f"started more than {limits.processes} processes",
            "threads": f"started more than {limits.threads} threads",
        }
        raise _Refused(LIMIT_VERDICTS[stopped], f"{what} {did[stopped]}")
    starved = re.search(r"bad_alloc|[Oo]ut of memory|MemoryError", done.output)
    if done.status in (-9, -6, -11, 137, 134) or (done.status and starved):
        raise _Refused(Verdict.OUT_OF_RESOURCES, f"{what} ended for want of memory: {_tail(done.output)}")
    if done.status != 0 or set(collect) - set(done.files):
        reason = _tail(words(done.output)) or f"{what} ended with {done.status}"
        raise _Refused(Verdict.COMPILE_ERROR, reason)
    return done


def _tail(text: str) -> str:
    return text if len(text) <= 2000 else "... " + text[-2000:]


def _build_cuda(
    source: Source, case: Case, arch: str, limits: Confinement
) -> tuple[Kernel, Mapping[str, str]]:
    from sassafras.frontend.cubin import kernel_of

    constants = {**case.constants, **source.constants}
    if bad := [name for name in constants if not re.fullmatch(r"[A-Za-z_]\w*", name)]:
        raise _Refused(Verdict.UNSUPPORTED, f"{bad[0]!r} is no name of a macro")
    flags = [*source.flags, *(f"-D{name}={_macro(value)}" for name, value in constants.items())]
    program, extra, version = cuda_compiler(arch)
    done = _run(
        "the compiler",
        [*program, *flags],
        _compiling(limits, extra) if extra else limits,
        files={"kernel.cu": source.text.encode()},
        collect=("kernel.cubin",),
        environment={"PYTHONPATH": os.pathsep.join(import_path())},
        words=lambda printed: own_messages(printed, source.text),
    )
    meta: dict[str, Any] = {"compiler": version, "options": {"flags": flags}, **source.launch}
    kernel = kernel_of(
        done.files["kernel.cubin"],
        source.entry,
        _given(case, source),
        arch,
        source.threads,
        source.shared_bytes,
        meta,
        "the source",
    )
    if kernel.cluster == (1, 1, 1) and source.cluster != (1, 1, 1):
        kernel = replace(kernel, cluster=source.cluster)
    return kernel, done.missing


def cuda_compiler(arch: str) -> tuple[list[str], list[str], str]:
    """(command that makes kernel.cubin of kernel.cu in the scratch folder, folders it reads, its name).

    Raises:
        ToolMissing: neither nvcc nor NVRTC.
    """
    import importlib.util

    from sassafras.sass.tools import find

    try:
        nvcc = find("nvcc")
    except ToolMissing:
        if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
            raise
        command = [sys.executable, "-m", "sassafras.evaluate.source.child", "nvrtc", "{scratch}", arch]
        return command, [], "nvrtc"
    path = nvcc.path.resolve()
    words = ["-cubin", f"-arch={arch}", "-o", "{scratch}/kernel.cubin", "{scratch}/kernel.cu"]
    return [str(path), *words], [str(path.parent.parent)], f"nvcc {nvcc.version}"


def _build_triton(
    source: Source, case: Case, arch: str, limits: Confinement
) -> tuple[Kernel, Mapping[str, str]]:
    from sassafras.sass.tools import find

    request = {
        "entry": source.entry,
        "arch": arch,
        "case": case_to_json(case, source),
    }
    done = _run(
        "Triton",
        [sys.executable, "-m", "sassafras.evaluate.source.child", "triton", "{scratch}"],
        limits,
        files={"candidate.py": source.text.encode(), "request.json": json.dumps(request).encode()},
        collect=("kernel.ptx", "kernel.json"),
        # line tables name the scratch folder: without them, equal code is equal bytes, and is judged once
        environment={"PYTHONPATH": os.pathsep.join(import_path()), "TRITON_DISABLE_LINE_INFO": "1"},
    )
    ptx, given = done.files["kernel.ptx"], _given(case, source)
    try:
        said = json.loads(done.files["kernel.json"])
        flags = ptxas_flags({**case.options, **source.options})
        tool = find("ptxas")
        path = tool.path.resolve()
        flags += [
            f"--gpu-name={_gpu_name(ptx, arch)}",
            "{scratch}/kernel.ptx",
            "-o",
            "{scratch}/kernel.cubin",
        ]
        assembled = _run(
            "ptxas",
            [str(path), *flags],
            _compiling(limits, [str(path.parent.parent)]),
            files={"kernel.ptx": ptx},
            collect=("kernel.cubin",),
            words=lambda printed: f"ptxas: {own_messages(printed, '')}",
        )
        made = launched(
            assembled.files["kernel.cubin"], said, source, given, arch, ptx=ptx, ptxas=str(tool.version)
        )
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise _Refused(Verdict.CHEATED, f"the builder's answer is no kernel: {error}") from error
    return made, {**done.missing, **assembled.missing}


def _gpu_name(ptx: bytes, arch: str) -> str:
    """The architecture that the PTX names, which has to be the one asked for, with or without its ``a``."""
    found = re.search(rb"^\.target\s+(sm_\d+a?)\b", ptx, re.MULTILINE)
    named = found[1].decode() if found else "none"
    if named.rstrip("a") != arch.rstrip("a"):
        raise Forged(f"its PTX is for {named}, not for {arch}")
    return named


def case_to_json(case: Case, source: Source) -> dict[str, Any]:
    """The case as a builder process needs it: fills stay behind, since building never makes inputs."""
    args: dict[str, Any] = {}
    for name, argument in _given(case, source).args.items():
        if isinstance(argument, Buffer):
            args[name] = {"dtype": argument.dtype, "shape": list(argument.shape), "role": argument.role}
        else:
            args[name] = argument
    return {
        "name": case.name,
        "grid": list(source.grid or case.grid),
        "args": args,
        "constants": {**case.constants, **source.constants},
        "options": {**case.options, **source.options},
    }


def _given(case: Case, source: Source) -> Case:
    args: dict[str, Any] = {**case.args, **source.scalars}
    if source.parameters is not None:
        args |= {name: TensorMap.from_json(described) for name, described in source.tensor_maps.items()}
        args = {name: args[name] for name in source.parameters}
    return replace(case, args=args)


def _compiling(limits: Confinement, readable: list[str]) -> Confinement:
    """For a compiler: its own folders, the host compiler's, and of the system what a compiler needs."""
    host = [shutil.which(name) for name in ("gcc", "g++", "c++", "clang++")]
    folders = [str(Path(path).resolve().parent.parent) for path in host if path]
    return replace(limits, system=COMPILER_READABLE, readable=(*limits.readable, *readable, *folders))


def _macro(value: Any) -> str:
    text = str(int(value)) if isinstance(value, bool) else str(value)
    if not re.fullmatch(r"[\w.+-]*", text):
        raise _Refused(Verdict.UNSUPPORTED, f"{text!r} is no plain value of a macro")
    return text
