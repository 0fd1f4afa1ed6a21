"""How a Triton candidate's kernel is launched: from the assembled cubin, the case and the source's own words.

The process that compiles a candidate runs the candidate's code, so what it says of the kernel may be forged:
a grid that leaves work out, an overlap with the launch before, tensor maps, a value. None of that is taken.
What only that process knows, and what is taken from it as the author's wish, is which of the case's arguments
the kernel has as parameters, and how much dynamic shared memory and scratch it wants; all of it is bounded,
and the number and sizes of the parameters are the cubin's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib.metadata import version
from math import prod
from typing import Any

from sassafras.core import Case, Kernel
from sassafras.frontend import _image
from sassafras.sass.cubin import Cubin
from sassafras.sass.eiattr import REQNTID

from .text import Source

#: bytes of shared memory a block, and of scratch a block, beyond which nothing is launched
MOST_SHARED, MOST_SCRATCH = 232_448, 1 << 20
#: pointers that Triton adds behind the parameters
MOST_HIDDEN = 2
_PTXAS_FLAG = re.compile(r"-O[0-3]|--opt-level=[0-3]|--?maxrregcount=\d+|--fmad=(?:true|false)")


class Forged(ValueError):
    """What a builder says of its kernel cannot be."""


def ptxas_flags(options: Mapping[str, Any]) -> list[str]:
    """The flags that Triton gives ptxas for these options, line tables left out.

    Raises:
        Forged: an option holds another flag than those of optimisation.
    """
    flags = ["-lineinfo", "-suppress-debug-info"]
    if options.get("enable_fp_fusion", True) is False:
        flags.append("--fmad=false")
    extra = str(options.get("ptx_options") or "").split()
    if bad := [flag for flag in extra if not _PTXAS_FLAG.fullmatch(flag)]:
        raise Forged(f"the ptxas flag {bad[0]!r} is not allowed")
    return [*flags, *extra]


def launched(
    cubin: bytes, said: Mapping[str, Any], source: Source, case: Case, arch: str, *, ptx: bytes, ptxas: str
) -> Kernel:
    """The kernel of a Triton candidate, ready to be launched.

    Args:
        cubin: assembled by us.
        said: ``parameters`` (names of the case's arguments, with types that are not looked at),
            ``shared_bytes`` and ``scratch_bytes``, as the builder's process says.
        source: whose grid, scalars and options are its owner's.
        case: arguments, the source's scalars among them.
        arch: asked for.
        ptx, ptxas: provenance: what was assembled, and by which version.

    Raises:
        Forged: what is said does not fit the cubin or the case.
        UnsupportedArch, CubinError, WorkloadError: no usable cubin.
    """
    parsed = Cubin.parse(cubin)
    entry = _image.find_entry(parsed, None, "the source")
    sizes = _image.parameter_sizes(entry)
    names = [str(pair[0]) for pair in said["parameters"]]
    if unknown := [name for name in names if name not in case.args]:
        raise Forged(f"{unknown[0]!r} is no argument of the case")
    hidden = sizes[len(names) :]
    if len(set(names)) != len(names) or len(names) > len(sizes) or len(hidden) > MOST_HIDDEN:
        raise Forged(f"{len(names)} arguments for {len(sizes)} parameters")
    if any(size != 8 for size in hidden):
        raise Forged("a parameter behind the case's arguments is no pointer")
    scratch = _bounded(said.get("scratch_bytes", 0), MOST_SCRATCH if hidden else 0, "bytes of scratch")
    options = {**case.options, **source.options}
    cluster = _image.cluster_shape(entry)
    if cluster == (1, 1, 1):
        cluster = (int(options.get("num_ctas", 1)), 1, 1)
    chosen = {name: case.args[name] for name in names}
    typed = _image.typed_parameters(sizes[: len(names)], chosen, "the source")
    return Kernel(
        cubin=cubin,
        name=entry.name,
        arch=_image.arch_of(parsed, arch, "the source"),
        threads=_threads(entry),
        shared_bytes=_bounded(said.get("shared_bytes", 0), MOST_SHARED, "bytes of shared memory"),
        cluster=cluster,
        hidden_args=len(hidden),
        scratch_bytes=scratch,
        parameters=typed,
        meta={
            "compiler": "triton",
            "triton": version("triton"),
            "ptxas": ptxas,
            "options": options,
            "constants": {**case.constants, **source.constants},
            "signature": dict(typed),
            "source_hash": hashlib.sha256(source.text.encode()).hexdigest(),
            "ptx_hash": hashlib.sha256(ptx).hexdigest(),
            **source.launch,
        },
    )


def _threads(entry: Any) -> int:
    """Threads a block as the cubin demands them: the driver refuses any other number."""
    for record in entry.info:
        if record.attribute == REQNTID and len(record.payload) >= 12:
            threads = prod(record.words()[:3])
            if 0 < threads <= 1024:
                return threads
    raise Forged("the kernel does not say how many threads a block has")


def _bounded(value: Any, most: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise Forged(f"{value!r} {what}")
    return value
