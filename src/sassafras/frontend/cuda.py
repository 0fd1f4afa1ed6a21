"""CUDA C++ source as a workload, compiled with nvcc or NVRTC for a named architecture, without a GPU."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from sassafras.core import Case, CompileError, Kernel, Tolerance, ToolMissing, Workload, WorkloadError
from sassafras.core.workload import Reference
from sassafras.sass.tools import find

from ._ptxas import assemble, ptxas_version
from .cubin import kernel_of

Compiler = Literal["nvcc", "nvrtc"]


@dataclasses.dataclass(frozen=True)
class CudaBuilder:
    """Compiles one CUDA source for a case and an architecture.

    Attributes:
        text: the source.
        folder: where its includes are looked up first; None for nowhere.
        entry: kernel name, mangled or plain; None when the source defines one kernel.
        threads: threads a block, unless a case's options say otherwise.
        shared_bytes: dynamic shared memory a block, unless a case's options say otherwise.
        flags: compiler flags.
        compiler: ``nvcc`` or ``nvrtc``.
        label: the workload's name, for error messages.
    """

    text: str = dataclasses.field(repr=False)
    folder: Path | None
    entry: str | None
    threads: int
    shared_bytes: int
    flags: tuple[str, ...]
    compiler: Compiler
    label: str

    def __call__(self, case: Case, arch: str, ptxas: str | None = None) -> Kernel:
        """Compile for a case: its constants become ``-DNAME=value``, its option ``flags`` are appended.

        Raises:
            CompileError: the compiler's message.
            ToolMissing: the compiler is not installed.
            WorkloadError: entry or arguments do not fit the compiled kernel.
            UnsupportedArch: the cubin came out for another architecture.
        """
        where = f"{self.label}, case {case.name}"
        flags = (
            *self.flags,
            *case.options.get("flags", ()),
            *(f"-D{name}={_macro(value)}" for name, value in case.constants.items()),
        )
        compile_ = _nvcc if self.compiler == "nvcc" else _nvrtc
        data, version = compile_(self.text, self.folder, arch, flags, ptxas, where)
        meta = {
            "compiler": f"{self.compiler} {version}",
            "ptxas": ptxas_version(ptxas) if ptxas else version,
            "constants": {k: str(v) for k, v in case.constants.items()},
            "options": {"flags": list(flags)},
            "source_hash": hashlib.sha256(self.text.encode()).hexdigest(),
        }
        return kernel_of(data, self.entry, case, arch, self.threads, self.shared_bytes, meta, where)

    def ptx(self, case: Case, arch: str) -> str:
        """The PTX of a case. Raises as `__call__` does."""
        where = f"{self.label}, case {case.name}"
        flags = (
            *self.flags,
            *case.options.get("flags", ()),
            *(f"-D{name}={_macro(value)}" for name, value in case.constants.items()),
        )
        if self.compiler == "nvcc":
            return _run_nvcc("-ptx", self.text, self.folder, arch, flags, where).decode()
        return _run_nvrtc(True, self.text, self.folder, arch, flags, where)[0].decode().strip("\0 ")


def workload(
    source: str | Path,
    cases: Sequence[Case],
    *,
    threads: int,
    entry: str | None = None,
    shared_bytes: int = 0,
    flags: Sequence[str] = (),
    compiler: Compiler = "nvcc",
    reference: Reference | None = None,
    tolerance: Tolerance | None = None,
    name: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Workload:
    """A workload from CUDA C++.

    Args:
        source: a path to a ``.cu`` file, or the source text itself (recognised by its line breaks).
        cases: shapes; `Case.args` in the kernel's parameter order, `Case.constants` as macros. Options
            ``threads``, ``shared_bytes`` and ``flags`` (appended) of a case override those given here.
        threads: threads a block.
        entry: kernel name; may be left out when the source defines one kernel.
        shared_bytes: dynamic shared memory a block.
        flags: further compiler flags, for example ``("-O3", "--use_fast_math")``.
        compiler: ``nvcc`` (the system's or the nvidia-cuda-nvcc wheel's) or ``nvrtc`` (through cuda-core).
        reference: expected outputs in higher precision, by argument name.
        tolerance: how far an output may be from the reference.
        name: defaults to the entry or the file's stem.
        meta: provenance, JSON-able.

    Raises:
        WorkloadError: there is no such file, or the compiler's name is unknown.
    """
    if compiler not in ("nvcc", "nvrtc"):
        raise WorkloadError(f"unknown compiler {compiler!r}", hint="nvcc or nvrtc")
    if isinstance(source, str) and "\n" in source:
        text, folder, stem = source, None, "cuda"
    else:
        path = Path(source)
        if not path.is_file():
            raise WorkloadError("no such source file", where=str(path))
        text, folder, stem = path.read_text(), path.resolve().parent, path.stem
    label = name or entry or stem
    builder = CudaBuilder(text, folder, entry, threads, shared_bytes, tuple(flags), compiler, label)
    return Workload(
        name=label,
        cases=tuple(cases),
        build=builder,
        reference=reference,
        tolerance=tolerance or Tolerance(),
        meta={"frontend": "cuda", **(meta or {})},
    )


@functools.lru_cache(maxsize=256)
def _nvcc(
    text: str, folder: Path | None, arch: str, flags: tuple[str, ...], ptxas: str | None, where: str
) -> tuple[bytes, str]:
    """The cubin and nvcc's release. With another ptxas: nvcc's PTX through that."""
    output = _run_nvcc("-ptx" if ptxas else "-cubin", text, folder, arch, flags, where)
    version = _release(str(find("nvcc").path))
    if ptxas:
        return assemble(output.decode(), arch, ptxas, where=where), version
    return output, version


@functools.lru_cache(maxsize=256)
def _run_nvcc(
    kind: str, text: str, folder: Path | None, arch: str, flags: tuple[str, ...], where: str
) -> bytes:
    """What nvcc writes with ``-ptx`` or ``-cubin``."""
    try:
        nvcc = find("nvcc")
    except ToolMissing as error:
        raise ToolMissing(
            "nvcc was not found", hint="install a CUDA toolkit or pip install 'sassafras[cuda-source]'"
        ) from error
    with tempfile.TemporaryDirectory(prefix="sassafras-") as scratch:
        source, output = Path(scratch, "kernel.cu"), Path(scratch, "kernel.out")
        source.write_text(text)
        include = [f"-I{folder}"] if folder else []
        command = [str(nvcc.path), kind, f"-arch={arch}", *include, *flags, str(source), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            message = (done.stderr or done.stdout).replace(str(source), "kernel.cu").strip()
            raise CompileError(f"nvcc refused the source:\n{message}", where=where)
        return output.read_bytes()


def _nvrtc(
    text: str, folder: Path | None, arch: str, flags: tuple[str, ...], ptxas: str | None, where: str
) -> tuple[bytes, str]:
    """The cubin and NVRTC's release. With another ptxas: NVRTC's PTX through that."""
    output, version = _run_nvrtc(bool(ptxas), text, folder, arch, flags, where)
    if ptxas:
        return assemble(output.decode().strip("\0 "), arch, ptxas, where=where), version
    return output, version


@functools.lru_cache(maxsize=256)
def _run_nvrtc(
    ptx: bool, text: str, folder: Path | None, arch: str, flags: tuple[str, ...], where: str
) -> tuple[bytes, str]:
    """PTX or a cubin and NVRTC's release, through NVIDIA's own bindings (no GPU is touched)."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise ToolMissing(
            "NVRTC needs the CUDA bindings", hint="pip install cuda-bindings nvidia-cuda-nvrtc, or use nvcc"
        ) from error

    def check(result: Any) -> Any:
        status, *values = result
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC failed with {status}", where=where)
        return values[0] if len(values) == 1 else values

    try:
        major, minor = check(nvrtc.nvrtcVersion())
        program = check(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], []))
    except RuntimeError as error:  # the bindings are there, the library is not
        raise ToolMissing(
            f"NVRTC cannot be loaded: {error}", hint="pip install nvidia-cuda-nvrtc, or use nvcc"
        ) from error
    options = [f"--gpu-architecture={arch}".encode(), *(f.encode() for f in flags)]
    if folder:
        options.append(f"-I{folder}".encode())
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), options)[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
            check(nvrtc.nvrtcGetProgramLog(program, log))
            message = log.decode(errors="replace").strip("\0 \n")
            raise CompileError(f"NVRTC refused the source:\n{message}", where=where)
        if ptx:
            out = b" " * check(nvrtc.nvrtcGetPTXSize(program))
            check(nvrtc.nvrtcGetPTX(program, out))
        else:
            out = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
            check(nvrtc.nvrtcGetCUBIN(program, out))
        return out, f"{major}.{minor}"
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@functools.lru_cache
def _release(nvcc: str) -> str:
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", text)
    return found[1] if found else "unknown"


def _macro(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
