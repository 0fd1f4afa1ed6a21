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

from ..configs.epilogue import bits
from .attention_problem import AttentionCall, read_attention
from .driver import Driver, LaunchConfig, launch_config
from .joined_problem import JoinedCall, read_joined
from .plan import KernelPlan, LaunchPlan
from .problem import MatmulCall, Problem, ReadCall, read, read_rows
from .turned_problem import TurnedCall, read_turned

#: CU_STREAM_PER_THREAD: another stream in every thread, which torch's allocator does not know
PER_THREAD = 2
_KEEP_MAPS = 4
_UNKNOWN: Any = object()


@dataclass(frozen=True, slots=True)
class Torch:
    """What both launchers ask of torch.

    Attributes:
        matmul, linear: ``torch.matmul``, ``torch.nn.functional.linear``.
        empty_bytes: (bytes, device ordinal) -> a fresh uint8 tensor.
        stream: device ordinal -> handle of the current stream.
        grad_enabled: is autograd recording?
        strict: must reductions be FP32, or results reproducible?
        modes, watchers, views, plain, admit: of `plain_tensors`: what answers 0, False or None unless
            a call has to be seen by torch; the same for calls that torch serves anyway, by its own functions'
            names; a tensor's methods that answer False if its bytes are its values; whether a tensor is
            plain; whether `out` may be written, raising its version counter.
        device_type: ``cuda`` (``cpu`` in tests).
        mm: ``torch.mm``, if not given.
    """

    matmul: Callable[..., Any]
    linear: Callable[..., Any]
    empty_bytes: Callable[[int, int], Any]
    stream: Callable[[int], int]
    grad_enabled: Callable[[], bool]
    strict: Callable[[], bool]
    modes: tuple[Callable[[], Any], ...]
    watchers: tuple[Callable[[], Any], ...]
    views: tuple[Callable[[Any], bool], ...]
    plain: Callable[[Any], bool]
    admit: Callable[[Any], bool]
    device_type: str = "cuda"
    mm: Callable[..., Any] | None = None


class KernelLauncher:
    """Launches a plan. Threads may do so at the same time: what a launch puts together is its own.

    Args:
        functions: one a launch of the plan, of this context.
    """

    def __init__(self, driver: Driver, context: int, functions: Sequence[int], plan: KernelPlan) -> None:
        self.driver, self.context, self.plan = driver, context, plan
        self._launches = [
            _Launch(driver, function, launch)
            for function, launch in zip(functions, plan.launches, strict=True)
        ]

    def serves(self, stream: int) -> bool:
        """False where threads would share scratch: the stream is another one in each of them."""
        return stream != PER_THREAD or not self.plan.workspace

    def launch(self, torch: Torch, device: int, values: dict[str, int], stream: int) -> int:
        """The driver's error code; `values` by parameter."""
        plan, scratch = self.plan, None  # which lives until both launches are under way
        if plan.workspace:
            scratch = torch.empty_bytes(plan.workspace, device)
            values = {**values, "workspace": scratch.data_ptr()}
        before = ctypes.c_void_p()
        self.driver.function("cuCtxGetCurrent")(ctypes.byref(before))
        push = bool(self.context) and before.value != self.context
        if push and (code := self.driver.function("cuCtxPushCurrent_v2")(self.context)):
            return int(code)
        try:
            for one in self._launches:
                if code := one.enqueue(values, stream):
                    return code
            return 0
        finally:
            if push:
                self.driver.function("cuCtxPopCurrent_v2")(ctypes.byref(before))


class _Launch:
    """One launch of a plan, with the tensor maps of its last addresses."""

    def __init__(self, driver: Driver, function: int, plan: LaunchPlan) -> None:
        self._driver, self._function, self._parameters = driver, function, plan.parameters
        self._config = launch_config(plan.grid, plan.threads, plan.shared, plan.cluster, plan.overlap)
        self._constants = tuple(item[1] if item[0] == "value" else 0 for item in plan.parameters)
        self._lock = threading.Lock()  # of the maps
        self._maps: dict[int, dict[int, Any]] = {}

    def enqueue(self, given: dict[str, int], stream: int) -> int:
        """Its context is current. The driver copies the arguments before it returns; its error code."""
        count = max(1, len(self._parameters))
        values, pointers = (ctypes.c_uint64 * count)(*self._constants), (ctypes.c_void_p * count)()
        base, held = ctypes.addressof(values), []
        for index, item in enumerate(self._parameters):
            pointers[index] = base + 8 * index
            if item[0] == "map":
                code, storage = self._map(index, item, given[item[1]])
                if code:
                    return code
                held.append(storage)  # another thread may take it out of the cache
                pointers[index] = _aligned(storage)
            elif item[0] != "value":
                values[index] = given.get(item[0], 0)
        config = LaunchConfig.from_buffer_copy(self._config)
        config.stream = stream
        launch = self._driver.function("cuLaunchKernelEx")
        return int(launch(ctypes.byref(config), self._function, pointers, None))

    def _map(self, index: int, item: tuple[Any, ...], address: int) -> tuple[int, Any]:
        """The tensor map for this address: (the driver's error, storage). The last four are kept."""
        with self._lock:
            known = self._maps.setdefault(index, {}).get(address)
        if known is not None:
            return 0, known
        storage = ctypes.create_string_buffer(256)
        if code := self._driver.encode(_aligned(storage), address, item):
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
    """See `launcher.cpp`: same methods, same meaning. A call's arguments are those of `MatmulCall`."""

    def __init__(self, driver: Driver, torch: Torch) -> None:
        self._driver, self._torch = driver, torch
        self._plans: dict[Problem, KernelLauncher | None] = {}  # None: torch's
        self._counts = {"hits": 0, "misses": 0, "refused": 0, "ours": 0}
        self._lock = threading.Lock()

    def __call__(self, *call: Any) -> Any:
        """C; NotImplemented when Python's slow path has to look; None where torch serves what it composes."""
        return self._called(MatmulCall(*call))

    def linear(self, x: Any, weight: Any, bias: Any, residual: Any, activation: int) -> Any:
        """The same for activation(x @ weight^T + residual + bias)."""
        if not self._torch.plain(weight) or weight.dim() != 2:
            return NotImplemented
        beta = float(residual is not None)
        return self._called(
            MatmulCall(x, weight.t(), None, bias, activation, 1.0, beta, residual, weight=weight)
        )

    def _called(self, asked: MatmulCall) -> Any:
        found = self._read(asked)
        if found is None or any(mode() for mode in self._torch.modes):
            return NotImplemented
        if self._torch.grad_enabled() and any(t.requires_grad for t in asked.tensors):
            torchs = asked.torch_alone and self._plans.get(found.problem, _UNKNOWN) is None
            torchs = torchs and not any(watcher() for watcher in self._torch.watchers)
            return self._by_torch(asked) if torchs else NotImplemented  # torch records its own gradients
        return self._run(asked, found)

    def raw(self, *call: Any) -> Any:
        """The same whatever modes are active."""
        asked = MatmulCall(*call)
        return self._run(asked, self._read(asked))

    def _run(self, asked: MatmulCall, found: ReadCall | None) -> Any:
        kernel = _UNKNOWN if found is None else self._plans.get(found.problem, _UNKNOWN)
        if found is None or kernel is _UNKNOWN:
            self._count("misses")
            return NotImplemented
        self._count("hits")
        problem, a, out = found.problem, asked.a, asked.out
        stream = self._torch.stream(problem.device)
        if kernel is None or not kernel.serves(stream):
            return self._by_torch(asked)
        if out is not None and not self._torch.admit(out):  # raises its version: only where we write it
            return self._by_torch(asked)
        c = a.new_empty((*found.leading, a.shape[-2], problem.ldc)) if out is None else out
        code = kernel.launch(self._torch, problem.device, found.values(asked, c.data_ptr()), stream)
        if code == 0:
            self._count("ours")
            return c
        self._refused(problem, kernel, code)
        return self._by_torch(asked)

    def _refused(self, problem: Problem, kernel: KernelLauncher, code: int) -> None:
        self._count("refused")
        with self._lock:
            if self._plans.get(problem) is kernel:  # unless another one serves by now
                self._plans[problem] = None
        warnings.warn(
            f"sassafras.matmul: a kernel could not be launched (error {code}) for {problem.shape}; "
            "torch serves this problem from now on",
            RuntimeWarning,
            stacklevel=3,
        )

    def rows(self, kind: int, a: Any, other: Any, bias: Any, out: Any, eps: float, constant: bool) -> Any:
        """`read_rows`'s call. True: a kernel was launched; False: torch serves; None: no plan can; a problem:
        it has no plan yet."""
        if not all(self._torch.plain(t) for t in (a, other, bias, out) if t is not None):
            return None
        found = read_rows(kind, a, other, bias, out, constant, self._torch.device_type)
        return None if found is None else self._launched(*found, out, eps)

    def joined(self, *call: Any) -> Any:
        """The same for `JoinedCall`'s tensors, `out`, eps and constant."""
        *tensors, out, eps, constant = call
        given = tensors[0], out, *(t for t in tensors if t is not None)
        if not all(map(self._torch.plain, given)):
            return None
        asked = JoinedCall(*[*tensors, eps, constant])
        found = read_joined(asked, out, self._torch.device_type)
        return None if found is None else self._launched(*found, out, eps)

    def attention(self, q: Any, k: Any, v: Any, mask: Any, out: Any, scale: float) -> Any:
        """The same for `AttentionCall`'s tensors, `out` and the scale."""
        call = AttentionCall(q, k, v, mask)
        if not all(self._torch.plain(t) for t in (*call, out) if t is not None):
            return None
        found = read_attention(call, out, self._torch.device_type)
        return None if found is None else self._launched(*found, out, scale)

    def turned(self, *call: Any) -> Any:
        """The same for `TurnedCall`'s tensors, `out` and eps."""
        *given, out, eps = call
        if not all(self._torch.plain(t) for t in (*given, out) if t is not None):
            return None
        found = read_turned(TurnedCall(*given), out, self._torch.device_type)
        return None if found is None else self._launched(*found, out, eps)

    def _launched(self, problem: Problem, values: dict[str, int], out: Any, eps: float) -> Any:
        if problem not in self._plans:
            return tuple(problem)
        kernel = self._plans[problem]
        if kernel is None or not self._torch.admit(out):
            return False
        values |= {"alpha": bits(1.0), "eps": bits(eps) & 0xFFFFFFFF}
        stream = self._torch.stream(problem.device)
        if code := kernel.launch(self._torch, problem.device, values, stream):
            self._refused(problem, kernel, code)
        return code == 0

    def key(self, *call: Any) -> tuple[int, ...] | None:
        """The problem as a tuple (`Problem`), None when no plan can serve it."""
        found = self._read(MatmulCall(*call))
        return tuple(found.problem) if found else None

    def add_torch(self, key: tuple[int, ...]) -> None:
        """Let torch serve a problem."""
        self._plans[Problem(*key)] = None

    def add_kernel(
        self, key: tuple[int, ...], context: int, functions: Sequence[int], plan: KernelPlan
    ) -> None:
        """Let our kernels serve a problem; one function a launch of the plan."""
        self._plans[Problem(*key)] = KernelLauncher(self._driver, context, functions, plan)

    def knows(self, key: tuple[int, ...]) -> bool:
        """Is there a plan for this problem?"""
        return Problem(*key) in self._plans

    def remove(self, key: tuple[int, ...]) -> None:
        """Drop the plan of a problem."""
        self._plans.pop(Problem(*key), None)

    def forget(self) -> None:
        """Drop all plans."""
        self._plans.clear()

    def counts(self) -> dict[str, int]:
        """Hits (plans found), misses, refused launches, launches of ours or of cuBLASLt, plans."""
        return {**self._counts, "plans": len(self._plans)}

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def _read(self, asked: MatmulCall) -> ReadCall | None:
        return read(asked, self._torch.device_type) if all(map(self._torch.plain, asked.tensors)) else None

    def _by_torch(self, asked: MatmulCall) -> Any:
        if not asked.torch_alone:
            return None
        a, b, out = asked[:3]
        if asked.weight is not None:
            return self._torch.linear(a, asked.weight, asked.bias)
        return self._torch.matmul(a, b) if out is None else self._torch.matmul(a, b, out=out)


def compiled(module: Any, driver: Driver, torch: Torch, lt_matmul: int = 0) -> Any:
    """The compiled launcher. Raises AttributeError on a torch without DLPack's C table."""
    import torch as library

    addresses = {**driver.addresses(), **({"cublasLtMatmul": lt_matmul} if lt_matmul else {})}
    device_type = {"cuda": 2, "cpu": 1}[torch.device_type]
    kinds = library.Tensor, library.nn.Parameter
    return module.Launcher(
        library.Tensor.__dlpack_c_exchange_api__,
        *kinds,
        torch.mm or library.mm,
        torch,
        device_type,
        addresses,
    )
