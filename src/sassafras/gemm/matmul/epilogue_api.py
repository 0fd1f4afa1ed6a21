"""`sassafras.matmul` with more than a product: alpha, beta, bias, an activation; and batches.

What torch would do about it is `composed`, which serves whatever our kernels do not. It rounds to the
tensors' type after each of torch's operations; ours round once.
"""

from __future__ import annotations

from typing import Any

import torch

from sassafras.core import SassafrasError

from ..configs.epilogue import ACTIVATIONS
from ..select import epilogue_selector
from . import api as room
from . import eligible
from .epilogue_op import register


def call(a: Any, b: Any, out: Any, bias: Any, activation: str | None, alpha: float, beta: float) -> Any:
    """activation(alpha * a @ b + beta * out + bias); see `matmul.matmul`."""
    engine = room._engine
    if engine is not None and activation in ACTIVATIONS and not torch.compiler.is_compiling():
        result = engine.launcher.fused(a, b, out, bias, ACTIVATIONS[activation], alpha, beta)
        if result is None:  # it is known that torch serves this problem
            return composed(a, b, out, bias, activation, alpha, beta)
        if result is not NotImplemented:
            return result
    _check(a, b, out, bias, activation, alpha, beta)
    if torch.compiler.is_compiling():
        return _traced(a, b, out, bias, activation, alpha, beta)
    given = [t for t in (a, b, out, bias) if t is not None]
    if not eligible.quiet():
        if _in_graph(a, b, out, bias):
            return _differentiable(a, b, bias, activation, alpha)
        return composed(a, b, out, bias, activation, alpha, beta)
    if not all(map(eligible.plain, given)):
        if a.device.type != room._device and all(type(t) in eligible.KINDS for t in given):
            room._ours(a, b, say=True)
        return composed(a, b, out, bias, activation, alpha, beta)
    if torch.is_autocast_enabled(a.device.type):
        return _autocast(a, b, out, bias, activation, alpha, beta)
    if not room._ours(a, b, say=True):
        return composed(a, b, out, bias, activation, alpha, beta)
    if a.dim() == 1 and b.dim() == 2 and out is None:
        return call(a.unsqueeze(0), b, None, bias, activation, alpha, beta).squeeze(0)
    room._ready(a)
    if room._engine is None or not fits(a, b):
        return composed(a, b, out, bias, activation, alpha, beta)
    if room._wants_grad(*given):
        if out is None:
            return _differentiable(a, b, bias, activation, alpha)
        return composed(a, b, out, bias, activation, alpha, beta)
    result = served(a, b, out, bias, activation, alpha, beta)
    if result is not NotImplemented:
        return result
    if "fused" not in room._warned and room._engine.fused.read(a, b, out, bias) is None:
        room._warn("fused", "with an epilogue, operands that are not rows at equal distances are torch's", 4)
    return composed(a, b, out, bias, activation, alpha, beta)


def fits(a: Any, b: Any) -> bool:
    """Two matrices, or batches of them, that torch would multiply, none of them empty."""
    if a.dim() < 2 or b.dim() < 2 or a.shape[-1] != b.shape[-2] or 0 in (*a.shape, *b.shape):
        return False
    leading = zip(reversed(a.shape[:-2]), reversed(b.shape[:-2]), strict=False)
    return all(x == y or 1 in (x, y) for x, y in leading)


def served(
    a: Any,
    b: Any,
    out: Any = None,
    bias: Any = None,
    activation: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """The call on one of our kernels; NotImplemented where none serves. Below autograd and modes."""
    engine = room._engine
    if engine is None:
        return NotImplemented
    result = engine.launcher.fused(a, b, out, bias, ACTIVATIONS[activation], alpha, beta)
    if result is None:
        return NotImplemented
    if result is NotImplemented:
        result = engine.fused(a, b, out, bias, activation, alpha, beta)
    if result is NotImplemented and a.device.type == room._device:
        ordinal = a.device.index if a.device.index is not None else 0
        if gone := engine.gpu(ordinal).why_not:
            room._warn("gpu", gone)
    return result


def composed(a: Any, b: Any, out: Any, bias: Any, activation: str | None, alpha: float, beta: float) -> Any:
    """The same out of torch's operations. Raises what they raise."""
    if out is not None and not torch.compiler.is_compiling():
        given = [t for t in (a, b, out, bias) if t is not None]
        if room._wants_grad(*given):
            raise RuntimeError("sassafras.matmul(): out=... does not support automatic differentiation")
    scale: dict[str, Any] = {} if alpha == 1 else {"alpha": alpha}
    if out is None and _library_fuses(a, b, bias, activation):
        return torch._addmm_activation(bias, a, b, **scale, use_gelu=activation == "gelu_tanh")
    if beta:
        if a.dim() == b.dim() == out.dim() and a.dim() in (2, 3):
            add = torch.addmm if a.dim() == 2 else torch.baddbmm
            value = add(out, a, b, beta=beta, **scale)
        else:
            value = torch.matmul(a, b) * alpha + beta * out
        value = value if bias is None else value + bias
    elif bias is not None and a.dim() == b.dim() and a.dim() in (2, 3) and (a.dim() == 2 or len(a) == len(b)):
        value = (torch.addmm if a.dim() == 2 else torch.baddbmm)(bias, a, b, **scale)
    elif bias is not None and b.dim() == 2 and not scale:
        value = torch.nn.functional.linear(a, b.t(), bias)
    else:
        value = torch.matmul(a, b)
        value = value if alpha == 1 else alpha * value
        value = value if bias is None else value + bias
    value = activated(value, activation)
    if out is None:
        return value
    if out.shape != value.shape or out.dtype != value.dtype:
        raise SassafrasError(
            f"out is {tuple(out.shape)} {out.dtype}, the result {tuple(value.shape)} {value.dtype}",
            where="sassafras.matmul",
        )
    return out.copy_(value)


def _library_fuses(a: Any, b: Any, bias: Any, activation: str | None) -> bool:
    """Whether torch reaches cuBLASLt's own epilogue. Its GELU is the tanh form (on the CPU it is another).

    Of empty operands torch leaves the activation out.
    """
    extra = epilogue_selector.Extra(bias is not None, activation)
    return (
        epilogue_selector.library_fuses(extra, a.dim(), b.dim())
        and a.device.type == "cuda"
        and fits(a, b)
        and not torch.compiler.is_compiling()
        and not eligible.observed()
        and not room._wants_grad(a, b, bias)
    )


def activated(value: Any, activation: str | None) -> Any:
    """The activation by torch."""
    functional = torch.nn.functional
    if activation == "relu":
        return functional.relu(value)
    if activation == "silu":
        return functional.silu(value)
    if activation is not None:
        return functional.gelu(value, approximate="tanh" if activation == "gelu_tanh" else "none")
    return value


def _check(a: Any, b: Any, out: Any, bias: Any, activation: str | None, alpha: float, beta: float) -> None:
    where = "sassafras.matmul"
    for name, number in (("alpha", alpha), ("beta", beta)):
        if isinstance(number, torch.Tensor):
            raise TypeError(f"{where}: {name} is a number, not a tensor")
    for name, tensor in (("a", a), ("b", b), ("out", out), ("bias", bias)):
        if not isinstance(tensor, torch.Tensor) and (tensor is not None or name in "ab"):
            raise TypeError(f"{where}: {name} is no tensor but {type(tensor).__name__}")
    if activation not in ACTIVATIONS:
        known = ", ".join(str(name) for name in ACTIVATIONS)
        raise SassafrasError(f"no activation {activation!r}", where=where, hint=f"one of {known}")
    if beta and out is None:
        raise SassafrasError("beta is a factor of what out holds, and there is no out", where=where)
    if bias is not None:
        if b.dim() < 2 or bias.dim() != 1 or bias.shape[0] != b.shape[-1]:
            raise SassafrasError(
                f"bias {tuple(bias.shape)} has not one value for each column of b {tuple(b.shape)}",
                where=where,
            )
        if bias.device != a.device:
            raise SassafrasError(f"bias is on {bias.device}, a on {a.device}", where=where)


def _autocast(a: Any, b: Any, out: Any, bias: Any, activation: str | None, alpha: float, beta: float) -> Any:
    if out is not None or not {a.dtype, b.dtype} <= room._CAST:
        return composed(a, b, out, bias, activation, alpha, beta)
    dtype = torch.get_autocast_dtype(a.device.type)
    with torch.autocast(a.device.type, enabled=False):
        cast = None if bias is None else bias.to(dtype)
        return call(a.to(dtype), b.to(dtype), None, cast, activation, alpha, beta)


def _traced(a: Any, b: Any, out: Any, bias: Any, activation: str | None, alpha: float, beta: float) -> Any:
    """The call as torch.compile sees it."""
    if _in_graph(a, b, out, bias) and not torch.is_autocast_enabled(a.device.type):
        return _differentiable(a, b, bias, activation, alpha)
    return composed(a, b, out, bias, activation, alpha, beta)


def _in_graph(a: Any, b: Any, out: Any, bias: Any) -> bool:
    """Whether the graph that is being made, if one is, is to have our operator."""
    given = (a, b) if bias is None else (a, b, bias)
    return (
        out is None
        and (bias is None or bias.dtype == a.dtype)
        and a.layout is torch.strided
        and b.layout is torch.strided
        and not (a.is_nested or b.is_nested)
        and fits(a, b)
        and room._in_graph(*given)
    )


def _differentiable(a: Any, b: Any, bias: Any, activation: str | None, alpha: float) -> Any:
    """Through the operator. Where a gradient is wanted, what the activation's derivative needs is kept:
    its argument, so that it is applied by torch (relu's needs only the result)."""
    if bias is not None and bias.dtype != a.dtype:
        return composed(a, b, None, bias, activation, alpha, 0.0)
    given = (a, b) if bias is None else (a, b, bias)
    if activation not in (None, "relu") and room._wants_grad(*given):
        return activated(_fused(a, b, bias, "none", alpha), activation)
    return _fused(a, b, bias, activation or "none", alpha)


def _run(a: Any, b: Any, bias: Any, activation: str, alpha: float) -> Any:
    """The operator's implementation: a fresh result, contiguous."""
    kind = None if activation == "none" else activation
    given = (a, b) if bias is None else (a, b, bias)
    ours = fits(a, b) and all(map(eligible.plain, given))
    result = served(a, b, None, bias, kind, alpha) if ours else NotImplemented
    if result is NotImplemented:
        result = composed(a, b, None, bias, kind, alpha, 0.0).contiguous()
    return result


def _by_torch(a: Any, b: Any, bias: Any, activation: str, alpha: float) -> Any:
    """What the operator does, out of torch's operators."""
    return composed(a, b, None, bias, None if activation == "none" else activation, alpha, 0.0)


_fused = register(_run, _by_torch)
