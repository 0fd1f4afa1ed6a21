"""``torch.ops.sassafras.fused``: activation(alpha * a @ b + bias) for torch.compile, autograd and modes.

a: (..., m, k), b: (..., k, n), leading extents as torch.matmul broadcasts them; bias: (n) or None;
activation: ``none`` or a name of `epilogue.ACTIVATIONS`. The backward pass is made of products: plain
ones (`operator`) of matrices, by the same operator of batches and where alpha is a factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .operator import _KEPT, _tags, gradient


def register(run: Callable[..., Any]) -> Any:
    """Define the operator once in this process; returns it.

    Args:
        run: (a, b, bias, activation, alpha) -> C, fresh and contiguous.
    """
    import torch

    library = torch.library.Library("sassafras", "FRAGMENT")
    library.define(
        "fused(Tensor a, Tensor b, Tensor? bias, str activation, float alpha) -> Tensor", tags=_tags()
    )
    library.impl("fused", run, "CompositeExplicitAutograd")
    torch.library.register_fake("sassafras::fused", _fake, lib=library)
    torch.library.register_autograd("sassafras::fused", _backward, setup_context=_save, lib=library)
    _count_flop(torch.ops.sassafras.fused)
    _KEPT.append(library)
    return torch.ops.sassafras.fused.default


def _fake(a: Any, b: Any, bias: Any, activation: str, alpha: float) -> Any:
    import torch

    torch._check(a.dim() >= 2 and b.dim() >= 2, lambda: "sassafras::fused takes matrices and batches of them")
    torch._check(
        a.shape[-1] == b.shape[-2], lambda: f"extents do not fit: {tuple(a.shape)} and {tuple(b.shape)}"
    )
    torch._check(a.dtype == b.dtype, lambda: f"types differ: {a.dtype} and {b.dtype}")
    leading = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*leading, a.shape[-2], b.shape[-1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, bias, ctx.activation, ctx.alpha = inputs
    ctx.has_bias = bias is not None
    kept = [output] if ctx.activation == "relu" else []
    ctx.save_for_backward(
        a, b, *([bias] if bias is not None and ctx.activation not in ("none", "relu") else []), *kept
    )


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    import torch

    product = torch.ops.sassafras.fused.default
    a, b, *more = ctx.saved_tensors
    if ctx.activation == "relu":
        grad = torch.ops.aten.threshold_backward(grad, more[0], 0)
    elif ctx.activation != "none":  # once more, for the activation's argument
        before = product(a, b, more[0] if more else None, "none", ctx.alpha)
        grad = _slope(grad, before, ctx.activation)
    for_a = for_b = for_bias = None
    lines = grad.reshape(-1, grad.shape[-1])
    plain = b.dim() == 2 and ctx.alpha == 1  # of plain products more is known, and they read any layout
    if ctx.needs_input_grad[0] and plain:
        for_a = gradient(lines, b.t(), a if a.dim() == 2 else lines).reshape(a.shape)
    elif ctx.needs_input_grad[0]:
        for_a = product(grad, b.mT, None, "none", ctx.alpha).sum_to_size(a.shape)
    if ctx.needs_input_grad[1]:
        if b.dim() == 2:
            rows = a.reshape(-1, a.shape[-1])
            for_b = (
                gradient(rows.t(), lines, b) if plain else product(rows.t(), lines, None, "none", ctx.alpha)
            )
        else:
            for_b = product(a.mT, grad, None, "none", ctx.alpha).sum_to_size(b.shape)
    if ctx.has_bias and ctx.needs_input_grad[2]:
        for_bias = grad.sum(tuple(range(grad.dim() - 1)))
    return for_a, for_b, for_bias, None, None


def _slope(grad: Any, before: Any, activation: str) -> Any:
    import torch

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
