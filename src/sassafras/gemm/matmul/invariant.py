"""Products of which a row's bits depend on that row and B alone: ``matmul(..., invariant=True)``.

Where k is cut follows from n and k; per number of rows the fastest configuration with these cuts serves
(`select.invariant`). Nothing else does: where none can read the operands as they lie they are copied, and
where there is none at all the call raises.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from sassafras.core import DeviceError, SassafrasError

from ..configs.epilogue import NUMBERS
from ..problem.launch import ceil_div
from ..select import invariant
from ..select.selector import Choice
from . import plain_tensors
from .composed import activated, check, composed, fits, wants_grad
from .driver import Driver
from .plan import why_illegal
from .planner import Planner
from .problem import DTYPES, Problem
from .torch_side import torch_side

_WHERE = "sassafras.matmul, invariant"
#: TMA reads lines of whole 16 bytes
_LINE = 8


class InvariantPlanner(Planner):
    """A planner all of whose members sum alike, whatever m. A first call waits for its kernels."""

    def choose(self, problem: Problem) -> Choice:
        """The class's member; no configuration where none can serve the operands as they lie."""
        gpu, kinds = self.gpu(problem.device), (problem.layout, DTYPES[problem.dtype])
        if gpu.chooser is None:
            raise DeviceError(f"no invariant kernel: {gpu.why_not}", where=_WHERE)
        config = invariant.choose(
            gpu.chooser,
            problem.shape,
            *kinds,
            lambda config: why_illegal(config, problem) is None,
            epilogue=not problem.plain,
            batch=problem.batch,
        )
        cuts = len(invariant.cuts_of(problem.n, problem.k))
        return Choice("ours" if config else "none", config, None, 1.0, f"k in {cuts + 1} ranges, for any m")

    def serve(self, key: tuple[int, ...]) -> None:
        """Put a plan into the launcher if a kernel serves this problem.

        Raises:
            SassafrasError: its kernel cannot be compiled or loaded, or the GPU has none.
        """
        problem = Problem(*key)
        with self._lock:
            if problem in self.served and (self.launcher.knows(problem) or not self.served[problem].config):
                return
            choice = self.choose(problem)
            if choice.config is not None:
                codes = [self._made(i) for i in choice.config.instances]
                self.launcher.add_kernel(problem, *self._bound(problem, choice.config, codes))
            self.served[problem] = choice


def _refused(*given: Any, **named: Any) -> Any:
    """Stands where a launcher would call torch: when the driver has refused a launch."""
    raise DeviceError("a kernel could not be launched, and no other sums alike", where=_WHERE)


_engine: InvariantPlanner | None = None
_device = "cuda"
_once = threading.RLock()


def use(engine: InvariantPlanner | None, *, device: str = "cuda") -> None:
    """Install an engine (tests do); None: as if never called."""
    global _engine, _device
    _engine, _device = engine, device


def _planner() -> InvariantPlanner:
    """Of this process, made once. Raises DriverError."""
    global _engine
    with _once:
        if _engine is None:
            side = torch_side(matmul=_refused, linear=_refused, mm=_refused)
            _engine = InvariantPlanner(Driver(), side)
        return _engine


def status() -> dict[str, Any]:
    """As `sassafras.matmul`'s: the problems seen, and what serves them."""
    return _engine.status() if _engine else {"launcher": None, "problems": [], "notes": []}


def why_not(ordinal: int) -> str:
    """Why no kernel of ours serves a CUDA device; "" where they do. Raises DriverError."""
    gpu = _planner().gpu(ordinal)
    return "" if gpu.chooser is not None else gpu.why_not


def product(
    a: Any,
    b: Any,
    out: Any = None,
    bias: Any = None,
    activation: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    addend: Any = None,
) -> Any:
    """activation(alpha * a @ b + beta * addend + bias) as by `sassafras.matmul`; addend: `out` if not given.

    A row of the result has the same bits for any m and any other rows, at any place, however A lies, eager
    and compiled, in any process of this version. With `alpha`, or a `beta` other than 1, each operation
    after the product rounds to the type. The gradient of `a` is invariant as well; those of `b` and `bias`
    are sums over the rows, which torch makes.

    Raises:
        SassafrasError: other types than FP16 and BF16, a device without our kernels, what `matmul` refuses.
        RuntimeError: extents that do not fit; a gradient is wanted of a call with `out`.
    """
    call = (a, b, out, bias, activation, alpha, beta, addend)
    check(*call)
    if a.device.type == _device and torch.is_autocast_enabled(_device):
        return _autocast(*call)
    tensors = [t for t in (a, b, bias, addend) if t is not None]
    _supported(tensors)
    vectors = (a.dim() == 1, b.dim() == 1)
    left, right = a.unsqueeze(0) if vectors[0] else a, b.unsqueeze(1) if vectors[1] else b
    if not fits(left, right):
        return composed(*call)  # raises, or has nothing to sum
    if out is not None and wants_grad(*tensors, out):
        raise RuntimeError("sassafras.matmul(): out=... does not support automatic differentiation")
    added = out if addend is None else addend
    if alpha != 1.0 or beta not in (0.0, 1.0) or (beta and any(vectors)):
        value = alpha * product(a, b)
        value = value + beta * added if beta else value
        value = activated(value if bias is None else value + bias, activation)
    else:
        operands = left, right, bias, activation or "none", added if beta else None
        direct = not torch.compiler.is_compiling() and plain_tensors.quiet() and not wants_grad(*tensors)
        if direct and all(map(plain_tensors.plain, tensors)):
            value = _run(*operands, None if any(vectors) else out)
            if value is out:
                return out
        else:
            value = torch.ops.sassafras.invariant.default(*operands)
        value = value.squeeze(-1) if vectors[1] else value
        value = value.squeeze(-1 if vectors[1] else -2) if vectors[0] else value
    return value if out is None else into(out, value)


def into(out: Any, value: Any) -> Any:
    """Write a result. Raises SassafrasError: `out` is of another shape or type."""
    if out.shape != value.shape or out.dtype != value.dtype:
        told = f"out is {tuple(out.shape)} {out.dtype}, the result {tuple(value.shape)} {value.dtype}"
        raise SassafrasError(told, where=_WHERE)
    return out.copy_(value)


def _autocast(a: Any, b: Any, out: Any, bias: Any, *rest: Any) -> Any:
    dtype = torch.get_autocast_dtype(a.device.type)
    with torch.autocast(a.device.type, enabled=False):
        return product(a.to(dtype), b.to(dtype), out, None if bias is None else bias.to(dtype), *rest)


def _supported(tensors: list[Any]) -> None:
    """Raises SassafrasError for types and devices of which no kernel is invariant."""
    for tensor in tensors:
        if tensor.device.type != _device:
            hint = "move the tensors to a Hopper GPU, or leave invariant out"
            raise SassafrasError(
                f"a tensor is on {tensor.device}, kernels on {_device}", where=_WHERE, hint=hint
            )
        if tensor.dtype not in plain_tensors.DTYPES or tensor.dtype != tensors[0].dtype:
            told = f"{tensor.dtype} and {tensors[0].dtype}: FP16 or BF16, the same for all, is possible"
            hint = "sassafras.batch_invariant() serves FP32 as well, by Triton"
            raise SassafrasError(told, where=_WHERE, hint=hint)


def rows_of(a: Any, b: Any, bias: Any = None, residual: Any = None, out: Any = None) -> Any:
    """a @ b + residual + bias of plain tensors below autograd, of two dimensions or more, none of them empty.

    Args:
        out: where the result may be written; it is not, unless it is what is returned.

    Raises:
        SassafrasError: no kernel can be compiled or launched.
    """
    return _run(a, b, bias, "none", residual, out)


# -- below autograd and modes: plain tensors, two dimensions and more --------------------------------------


def _run(
    a: Any, b: Any, bias: Any = None, activation: str = "none", residual: Any = None, out: Any = None
) -> Any:
    """activation(a @ b + residual + bias), contiguous, in the first form of the operands that a kernel reads.

    It is fresh if it is not `out`.
    """
    given = a, b, bias, residual
    number = NUMBERS[None if activation == "none" else activation]
    shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if out is not None and not (residual is None and _writable(out, shape)):
        out = None
    for form in (_as_it_lies, _rows_copied, _all_copied, _padded):
        if (operands := form(*given)) is None:
            continue
        left, right, *more = operands
        result = _served(left, right, *more, number=number, out=out)
        if result is not None:
            return result if result.shape == shape else result[..., : b.shape[-1]].reshape(shape)
        out = None
    told = f"no kernel sums {tuple(a.shape)} x {tuple(b.shape)} {a.dtype} invariantly"
    raise SassafrasError(told, where=_WHERE)


def _writable(out: Any, shape: tuple[int, ...]) -> bool:
    """Whether a kernel may write there: one column could be read as a row, whose product is another."""
    fits = out.shape == shape and out.is_contiguous() and shape[-1] > 1
    return bool(fits and plain_tensors.plain(out) and not out.is_inference())


def _as_it_lies(a: Any, b: Any, bias: Any, residual: Any) -> tuple[Any, ...] | None:
    """None where A is stored by columns: which kernel reads that depends on m."""
    lies = a.stride(-1) == 1 or a.shape[-1] == 1 or a.shape[-2] == 1
    return (a, b, bias, residual) if lies else None


def _rows_copied(a: Any, b: Any, bias: Any, residual: Any) -> tuple[Any, ...]:
    """Everything but B, row after row from a fresh address on."""
    kept = torch.contiguous_format
    return (
        a.clone(memory_format=kept),
        b,
        *(t if t is None else t.clone(memory_format=kept) for t in (bias, residual)),
    )


def _all_copied(a: Any, b: Any, bias: Any, residual: Any) -> tuple[Any, ...]:
    """B too; one product of all rows, or a batch that shares nothing."""
    if b.dim() == 2:
        a = a.reshape(-1, a.shape[-1])
        residual = residual if residual is None else residual.reshape(-1, residual.shape[-1])
    else:
        leading = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a = a.expand(*leading, *a.shape[-2:]).reshape(-1, *a.shape[-2:])
        b = b.expand(*leading, *b.shape[-2:]).reshape(-1, *b.shape[-2:])
        residual = residual if residual is None else residual.reshape(-1, *residual.shape[-2:])
    a, _, bias, residual = _rows_copied(a, b, bias, residual)
    return a, b.clone(memory_format=torch.contiguous_format), bias, residual


def _padded(a: Any, b: Any, bias: Any, residual: Any) -> tuple[Any, ...]:
    """k and n are whole lines of 16 bytes: zeros change no sum."""
    a, b, bias, residual = _all_copied(a, b, bias, residual)
    k, n = (_LINE * ceil_div(extent, _LINE) - extent for extent in b.shape[-2:])
    pad = torch.nn.functional.pad
    more = (t if t is None else pad(t, (0, n)) for t in (bias, residual))
    return pad(a, (0, k)), pad(b, (0, n, 0, k)), *more


def _served(a: Any, b: Any, bias: Any, residual: Any, *, number: int, out: Any) -> Any:
    """C by our kernels; None where none reads the operands as they lie."""
    launcher = _planner().launcher
    call = (a, b, out, bias, number, 1.0, float(residual is not None), residual)
    result = launcher.raw(*call)
    if result is NotImplemented and (key := launcher.key(*call)) is not None:
        _planner().serve(key)
        result = _planner().launcher.raw(*call)
    if result is None:
        _refused()
    return None if result is NotImplemented else result


# -- the operator ------------------------------------------------------------------------------------------


def _fake(a: Any, b: Any, bias: Any = None, activation: str = "none", residual: Any = None) -> Any:
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"extents do not fit: {a.shape} and {b.shape}")
    leading = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*leading, a.shape[-2], b.shape[-1]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, bias, activation, residual = inputs
    ctx.save_for_backward(a, b, bias, residual)
    ctx.activation = activation


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    a, b, bias, residual = ctx.saved_tensors
    wants = ctx.needs_input_grad
    if ctx.activation != "none":
        with torch.enable_grad():
            before = (
                torch.ops.sassafras.invariant.default(a, b, bias, "none", residual).detach().requires_grad_()
            )
            (grad,) = torch.autograd.grad(activated(before, ctx.activation), before, grad)
    for_a = for_b = for_bias = None
    if wants[0]:
        for_a = torch.ops.sassafras.invariant.default(grad, b.mT).sum_to_size(a.shape)
    if wants[1] and b.dim() == 2:
        for_b = torch.matmul(a.reshape(-1, a.shape[-1]).t(), grad.reshape(-1, grad.shape[-1]))
    elif wants[1]:
        for_b = torch.matmul(a.mT, grad).sum_to_size(b.shape)
    if bias is not None and wants[2]:
        for_bias = grad.sum(tuple(range(grad.dim() - 1)))
    return for_a, for_b, for_bias, None, grad if residual is not None and wants[4] else None


def _register() -> Any:
    library = torch.library.Library("sassafras", "FRAGMENT")
    tags = ("pt2_compliant_tag", "needs_exact_strides")
    known = tuple(getattr(torch.Tag, tag) for tag in tags if hasattr(torch.Tag, tag))
    schema = "(Tensor a, Tensor b, Tensor? bias=None, str activation='none', Tensor? residual=None) -> Tensor"
    library.define("invariant" + schema, tags=known)
    library.impl("invariant", _run, "CompositeExplicitAutograd")
    torch.library.register_fake("sassafras::invariant", _fake, lib=library)
    torch.library.register_autograd("sassafras::invariant", _backward, setup_context=_keep, lib=library)
    return library


_LIBRARY = _register()  # registrations last as long as this object
