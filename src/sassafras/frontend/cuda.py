"""CUDA C++ source as a workload, compiled with nvcc or NVRTC for a named architecture, without a GPU."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from sassafras.core import Case, Kernel, Tolerance, ToolMissing, Workload, WorkloadError
from sassafras.core.errors import os_errors
from sassafras.core.workload import Reference
from sassafras.cuda.compile import ptxas_flags_of_nvcc, ptxas_flags_of_nvrtc, with_nvcc, with_nvrtc
from sassafras.sass.tools import Tool, find

from ._ptxas import assemble, ptxas_version
from .cubin import kernel_of

Compiler = Literal["nvcc", "nvrtc"]


@dataclasses.dataclass(frozen=True)
class CudaSource:
    """One compilation: the text, where its includes lie, for which architecture, and its name in errors."""

    text: str
    folder: Path | None
    arch: str
    flags: tuple[str, ...]
    where: str


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
        source = self._source(case, arch)
        data, version = compile_source(self.compiler, source, ptxas)
        meta = {
            "compiler": f"{self.compiler} {version}",
            "ptxas": ptxas_version(ptxas) if ptxas else version,
            "constants": {k: str(v) for k, v in case.constants.items()},
            "options": {"flags": list(source.flags)},
            "source_hash": hashlib.sha256(self.text.encode()).hexdigest(),
        }
        return kernel_of(data, self.entry, case, arch, self.threads, self.shared_bytes, meta, source.where)

    def ptx(self, case: Case, arch: str) -> str:
        """The PTX of a case. Raises as `__call__` does."""
        return _output(self.compiler, self._source(case, arch), ptx=True)[0].decode().strip("\0 ")

    def ptxas_flags(self, case: Case, arch: str) -> tuple[str, ...]:
        """The flags that the compiler gives its own ptxas for this case. Raises as `__call__` does."""
        return ptxas_flags(self.compiler, self._source(case, arch))

    def _source(self, case: Case, arch: str) -> CudaSource:
        macros = (f"-D{name}={_macro(value)}" for name, value in case.constants.items())
        flags = (*self.flags, *case.options.get("flags", ()), *macros)
        return CudaSource(self.text, self.folder, arch, flags, f"{self.label}, case {case.name}")


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
        try:
            with os_errors("cannot read the source", path, WorkloadError):
                text, folder, stem = path.read_text("utf-8"), path.resolve().parent, path.stem
        except UnicodeDecodeError as error:
            raise WorkloadError(f"it is no text: byte {error.start} is no UTF-8", where=str(path)) from error
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
def compile_source(compiler: Compiler, source: CudaSource, ptxas: str | None) -> tuple[bytes, str]:
    """The cubin and the compiler's release. With another ptxas: the compiler's PTX and flags through that.

    Raises:
        CompileError: the compiler's message.
        ToolMissing: the compiler is not installed.
    """
    output, version = _output(compiler, source, ptx=bool(ptxas))
    if ptxas:
        text, flags = output.decode().strip("\0 "), ptxas_flags(compiler, source)
        output = assemble(text, source.arch, ptxas, flags=flags, where=source.where)
    return output, version


@functools.lru_cache(maxsize=256)
def ptxas_flags(compiler: Compiler, source: CudaSource) -> tuple[str, ...]:
    """The flags with which the compiler has ptxas assemble this source. Raises as `compile_source` does."""
    if compiler == "nvrtc":
        return ptxas_flags_of_nvrtc(source.flags)
    return ptxas_flags_of_nvcc(str(_nvcc().path), _options(source), where=source.where)


@functools.lru_cache(maxsize=256)
def _output(compiler: Compiler, source: CudaSource, *, ptx: bool) -> tuple[bytes, str]:
    """PTX or a cubin, and the compiler's release."""
    options = _options(source)
    if compiler == "nvrtc":
        return with_nvrtc(source.text, options, where=source.where, ptx=ptx)
    nvcc = _nvcc()
    return with_nvcc(str(nvcc.path), source.text, options, where=source.where, ptx=ptx), nvcc.version


def _options(source: CudaSource) -> list[str]:
    include = [f"-I{source.folder}"] if source.folder else []
    return [f"--gpu-architecture={source.arch}", *include, *source.flags]


def _nvcc() -> Tool:
    try:
        return find("nvcc")
    except ToolMissing as error:
        raise ToolMissing(
            "nvcc was not found",
            hint="install a CUDA toolkit, or in the checkout: pip install -e '.[cuda-source]'",
        ) from error


def _macro(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
