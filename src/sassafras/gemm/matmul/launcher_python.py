"""The launcher in Python: the same plans and the same answers as the compiled one, some microseconds more.

It serves until the compiled launcher is built, and where it cannot be (no compiler, a torch older than 2.10).
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .counters import PER_THREAD
from .driver import Driver, DriverError, LaunchConfig, launch_config
from .problem import read

_KEEP_MAPS = 4


@dataclass(frozen=True, slots=True)
class Torch:
    """What both launchers ask of torch.

    Attributes:
        matmul: ``torch.matmul``.
        empty_bytes: (bytes, device ordinal) -> a fresh uint8 tensor.
        counters: (words, device ordinal, stream) -> address of words that are zero (`counters.Counters`); the
            stream's context is current.
        stream: device ordinal -> handle of the current stream.
        grad_enabled: is autograd recording?
        strict: must reductions be FP32, or results reproducible?
        modes, watchers, views, plain, admit: of `eligible`: functions that answer 0, False or None unless a
            call has to be seen by torch; the same for calls that torch serves anyway, by its own functions'
            names; a tensor's methods that answer False if its bytes are its values; whether a tensor is
            plain; whether `out` may be written, raising its version counter.
        device_type: ``cuda`` (``cpu`` in tests).
    """

    matmul: Callable[..., Any]
    empty_bytes: Callable[[int, int], Any]
    counters: Callable[[int, int, int], int]
    stream: Callable[[int], int]
    grad_enabled: Callable[[], bool]
    strict: Callable[[], bool]
    modes: tuple[Callable[[], Any], ...]
    watchers: tuple[Callable[[], Any], ...]
    views: tuple[Callable[[Any], bool], ...]
    plain: Callable[[Any], bool]
    admit: Callable[[Any], bool]
    device_type: str = "cuda"


class _Kernel:
    """A kernel's plan. Threads may launch it at the same time: what a launch puts together is its own."""

    def __init__(
        self,
        driver: Driver,
        function: int,
        context: int,
        config: LaunchConfig,
        parameters: Sequence[tuple[Any, ...]],
        workspace: int,
        counters: int,
        then: _Kernel | None = None,
    ) -> None:
        self.driver, self.function, self.context, self.config = driver, function, context, config
        self.workspace, self.counters, self.then = workspace, counters, then
        self.parameters = tuple(parameters)
        self._constants = tuple(item[1] if item[0] == "value" else 0 for item in self.parameters)
        self._lock = threading.Lock()  # of the maps
        self._maps: dict[int, dict[int, Any]] = {}

    def serves(self, stream: int) -> bool:
        """False where threads would share scratch: the stream is another one in each of them."""
        return stream != PER_THREAD or not (self.workspace or self.counters)

    def launch(self, torch: Torch, device: int, addresses: dict[str, int], stream: int) -> int:
        """The driver's error code."""
        addresses = dict(addresses)
        scratch = None
        if self.workspace:
            scratch = torch.empty_bytes(self.workspace, device)
            addresses["workspace"] = scratch.data_ptr()
        before = ctypes.c_void_p()
        self.driver.function("cuCtxGetCurrent")(ctypes.byref(before))
        push = bool(self.context) and before.value != self.context
        if push and (code := self.driver.function("cuCtxPushCurrent_v2")(self.context)):
            return int(code)
        try:
            if self.counters:
                addresses["counters"] = torch.counters(self.counters, device, stream)
            code = self._enqueue(addresses, stream)
            # the scratch lives until both are under way
            return self.then._enqueue(addresses, stream) if self.then and not code else code
        except DriverError as error:
            return error.code
        finally:
            if push:
                self.driver.function("cuCtxPopCurrent_v2")(ctypes.byref(before))

    def _enqueue(self, addresses: dict[str, int], stream: int) -> int:
        """One launch, its context being current. The driver copies the arguments before it returns."""
        count = max(1, len(self.parameters))
        values, pointers = (ctypes.c_uint64 * count)(*self._constants), (ctypes.c_void_p * count)()
        base, held = ctypes.addressof(values), []
        for index, item in enumerate(self.parameters):
            pointers[index] = base + 8 * index
            if item[0] == "map":
                code, storage = self._map(index, item, addresses[item[1]])
                if code:
                    return code
                held.append(storage)  # another thread may take it out of the cache
                pointers[index] = _aligned(storage)
            elif item[0] != "value":
                values[index] = addresses.get(item[0], 0)
        config = LaunchConfig.from_buffer_copy(self.config)
        config.stream = stream
        return int(
            self.driver.function("cuLaunchKernelEx")(ctypes.byref(config), self.function, pointers, None)
        )

    def _map(self, index: int, item: tuple[Any, ...], address: int) -> tuple[int, Any]:
        """The tensor map for this address: (the driver's error, storage). The last four are kept."""
        with self._lock:
            known = self._maps.setdefault(index, {}).get(address)
        if known is not None:
            return 0, known
        storage = ctypes.create_string_buffer(256)
        if code := self.driver.encode(_aligned(storage), address, item):
            return code, None
        with self._lock:
            kept = self._maps[index]
            while len(kept) >= _KEEP_MAPS:
                kept.pop(next(iter(kept)))
            kept[address] = storage
        return 0, storage


def _aligned(storage: Any) -> int:
    """Where a tensor map lies in its storage."""
    return -(-ctypes.addressof(storage) // 128) * 128


class PythonLauncher:
    """See `launcher.cpp`: same methods, same meaning."""

    def __init__(self, driver: Driver, torch: Torch) -> None:
        self._driver, self._torch = driver, torch
        self._plans: dict[tuple[int, ...], Any] = {}
        self._counts = {"hits": 0, "misses": 0, "refused": 0, "ours": 0}
        self._lock = threading.Lock()

    def __call__(self, a: Any, b: Any, out: Any = None) -> Any:
        """C, or NotImplemented when Python's slow path has to look."""
        if not self._plain(a, b, out) or any(mode() for mode in self._torch.modes):
            return NotImplemented
        wanted = a.requires_grad or b.requires_grad or (out is not None and out.requires_grad)
        if wanted and self._torch.grad_enabled():
            found = read(a, b, out, device_type=self._torch.device_type)
            if not found or self._plans.get(found[0][:10]) != "torch":  # torch records gradients itself
                return NotImplemented
        return self.raw(a, b, out)

    def raw(self, a: Any, b: Any, out: Any = None) -> Any:
        """The same whatever modes are active."""
        found = read(a, b, out, device_type=self._torch.device_type) if self._plain(a, b, out) else None
        plan = self._plans.get(found[0][:10]) if found else None
        if found is None or plan is None:
            self._count("misses")
            return NotImplemented
        self._count("hits")
        if plan == "torch":
            return self._torch_matmul(a, b, out)
        problem, at_a, at_b = found
        stream = self._torch.stream(problem.device)
        if not plan.serves(stream):
            return self._torch_matmul(a, b, out)
        if out is not None and not self._torch.admit(out):  # raises its version: only where we write it
            return self._torch_matmul(a, b, out)
        c = a.new_empty((*a.shape[:-1], problem.n)) if out is None else out
        addresses = {"a": at_a, "b": at_b, "c": c.data_ptr()}
        code = plan.launch(self._torch, problem.device, addresses, stream)
        if code == 0:
            self._count("ours")
            return c
        self._count("refused")
        with self._lock:
            if self._plans.get(problem[:10]) is plan:  # unless another one serves by now
                self._plans[problem[:10]] = "torch"
        warnings.warn(
            f"sassafras.matmul: a kernel could not be launched (error {code}) for "
            f"{problem.m}x{problem.n}x{problem.k}; torch.matmul serves this problem from now on",
            RuntimeWarning,
            stacklevel=2,
        )
        return self._torch_matmul(a, b, out)

    def fused(self, *call: Any) -> Any:
        """NotImplemented: calls with an epilogue or batches are launched by `fused.Fused` itself."""
        return NotImplemented

    def key(self, a: Any, b: Any, out: Any = None) -> tuple[int, ...] | None:
        """The problem as a tuple (`Problem`), None when no plan can serve it."""
        found = read(a, b, out, device_type=self._torch.device_type) if self._plain(a, b, out) else None
        return tuple(found[0]) if found else None

    def add_torch(self, key: tuple[int, ...]) -> None:
        """Let torch.matmul serve a problem."""
        self._plans[tuple(key)[:10]] = "torch"

    def add_kernel(
        self,
        key: tuple[int, ...],
        function: int,
        context: int,
        grid: tuple[int, int, int],
        threads: int,
        shared: int,
        cluster: tuple[int, int, int],
        parameters: Sequence[tuple[Any, ...]],
        workspace: int,
        counters: int,
        overlap: bool = False,
        behind: tuple[Any, ...] | None = None,
    ) -> None:
        """Let a kernel serve a problem.

        Args:
            behind: a second kernel, launched right after it: function, grid, threads, shared, cluster,
                parameters, overlap.
        """
        second = None
        if behind is not None:
            other, extents, threads_of, bytes_of, clusters, listed, waits = behind
            how = launch_config(extents, threads_of, bytes_of, clusters, waits)
            second = _Kernel(self._driver, other, context, how, listed, 0, 0)
        config = launch_config(grid, threads, shared, cluster, overlap)
        self._plans[tuple(key)[:10]] = _Kernel(
            self._driver, function, context, config, parameters, workspace, counters, second
        )

    def knows(self, key: tuple[int, ...]) -> bool:
        """Is there a plan for this problem?"""
        return tuple(key)[:10] in self._plans

    def remove(self, key: tuple[int, ...]) -> None:
        """Drop the plan of a problem."""
        self._plans.pop(tuple(key)[:10], None)

    def forget(self) -> None:
        """Drop all plans."""
        self._plans.clear()

    def counts(self) -> dict[str, int]:
        """Hits (plans found), misses, refused launches, launches of ours or of cuBLASLt, plans."""
        return {**self._counts, "plans": len(self._plans)}

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def _plain(self, a: Any, b: Any, out: Any) -> bool:
        return all(map(self._torch.plain, (a, b) if out is None else (a, b, out)))

    def _torch_matmul(self, a: Any, b: Any, out: Any) -> Any:
        return self._torch.matmul(a, b) if out is None else self._torch.matmul(a, b, out=out)


def compiled(module: Any, driver: Driver, torch: Torch, lt_matmul: int = 0) -> Any:
    """The compiled launcher. Raises AttributeError on a torch without DLPack's C table."""
    import torch as library

    exchange = library.Tensor.__dlpack_c_exchange_api__
    return module.Launcher(
        exchange,
        library.Tensor,
        library.nn.Parameter,
        torch.matmul,
        library.mm,
        torch.empty_bytes,
        torch.counters,
        torch.stream,
        torch.grad_enabled,
        torch.strict,
        torch.modes,
        torch.watchers,
        torch.views,
        torch.admit,
        {"cuda": 2, "cpu": 1}[torch.device_type],
        {**driver.addresses(), **({"cublasLtMatmul": lt_matmul} if lt_matmul else {})},
    )
