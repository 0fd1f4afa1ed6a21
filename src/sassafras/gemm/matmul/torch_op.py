"""``torch.ops.sassafras.mm`` and ``.fused``: the operators that torch.compile, autograd and tracers see.
(``.layer``: `layer_op`; ``.joined``: `joined_op`; ``.rms_norm``, ``.layer_norm``, ``.gated``: `rows_op`;
``.attention``: `attention_op`.)

``mm(a, b)`` is the product of two matrices. ``fused(a, b, bias, activation, alpha, residual)`` is
activation(alpha * a @ b + residual + bias) with a: (..., m, k), b: (..., k, n), leading extents as
torch.matmul broadcasts them, bias: (n) or None, residual: of the result's shape or None, activation: ``none``
or a name of `epilogue.ACTIVATIONS`.

Eager calls of sassafras.matmul go past them (an operator in Python costs some 6 us). The autograd formula is
made of the operators themselves, so products of the backward pass have the portfolio too: dA = dC B^T,
dB = A^T dC, read in place. Where a tangent of forward-mode AD is carried, or functorch transforms the
backward pass, torch's own operators run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from . import plain_tensors

_SCHEMAS = {
    "mm": "(Tensor a, Tensor b) -> Tensor",
    "fused": "(Tensor a, Tensor b, Tensor? bias, str activation, float alpha, Tensor? residual=None)"
    " -> Tensor",
    "layer": "(Tensor a, Tensor b, Tensor? other=None, Tensor? bias=None, Tensor? residual=None,"
    " Tensor? norm=None, float eps=0.0, str activation='none', bool constant=False) -> Tensor",
    "joined": "(Tensor a, Tensor b, Tensor second, Tensor? third=None, Tensor? bias=None,"
    " Tensor? second_bias=None, Tensor? third_bias=None, Tensor? norm=None, float eps=0.0,"
    " bool constant=False) -> Tensor",
    "rms_norm": "(Tensor a, Tensor norm, float eps, bool constant=False) -> Tensor",
    "layer_norm": "(Tensor a, Tensor norm, Tensor? bias, float eps, bool constant=False) -> Tensor",
    "gated": "(Tensor gate, Tensor? up=None) -> Tensor",
    "attention": "(Tensor q, Tensor k, Tensor v, Tensor? mask=None, float? scale=None) -> Tensor",
}
#: floating-point operations of each element of C, for each element of a's last extent
_FLOP = {"mm": 2, "fused": 2, "layer": 4, "joined": 2}
_KEPT: list[Any] = []  # registrations last as long as these objects
#: called once each, when a product is traced and Inductor is there
ON_INDUCTOR: list[Callable[[], None]] = []
#: called each time
EACH_TRACE: list[Callable[[], None]] = []
#: what an operator's `into` is called with: tensors, and what follows them
Told = tuple[list[Any], tuple[Any, ...]]


def register(
    name: str,
    run: Callable[..., Any],
    composed: Callable[..., Any],
    into: Callable[..., None],
    fake: Callable[..., Any] | None = None,
    told_of: Callable[..., Told | None] | None = None,
) -> Any:
    """Define an operator of `_SCHEMAS` once in this process; returns it.

    Args:
        run: its arguments -> C, fresh and contiguous; never NotImplemented.
        composed: the same out of torch's operators, which carry tangents.
        into: what Inductor's programs call: tensors, what follows them, out=C.
        fake: its result's extents; `composed` has the gradients, then.
        told_of: from an example of the first argument, and the arguments, what `into` is told; None where the
            dispatcher is called. By default a, b, one more tensor if there is one.
    """
    library = torch.library.Library("sassafras", "FRAGMENT")
    # Inductor must hand us the strides that the user gave: they are the layout
    tags = ("pt2_compliant_tag", "needs_exact_strides")
    known = tuple(getattr(torch.Tag, tag) for tag in tags if hasattr(torch.Tag, tag))
    library.define(name + _SCHEMAS[name], tags=known)
    library.impl(name, run, "CompositeExplicitAutograd")
    shaped = fake or (_matrices if name == "mm" else _fake)
    torch.library.register_fake(f"sassafras::{name}", shaped, lib=library)
    packet = getattr(torch.ops.sassafras, name)
    packet.into, packet.by_torch = into, composed
    ON_INDUCTOR.append(lambda: _lower(packet, told_of or _told_of))
    _differentiable(library, packet.default, composed, formula=fake is None)
    torch.library.register_vmap(f"sassafras::{name}", _vmap_of(composed), lib=library)
    if each := _FLOP.get(name):
        _count_flop(packet, each)
    _KEPT.append(library)
    return packet.default


def _differentiable(library: Any, operator: Any, composed: Callable[..., Any], formula: bool) -> None:
    """Give an operator the autograd formula (`torch.library.register_autograd` knows no forward mode), or let
    `composed` record its own."""

    def below(keyset: Any, *inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keyset & torch._C._after_autograd_keyset, *inputs)

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
            output = below(keyset, *inputs)
            _save(ctx, output, *inputs)
            return output

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            *product, residual = _backward(ctx, grad)
            return (None, *product, None, None, residual)[: len(ctx.needs_input_grad)]

    def recorded(keyset: Any, *inputs: Any) -> Any:
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        if not _operators_serve() or any(map(plain_tensors.tangent, tensors)):
            return composed(*inputs)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return Recorded.apply(keyset, *inputs) if formula else composed(*inputs)
        return below(keyset, *inputs)

    Recorded.__name__ = f"Sassafras_{operator._opname}"
    library.impl(operator._opname, recorded, "Autograd", with_keyset=True)


class Linear(torch.autograd.Function):
    """activation(x @ weight^T + residual + bias) past the dispatcher: an operator in Python costs more.

    Its arguments are the launcher's call, x, weight, bias, ``none`` or ``relu``, its number, the residual;
    its result is what the call returns.
    """

    @staticmethod
    def forward(ctx: Any, launch: Any, *given: Any) -> Any:
        """The call's result; kept for backward if it is a tensor."""
        x, weight, bias, activation, number, residual = given
        output = launch(x, weight, bias, residual, number)
        if isinstance(output, torch.Tensor):
            _save(ctx, output, x, weight, bias, activation, 1.0, residual)
            ctx.by_columns[1] = not ctx.by_columns[1]
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Gradients, made of the operators."""
        for_x, for_b, for_bias, for_residual = _backward(ctx, grad, turned=True)
        for_weight = None if for_b is None else for_b.t()
        return None, for_x, for_weight, for_bias, None, None, for_residual


def _matrices(a: Any, b: Any) -> Any:
    torch._check(a.dim() == 2 and b.dim() == 2, lambda: "sassafras::mm takes two matrices")
    return _fake(a, b)


def _fake(a: Any, b: Any, *more: Any) -> Any:
    if "torch._inductor.lowering" in sys.modules:
        while ON_INDUCTOR:
            ON_INDUCTOR.pop(0)()
        for one in EACH_TRACE:
            one()
    torch._check(a.dim() >= 2 and b.dim() >= 2, lambda: "sassafras::fused takes matrices and batches of them")
    torch._check(
        a.shape[-1] == b.shape[-2], lambda: f"extents do not fit: {tuple(a.shape)} and {tuple(b.shape)}"
    )
    torch._check(a.dtype == b.dtype, lambda: f"types differ: {a.dtype} and {b.dtype}")
    leading = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*leading, a.shape[-2], b.shape[-1]))


def _told_of(lines: Any, a: Any, b: Any, third: Any = None, *rest: Any) -> Told | None:
    """A product's; calls with an activation, a residual or a factor go through the dispatcher."""
    plain = rest in ((), ("none", 1.0), ("none", 1.0, None)) and len(b.get_size()) == 2
    if not plain or not (len(a.get_size()) == 2 or lines.is_contiguous()):
        return None
    return [t for t in (a, b, third) if t is not None], ()


def _lower(packet: Any, told_of: Callable[..., Told | None]) -> None:
    """Let Inductor's programs call `into` with a C of their memory plan: the dispatcher would cost more."""
    from torch._inductor import ir, lowering
    from torch._inductor.virtualized import V

    operator = packet.default
    dispatched = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lowered(*given: Any, **named: Any) -> Any:
        node = V.graph.current_node
        told = None if V.graph.cpp_wrapper else told_of(node.args[0].meta["val"], *given, *named.values())
        if told is None:
            return dispatched(*given, **named)
        tensors, more = told
        inputs = [ir.ExternKernel.realize_input(tensor) for tensor in tensors]
        layout = ir.FallbackKernel.tensor_to_layout(node.meta["val"])
        called = f"torch.ops.sassafras.{operator._opname}.into"
        return ir.TensorBox.create(ir.ExternKernelOut(layout, inputs, more, python_kernel_name=called))

    lowering.add_needs_realized_inputs(operator)
    lowering.register_lowering(operator, type_promotion_kind=None)(lowered)


# -- the autograd formula -------------------------------------------------------------------------------


def _save(
    ctx: Any,
    output: Any,
    a: Any,
    b: Any,
    bias: Any = None,
    activation: str = "none",
    alpha: float = 1.0,
    residual: Any = None,
) -> None:
    """What the gradients that are wanted need: an operand is kept for the other's gradient alone (one that is
    not may change before backward), and both for the argument of an activation."""
    _, for_a, for_b = ctx.needs_input_grad[:3]
    ctx.activation, ctx.alpha, ctx.shapes = activation, alpha, (a.shape, b.shape)
    ctx.by_columns = [x.dim() == 2 and _by_columns(x) for x in (a, b)]
    again = activation not in ("none", "relu")
    ctx.save_for_backward(
        a if for_b or again else None,
        b if for_a or again else None,
        bias if again else None,
        residual if again else None,
        output if activation == "relu" else None,
    )


def _backward(ctx: Any, grad: Any, turned: bool = False) -> tuple[Any, Any, Any, Any]:
    """Gradients of a, b, bias and the residual; `turned`: b's transpose was kept."""
    a, b, bias, residual, result = ctx.saved_tensors
    b = b.t() if turned and b is not None else b
    _, wants_a, wants_b, *wants_more = ctx.needs_input_grad
    alpha, (shape_a, shape_b) = ctx.alpha, ctx.shapes
    if ctx.activation == "relu":
        grad = torch.ops.aten.threshold_backward(grad, result, 0)
    elif ctx.activation != "none":  # once more, for the activation's argument
        before = _product(a, b, alpha)
        before = before if bias is None else before + bias
        grad = _slope(grad, before if residual is None else before + residual, ctx.activation)
    for_a = for_b = for_bias = None
    lines = grad.reshape(-1, grad.shape[-1])
    plain = len(shape_b) == 2 and alpha == 1  # of plain products more is known, and they read any layout
    if wants_a and plain:
        for_a = _gradient(lines, b.t(), ctx.by_columns[0]).reshape(shape_a)
    elif wants_a:
        for_a = _product(grad, b.mT, alpha).sum_to_size(shape_a)
    if wants_b:
        if len(shape_b) == 2:
            rows = a.reshape(-1, a.shape[-1]).t()
            for_b = _gradient(rows, lines, ctx.by_columns[1]) if plain else _product(rows, lines, alpha)
        else:
            for_b = _product(a.mT, grad, alpha).sum_to_size(shape_b)
    if wants_more and wants_more[0]:
        for_bias = grad.sum(tuple(range(grad.dim() - 1)))
    return for_a, for_b, for_bias, grad if wants_more[3:] == [True] else None


def _gradient(left: Any, right: Any, columns: bool) -> Any:
    """The product of two matrices as a gradient, column-major on demand: autograd accumulates one that lies
    as its tensor does as it is, and copies any other first."""
    mm = torch.ops.sassafras.mm.default if _operators_serve() else torch.mm
    return mm(right.t(), left.t()).t() if columns else mm(left, right)


def _product(a: Any, b: Any, alpha: float) -> Any:
    if _operators_serve():
        return torch.ops.sassafras.fused.default(a, b, None, "none", alpha)
    return torch.matmul(a, b) * alpha


def _slope(grad: Any, before: Any, activation: str) -> Any:
    if activation == "silu":
        return torch.ops.aten.silu_backward(grad, before)
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    return torch.ops.aten.gelu_backward(grad, before, approximate=approximate)


def _operators_serve() -> bool:
    """Whether formulas may call our operators here; functorch has rules for all of torch's."""
    return torch._C._functorch.peek_interpreter_stack() is None


def _by_columns(tensor: Any) -> bool:
    """Column-major without gaps, and not row-major as well."""
    rows, columns = tensor.shape
    return bool(tensor.stride(0) == 1 and tensor.stride(1) == rows and columns > 1 and rows > 1)


# -- vmap, floating-point operations ------------------------------------------------------------------------


def _vmap_of(composed: Callable[..., Any]) -> Callable[..., Any]:
    """A batch more is torch's."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, int]:
        pairs = list(zip(inputs, in_dims, strict=True))
        rank = max(t.dim() - (at is not None) for t, at in pairs if isinstance(t, torch.Tensor))

        def in_front(tensor: Any, at: int | None) -> Any:
            if at is None:
                return tensor
            moved = tensor.movedim(at, 0)
            return moved.reshape(len(moved), *[1] * (rank - moved.dim() + 1), *moved.shape[1:])

        return composed(*(in_front(*pair) for pair in pairs)), 0

    return rule


def _count_flop(packet: Any, each: int) -> None:
    try:
        from torch.utils.flop_counter import register_flop_formula
    except ImportError:
        return

    def flop(a: Any, b: Any, *args: Any, out_shape: Any = None, **keywords: Any) -> int:
        total = each * int(a[-1])
        for extent in out_shape:
            total *= int(extent)
        return total

    register_flop_formula(packet)(flop)
