"""Running ptxas: the same PTX under another assembler."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sassafras.core import CompileError, ToolMissing
from sassafras.core.errors import os_errors, reason


@functools.lru_cache
def ptxas_version(path: str) -> str:
    """The release of a ptxas, for example ``12.8.93``.

    Raises:
        ToolMissing: the program does not run or prints no version.
    """
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise ToolMissing("no such program", where=path, hint="name ptxas by its path") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise ToolMissing(f"this is no ptxas that runs: {reason(error)}", where=path) from error
    found = re.search(r"V(\d+\.\d+\.\d+)", text)
    if not found:
        raise ToolMissing("this does not look like ptxas: it prints no version", where=path)
    return found[1]


def assemble(ptx: str, arch: str, ptxas: str, *, flags: Sequence[str] = (), where: str = "") -> bytes:
    """Assemble PTX into a cubin.

    Args:
        ptx: the text.
        arch: ``--gpu-name``, for example ``sm_90a``.
        ptxas: the program.
        flags: further flags, as the original compiler passed them.
        where: what is compiled, for errors.

    Raises:
        CompileError: ptxas refused it; the message is ptxas's own.
        ToolMissing: ptxas cannot be run, or is none.
    """
    with tempfile.TemporaryDirectory(prefix="sassafras-") as folder:
        source, output = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx, "utf-8")
        command = [ptxas, *flags, f"--gpu-name={arch}", str(source), "-o", str(output)]
        with os_errors("cannot run ptxas", ptxas, ToolMissing):
            done = subprocess.run(
                command, capture_output=True, encoding="utf-8", errors="replace", check=False
            )
        if done.returncode != 0:
            message = (done.stderr or done.stdout).replace(f"{folder}/", "").strip()
            message = message or f"exit status {done.returncode}"
            raise CompileError(
                f"ptxas {ptxas_version(ptxas)} refused the PTX: {message}", where=where or None
            )
        if not output.is_file():
            raise ToolMissing("it ran and wrote no cubin: this is no ptxas", where=ptxas)
        return output.read_bytes()
