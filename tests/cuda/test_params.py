"""Argument packing, frames and launch facts."""

from __future__ import annotations

import ctypes
import math
import os
import struct

import pytest

from sassafras.core import Buffer, Case, DeviceError, Kernel
from sassafras.cuda.frames import read_frame, write_frame
from sassafras.cuda.params import ParameterBlock, default_type, encode, size_of, values
from sassafras.evaluate.gpu.protocol import kernel_facts, kernel_from_facts

CASE = Case(
    "c",
    (1, 1, 1),
    {"y": Buffer("fp32", (4,), "out"), "x": Buffer("fp16", (4,)), "n": 5, "big": 1 << 40, "s": 0.5},
)


def kernel(**changes: object) -> Kernel:
    return Kernel(b"cubin", "k", "sm_90a", threads=32, **changes)  # type: ignore[arg-type]


def read_block(block: ParameterBlock, sizes: list[int]) -> list[bytes]:
    """What the driver would copy: `sizes[i]` bytes at each pointer."""
    pointers = (ctypes.c_void_p * len(sizes)).from_address(block.address)
    return [ctypes.string_at(pointers[i], n) for i, n in enumerate(sizes)]  # type: ignore[arg-type]


def test_all_arguments_in_order_then_hidden_pointers() -> None:
    packed = values(kernel(hidden_args=2), CASE, {"y": 4096, "x": 8192}, scratch=777)
    assert [(name, value) for name, value, _ in packed] == [
        ("y", 4096), ("x", 8192), ("n", 5), ("big", 1 << 40), ("s", 0.5), ("hidden 0", 777), ("hidden 1", 0),
    ]  # fmt: skip
    block = ParameterBlock(packed)
    sizes = [8, 8, 4, 8, 4, 8, 8]
    assert read_block(block, sizes) == [
        struct.pack("<Q", 4096), struct.pack("<Q", 8192), struct.pack("<i", 5), struct.pack("<q", 1 << 40),
        struct.pack("<f", 0.5), struct.pack("<Q", 777), bytes(8),
    ]  # fmt: skip


def test_parameters_of_the_kernel_win_over_the_case() -> None:
    packed = values(kernel(parameters=(("x", "*fp16"), ("n", "i64"))), CASE, {"y": 1, "x": 2}, scratch=0)
    assert packed == [("x", 2, "*fp16"), ("n", 5, "i64")]
    assert read_block(ParameterBlock(packed), [8, 8])[1] == struct.pack("<q", 5)
    with pytest.raises(DeviceError, match="does not give: missing"):
        values(kernel(parameters=(("missing", "i32"),)), CASE, {}, scratch=0)


def test_sizes_of_the_cubin_win_and_counts_must_agree() -> None:
    packed = values(kernel(parameters=(("n", "i32"), ("s", "fp32"))), CASE, {}, scratch=0)
    block = ParameterBlock(packed, [8, 8])
    assert read_block(block, [8, 8]) == [struct.pack("<q", 5), struct.pack("<d", 0.5)]
    with pytest.raises(DeviceError, match="declares 3 parameters, the workload gives 2: n, s"):
        ParameterBlock(packed, [4, 4, 8])
    with pytest.raises(DeviceError, match="128 bytes cannot be passed"):
        ParameterBlock(packed, [128, 4])


@pytest.mark.parametrize(
    ("value", "kind", "size", "expected"),
    [
        (-1, "i32", 4, b"\xff\xff\xff\xff"),
        (-2, "i64", 8, struct.pack("<q", -2)),
        ((1 << 32) - 1, "u32", 4, b"\xff\xff\xff\xff"),
        (True, "i1", 1, b"\x01"),
        (1e40, "fp32", 4, struct.pack("<f", math.inf)),
        (-1e40, "fp32", 4, struct.pack("<f", -math.inf)),
        (7e4, "fp16", 2, struct.pack("<e", math.inf)),
        (1e39, "bf16", 2, b"\x80\x7f"),
        (3, "fp32", 4, struct.pack("<f", 3.0)),
        (1.5, "fp64", 8, struct.pack("<d", 1.5)),
        (1.5, "fp16", 2, struct.pack("<e", 1.5)),
        (1.0, "bf16", 2, b"\x80\x3f"),
        (1.00390625, "bf16", 2, b"\x80\x3f"),  # half a step above 1: to even, down
        (1.01171875, "bf16", 2, b"\x82\x3f"),  # half a step: to even, up
    ],
)
def test_encoding(value: float, kind: str, size: int, expected: bytes) -> None:
    assert encode(value, kind, size) == expected


@pytest.mark.parametrize(
    ("value", "kind", "size"),
    [(1 << 32, "i32", 4), (-(1 << 31) - 1, "i32", 4), (0.5, "i32", 4), (0.5, "fp32", 1), (1, "i32", 3)],
)
def test_values_that_do_not_fit_are_refused(value: float, kind: str, size: int) -> None:
    with pytest.raises(DeviceError):
        encode(value, kind, size)


def test_truth_values_are_passed_as_triton_calls_them() -> None:
    triton = pytest.importorskip("triton")
    from triton.runtime.jit import mangle_type

    kind = mangle_type(True)
    assert kind == "u1" and triton.__version__
    assert read_block(ParameterBlock([("a", True, kind)], [1]), [1]) == [b"\x01"]


def test_types_by_value_and_unknown_types() -> None:
    assert [default_type(a) for a in (1, 1 << 31, -(1 << 31), 0.1, True, Buffer("i8", (1,)))] == [
        "i32", "i64", "i32", "fp32", "i1", "*",
    ]  # fmt: skip
    assert size_of("*bf16") == 8
    with pytest.raises(DeviceError, match="tensordesc"):
        size_of("tensordesc<fp16[64, 64]>")


def test_launch_facts_survive_the_trip() -> None:
    full = kernel(
        shared_bytes=70000, cluster=(2, 1, 1), hidden_args=2, scratch_bytes=16, parameters=(("x", "*fp16"),)
    )
    assert kernel_from_facts(kernel_facts(full), full.cubin) == full
    assert kernel_from_facts(kernel_facts(kernel()), b"cubin") == kernel()


def test_frames_survive_a_pipe_and_half_frames_are_an_end() -> None:
    read_fd, write_fd = os.pipe()
    write_frame(write_fd, {"do": "run", "x": [1, 2.5, None]}, [b"abc", b""])
    assert read_frame(read_fd) == ({"do": "run", "x": [1, 2.5, None]}, [b"abc", b""])
    os.write(write_fd, b"\0\0\0\0\0\0\0\x20{")
    os.close(write_fd)
    assert read_frame(read_fd) is None
    os.close(read_fd)


@pytest.mark.parametrize(
    "data", [b"\xff" * 16, b"\0\0\0\0\0\0\0\x02[]", b"\0\0\0\0\0\0\0\x0f" + b'{"blobs": [-1]}']
)
def test_garbage_on_the_pipe_is_an_error(data: bytes) -> None:
    read_fd, write_fd = os.pipe()
    os.write(write_fd, data)
    os.close(write_fd)
    with pytest.raises(DeviceError):
        read_frame(read_fd)
    os.close(read_fd)
