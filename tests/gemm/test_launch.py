"""What a launch passes to its kernel, without a driver."""

from __future__ import annotations

import ctypes

import pytest

from sassafras.core import DeviceError
from sassafras.gemm.build.arguments import packed
from sassafras.gemm.problem.launch import Launch, TensorMap


def test_arguments_lie_in_order_and_aligned() -> None:
    launch = Launch((1, 1, 1), 32, 0, (1, 1, 1), {"m": 7, "n": -1, "alpha": -1})
    parameters = (("a", "*fp16"), ("m", "i32"), ("workspace", "*f32"), ("n", "i64"), ("alpha", "f32"))
    block = packed(parameters, launch, {"a": 0x7F0000001000, "workspace": 0}, sizes=[8, 4, 8, 8, 4])
    pointers = (ctypes.c_void_p * 5).from_address(block.address)
    assert all(int(p or 0) % 64 == 0 for p in pointers)
    assert [block.raw(index) for index in range(5)] == [
        value.to_bytes(8, "little") for value in (0x7F0000001000, 7, 0, (1 << 64) - 1, (1 << 32) - 1)
    ]


def test_a_parameter_without_value_or_of_another_size_is_refused() -> None:
    launch = Launch((1, 1, 1), 32, 0, (1, 1, 1), {})
    for parameter in (("k", "i32"), ("a", "*fp16"), ("map_a", "tensormap")):
        with pytest.raises(DeviceError, match="gives no value"):
            packed((parameter,), launch, {})
    with pytest.raises(DeviceError, match="declares 2 parameters, the workload gives 1"):
        packed((("a", "*fp16"),), launch, {"a": 8}, sizes=[8, 8])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"strides": (130,)}, "multiple of 16"),
        ({"box": (64, 512)}, "up to 256"),
        ({"box": (128, 64)}, "256 bytes a row"),
        ({"strides": ()}, "do not go together"),
        ({"dims": (0, 4)}, "extents"),
    ],
)
def test_a_tensor_map_says_why_it_cannot_be(change: dict, reason: str | None) -> None:
    good = {"operand": "a", "dtype": "fp16", "dims": (64, 100), "strides": (128,), "box": (64, 128)}
    why = TensorMap(**{**good, **change}).why_illegal()
    assert (why is None) if reason is None else (why is not None and reason in why)
