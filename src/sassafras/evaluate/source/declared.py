"""Launch facts that a CUDA source declares of itself, in one fixed form that is read and bounded here.

The first comment that says ``launch:`` is followed by one JSON object, over as many comment lines as needed::

    // launch: {"entry": "gemm", "grid": [64, 128, 1], "threads": 256, "shared_bytes": 65536,
    //          "parameters": ["map_a", "b", "c"],
    //          "tensor_maps": {"map_a": {"operand": "a", "box": [64, 128], "swizzle": 128}}}

A tensor map's extents and strides are those of its operand: a two-dimensional row-major buffer of the case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import prod
from typing import Any

from sassafras.core import Buffer, Case, SassafrasError
from sassafras.core.tensor_map import TensorMap
from sassafras.core.workload import DTYPE_BYTES

from .launching import MOST_SHARED
from .text import Source

#: most blocks along each axis, and blocks of a cluster
MOST_GRID, MOST_CLUSTER = ((1 << 31) - 1, 65535, 65535), 8
_FIELDS = ("entry", "grid", "threads", "shared_bytes", "cluster", "parameters", "tensor_maps")
_MAP_FIELDS = ("operand", "box", "swizzle")
_TAG = re.compile(r"^[ \t]*//[ \t]*launch:[ \t]*(?=\{)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_]\w{0,63}")


class DeclarationError(SassafrasError):
    """A source does not say how it is launched, or says something that cannot be. For its author."""


def declared(text: str, case: Case) -> Source:
    """The source with the launch that it declares.

    Args:
        text: CUDA C++.
        case: its arguments are what parameters and tensor maps may name.

    Raises:
        DeclarationError: there is no declaration, a field is unknown, or a value is out of its bounds.
    """
    given = _read(text)
    if unknown := [name for name in given if name not in _FIELDS]:
        raise DeclarationError(
            f"launch: there is no field {unknown[0]!r}", hint="there are " + ", ".join(_FIELDS)
        )
    if missing := [name for name in ("entry", "grid", "threads", "parameters") if name not in given]:
        raise DeclarationError(f"launch: {missing[0]!r} is missing")
    if not isinstance(given["entry"], str) or not _NAME.fullmatch(given["entry"]):
        raise DeclarationError('launch: entry is the name of the kernel, declared extern "C"')
    grid = _triple(given["grid"], "grid", MOST_GRID)
    cluster = _triple(given.get("cluster", [1, 1, 1]), "cluster", (MOST_CLUSTER,) * 3)
    if prod(cluster) > MOST_CLUSTER or any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
        raise DeclarationError(
            f"launch: a cluster has at most {MOST_CLUSTER} blocks, and divides the grid along each axis"
        )
    shared = _whole(given.get("shared_bytes", 0), "shared_bytes", 0, MOST_SHARED)
    maps = {
        name: _tensor_map(name, said, case, shared) for name, said in _object(given, "tensor_maps").items()
    }
    parameters = given["parameters"]
    known = {*case.args, *maps}
    if not isinstance(parameters, list) or not all(isinstance(name, str) for name in parameters):
        raise DeclarationError("launch: parameters is a list of names, in the kernel's order")
    if wrong := [name for name in parameters if name not in known or parameters.count(name) > 1]:
        raise DeclarationError(
            f"launch: the parameter {wrong[0]!r} is not there, or twice", hint="there are " + ", ".join(known)
        )
    return Source(
        "cuda",
        text,
        given["entry"],
        threads=_whole(given["threads"], "threads", 1, 1024),
        shared_bytes=shared,
        cluster=cluster,
        grid=grid,
        parameters=tuple(parameters),
        tensor_maps={name: described for name, described in maps.items() if name in parameters},
    )


def _read(text: str) -> dict[str, Any]:
    tag = _TAG.search(text)
    if tag is None:
        raise DeclarationError(
            "the source declares no launch", hint='a comment "// launch: {...}" at its top'
        )
    lines = text[tag.end() :].split("\n")
    body = [lines[0]]
    for line in lines[1:]:
        if not (comment := re.match(r"[ \t]*//(.*)", line)):
            break
        body.append(comment[1])
    try:
        found, _ = json.JSONDecoder().raw_decode("\n".join(body))
    except (ValueError, RecursionError) as error:
        raise DeclarationError(f"launch: not JSON: {error}") from error
    return dict(found)


def _object(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = given.get(name, {})
    if not isinstance(value, dict):
        raise DeclarationError(f"launch: {name} is an object")
    return value


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise DeclarationError(
            f"launch: {name} is a whole number from {least} to {most}, not {str(value)[:80]}"
        )
    return value


def _triple(value: Any, name: str, most: tuple[int, ...]) -> tuple[int, int, int]:
    if not isinstance(value, list) or not 1 <= len(value) <= 3:
        raise DeclarationError(f"launch: {name} is a list of up to three numbers")
    x, y, z = (_whole(n, name, 1, limit) for n, limit in zip([*value, 1, 1][:3], most, strict=True))
    return x, y, z


def _tensor_map(name: str, said: Any, case: Case, shared: int) -> dict[str, Any]:
    where = f"launch: the tensor map {name[:64]!r}"
    if not _NAME.fullmatch(name) or name in case.args:
        raise DeclarationError(f"{where} needs a name of its own")
    if not isinstance(said, dict) or not set(said) <= set(_MAP_FIELDS) or not {"operand", "box"} <= set(said):
        raise DeclarationError(f"{where} has the fields " + ", ".join(_MAP_FIELDS))
    buffer = case.args.get(str(said["operand"]))
    if not isinstance(buffer, Buffer) or buffer.dtype not in ("fp16", "bf16") or len(buffer.shape) != 2:
        raise DeclarationError(f"{where}: its operand is a matrix of the case in FP16 or BF16")
    box = said["box"]
    if not isinstance(box, list) or len(box) != 2:
        raise DeclarationError(f"{where}: box is [columns, rows]")
    rows, columns = buffer.shape
    width = DTYPE_BYTES[buffer.dtype]
    extents = (_whole(box[0], f"{name}.box", 1, 256), _whole(box[1], f"{name}.box", 1, 256))
    if prod(extents) * width > shared:
        raise DeclarationError(f"{where}: a box of {prod(extents) * width} bytes, with {shared} shared_bytes")
    swizzle = said.get("swizzle", 128)
    if swizzle not in (0, 32, 64, 128):
        raise DeclarationError(f"{where}: swizzle is 0, 32, 64 or 128")
    described = TensorMap(
        str(said["operand"]), buffer.dtype, (columns, rows), (columns * width,), extents, swizzle
    )
    if why := described.why_illegal():
        raise DeclarationError(f"{where}: {why}")
    return described.to_json()
