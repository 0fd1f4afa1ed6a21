"""``torch.ops.sassafras.fused``: activation(alpha * a @ b + bias) for torch.compile, autograd and modes.

a: (..., m, k), b: (..., k, n), leading extents as torch.matmul broadcasts them; bias: (n) or None;
activation: ``none`` or a name of `epilogue.ACTIVATIONS`. The backward pass is made of products: plain
ones (`operator`) of matrices, by the same operator of batches and where alpha is a factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .torch_op import _KEPT, _tags, by_columns, differentiable, gradient, operator_serves


def register(run: Callable[..., Any], composed: Callable[..., Any]) -> Any:
    """Define the operator once in this process; returns it.

    Args:
        run: (a, b, bias, activation, alpha) -> C, fresh and contiguous.
        composed: the same out of torch's operators.
    """
    library = torch.library.Library("sassafras", "FRAGMENT")
    library.define(
        "fused(Tensor a, Tensor b, Tensor? bias, str activation, float alpha) -> Tensor", tags=_tags()
    )
    library.impl("fused", run, "CompositeExplicitAutograd")
    torch.library.register_fake("sassafras::fused", _fake, lib=library)
    differentiable(library, torch.ops.sassafras.fused.default, _save, _backward, composed)
    torch.library.register_vmap("sassafras::fused", _vmap_of(composed), lib=library)
    _count_flop(torch.ops.sassafras.fused)
    _KEPT.append(library)
    return torch.ops.sassafras.fused.default


def _fake(a: Any, b: Any, bias: Any, activation: str, alpha: float) -> Any:
    torch._check(a.dim() >= 2 and b.dim() >= 2, lambda: "sassafras::fused takes matrices and batches of them")
    torch._check(
        a.shape[-1] == b.shape[-2], lambda: f"extents do not fit: {tuple(a.shape)} and {tuple(b.shape)}"
    )
    torch._check(a.dtype == b.dtype, lambda: f"types differ: {a.dtype} and {b.dtype}")
    leading = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*leading, a.shape[-2], b.shape[-1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """What the gradients that are wanted need: an operand is kept for the other's, and both for the argument
    of an activation."""
    a, b, bias, ctx.activation, ctx.alpha = inputs
    _, for_a, for_b, ctx.for_bias = ctx.needs_input_grad[:4]
    ctx.shapes, ctx.by_columns = (a.shape, b.shape), [x.dim() == 2 and by_columns(x) for x in (a, b)]
    again = ctx.activation not in ("none", "relu")
    ctx.save_for_backward(
        a if for_b or again else None,
        b if for_a or again else None,
        bias if again else None,
        output if ctx.activation == "relu" else None,
    )


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    a, b, bias, result = ctx.saved_tensors
    alpha, (shape_a, shape_b) = ctx.alpha, ctx.shapes
    if ctx.activation == "relu":
        grad = torch.ops.aten.threshold_backward(grad, result, 0)
    elif ctx.activation != "none":  # once more, for the activation's argument
        before = _product(a, b, alpha)
        grad = _slope(grad, before if bias is None else before + bias, ctx.activation)
    for_a = for_b = for_bias = None
    lines = grad.reshape(-1, grad.shape[-1])
    plain = len(shape_b) == 2 and alpha == 1  # of plain products more is known, and they read any layout
    if ctx.needs_input_grad[1] and plain:
        for_a = gradient(lines, b.t(), ctx.by_columns[0]).reshape(shape_a)
    elif ctx.needs_input_grad[1]:
        for_a = _product(grad, b.mT, alpha).sum_to_size(shape_a)
    if ctx.needs_input_grad[2]:
        if len(shape_b) == 2:
            rows = a.reshape(-1, a.shape[-1]).t()
            for_b = gradient(rows, lines, ctx.by_columns[1]) if plain else _product(rows, lines, alpha)
        else:
            for_b = _product(a.mT, grad, alpha).sum_to_size(shape_b)
    if ctx.for_bias:
        for_bias = grad.sum(tuple(range(grad.dim() - 1)))
    return for_a, for_b, for_bias, None, None


def _product(a: Any, b: Any, alpha: float) -> Any:
    if operator_serves():
        return torch.ops.sassafras.fused.default(a, b, None, "none", alpha)
    return torch.matmul(a, b) * alpha


def _vmap_of(composed: Callable[..., Any]) -> Callable[..., Any]:
    """A batch more is torch's."""

    def rule(
        info: Any, in_dims: tuple[int | None, ...], a: Any, b: Any, bias: Any, activation: str, alpha: float
    ) -> tuple[Any, int]:
        taken = range(info.batch_size)

        def one(tensor: Any, at: int | None, index: int) -> Any:
            return tensor if at is None or tensor is None else tensor.select(at, index)

        given = list(zip((a, b, bias), in_dims[:3], strict=True))
        return torch.stack(
            [composed(*(one(t, at, i) for t, at in given), activation, alpha) for i in taken]
        ), 0

    return rule


def _slope(grad: Any, before: Any, activation: str) -> Any:
    if activation == "silu":
        return torch.ops.aten.silu_backward(grad, before)
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    return torch.ops.aten.gelu_backward(grad, before, approximate=approximate)


def _count_flop(packet: Any) -> None:
    try:
        from torch.utils.flop_counter import register_flop_formula
    except ImportError:
        return

    def flop(a: Any, b: Any, *args: Any, out_shape: Any = None, **keywords: Any) -> int:
        total = 2 * int(a[-1])
        for extent in out_shape:
            total *= int(extent)
        return total

    register_flop_formula(packet)(flop)
