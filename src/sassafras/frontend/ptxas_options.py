"""Options and programs of ptxas: the part of `frontend.ptx` that leaves the text of the PTX alone.

Only options that leave numerics alone are tried: nothing that contracts or flushes floating point
(``--fmad``, ``--optimize-float-atomics``), and no cache operator that may read stale data (``.lu``, forced
operators). ``--opt-level 0`` is left out: it contracts nothing, so it rounds otherwise.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError, ToolMissing
from sassafras.core.errors import os_errors
from sassafras.sass.tools import find_all

#: option -> the values that are tried besides ptxas's default (None), as `PtxasOptions` fields
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "opt_level": (1, 2, 4),
    "load_cache": ("ca", "cg", "cs"),
    "store_cache": ("wb", "cg", "cs", "wt"),
    "register_level": (0, 2, 8, 10),
    "expensive": (False, True),
    "merge_blocks": (False,),
    "optimizer_constants": (False,),
    "max_registers": (32, 40, 48, 64, 80, 96, 128, 168, 255),
}
#: what each field of `PtxasOptions` says to ptxas, in the order of the command line
_FLAGS = {
    "opt_level": "--opt-level={}",
    "load_cache": "--def-load-cache={}",
    "store_cache": "--def-store-cache={}",
    "register_level": "--register-usage-level={}",
    "max_registers": "--maxrregcount={}",
    "expensive": "--allow-expensive-optimizations={}",
    "merge_blocks": "--dont-merge-basicblocks",
    "optimizer_constants": "--disable-optimizer-constants",
    "controls": "{}",
}


@dataclasses.dataclass(frozen=True, slots=True)
class PtxasOptions:
    """One setting of ptxas. None everywhere is what the frontend itself does.

    Attributes:
        ptxas: the program; ``""`` for the frontend's own.
        opt_level: ``--opt-level``.
        load_cache, store_cache: ``--def-load-cache``, ``--def-store-cache`` (accesses without an operator).
        register_level: ``--register-usage-level``.
        expensive: ``--allow-expensive-optimizations``.
        merge_blocks: False for ``--dont-merge-basicblocks``.
        optimizer_constants: False for ``--disable-optimizer-constants``.
        max_registers: ``--maxrregcount``.
        controls: an option of the user's with a file for ptxas, ``--OPTION=FILE``. What the file holds is
            opaque here: only its digest is taken, as part of what a kernel came from.
    """

    ptxas: str = ""
    opt_level: int | None = None
    load_cache: str | None = None
    store_cache: str | None = None
    register_level: int | None = None
    expensive: bool | None = None
    merge_blocks: bool | None = None
    optimizer_constants: bool | None = None
    max_registers: int | None = None
    controls: str | None = None

    @classmethod
    def read(cls, data: Any, ptxas: str = "") -> PtxasOptions:
        """The reverse of `given`, under a ptxas program.

        Raises:
            SassafrasError: an option is none of these, or has a value that is never tried.
        """
        unknown = sorted(set(data) - set(_FLAGS)) if isinstance(data, Mapping) else data
        if unknown or not isinstance(data, Mapping):
            raise SassafrasError(f"unknown ptxas options {unknown!r:.80}")
        for name, value in data.items():
            tried = CHOICES.get(name, ("",))
            known = isinstance(value, str) and name in CHOICES and value not in tried
            if type(value) is not type(tried[0]) or known or (name == "opt_level" and value < 1):
                raise SassafrasError(f"{name} = {value!r:.80} is no setting of ptxas that may be tried")
        return cls(ptxas, **data)

    def flags(self) -> tuple[str, ...]:
        """What is added to the frontend's own flags."""
        given = self.given()
        values = ((name, given[name]) for name in _FLAGS if name in given)
        # (of the options that only switch something off, True is ptxas's own)
        told = ((_FLAGS[n], v) for n, v in values if v is not True or "{}" in _FLAGS[n])
        return tuple(flag.format(str(v).lower() if isinstance(v, bool) else v) for flag, v in told)

    def given(self) -> dict[str, Any]:
        """The options that differ from ptxas's own, the program left out, JSON-able."""
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "ptxas"}
        return {name: value for name, value in named.items() if value is not None}

    def describe(self, version: str) -> str:
        """``ptxas 13.5.37 --opt-level=2``."""
        return " ".join((f"ptxas {version}", *self.flags()))


def controls_digest(controls: str) -> str:
    """sha256 of the file that ``--OPTION=FILE`` names.

    Raises:
        SassafrasError: this is no option with a file, or the file cannot be read.
    """
    option, equals, path = controls.partition("=")
    if not equals or not path or not re.fullmatch(r"--?[A-Za-z][\w-]*", option):
        raise SassafrasError(
            f"{controls!r} is no option of ptxas with a file", hint="for example --apply-controls=FILE"
        )
    with os_errors(f"the file for ptxas's {option} cannot be read", path):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()


# -- programs ---------------------------------------------------------------------------------------------


def home() -> Path:
    """Where fetched ptxas programs are: ``$SASSAFRAS_PTXAS_HOME`` or the user's cache. Raises ToolMissing."""
    if given := os.environ.get("SASSAFRAS_PTXAS_HOME"):
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sassafras" / "ptxas"
    except RuntimeError as error:
        hint = "set HOME, or name a folder with SASSAFRAS_PTXAS_HOME"
        raise ToolMissing("there is no home directory to keep ptxas in", hint=hint) from error


def available() -> list[str]:
    """Every ptxas on this machine: fetched ones, Triton's, the wheels', the toolkit's."""
    fetched: list[str] = []
    with suppress(ToolMissing, OSError):  # no home directory, or one that this process may not look into
        fetched = sorted(str(p) for p in home().glob("*/ptxas"))
    return [*(str(tool.path) for tool in find_all("ptxas")), *fetched]


def wheel_of(version: str) -> str:
    """The registry's requirement that holds a ptxas release.

    >>> wheel_of("12.9.86"), wheel_of("13.5.37")
    ('nvidia-cuda-nvcc-cu12==12.9.86', 'nvidia-cuda-nvcc==13.5.37')
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SassafrasError(f"{version!r} is no release of ptxas", hint="for example 13.5.37")
    return (
        f"nvidia-cuda-nvcc-cu12=={version}" if version.startswith("12.") else f"nvidia-cuda-nvcc=={version}"
    )


@functools.lru_cache
def fetch(version: str, folder: Path | None = None) -> Path:
    """Take one ptxas release out of NVIDIA's wheel with pip (about 40 MB are loaded, the program is kept).

    Raises:
        ToolMissing: pip could not get it, or the wheel holds no ptxas.
    """
    place = (folder or home()) / version / "ptxas"
    if place.is_file():
        return place
    requirement = wheel_of(version)
    with tempfile.TemporaryDirectory(prefix="sassafras-") as scratch:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            message = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise ToolMissing(f"pip could not load {requirement}: {message}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            names = [n for n in wheel.namelist() if n.endswith("bin/ptxas")]
            if not names:
                raise ToolMissing("the wheel holds no ptxas", where=requirement)
            place.parent.mkdir(parents=True, exist_ok=True)
            partial = place.with_suffix(".part")
            partial.write_bytes(wheel.read(names[0]))
    partial.chmod(0o755)
    partial.replace(place)
    return place
