"""Options of ptxas as a space: the same PTX under other ptxas versions and documented options.

The best of it is the baseline that a schedule search has to beat. ptxas rewrites the whole kernel, so the
validator does not apply between two of its outputs: a candidate is judged as a compiler's output is, by
results on the device. Only options that leave numerics alone are in the space: nothing that contracts or
flushes floating point (``--fmad``, ``--optimize-float-atomics``), and no cache operator that may read
stale data (``.lu``, forced operators). ``--opt-level 0`` is left out: it contracts nothing, so it rounds
otherwise.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.core import Candidate, Case, CompileError, Kernel, SassafrasError, ToolMissing, Workload
from sassafras.sass import Cubin
from sassafras.sass.tools import find_all

from ._ptxas import assemble, ptxas_version

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

    def flags(self) -> tuple[str, ...]:
        """What is added to the frontend's own flags."""
        out: list[str] = []
        for name, flag in (
            ("opt_level", "--opt-level"),
            ("load_cache", "--def-load-cache"),
            ("store_cache", "--def-store-cache"),
            ("register_level", "--register-usage-level"),
            ("max_registers", "--maxrregcount"),
        ):
            value = getattr(self, name)
            if value is not None:
                out.append(f"{flag}={value}")
        if self.expensive is not None:
            out.append(f"--allow-expensive-optimizations={str(self.expensive).lower()}")
        if self.merge_blocks is False:
            out.append("--dont-merge-basicblocks")
        if self.optimizer_constants is False:
            out.append("--disable-optimizer-constants")
        return tuple(out)

    def describe(self, version: str) -> str:
        """``ptxas 13.5.37 --opt-level=2``."""
        return " ".join((f"ptxas {version}", *self.flags()))


@dataclasses.dataclass(frozen=True, slots=True)
class PtxasOptionMove:
    """Set one option."""

    name: str
    value: Any


class PtxasOptionSpace:
    """The kernels that ptxas makes of one PTX. Implements `core.Space`.

    Args:
        kernel: what the frontend itself makes of it, the start of the space, byte for byte.
        ptx: the text.
        tools: other ptxas programs; None: every one that `sass.tools` finds and `installed` knows.
        flags: the frontend's own flags, kept in front.

    Raises:
        ToolMissing: one of `tools` cannot be run.
    """

    def __init__(
        self, kernel: Kernel, ptx: str, tools: Sequence[str | Path] | None = None, flags: Sequence[str] = ()
    ) -> None:
        self.kernel, self.ptx, self.base_flags = kernel, ptx, tuple(flags)
        own = str(kernel.meta.get("ptxas", ""))
        found = [str(t) for t in tools] if tools is not None else available()
        versions: dict[str, str] = {}
        for path in found:
            versions.setdefault(ptxas_version(path), path)
        self.own_version = own
        #: version -> program; the frontend's own is the empty string
        self.tools = {own: "", **{v: p for v, p in sorted(versions.items()) if v != own}}
        self._own_path = versions.get(own, "")
        needed = registers_at_launch(kernel.threads)
        limits = tuple(n for n in CHOICES["max_registers"] if n <= needed)
        self.choices: dict[str, tuple[Any, ...]] = {
            "ptxas": tuple(self.tools.values()),
            **{name: (None, *values) for name, values in CHOICES.items() if name != "max_registers"},
            "max_registers": (None, *limits),
        }

    @property
    def description(self) -> str:
        """What two searches must share to be the same one."""
        return f"ptx {hashlib.sha256(self.ptx.encode()).hexdigest()[:16]}, ptxas {', '.join(self.tools)}"

    def start(self) -> PtxasOptions:
        """The frontend's own setting."""
        return PtxasOptions()

    def moves(self, state: PtxasOptions) -> list[PtxasOptionMove]:
        """Every change of one option."""
        return [
            PtxasOptionMove(name, value)
            for name, values in self.choices.items()
            for value in values
            if getattr(state, name) != value
        ]

    def sample(self, state: PtxasOptions, rng: np.random.Generator) -> PtxasOptionMove | None:
        """One change, uniformly."""
        found = self.moves(state)
        return found[int(rng.integers(len(found)))] if found else None

    def apply(self, state: PtxasOptions, move: PtxasOptionMove) -> PtxasOptions:
        """The changed setting.

        Raises:
            SassafrasError: no such option or value in this space.
        """
        if move.value not in self.choices.get(move.name, ()):
            raise SassafrasError(f"{move.name} = {move.value!r} is not in this space", where="ptxas options")
        return dataclasses.replace(state, **{move.name: move.value})

    def version(self, state: PtxasOptions) -> str:
        """The release of the ptxas that a setting names."""
        return next(v for v, path in self.tools.items() if path == state.ptxas)

    def candidate(self, state: PtxasOptions) -> Candidate:
        """The kernel under this setting.

        Raises:
            CompileError: ptxas refused the PTX or an option; its own message.
        """
        if state == PtxasOptions():
            return Candidate(self.kernel, {"space": "ptxas_options", "ptxas": self.own_version, "flags": []})
        tool = state.ptxas or self._own_path
        if not tool:
            raise ToolMissing(
                f"the frontend's own ptxas {self.own_version} was not found", hint="pass its path in tools"
            )
        data = assemble(
            self.ptx, self.kernel.arch, tool, flags=(*self.base_flags, *state.flags()), where=self.kernel.name
        )
        version = self.version(state)
        meta = {**self.kernel.meta, "ptxas": version, "ptxas_flags": list(state.flags())}
        made = dataclasses.replace(self.kernel, cubin=data, meta=meta)
        return Candidate(made, {"space": "ptxas_options", "ptxas": version, "flags": list(state.flags())})

    def sweep(self) -> Iterator[PtxasOptions]:
        """What `sassafras ptxas-options` tries: each version alone, then each other option under each."""
        for path in self.tools.values():
            yield PtxasOptions(ptxas=path)
        for path in self.tools.values():
            for name, values in self.choices.items():
                if name == "ptxas":
                    continue
                for value in values[1:]:
                    yield dataclasses.replace(PtxasOptions(ptxas=path), **{name: value})

    def distinct(self, settings: Sequence[PtxasOptions] | None = None) -> tuple[list[Candidate], list[str]]:
        """Candidates with different code, first come first, and what ptxas refused.

        Two cubins are the same when their sections of code and constants are; line tables and notes differ
        between any two calls.
        """
        seen: dict[str, Candidate] = {}
        refused = []
        for state in settings if settings is not None else list(self.sweep()):
            try:
                made = self.candidate(state)
            except CompileError as error:
                refused.append(f"{state.describe(self.version(state))}: {error}".splitlines()[0][:200])
                continue
            seen.setdefault(fingerprint(made.kernel.cubin), made)
        return list(seen.values()), refused


def fingerprint(cubin: bytes) -> str:
    """sha256 over what a cubin's kernels execute: code, constants, shared memory and register counts."""
    made = hashlib.sha256()
    parsed = Cubin.parse(cubin)
    for section in sorted(parsed.sections, key=lambda s: s.name):
        if re.match(r"\.(text|nv\.constant\d|nv\.shared|nv\.global)", section.name):
            made.update(f"{section.name}\0{section.size}\0".encode())
            made.update(section.data)
    made.update(repr(sorted((e.name, e.registers) for e in parsed.entries.values())).encode())
    return made.hexdigest()


def registers_at_launch(threads: int) -> int:
    """The most registers a thread of a block of this size can have (65,536 a block, steps of 8, 255)."""
    return min(255, 65536 // max(32, threads) // 8 * 8)


def of(
    workload: Workload, case: Case, arch: str, tools: Sequence[str | Path] | None = None
) -> PtxasOptionSpace:
    """The ptxas options of one case of a workload.

    Raises:
        SassafrasError: the workload has no PTX (a raw cubin).
        CompileError, ToolMissing, UnsupportedArch, WorkloadError: as its frontend raises them.
    """
    make = getattr(workload.build, "ptx", None)
    if make is None:
        raise SassafrasError(
            "ptxas options need PTX, and a raw cubin has none",
            where=workload.name,
            hint="start from the Triton or CUDA source",
        )
    kernel = workload.build(case, arch)
    flags = getattr(workload.build, "ptxas_flags", lambda case, arch: ())(case, arch)
    return PtxasOptionSpace(kernel, make(case, kernel.arch), tools, flags)


# -- programs ---------------------------------------------------------------------------------------------


def home() -> Path:
    """Where fetched ptxas programs are kept: ``$SASSAFRAS_PTXAS_HOME`` or the user's cache."""
    if given := os.environ.get("SASSAFRAS_PTXAS_HOME"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sassafras" / "ptxas"


def available() -> list[str]:
    """Every ptxas on this machine: fetched ones, Triton's, the wheels', the toolkit's."""
    fetched = sorted(str(p) for p in home().glob("*/ptxas")) if home().is_dir() else []
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
