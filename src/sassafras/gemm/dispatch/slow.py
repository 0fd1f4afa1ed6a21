"""The launcher in Python: the same plans and the same answers as the compiled one, some microseconds more.

It serves until the compiled launcher is built, and where it cannot be (no compiler, a torch older than 2.10).
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .driver import Driver, LaunchConfig, launch_config
from .problem import read

_KEEP_MAPS = 4


@dataclass(frozen=True, slots=True)
class Torch:
    """What both launchers ask of torch.

    Attributes:
        matmul: ``torch.matmul``.
        empty_bytes: (bytes, device ordinal) -> a fresh uint8 tensor.
        counters: (words, device ordinal, stream) -> address of words that are zero (`counters.Counters`).
        stream: device ordinal -> handle of the current stream.
        grad_enabled: is autograd recording?
        strict: must reductions be FP32, or results reproducible?
        modes: functions that answer 0, False or None unless somebody wants to see every call.
        device_type: ``cuda`` (``cpu`` in tests).
    """

    matmul: Callable[..., Any]
    empty_bytes: Callable[[int, int], Any]
    counters: Callable[[int, int, int], int]
    stream: Callable[[int], int]
    grad_enabled: Callable[[], bool]
    strict: Callable[[], bool]
    modes: tuple[Callable[[], Any], ...]
    device_type: str = "cuda"


class _Kernel:
    """A kernel's plan with storage for its arguments."""

    def __init__(
        self, driver: Driver, function: int, context: int, config: LaunchConfig,
        parameters: Sequence[tuple[Any, ...]], workspace: int, counters: int, then: _Kernel | None = None,
    ) -> None:  # fmt: skip
        self.driver, self.function, self.context, self.config = driver, function, context, config
        self.workspace, self.counters, self.then = workspace, counters, then
        self.parameters = list(parameters)
        self._values = (ctypes.c_uint64 * max(1, len(self.parameters)))()
        self._pointers = (ctypes.c_void_p * max(1, len(self.parameters)))()
        base = ctypes.addressof(self._values)
        for index, item in enumerate(self.parameters):
            self._pointers[index] = base + 8 * index
            if item[0] == "value":
                self._values[index] = item[1]
        self._counters_of: dict[int, int] = {}
        self._maps: dict[int, dict[int, tuple[Any, int]]] = {}

    def launch(self, torch: Torch, device: int, addresses: dict[str, int], stream: int) -> int:
        """The driver's error code."""
        addresses = dict(addresses)
        scratch = None
        if self.workspace:
            scratch = torch.empty_bytes(self.workspace, device)
            addresses["workspace"] = scratch.data_ptr()
        if self.counters:
            addresses["counters"] = self._zeroed(torch, device, stream)
        before = ctypes.c_void_p()
        self.driver.function("cuCtxGetCurrent")(ctypes.byref(before))
        push = bool(self.context) and before.value != self.context
        if push and (code := self.driver.function("cuCtxPushCurrent_v2")(self.context)):
            return int(code)
        try:
            code = self._enqueue(addresses, stream)
            # the scratch lives until both are under way
            return self.then._enqueue(addresses, stream) if self.then and not code else code
        finally:
            if push:
                self.driver.function("cuCtxPopCurrent_v2")(ctypes.byref(before))

    def _enqueue(self, addresses: dict[str, int], stream: int) -> int:
        """One launch, its context being current."""
        for index, item in enumerate(self.parameters):
            if item[0] == "map":
                code, at = self._map(index, item, addresses[item[1]])
                if code:
                    return code
                self._pointers[index] = at
            elif item[0] != "value":
                self._values[index] = addresses.get(item[0], 0)
        self.config.stream = stream
        return int(
            self.driver.function("cuLaunchKernelEx")(
                ctypes.byref(self.config), self.function, self._pointers, None
            )
        )

    def _map(self, index: int, item: tuple[Any, ...], address: int) -> tuple[int, int]:
        known = self._maps.setdefault(index, {})
        if address not in known:
            storage = ctypes.create_string_buffer(256)
            at = -(-ctypes.addressof(storage) // 128) * 128
            if code := self.driver.encode(at, address, item):
                return code, 0
            while len(known) >= _KEEP_MAPS:
                known.pop(next(iter(known)))
            known[address] = (storage, at)
        return 0, known[address][1]

    def _zeroed(self, torch: Torch, device: int, stream: int) -> int:
        capturing = ctypes.c_int()
        code = self.driver.function("cuStreamIsCapturing")(stream, ctypes.byref(capturing))
        if code or capturing.value:
            return torch.counters(self.counters, device, (1 << 64) - 1)
        if stream not in self._counters_of:
            self._counters_of[stream] = torch.counters(self.counters, device, stream)
        return self._counters_of[stream]


class PythonLauncher:
    """See `launcher.cpp`: same methods, same meaning."""

    def __init__(self, driver: Driver, torch: Torch) -> None:
        import torch as library

        self._driver, self._torch = driver, torch
        self._types = (library.Tensor, library.nn.Parameter)
        self._plans: dict[tuple[int, ...], Any] = {}
        self._counts = {"hits": 0, "misses": 0, "refused": 0}

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
            self._counts["misses"] += 1
            return NotImplemented
        self._counts["hits"] += 1
        if plan == "torch":
            return self._torch_matmul(a, b, out)
        problem, at_a, at_b = found
        c = a.new_empty((*a.shape[:-1], problem.n)) if out is None else out
        addresses = {"a": at_a, "b": at_b, "c": c.data_ptr()}
        stream = self._torch.stream(problem.device)
        code = plan.launch(self._torch, problem.device, addresses, stream)
        if code == 0:
            return c
        self._counts["refused"] += 1
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
        self, key: tuple[int, ...], function: int, context: int, grid: tuple[int, int, int], threads: int,
        shared: int, cluster: tuple[int, int, int], parameters: Sequence[tuple[Any, ...]], workspace: int,
        counters: int, overlap: bool = False, behind: tuple[Any, ...] | None = None,
    ) -> None:  # fmt: skip
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

    def remove(self, key: tuple[int, ...]) -> None:
        """Drop the plan of a problem."""
        self._plans.pop(tuple(key)[:10], None)

    def forget(self) -> None:
        """Drop all plans."""
        self._plans.clear()

    def counts(self) -> dict[str, int]:
        """Hits, misses, refused launches, plans."""
        return {**self._counts, "plans": len(self._plans)}

    def _plain(self, a: Any, b: Any, out: Any) -> bool:
        given = (a, b) if out is None else (a, b, out)
        # a view with the negative bit set has other values than its bytes
        return all(type(x) in self._types and not x.is_neg() for x in given)

    def _torch_matmul(self, a: Any, b: Any, out: Any) -> Any:
        return self._torch.matmul(a, b) if out is None else self._torch.matmul(a, b, out=out)


def compiled(module: Any, driver: Driver, torch: Torch, lt_matmul: int = 0) -> Any:
    """The compiled launcher. Raises AttributeError on a torch without DLPack's C table."""
    import torch as library

    exchange = library.Tensor.__dlpack_c_exchange_api__
    return module.Launcher(
        exchange, library.Tensor, library.nn.Parameter, torch.matmul, library.mm, torch.empty_bytes,
        torch.counters, torch.stream, torch.grad_enabled, torch.strict, torch.modes,
        {"cuda": 2, "cpu": 1}[torch.device_type],
        {**driver.addresses(), **({"cublasLtMatmul": lt_matmul} if lt_matmul else {})},
    )  # fmt: skip
