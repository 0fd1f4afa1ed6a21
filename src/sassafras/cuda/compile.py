"""CUDA C++ text to a cubin or to PTX: NVRTC, or nvcc where NVRTC is missing. Needs no GPU and no context."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from sassafras.core import CompileError, ToolMissing


def compile_cuda(source: str, arch: str, *, name: str = "kernels.cu") -> bytes:
    """Compile CUDA C++ (no host code, no includes) for `arch`, for example ``sm_90a``.

    Raises:
        CompileError: the compiler refused the source; its log is in the message.
        ToolMissing: neither NVRTC nor nvcc is there.
    """
    options = [f"--gpu-architecture={arch}", "--std=c++17"]
    try:
        return with_nvrtc(source, options, where=name, name=name)[0]
    except ToolMissing as error:
        if (nvcc := shutil.which("nvcc")) is None:
            raise ToolMissing(
                "neither NVRTC nor nvcc was found", hint="pip install nvidia-cuda-nvrtc"
            ) from error
        return with_nvcc(nvcc, source, options, where=name, name=name)


def with_nvrtc(
    source: str, options: Sequence[str], *, where: str, name: str = "kernel.cu", ptx: bool = False
) -> tuple[bytes, str]:
    """A cubin, or PTX, and NVRTC's release, through NVIDIA's own bindings.

    Args:
        where: what to call the source in errors.
        name: what the compiler calls it.

    Raises:
        CompileError: NVRTC's log.
        ToolMissing: bindings or library are not installed.
    """
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # the bindings raise several types where the library is missing
        raise ToolMissing(
            f"NVRTC cannot be loaded: {error}",
            hint="pip install cuda-bindings nvidia-cuda-nvrtc, or use nvcc",
        ) from error

    def check(result: Any) -> Any:
        status, *values = result
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC failed with {status}", where=where)
        return values[0] if len(values) == 1 else values

    major, minor = check(nvrtc.nvrtcVersion())
    program = check(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    words = [option.encode() for option in options]
    try:
        if nvrtc.nvrtcCompileProgram(program, len(words), words)[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
            check(nvrtc.nvrtcGetProgramLog(program, log))
            message = log.decode(errors="replace").strip("\0 \n")
            raise CompileError(f"NVRTC refused the source:\n{message}", where=where)
        kind = "PTX" if ptx else "CUBIN"
        out = b" " * check(getattr(nvrtc, f"nvrtcGet{kind}Size")(program))
        check(getattr(nvrtc, f"nvrtcGet{kind}")(program, out))
        return out, f"{major}.{minor}"
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def with_nvcc(
    nvcc: str,
    source: str,
    options: Sequence[str],
    *,
    where: str,
    name: str = "kernel.cu",
    ptx: bool = False,
) -> bytes:
    """`with_nvrtc` by the compiler at this path. Raises CompileError with its message."""
    with _folder_of(source) as scratch:
        file, output = scratch / name, scratch / "kernel.out"
        file.write_text(source, "utf-8")
        os.utime(file, (0, 0))  # ptxas writes it into line tables
        command = [nvcc, "-ptx" if ptx else "-cubin", *options, str(file), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
        if done.returncode != 0:
            message = (done.stderr or done.stdout).replace(str(file), name).strip()
            raise CompileError(f"nvcc refused the source:\n{message}", where=where)
        if not output.is_file():
            raise CompileError("nvcc ran and compiled nothing: see the flags", where=where)
        return output.read_bytes()


@contextmanager
def _folder_of(text: str) -> Iterator[Path]:
    """A scratch folder that has the same name for the same text: nvcc makes the names of static variables and
    functions of the file's path, which is in line tables too, and equal sources must be equal cubins.

    One process or thread at a time has it.
    """
    home = Path(tempfile.gettempdir(), f"sassafras-{os.getuid()}")
    folder = home / hashlib.sha256(text.encode()).hexdigest()[:16]
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        found = home.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PermissionError(home)
        held = _locked(folder)
    except OSError:  # another user's, or no file system that locks
        with tempfile.TemporaryDirectory(prefix="sassafras-") as scratch:
            yield Path(scratch)
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        fcntl.flock(held, fcntl.LOCK_UN)  # a child that was forked meanwhile has it, too
        os.close(held)


def _locked(folder: Path) -> int:
    """A descriptor of the folder, which is made and locked."""
    while True:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        with suppress(FileNotFoundError), ExitStack() as opened:  # who had it removes it at any moment
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            opened.callback(os.close, held)
            fcntl.flock(held, fcntl.LOCK_EX)
            if os.path.samestat(folder.lstat(), os.fstat(held)):
                opened.pop_all()
                return held


def ptxas_flags_of_nvcc(nvcc: str, options: Sequence[str], *, where: str) -> tuple[str, ...]:
    """What nvcc adds to its call of ptxas for these options: all but files and architecture.

    Raises:
        CompileError: nvcc refuses the options, or does not say how it calls ptxas.
    """
    with tempfile.TemporaryDirectory(prefix="sassafras-") as scratch:
        file = Path(scratch, "kernel.cu")
        file.touch()
        command = [nvcc, "-cubin", "--dryrun", *options, str(file), "-o", str(Path(scratch, "kernel.out"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stderr.splitlines():
        words = shlex.split(line[2:]) if line.startswith("#$ ") and "ptxas" in line else []
        if words and Path(words[0]).name == "ptxas":
            words = words[: words.index(">")] if ">" in words else words  # of nvcc --threads
            words[words.index("-o") : words.index("-o") + 2] = []
            names = ("-arch=", "--gpu-name=", "-m64")
            return tuple(w for w in words[1:] if not w.startswith(names) and not w.endswith(".ptx"))
    raise CompileError(f"nvcc does not say how it calls ptxas: {done.stderr.strip()[-300:]}", where=where)


def ptxas_flags_of_nvrtc(options: Sequence[str]) -> tuple[str, ...]:
    """Those of NVRTC's options that are ptxas's too, and what ``--ptxas-options`` holds."""
    flags: list[str] = []
    words = [word for option in options for word in option.replace("=", " ", 1).split()]
    for word, value in zip(words, [*words[1:], ""], strict=True):
        name = word.lstrip("-") if word.startswith("-") else ""
        if name in ("fmad", "maxrregcount"):
            flags.append(f"--{name}={value}")
        elif name in ("ptxas-options", "Xptxas"):
            flags += value.split(",")
        elif name in ("device-debug", "G"):
            flags.append("-g")
        elif name in ("generate-line-info", "lineinfo"):
            flags.append("-lineinfo")
    return tuple(flags)
