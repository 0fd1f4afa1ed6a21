"""The cubins of a file or folder: a cubin, a program or library that holds some, or a cache of kernels."""

from __future__ import annotations

import struct
import subprocess
import tempfile
from pathlib import Path

from sassafras.core import SassafrasError
from sassafras.core.errors import os_errors
from sassafras.sass.tools import find

_EM_CUDA = 190
_FAT_BINARY = 0xBA55ED50
#: seconds that taking a program apart may last
_EXTRACT_S = 300.0


def cubins_of(path: Path) -> list[tuple[str, bytes]]:
    """(name, bytes) of every cubin.

    Args:
        path: a cubin; an executable, shared library, object file or fat binary, which cuobjdump takes apart;
            or a folder, of which every ``*.cubin`` in it and below is taken (Triton's cache is one).

    Raises:
        SassafrasError: it cannot be read, or holds none.
        ToolMissing: cuobjdump is needed and is not there.
    """
    with os_errors("cannot be read", path):
        if path.is_dir():
            found = [
                (str(file.relative_to(path)), file.read_bytes()) for file in sorted(path.rglob("*.cubin"))
            ]
            if not found:
                raise SassafrasError(
                    "no *.cubin in this folder", where=str(path), hint="name a cache or a file"
                )
            return found
        data = path.read_bytes()
    elf = data[:4] == b"\x7fELF" and len(data) >= 20
    if elf and struct.unpack_from("<H", data, 18)[0] == _EM_CUDA:
        return [(path.name, data)]
    archive = data[:8] == b"!<arch>\n"
    if not elf and not archive and (len(data) < 4 or struct.unpack_from("<I", data)[0] != _FAT_BINARY):
        raise SassafrasError("no cubin, and no program that could hold one", where=str(path))
    return _extracted(path)


def _extracted(path: Path) -> list[tuple[str, bytes]]:
    tool = find("cuobjdump")
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = subprocess.run(
                [str(tool.path), "-xelf", "all", str(path.resolve())],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=_EXTRACT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SassafrasError(f"cuobjdump took over {_EXTRACT_S:.0f} s", where=str(path)) from None
        cubins = [(file.name, file.read_bytes()) for file in sorted(Path(folder).glob("*.cubin"))]
    # what nvcc links in beside the kernels has no code
    found = [(f"{path.name}:{name}", data) for name, data in cubins if b".text." in data]
    if not found:
        said = (run.stderr or run.stdout).strip().splitlines()
        raise SassafrasError(
            f"holds no cubin{': ' + said[0] if said else ''}",
            where=str(path),
            hint="PTX alone is not audited",
        )
    return found
