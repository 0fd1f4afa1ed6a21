"""`sassafras.linear`: torch.nn.functional.linear, with bias, residual and activation in one kernel.

It is the product with `weight` as the transpose of `matmul`'s second operand, and shares its problems.
"""

from __future__ import annotations

from typing import Any

from sassafras.core import SassafrasError

from ..configs.epilogue import ACTIVATIONS, NUMBERS, SWIGLU
from . import api, inductor_graph, plain_tensors, swiglu, torch_op
from . import invariant as rows
from .api import torch
from .composed import activated, composed

_is_compiling = torch.compiler.is_compiling
torch_op.EACH_TRACE.append(inductor_graph.install)
_functional = torch.nn.functional


def linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    residual: Any = None,
    invariant: bool = False,
) -> Any:
    """activation(x @ weight^T + residual + bias), as `torch.nn.functional.linear`: shapes, errors, gradients.

    ``swiglu``: silu(x @ gate^T) * (x @ up^T); the weight's first n rows are the gate's, the next up's.

    Where a kernel of ours serves, everything is FP32 until one rounding at the end, and the residual is read
    where it lies. Where torch serves, it is torch.nn.functional.linear, then the residual's sum and the
    activation, each rounding to the type. Types, devices, layouts, autograd, autocast, torch.compile and CUDA
    graphs: as `sassafras.matmul`.

    Args:
        x: (..., k).
        weight: (n, k); (2n, k) with ``swiglu``.
        bias: as many as the weight has rows.
        activation: ``relu``, ``gelu`` (exact), ``gelu_tanh``, ``silu`` or ``swiglu``.
        residual: (..., n), added to the product, before the activation; not written.
        invariant: as in `sassafras.matmul`; ``swiglu`` is then a product and torch's operations.

    Raises:
        RuntimeError: what torch.nn.functional.linear raises.
        SassafrasError: an unknown activation, a residual of another shape than the result or with ``swiglu``,
            whose weight has an odd number of rows.
    """
    if invariant:
        return _invariant(x, weight, bias, activation, residual)
    if _is_compiling() or activation not in ACTIVATIONS:
        return _general(x, weight, bias, activation, residual)
    result = api._launch_linear(x, weight, bias, residual, ACTIVATIONS[activation])
    if result is None:  # it is known that torch serves this problem
        return _composed(x, weight, bias, activation, residual)
    if result is not NotImplemented:
        return result
    seen = not torch.is_grad_enabled() or plain_tensors.observed() or plain_tensors.kept_by_hooks()
    if activation in _KEPT and not seen:
        number = ACTIVATIONS[activation]
        call = x, weight, bias, _KEPT[activation], number, residual
        if any(t.requires_grad for t in call if isinstance(t, torch.Tensor)):
            result = torch_op.Linear.apply(api._launch_linear, *call)
            if result is None:
                return _composed(x, weight, bias, activation, residual)
    return _general(x, weight, bias, activation, residual) if result is NotImplemented else result


def _invariant(x: Any, weight: Any, bias: Any, activation: str | None, residual: Any) -> Any:
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
        raise SassafrasError("an invariant product's weight is a matrix (n, k)", where="sassafras.linear")
    if activation == SWIGLU:
        swiglu.check(weight, residual)
        return swiglu.gated(rows.product(x, weight.t(), None, bias))
    return rows.product(x, weight.t(), None, bias, activation, 1.0, float(residual is not None), residual)


#: activations whose gradients the result tells, as operators name them
_KEPT = {None: "none", "relu": "relu"}


def _general(x: Any, weight: Any, bias: Any, activation: str | None, residual: Any) -> Any:
    """Any call that the launcher did not take."""
    if activation == SWIGLU and isinstance(weight, torch.Tensor):
        swiglu.check(weight, residual)
        result = None if _is_compiling() else swiglu.one_launch(x, weight, bias)
        return result if isinstance(result, torch.Tensor) else swiglu.gated(linear(x, weight, bias))
    if activation not in ACTIVATIONS:
        known = ", ".join(str(name) for name in NUMBERS)
        raise SassafrasError(
            f"no activation {activation!r}", where="sassafras.linear", hint=f"one of {known}"
        )
    tensors = [x, weight, *(t for t in (bias, residual) if t is not None)]
    if not all(isinstance(t, torch.Tensor) for t in tensors):  # which torch records or refuses
        return _by_linear(x, weight, bias, activation, residual)
    if residual is not None and residual.shape != (*x.shape[:-1], *weight.shape[:-1]):
        raise SassafrasError(
            f"residual is {tuple(residual.shape)}, the result {(*x.shape[:-1], *weight.shape[:-1])}",
            where="sassafras.linear",
        )
    fits = x.dim() > 0 and weight.dim() == 2 and x.shape[-1] == weight.shape[1]
    fits = fits and 0 not in (*x.shape, *weight.shape)
    if not fits or (bias is not None and bias.shape != weight.shape[:1]):
        return _composed(x, weight, bias, activation, residual)  # torch broadcasts or raises
    if not _is_compiling() and plain_tensors.quiet():
        ours, serve = all(map(plain_tensors.plain, tensors)), api._general
    else:
        ours, serve = api._in_graph(x, weight, None, False, bias, residual), api._recorded
        ours = ours and not torch.is_autocast_enabled(x.device.type)
    if not ours:  # a subclass may have a rule for linear alone
        return _composed(x, weight, bias, activation, residual)
    return serve(x, weight.t(), None, bias, activation, 1.0, float(residual is not None), residual)


def _composed(x: Any, weight: Any, bias: Any, activation: str | None, residual: Any) -> Any:
    """By torch, whose library has some epilogues."""
    if residual is None and activation is not None and type(weight) in plain_tensors.KINDS:
        return composed(x, weight.t(), None, bias, activation)
    return _by_linear(x, weight, bias, activation, residual)


def _by_linear(x: Any, weight: Any, bias: Any, activation: str | None, residual: Any) -> Any:
    value = _functional.linear(x, weight, bias)
    return activated(value if residual is None else value + residual, activation)
