"""``torch.ops.sassafras.mm``: the operator that torch.compile, autograd and tracers see.

Eager calls of sassafras.matmul go past it (an operator in Python costs some 6 us). Its autograd formula is
made of itself, so products of the backward pass have the portfolio too: dA = dC B^T, dB = A^T dC, read in
place. Where a tangent of forward-mode AD is carried, or functorch transforms the backward pass, torch's own
operators run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import eligible


def register(run: Callable[[Any, Any], Any]) -> Any:
    """Define the operator once in this process; returns it.

    Args:
        run: (a, b) -> C for two matrices of one type and device; never returns NotImplemented.
    """
    library = torch.library.Library("sassafras", "DEF")
    library.define("mm(Tensor a, Tensor b) -> Tensor", tags=_tags())
    library.impl("mm", run, "CompositeExplicitAutograd")
    torch.library.register_fake("sassafras::mm", _fake, lib=library)
    operator = torch.ops.sassafras.mm.default
    differentiable(library, operator, _save, _backward, torch.mm)
    torch.library.register_vmap("sassafras::mm", _vmap, lib=library)
    _count_flop(torch.ops.sassafras.mm)
    _KEPT.append(library)  # the registrations last as long as this object
    return operator


_KEPT: list[Any] = []


def differentiable(
    library: Any,
    operator: Any,
    save: Callable[..., None],
    backward: Callable[..., Any],
    composed: Callable[..., Any],
) -> None:
    """Give an operator its autograd formula (`torch.library.register_autograd` knows no forward mode).

    Args:
        save: (ctx, inputs, output), with `ctx.needs_input_grad`.
        backward: (ctx, gradient) -> gradients of the inputs.
        composed: the same out of torch's operators, which carry tangents.
    """

    def below(keyset: Any, *inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keyset & torch._C._after_autograd_keyset, *inputs)

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
            output = below(keyset, *inputs)
            save(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return (None, *backward(ctx, grad))

    def recorded(keyset: Any, *inputs: Any) -> Any:
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        if not operator_serves() or any(map(eligible.tangent, tensors)):
            return composed(*inputs)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return Recorded.apply(keyset, *inputs)
        return below(keyset, *inputs)

    Recorded.__name__ = f"Sassafras_{operator._opname}"
    library.impl(operator._opname, recorded, "Autograd", with_keyset=True)


def _tags() -> tuple[Any, ...]:
    """Inductor must hand us the strides that the user gave: they are the layout."""
    names = ("pt2_compliant_tag", "needs_exact_strides")
    return tuple(getattr(torch.Tag, name) for name in names if hasattr(torch.Tag, name))


def _fake(a: Any, b: Any) -> Any:
    torch._check(a.dim() == 2 and b.dim() == 2, lambda: "sassafras::mm takes two matrices")
    torch._check(
        a.shape[1] == b.shape[0], lambda: f"extents do not fit: {tuple(a.shape)} and {tuple(b.shape)}"
    )
    torch._check(a.dtype == b.dtype, lambda: f"types differ: {a.dtype} and {b.dtype}")
    return a.new_empty((a.shape[0], b.shape[1]))


def _save(ctx: Any, inputs: tuple[Any, Any], output: Any) -> None:
    """Each operand is kept for the other's gradient alone: one that is not may change before backward."""
    a, b = inputs
    _, for_a, for_b = ctx.needs_input_grad
    ctx.by_columns = by_columns(a), by_columns(b)
    ctx.save_for_backward(a if for_b else None, b if for_a else None)


def _backward(ctx: Any, grad: Any) -> tuple[Any, Any]:
    a, b = ctx.saved_tensors
    return (
        gradient(grad, b.t(), ctx.by_columns[0]) if ctx.needs_input_grad[1] else None,
        gradient(a.t(), grad, ctx.by_columns[1]) if ctx.needs_input_grad[2] else None,
    )


def gradient(left: Any, right: Any, columns: bool) -> Any:
    """The product of two matrices as a gradient, column-major on demand: autograd accumulates one that lies
    as its tensor does as it is, and copies any other first."""
    mm = torch.ops.sassafras.mm.default if operator_serves() else torch.mm
    return mm(right.t(), left.t()).t() if columns else mm(left, right)


def operator_serves() -> bool:
    """Whether formulas may call our operators here; functorch has rules for all of torch's."""
    return torch._C._functorch.peek_interpreter_stack() is None


def by_columns(tensor: Any) -> bool:
    """Column-major without gaps, and not row-major as well."""
    rows, columns = tensor.shape
    return bool(tensor.stride(0) == 1 and tensor.stride(1) == rows and columns > 1 and rows > 1)


def _vmap(info: Any, in_dims: tuple[int | None, int | None], a: Any, b: Any) -> tuple[Any, int]:
    """Batches are torch's: no kernel of ours takes them yet."""
    a = a.movedim(in_dims[0], 0) if in_dims[0] is not None else a
    b = b.movedim(in_dims[1], 0) if in_dims[1] is not None else b
    return torch.matmul(a, b), 0


def _count_flop(packet: Any) -> None:
    try:
        from torch.utils.flop_counter import register_flop_formula
    except ImportError:
        return

    def flop(a: Any, b: Any, *args: Any, **keywords: Any) -> int:
        return 2 * int(a[0]) * int(a[1]) * int(b[1])

    register_flop_formula(packet)(flop)
