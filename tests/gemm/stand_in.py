"""The driver's stand-in, built once, and launchers that run on it with tensors in host memory."""

from __future__ import annotations

import ctypes
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.shared import compiled, once

HERE = Path(__file__).parent
STREAM = 0x5712


class State(ctypes.Structure):
    """What the stand-in counts and what it can be told (`driver_stand_in.cpp`)."""

    _fields_ = [
        ("launches", ctypes.c_long), ("encodes", ctypes.c_long), ("loads", ctypes.c_long),
        ("stream", ctypes.c_void_p), ("context", ctypes.c_void_p), ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint), ("shared", ctypes.c_uint), ("cluster", ctypes.c_uint * 3),
        ("capturing", ctypes.c_int), ("fail", ctypes.c_int), ("mode", ctypes.c_int),
        ("relaxed_loads", ctypes.c_int), ("overlap", ctypes.c_int), ("fail_adding", ctypes.c_int),
        ("all_shared", ctypes.c_int), ("overlap_before", ctypes.c_int), ("stream_before", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p), ("workspace_before", ctypes.c_void_p),
        ("grid_before", ctypes.c_uint * 3), ("failing_thread", ctypes.c_int),
        ("fail_loading", ctypes.c_int),
    ]  # fmt: skip


def build_driver(folder: Path, shared: Path) -> Path:
    """A copy of the stand-in, with a state of its own; skips where there is no g++ that knows _Float16."""
    if shutil.which("g++") is None or sys.platform != "linux":
        pytest.skip("needs g++")
    command = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", "-o", "driver.so", "driver_stand_in.cpp"]
    files = {"driver_stand_in.cpp": (HERE / "driver_stand_in.cpp").read_text()}
    try:
        built = compiled(shared, files, command) / "driver.so"
    except AssertionError as error:
        if "_Float16" in str(error):
            pytest.skip("this g++ has no _Float16")
        raise
    target = folder / "libcuda_stand_in.so"
    shutil.copy(built, target)
    describe(target)
    return target


def launcher_into(cache: Path, shared: Path) -> Path:
    """Put the compiled launcher into the cache if it can be built here; it is compiled once a run."""
    from sassafras.gemm.build import launcher

    def make(work: Path) -> None:
        launcher.build(work)

    if launcher.compiler() is not None:
        built = once(shared, launcher.path(shared).stem, make)
        shutil.copy(built / launcher.path(shared).name, launcher.path(cache))
    return cache


def describe(library: Path, more: Sequence[Any] = ()) -> None:
    """Tell the stand-in what each of our kernels takes, and of one made up for its own tests.

    Args:
        more: configurations of kernels that no family has.
    """
    from sassafras.gemm.configs import attention, joined, registry, rows, tma_wgmma, turned

    function = ctypes.CDLL(str(library)).stand_in_describe
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, *[ctypes.c_int] * 4]
    function.restype = None
    everything = (
        *registry.configurations(), *registry.other_configurations(), *registry.epilogue_configurations(),
        *more,
    )  # fmt: skip
    configs = {instance: c for c in everything for instance in c.instances}
    for instance, config in configs.items():
        text = "".join(f"{name} {kind};" for name, kind in instance.parameters)
        mn_a, mn_b = tma_wgmma.majors(config.layout, config.swap_ab)
        bf16 = config.dtype == "bf16"
        function(instance.name.encode(), text.encode(), mn_a, mn_b, config.swap_ab, bf16)
    for one in (*joined.INSTANCES, *rows.INSTANCES, *attention.INSTANCES, *turned.INSTANCES):
        text = "".join(f"{name} {kind};" for name, kind in one.parameters)
        function(one.name.encode(), text.encode(), 0, 0, one.swap_ab, one.dtype == "bf16")
    mapped = b"map_a tensormap;map_b tensormap;c *fp16;ldc i32;workspace *f32;"
    function(b"mapped_tn", mapped, 0, 0, 0, 0)


def state_of(library: Path) -> Any:
    """The stand-in's state, live."""
    function = ctypes.CDLL(str(library)).stand_in
    function.restype = ctypes.POINTER(State)
    return function().contents


def torch_side(**changes: Any) -> Any:
    """What the launchers ask of torch, for host memory."""
    import torch

    from sassafras.gemm.matmul import plain_tensors
    from sassafras.gemm.matmul.launcher_python import Torch

    settings: dict[str, Any] = {
        "matmul": torch.matmul,
        "linear": torch._C._nn.linear,
        "empty_bytes": lambda count, device: torch.full((count,), 0xFF, dtype=torch.uint8),
        "stream": lambda device: STREAM,
        "grad_enabled": torch.is_grad_enabled,
        "strict": lambda: False,
        **plain_tensors.ASKED,
        "device_type": "cpu",
    }
    return Torch(**{**settings, **changes})


def make(kind: str, driver: Any, torch: Any, cache: Path) -> Any:
    """A launcher of either kind."""
    from sassafras.gemm.build import launcher
    from sassafras.gemm.matmul.launcher_python import PythonLauncher, compiled

    if kind == "python":
        return PythonLauncher(driver, torch)
    import torch as library

    if launcher.compiler() is None or not hasattr(library.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("the compiled launcher cannot be built here")
    return compiled(launcher.load(launcher.build(cache)), driver, torch)


Make = Callable[[str], Any]
