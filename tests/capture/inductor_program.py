"""A program of `torch.compile` without a GPU: Inductor compiles for an H200, and its programs run.

Everything is torch's and Triton's own but where it meets CUDA: what asks about the GPU, memory (the CPU's),
and what loads and launches kernels. Prints what was loaded, and how often the program launched.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch._inductor.compile_fx as compiler
import torch._inductor.config as settings
from torch._dynamo.device_interface import CudaInterface
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.runtime.hints import DeviceProperties
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from triton.runtime import driver

from sassafras.deploy import gpu
from tests.deploy import stock
from tests.deploy.boundary import H200, Driver, sha

_HOPPER: dict[str, Any] = {
    "multi_processor_count": 132,
    "regs_per_multiprocessor": 65_536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
}
_PROPERTIES = DeviceProperties(type="cuda", index=0, cc=90, major=9, **_HOPPER)
_OF_TORCH = SimpleNamespace(
    name=H200, major=9, minor=0, total_memory=1 << 37, shared_memory_per_block_optin=232_448, **_HOPPER
)
_CUDA: dict[str, Callable[..., Any]] = {
    "get_device_properties": lambda *device: _OF_TORCH,
    "get_device_capability": lambda *device: (9, 0),
    "is_available": lambda: True,
    "current_device": lambda: 0,
    "device_count": lambda: 1,
    "get_rng_state": lambda *device: torch.zeros(1),
    "set_rng_state": lambda *state: None,
    "set_device": lambda device: None,
    "synchronize": lambda *device: None,
    "_exchange_device": lambda device: 0,
    "_maybe_exchange_device": lambda device: 0,
}


class Loader:
    """In the place of ``torch._C._StaticCudaLauncher``."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, str]] = []
        self.launches: list[tuple[int, ...]] = []  # handle and grid

    def _load_kernel(self, path: str, name: str, shared: int, device: int) -> tuple[int, ...]:
        self.loads.append((name, sha(Path(path).read_bytes())))
        loaded = (len(self.loads), 32, 0)  # function, registers, spills
        return loaded if torch.__version__ < "2.12" else (1, *loaded)

    def _launch_kernel(self, *given: Any) -> None:
        self.launches.append(given[:4])

    def _unload_kernel(self, module: int) -> None:
        pass


class FastLauncher:
    """In the place of ``torch._C._FastCudaLauncher``, which launches from the second time on."""

    made = 0

    def __init__(self, function: int, warps: int, shared: int, types: str, scratch: int) -> None:
        type(self).made += 1

    def __call__(self, *given: Any) -> None:
        pass


def rms_and_gate(x: Any, weight: Any, gate: Any) -> tuple[Any]:
    """What stands between two layers."""
    norm = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * weight
    return (torch.nn.functional.silu(norm) * gate,)


def shifted(x: Any, index: Any) -> tuple[Any]:
    """A gather, whose indices matter."""
    return (x.gather(0, index) + 1,)


def total(x: Any) -> tuple[Any]:
    """Few long rows: cooperative, where that is asked for."""
    return (x.sum(-1),)


def scaled(x: Any) -> tuple[Any]:
    """A kernel of the program's own within what is compiled."""
    y = torch.empty_like(x)
    torch.library.wrap_triton(stock.scale)[(4,)](x, y, 1000, BLOCK=256)
    return (y,)


def compiled(fn: Callable[..., Any], *like: Any, dynamic: bool = False) -> Callable[[list[Any]], Any]:
    """Inductor's program of a function for tensors on the GPU, which takes tensors on the CPU."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode, patch("torch.cuda.is_available", lambda: False):  # no tensor of the trace is real
        inputs = []
        for tensor in like:
            sizes = [DimDynamic.DYNAMIC if dynamic and n == 64 else DimDynamic.STATIC for n in tensor.shape]
            fake = mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(sizes))
            inputs.append(torch.empty(fake.shape, dtype=fake.dtype, device="cuda"))
        graph = make_fx(fn, select_decomp_table())(*inputs)
    made: Callable[[list[Any]], Any] = compiler.compile_fx_inner(graph, inputs)
    return made


def half(*shape: int) -> Any:
    return torch.zeros(shape, dtype=torch.float16)


def static() -> int:
    """Rows of any number, by Inductor's static launcher."""
    rows, launched = compiled(rms_and_gate, half(64, 1024), half(1024), half(64, 1024), dynamic=True), 0
    for n, times in ((64, 3), (256, 2)):
        for _ in range(times):
            rows([half(n, 1024), half(1024), half(n, 1024)])
            launched += 1
    return launched


def tuned() -> int:
    """The better of two configurations."""
    with settings.patch(max_autotune_pointwise=True):
        picked = compiled(shifted, half(4096), torch.zeros(4096, dtype=torch.int64))
        for _ in range(2):
            picked([half(4096), torch.arange(4096) % 77])
    return 2


def by_triton() -> int:
    """By Triton's own launcher."""
    with settings.patch(use_static_triton_launcher=False):
        loaded = compiled(rms_and_gate, half(8, 512), half(512), half(8, 512))
        for _ in range(4):
            loaded([half(8, 512), half(512), half(8, 512)])
    return 4


def own() -> int:
    """The program's own kernel, one without a block, and one that is launched cooperatively."""
    mine = compiled(scaled, torch.zeros(1000))
    for _ in range(6):
        mine([torch.zeros(1000)])
    stock.shift[(0,)](torch.zeros(0), torch.zeros(0), 0, BLOCK=256)  # no block
    with settings.patch({"triton.cooperative_reductions": True, "triton.force_cooperative_reductions": True}):
        compiled(total, half(4, 65536))([half(4, 65536)])
    return 6


#: launches by kind of launch
PARTS: dict[str, Callable[[], int]] = {"static": static, "tuned": tuned, "triton": by_triton, "own": own}


def main() -> None:
    """Run the parts that the command line names, all by default, with CUDA replaced."""
    cuda, loader, times = Driver(), Loader(), iter(range(1, 1000))
    driver.set_active(cuda)

    def bench(fn: Callable[[], Any], *args: Any, **options: Any) -> float:
        for _ in range(5):
            fn()
        return float(next(times))  # the first configuration is the fastest

    with ExitStack() as stack:
        replace = lambda *what, **options: stack.enter_context(patch(*what, **options))  # noqa: E731
        for name, answer in _CUDA.items():
            replace(f"torch.cuda.{name}", answer)
        for name in ("current_device", "exchange_device", "maybe_exchange_device", "get_raw_stream"):
            stack.enter_context(patch.object(CudaInterface, name, staticmethod(lambda *device: 0)))
        stack.enter_context(
            patch.object(DeviceProperties, "create", staticmethod(lambda device: _PROPERTIES))
        )
        stack.enter_context(patch.object(benchmarker, "benchmark", bench))
        stack.enter_context(patch.object(gpu, "gpu_name", lambda device: H200))
        stack.enter_context(settings.patch(compile_threads=1, fx_graph_cache=False))
        replace("torch.utils._triton.has_triton", lambda *device: True)
        replace("torch._inductor.runtime.triton_helpers.set_driver_to_gpu", lambda: None)
        replace("torch._C._cuda_getCurrentRawStream", lambda device: 0, create=True)
        replace("torch._C._StaticCudaLauncher", loader, create=True)
        replace("torch._C._FastCudaLauncher", FastLauncher, create=True)
        replace("torch._C._dynamo.guards._empty_strided_cuda", torch._C._dynamo.guards._empty_strided_cpu)
        launched = {name: PARTS[name]() for name in sys.argv[1:] or PARTS}
    facts = {
        "launched": launched, "fast": FastLauncher.made, "loads": cuda.loads + loader.loads,
        "launches": len(cuda.launches) + len(loader.launches),
    }  # fmt: skip
    print(json.dumps(facts), file=sys.stdout)


if __name__ == "__main__":
    main()
