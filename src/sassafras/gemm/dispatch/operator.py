"""``torch.ops.sassafras.mm``: the operator that torch.compile, autograd and dispatch modes see.

Eager calls of sassafras.matmul go past it (an operator in Python costs some 6 us). Its autograd formula is
made
of itself, so products of the backward pass have the portfolio too: dA = dC B^T, dB = A^T dC, read in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def register(run: Callable[[Any, Any], Any]) -> Any:
    """Define the operator once in this process; returns it.

    Args:
        run: (a, b) -> C for two matrices of one type and device; never returns NotImplemented.
    """
    import torch

    library = torch.library.Library("sassafras", "DEF")
    library.define("mm(Tensor a, Tensor b) -> Tensor", tags=_tags())
    library.impl("mm", run, "CompositeExplicitAutograd")
    torch.library.register_fake("sassafras::mm", _fake, lib=library)
    torch.library.register_autograd("sassafras::mm", _backward, setup_context=_save, lib=library)
    torch.library.register_vmap("sassafras::mm", _vmap, lib=library)
    operator = torch.ops.sassafras.mm.default
    _count_flop(torch.ops.sassafras.mm)
    _KEPT.append(library)  # the registrations last as long as this object
    return operator


_KEPT: list[Any] = []


def _tags() -> tuple[Any, ...]:
    """Inductor must hand us the strides that the user gave: they are the layout."""
    import torch

    names = ("pt2_compliant_tag", "needs_exact_strides")
    return tuple(getattr(torch.Tag, name) for name in names if hasattr(torch.Tag, name))


def _fake(a: Any, b: Any) -> Any:
    import torch

    torch._check(a.dim() == 2 and b.dim() == 2, lambda: "sassafras::mm takes two matrices")
    torch._check(
        a.shape[1] == b.shape[0], lambda: f"extents do not fit: {tuple(a.shape)} and {tuple(b.shape)}"
    )
    torch._check(a.dtype == b.dtype, lambda: f"types differ: {a.dtype} and {b.dtype}")
    return a.new_empty((a.shape[0], b.shape[1]))


def _save(ctx: Any, inputs: tuple[Any, Any], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Any) -> tuple[Any, Any]:
    a, b = ctx.saved_tensors
    return (
        gradient(grad, b.t(), a) if ctx.needs_input_grad[0] else None,
        gradient(a.t(), grad, b) if ctx.needs_input_grad[1] else None,
    )


def gradient(left: Any, right: Any, like: Any) -> Any:
    """The product of two matrices as a gradient of `like`, lying as it does: autograd accumulates such a
    gradient as it is, and copies any other first."""
    import torch

    mm = torch.ops.sassafras.mm.default
    return mm(right.t(), left.t()).t() if _by_columns(like) else mm(left, right)


def _by_columns(tensor: Any) -> bool:
    """Column-major without gaps, and not row-major as well."""
    rows, columns = tensor.shape
    return bool(tensor.stride(0) == 1 and tensor.stride(1) == rows and columns > 1 and rows > 1)


def _vmap(info: Any, in_dims: tuple[int | None, int | None], a: Any, b: Any) -> tuple[Any, int]:
    """Batches are torch's: no kernel of ours takes them yet."""
    import torch

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
