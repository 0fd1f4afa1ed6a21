"""Launches that sources declare: read in one form, bounded, built with tensor maps."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from sassafras.core import Buffer, Case
from sassafras.evaluate.sandbox.confine import landlock_version
from sassafras.evaluate.source import build
from sassafras.evaluate.source.declared import DeclarationError, declared

CASE = Case(
    "c",
    (1, 1, 1),
    {
        "a": Buffer("fp16", (256, 64)),
        "c": Buffer("fp16", (256, 64), "out"),
        "counters": Buffer("i32", (8,), "inout"),
    },
)
MAP = {"operand": "a", "box": [64, 32], "swizzle": 128}
GOOD: dict[str, Any] = {
    "entry": "copy", "grid": [8, 2], "threads": 128, "shared_bytes": 4096, "cluster": [2, 1, 1],
    "parameters": ["map_a", "c"], "tensor_maps": {"map_a": MAP},
}  # fmt: skip
BODY = """
struct alignas(64) TensorMap { unsigned long long opaque[16]; };
extern "C" __global__ void copy(const __grid_constant__ TensorMap map_a, unsigned short *c) {
    c[blockIdx.x * 128 + threadIdx.x] = (unsigned short)map_a.opaque[threadIdx.x & 15];
}
"""


def text(**changed: Any) -> str:
    said = {name: value for name, value in {**GOOD, **changed}.items() if value is not None}
    lines = json.dumps(said, indent=1).splitlines()
    return "// a kernel\n// launch: " + "\n// ".join(lines) + BODY


def test_a_launch_is_read() -> None:
    source = declared(text(), CASE)
    assert (source.entry, source.grid, source.threads, source.cluster) == ("copy", (8, 2, 1), 128, (2, 1, 1))
    assert source.parameters == ("map_a", "c")
    described = source.tensor_maps["map_a"]
    assert described["dims"] == (64, 256) and described["strides"] == (128,) and described["box"] == (64, 32)
    assert source.launch["grid"] == [8, 2, 1] and "map_a" in source.launch["tensor_maps"]
    plain = declared(text(tensor_maps=None, cluster=None, shared_bytes=None, parameters=["c"]), CASE)
    assert plain.shared_bytes == 0 and plain.cluster == (1, 1, 1) and not plain.tensor_maps


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"entry": None}, "'entry' is missing"),
        ({"entry": "a b"}, "entry is the name"),
        ({"stream": 1}, "no field 'stream'"),
        ({"threads": 1025}, "threads is a whole number from 1 to 1024, not 1025"),
        ({"threads": True}, "threads is a whole number"),
        ({"threads": "32 * 4"}, "threads is a whole number"),
        ({"grid": [0, 1, 1]}, "grid is a whole number from 1"),
        ({"grid": [1, 1, 1, 1]}, "up to three"),
        ({"grid": [2, 70000]}, "from 1 to 65535"),
        ({"shared_bytes": 232449}, "shared_bytes is a whole number"),
        ({"cluster": [3, 1, 1]}, "divides the grid"),
        ({"cluster": [8, 2, 1]}, "at most 8 blocks"),
        ({"parameters": ["map_a", "d"]}, "the parameter 'd'"),
        ({"parameters": ["c", "c"]}, "twice"),
        ({"parameters": "c"}, "a list of names"),
        ({"tensor_maps": []}, "is an object"),
        ({"tensor_maps": {"c": MAP}}, "a name of its own"),
        ({"tensor_maps": {"map_a": {**MAP, "dims": [1, 1]}}}, "has the fields"),
        ({"tensor_maps": {"map_a": {**MAP, "operand": "counters"}}}, "a matrix of the case"),
        ({"tensor_maps": {"map_a": {**MAP, "operand": "elsewhere"}}}, "a matrix of the case"),
        ({"tensor_maps": {"map_a": {**MAP, "box": [512, 8]}}}, "from 1 to 256"),
        ({"tensor_maps": {"map_a": {**MAP, "box": [64, 64]}}}, "a box of 8192 bytes"),
        ({"tensor_maps": {"map_a": {**MAP, "box": [96, 8]}}}, "swizzle of 128"),
        ({"tensor_maps": {"map_a": {**MAP, "swizzle": 12}}}, "0, 32, 64 or 128"),
    ],
)
def test_what_cannot_be_is_said(changed: dict[str, Any], part: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        declared(text(**changed), CASE)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    "source", ["int x;", "// launch: {", "// launch: [1]", "// launch: {\n//" + "[" * 100_000]
)
def test_no_launch(source: str) -> None:
    with pytest.raises(DeclarationError, match=r"launch"):
        declared(source, CASE)


needs = [
    pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock"),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc"),
]


class TestBuilt:
    """Real builds."""

    pytestmark = needs

    def test_parameters_are_those_declared(self) -> None:
        kernel = build(declared(text(), CASE), CASE, "sm_90a").kernel
        assert kernel is not None and kernel.parameters == (("map_a", "tensormap"), ("c", "*fp16"))
        assert kernel.cluster == (2, 1, 1) and kernel.shared_bytes == 4096
        assert kernel.meta["grid"] == [8, 2, 1] and kernel.meta["tensor_maps"]["map_a"]["operand"] == "a"

    def test_parameters_that_the_kernel_has_not_are_refused(self) -> None:
        built = build(declared(text(parameters=["c", "map_a"]), CASE), CASE, "sm_90a")
        assert built.kernel is None and "parameter 'c' takes 128 bytes" in built.detail
        built = build(declared(text(parameters=["map_a"]), CASE), CASE, "sm_90a")
        assert built.kernel is None and "takes 2 parameters" in built.detail
