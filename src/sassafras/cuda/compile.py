"""CUDA C++ text to a cubin: NVRTC, or nvcc where NVRTC is missing. Needs no GPU and no context."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from sassafras.core import CompileError, ToolMissing


def compile_cuda(source: str, arch: str, *, name: str = "kernels.cu") -> bytes:
    """Compile CUDA C++ (no host code, no includes) for `arch`, for example ``sm_90a``.

    Raises:
        CompileError: the compiler refused the source; its log is in the message.
        ToolMissing: neither NVRTC nor nvcc is there.
    """
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # the bindings raise several types when the library is missing
        if shutil.which("nvcc") is None:
            raise ToolMissing(
                "neither NVRTC nor nvcc was found", hint="pip install nvidia-cuda-nvrtc"
            ) from error
        return _with_nvcc(source, arch, name)
    return _with_nvrtc(nvrtc, source, arch, name)


def _with_nvrtc(nvrtc: object, source: str, arch: str, name: str) -> bytes:
    def check(result: tuple) -> object:
        if int(result[0]):
            raise CompileError(f"NVRTC: {getattr(result[0], 'name', result[0])}", where=name)
        return result[1] if len(result) > 1 else None

    api = nvrtc  # type: ignore[assignment]
    program = check(api.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))  # type: ignore[attr-defined]
    try:
        options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
        (code,) = api.nvrtcCompileProgram(program, len(options), options)  # type: ignore[attr-defined]
        if int(code):
            size = int(check(api.nvrtcGetProgramLogSize(program)))  # type: ignore[attr-defined, call-overload]
            log = b" " * size
            check(api.nvrtcGetProgramLog(program, log))  # type: ignore[attr-defined]
            raise CompileError(log.decode(errors="replace").strip("\0 \n"), where=name)
        size = int(check(api.nvrtcGetCUBINSize(program)))  # type: ignore[attr-defined, call-overload]
        cubin = b" " * size
        check(api.nvrtcGetCUBIN(program, cubin))  # type: ignore[attr-defined]
        return cubin
    finally:
        api.nvrtcDestroyProgram(program)  # type: ignore[attr-defined]


def _with_nvcc(source: str, arch: str, name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        text, cubin = Path(folder, name), Path(folder, "out.cubin")
        text.write_text(source)
        command = ["nvcc", f"-arch={arch}", "-std=c++17", "-cubin", "-o", str(cubin), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            raise CompileError(done.stderr.strip(), where=name)
        return cubin.read_bytes()
