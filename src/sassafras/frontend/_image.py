"""Launch facts that a cubin holds: entries, parameter sizes, cluster shape, architecture."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

from sassafras.core import Buffer, Case, CubinError, UnsupportedArch, WorkloadError
from sassafras.core.tensor_map import TensorMap
from sassafras.core.workload import Argument
from sassafras.sass.cubin import Cubin, Entry
from sassafras.sass.eiattr import KPARAM_INFO

_CTA_PER_CLUSTER = 0x3D
_TENSOR_MAP_BYTES = 128
#: threads a block and bytes of shared memory of a block, at most (sm_80 to sm_120)
MOST_THREADS, MOST_SHARED = 1024, 232_448
_WHOLE = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}
_REAL = {4: "fp32", 8: "fp64"}


def find_entry(cubin: Cubin, name: str | None, where: str) -> Entry:
    """The kernel of this name, mangled or (where unambiguous) plain; the only kernel for None.

    Raises:
        WorkloadError: no such kernel, or several.
    """
    names = list(cubin.entries)
    if name is None:
        found = names
    elif name in cubin.entries:
        found = [name]
    else:
        found = [n for n in names if _plain(n) == name]
    if len(found) != 1:
        what = f"the cubin has {len(names)} kernels" if name is None else f"no single kernel {name!r}"
        raise WorkloadError(what, where=where, hint="set entry to one of " + ", ".join(sorted(names)))
    return cubin.entries[found[0]]


def _plain(mangled: str) -> str:
    """A function's own name in its mangled one, without namespaces, template's and other arguments."""
    found = re.match(r"_Z(N?)", mangled)
    own, at = "", found.end() if found else len(mangled)
    while (length := re.compile(r"L?(\d+)").match(mangled, at)) and (not own or (found and found[1])):
        own = mangled[length.end() : length.end() + int(length[1])]
        at = length.end() + len(own)
    return own


def parameter_sizes(entry: Entry) -> list[int]:
    """Bytes of each kernel parameter, in order.

    Each KPARAM_INFO record is u32 index, u16 ordinal, u16 offset, u32 of which the bits from 18 on are the
    size (observed on nvcc 13.0 and Triton cubins, checked against known signatures).

    Raises:
        CubinError: the records do not number the parameters 0, 1, 2, ...
    """
    sizes: dict[int, int] = {}
    for record in entry.info:
        if record.attribute == KPARAM_INFO:
            if len(record.payload) < 12:
                raise CubinError("a parameter record is too short", where=entry.name)
            _, ordinal, _, packed = struct.unpack_from("<IHHI", record.payload)
            sizes[ordinal] = packed >> 18
    if sorted(sizes) != list(range(len(sizes))):
        raise CubinError(f"parameter records {sorted(sizes)} have gaps", where=entry.name)
    return [sizes[i] for i in range(len(sizes))]


def cluster_shape(entry: Entry) -> tuple[int, int, int]:
    """The compile-time cluster shape (`__cluster_dims__`), (1, 1, 1) for none."""
    for record in entry.info:
        if record.attribute == _CTA_PER_CLUSTER and len(record.payload) >= 12:
            x, y, z = record.words()[:3]
            return (x, y, z)
    return (1, 1, 1)


def arch_of(cubin: Cubin, asked: str, where: str) -> str:
    """The cubin's architecture, when it serves the one asked for.

    Raises:
        UnsupportedArch: it is for another compute capability.
    """
    plain = f"sm_{cubin.sm}"
    if asked not in (plain, plain + "a"):
        raise UnsupportedArch(f"the cubin is for {plain}, not {asked}", where=where)
    return plain + "a" if (asked.endswith("a") if cubin.accelerated is None else cubin.accelerated) else plain


def typed_parameters(
    sizes: list[int], args: Mapping[str, Argument | TensorMap], where: str
) -> tuple[tuple[str, str], ...]:
    """(name, type) of each parameter, from the case's arguments and the sizes that the cubin states.

    Raises:
        WorkloadError: the numbers differ, or an argument cannot have its parameter's size.
    """
    if len(sizes) != len(args):
        raise WorkloadError(
            f"the kernel takes {len(sizes)} parameters, the case gives {len(args)} arguments", where=where
        )
    typed: list[tuple[str, str]] = []
    for (name, arg), size in zip(args.items(), sizes, strict=True):
        if isinstance(arg, TensorMap):
            kind = "tensormap" if size == _TENSOR_MAP_BYTES else None
        elif isinstance(arg, Buffer):
            kind = f"*{arg.dtype}" if size == 8 else None
        else:
            kind = (_REAL if isinstance(arg, float) else _WHOLE).get(size)
        if kind is None:
            given = "a buffer" if isinstance(arg, Buffer) else f"the {type(arg).__name__} {arg!r}"
            raise WorkloadError(
                f"parameter {name!r} takes {size} bytes, which {given} cannot fill", where=where
            )
        typed.append((name, kind))
    return tuple(typed)


def whole_option(case: Case, name: str, default: int | None, where: str, least: int, most: int) -> int:
    """A whole number from the case's options, or the workload's default.

    Raises:
        WorkloadError: neither gives one, or it is out of bounds or no whole number.
    """
    value = case.options.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise WorkloadError(
            f"{name} must be a whole number from {least} to {most}, got {value!r}", where=where
        )
    return value
