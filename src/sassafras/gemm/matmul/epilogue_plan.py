"""Calls with an epilogue or batches: from tensors to a plan, and the plan launched.

The twin of what `problem.py`, `plan.py` and `launcher_python.py` do for plain products, which are served
elsewhere and know nothing of this. Keys hold the batch as well; alpha, beta, activation and the bias's
address are given at each launch. The compiled launcher (`launcher/epilogue.hpp`) is given every plan that is
made here, and serves the call from then on; without it, calls are launched here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sassafras.core import DeviceError, SassafrasError
from sassafras.cuda.tensor_maps import L2_PROMOTION_128

from ..build.cubins import cubin
from ..configs.epilogue import ACTIVATIONS, Batch, Lines, bits, configurations, launch
from ..configs.registry import Config
from ..problem.shape import Shape
from ..select.epilogue_selector import Extra, choose
from ..select.selector import parsed
from .eligible import plain
from .launcher_python import _Kernel
from .plan import _MAP_TYPES, _SWIZZLES, KernelPlan
from .problem import DTYPES, LAYOUTS, lies

if TYPE_CHECKING:
    from .planner import Planner

#: parameters that a launch gives: addresses, and words
_GIVEN = ("bias", "addend", "alpha", "beta", "activation")


class FusedProblem(NamedTuple):
    """A batch of products of one shape, and everything that decides which kernel may run.

    Attributes:
        device: CUDA ordinal.
        dtype: 0 FP16, 1 BF16.
        m, n, k: extents of each product.
        transposed: 1 when B is stored n x k (A is row-major).
        lda, ldb, ldc: elements from line to line.
        aligned: 1 when all addresses are multiples of 16 bytes.
        matrices: in the batch.
        step_a, step_b, step_c: elements from one to the next; 0: the same for all.
    """

    device: int
    dtype: int
    m: int
    n: int
    k: int
    transposed: int
    lda: int
    ldb: int
    ldc: int
    aligned: int
    matrices: int
    step_a: int
    step_b: int
    step_c: int

    @property
    def shape(self) -> Shape:
        """Of each product."""
        return Shape(self.m, self.n, self.k)

    @property
    def layout(self) -> str:
        """``nn`` or ``tn``."""
        return LAYOUTS[self.transposed]

    @property
    def batch(self) -> Batch:
        """As `epilogue` takes it."""
        return Batch(self.matrices, self.step_a, self.step_b, self.step_c)

    @property
    def lines(self) -> Lines:
        """As `epilogue` takes them."""
        return Lines(self.lda, self.ldb, self.ldc)


def stride_of(leading: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> int | None:
    """The one stride of a tensor's leading extents along a batch of `wanted`; 0: it has one matrix for all.

    None where no single stride does it.
    """
    if all(extent == 1 for extent in leading):
        return 0
    if len(leading) < len(wanted):
        leading, strides = (
            (1,) * (len(wanted) - len(leading)) + tuple(leading),
            (0,) * (len(wanted) - len(strides)) + tuple(strides),
        )
    if tuple(leading) != tuple(wanted):
        return None  # some extents are shared and others are not
    count, step = 1, 0
    for extent, stride in zip(reversed(leading), reversed(strides), strict=True):
        if extent == 1:
            continue
        if count == 1:
            step = stride
        elif stride != step * count:
            return None
        count *= extent
    return step


def read(a: Any, b: Any, out: Any, bias: Any, device_type: str) -> FusedProblem | None:
    """The problem; None for what no plan can serve: see `problem.read`. Extents are known to fit."""
    import torch

    given = [t for t in (a, b, out, bias) if t is not None]
    if not all(map(plain, given)) or any(t.device != a.device or t.dtype != a.dtype for t in given):
        return None
    if a.device.type != device_type or a.dtype not in (torch.float16, torch.bfloat16):
        return None
    leading = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (m, k), n = a.shape[-2:], b.shape[-1]
    if out is not None and out.shape != (*leading, m, n):
        return None
    if bias is not None and n > 1 and bias.stride(0) != 1:
        return None
    steps = [stride_of(t.shape[:-2], t.stride()[:-2], leading) for t in (a, b)]
    step_c = m * n if out is None else stride_of(out.shape[:-2], out.stride()[:-2], leading)
    if None in (*steps, step_c):
        return None
    count = 1
    for extent in leading:
        count *= extent
    rows_a = (m, a.stride(-2))
    step_a, step_b = steps
    line_c, rows_c = (n, m) if out is None else (out.stride(-2), m)
    if count > 1 and step_b == 0 and step_a == m * rows_a[1] and (out is None or step_c == m * line_c):
        # one product of more rows
        m = rows_c = m * count
        count, step_a, step_c = 1, 0, 0
    left, right = lies(m, k, rows_a[1], a.stride(-1)), lies(k, n, b.stride(-2), b.stride(-1))
    result = (False, n) if out is None else lies(rows_c, n, line_c, out.stride(-1))
    if left is None or right is None or result is None or left[0] or result[0]:
        return None
    if count == 1:
        step_a = step_b = step_c = 0
    elif not step_c:
        return None  # an expanded out
    if min(step_a or 0, step_b or 0, step_c or 0) < 0:
        return None
    problem = FusedProblem(
        a.device.index or 0,
        int(a.dtype == torch.bfloat16),
        m,
        n,
        k,
        int(right[0]),
        left[1],
        right[1],
        result[1],
        int(all(t.data_ptr() % 16 == 0 for t in given)),
        count,
        step_a or 0,
        step_b or 0,
        step_c or 0,
    )
    return None if out is not None and _overlap(problem, a, b, out, bias) else problem


def _overlap(p: FusedProblem, a: Any, b: Any, out: Any, bias: Any) -> bool:
    """Does out share memory with what is read? (Or with itself: matrices closer than they are large.)"""
    spans = {
        "a": (p.matrices - 1) * p.step_a + (p.m - 1) * p.lda + p.k,
        "b": (p.matrices - 1) * p.step_b
        + ((p.n - 1) * p.ldb + p.k if p.transposed else (p.k - 1) * p.ldb + p.n),
        "c": (p.matrices - 1) * p.step_c + (p.m - 1) * p.ldc + p.n,
        "bias": p.n,
    }
    start, end = out.data_ptr(), out.data_ptr() + 2 * spans["c"]
    for name, tensor in (("a", a), ("b", b), ("bias", bias)):
        if tensor is not None:
            at = tensor.data_ptr()
            if at < end and start < at + 2 * spans[name]:
                return True
    return p.matrices > 1 and p.step_c < (p.m - 1) * p.ldc + p.n


def plan(config: Config, problem: FusedProblem, beta: bool) -> KernelPlan:
    """The plan; `beta`: C is added to, in place. Raises SassafrasError."""
    made = launch(config, problem.shape, beta=float(beta), batch=problem.batch, lines=problem.lines)
    role = {"a": "b", "b": "a", "c": "c"} if config.swapped else {"a": "a", "b": "b", "c": "c"}
    parameters: list[tuple[Any, ...]] = []
    for name, kind in config.instance.parameters:
        if kind == "tensormap":
            d = made.tensor_maps[name]
            parameters.append(
                (
                    "map",
                    role[d.operand],
                    _MAP_TYPES[d.dtype],
                    d.dims,
                    d.strides,
                    d.box,
                    (1,) * len(d.dims),
                    0,
                    _SWIZZLES[d.swizzle],
                    L2_PROMOTION_128,
                    0,
                )
            )
        elif name in ("workspace", "counters", *_GIVEN):
            parameters.append((name,))
        elif kind.startswith("*"):
            parameters.append((role[name],))
        else:
            parameters.append(("value", made.scalars[name] & 0xFFFFFFFFFFFFFFFF))
    return KernelPlan(
        made.grid,
        made.threads,
        made.shared_bytes,
        made.cluster,
        tuple(parameters),
        made.workspace_bytes,
        made.counters,
        made.overlap,
    )


class Fused:
    """Serves calls for an engine; plans are kept by problem and by what the epilogue has."""

    def __init__(self, engine: Planner) -> None:
        self._engine = engine
        self._plans: dict[tuple[Any, ...], _Kernel | None] = {}
        self.served: dict[tuple[Any, ...], tuple[str, str | None, str]] = {}
        self.counts = {"hits": 0, "torch": 0}
        self._counting = threading.Lock()

    def __call__(
        self, a: Any, b: Any, out: Any, bias: Any, activation: str | None, alpha: float, beta: float
    ) -> Any:
        """The result, or NotImplemented where torch is to serve."""
        engine = self._engine
        side = engine.torch
        problem = read(a, b, out, bias, side.device_type)
        if problem is None:
            return NotImplemented
        key = (*problem, bias is not None, activation, beta != 0)
        if key not in self._plans:
            self._plan(key, problem, Extra(bias is not None, activation, beta != 0))
        kernel = self._plans.get(key)
        stream = side.stream(problem.device)
        if kernel is None or not kernel.serves(stream):
            self._count("torch")
            return NotImplemented
        if out is not None and not side.admit(out):
            return NotImplemented
        c = a.new_empty((*_leading(a, b), a.shape[-2], problem.n)) if out is None else out
        addresses = _addresses(a, b, c, bias, activation, alpha, beta)
        code = kernel.launch(side, problem.device, addresses, stream)
        if code:
            with engine.lock:
                if self._plans.get(key) is kernel:  # unless another one serves by now
                    self._plans[key] = None
                    self.served[key] = ("torch", None, f"the kernel could not be launched (error {code})")
            engine.note(f"{problem.shape}: a kernel with an epilogue could not be launched (error {code})")
            return NotImplemented
        self._count("hits")
        return c

    def read(self, a: Any, b: Any, out: Any, bias: Any) -> FusedProblem | None:
        """The problem; None where no plan can serve it."""
        return read(a, b, out, bias, self._engine.torch.device_type)

    def bind(
        self,
        config: Config,
        a: Any,
        b: Any,
        out: Any = None,
        bias: Any = None,
        activation: str | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Callable[[], Any]:
        """A call that runs this configuration on these tensors and returns C, whoever would be chosen.

        For measurements and tests; C is one tensor for all calls. Compiles what is missing.

        Raises:
            SassafrasError: the tensors are no problem of ours, or the configuration cannot run them.
        """
        engine, side = self._engine, self._engine.torch
        problem = read(a, b, out, bias, side.device_type)
        if problem is None:
            raise SassafrasError("no kernel with an epilogue takes such tensors", where=config.name)
        if not problem.aligned and not getattr(config, "any_alignment", False):
            raise SassafrasError("an address is not a multiple of 16 bytes", where=config.name)
        kernel = self._kernel(problem, config, cubin(config.instance, engine.cache), beta != 0)
        c = a.new_empty((*_leading(a, b), a.shape[-2], b.shape[-1])) if out is None else out
        addresses = _addresses(a, b, c, bias, activation, alpha, beta)
        kept = (a, b, bias)  # their memory is read as long as the call may be made

        def call(kept: Any = kept) -> Any:
            if code := kernel.launch(side, problem.device, addresses, side.stream(problem.device)):
                raise DeviceError(f"CUDA error {code}", where=config.name)
            return c

        return call

    def _plan(self, key: tuple[Any, ...], problem: FusedProblem, extra: Extra) -> None:
        """Decide who serves a problem. A kernel that is not there yet is compiled while torch serves."""
        engine = self._engine
        with engine.lock:
            if key in self._plans:  # another thread has done it meanwhile
                return
            gpu = engine.gpu(problem.device)
            if engine.everything:
                legal = configurations(
                    problem.shape,
                    problem.layout,
                    DTYPES[problem.dtype],
                    problem.batch,
                    problem.lines,
                    bool(problem.aligned),
                )
                name, why = (legal[0].name if legal else None), "every kernel of ours serves"
            elif gpu.chooser is None:
                name, why = None, gpu.why_not
            else:
                name, why = choose(
                    gpu.chooser,
                    problem.shape,
                    problem.layout,
                    DTYPES[problem.dtype],
                    problem.batch,
                    problem.lines,
                    bool(problem.aligned),
                    extra,
                )
            config = parsed(name) if name else None
            native = (*problem, int(extra.bias) | extra.beta << 1 | ACTIVATIONS[extra.activation] << 2)
            self._plans[key] = None
            self._tell(native, None)
            if config is not None:
                try:
                    code, waits = engine.code(config.instance, lambda: self._drop(key, native))
                    if code is None:
                        config, why = None, waits
                    else:
                        self._plans[key] = self._kernel(problem, config, code, extra.beta, native)
                except SassafrasError as error:
                    config, why = None, str(error)
                    engine.note(f"{problem.shape}: {error}")
            self.served[key] = ("ours" if config else "torch", config.name if config else None, why)

    def _count(self, what: str) -> None:
        with self._counting:
            self.counts[what] += 1

    def _tell(self, native: tuple[Any, ...], how: tuple[Any, ...] | None) -> None:
        """Give the compiled launcher, if it serves, a plan; None: torch's."""
        launcher = self._engine.launcher
        if hasattr(launcher, "fused_key"):
            if how is None:
                launcher.add_torch(native)
            else:
                launcher.add_kernel(native, *how)

    def _drop(self, key: tuple[Any, ...], native: tuple[Any, ...]) -> None:
        """The next call decides anew."""
        self._plans.pop(key, None)
        if hasattr(self._engine.launcher, "fused_key"):
            self._engine.launcher.remove(native)

    def _kernel(
        self,
        problem: FusedProblem,
        config: Config,
        code: bytes,
        beta: bool,
        native: tuple[Any, ...] | None = None,
    ) -> _Kernel:
        from .driver import launch_config

        engine, ordinal = self._engine, max(0, problem.device)
        made = plan(config, problem, beta)
        function = engine.loaded(ordinal, config.instance, code)
        if native is not None:
            self._tell(
                native,
                (
                    function,
                    engine.driver.context(ordinal),
                    made.grid,
                    made.threads,
                    made.shared,
                    made.cluster,
                    made.parameters,
                    made.workspace,
                    made.counters,
                    made.overlap,
                ),
            )
        how = launch_config(made.grid, made.threads, made.shared, made.cluster, made.overlap)
        return _Kernel(
            engine.driver,
            function,
            engine.driver.context(ordinal),
            how,
            made.parameters,
            made.workspace,
            made.counters,
        )

    def renew(self) -> None:
        """Plans are made anew as calls come: another launcher has taken over."""
        self._plans.clear()

    def forget(self) -> None:
        """Drop all plans and choices."""
        self._plans.clear()
        self.served.clear()

    def status(self) -> list[dict[str, Any]]:
        """Who served what, and why (JSON-able)."""
        found = []
        for key, (member, config, why) in self.served.items():
            problem = FusedProblem(*key[:14])
            bias, activation, beta = key[14:]
            found.append(
                {
                    "shape": str(problem.shape),
                    "layout": problem.layout,
                    "dtype": DTYPES[problem.dtype],
                    "batch": problem.matrices,
                    "bias": bias,
                    "activation": activation,
                    "beta": beta,
                    "member": member,
                    "config": config,
                    "why": why,
                }
            )
        return found


def _addresses(
    a: Any, b: Any, c: Any, bias: Any, activation: str | None, alpha: float, beta: float
) -> dict[str, int]:
    """What a launch gives, by parameter."""
    return {
        "a": a.data_ptr(),
        "b": b.data_ptr(),
        "c": c.data_ptr(),
        "bias": 0 if bias is None else bias.data_ptr(),
        "addend": c.data_ptr() if beta else 0,
        "alpha": bits(alpha) & 0xFFFFFFFF,
        "beta": bits(beta) & 0xFFFFFFFF,
        "activation": ACTIVATIONS[activation],
    }


def _leading(a: Any, b: Any) -> tuple[int, ...]:
    import torch

    return tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
