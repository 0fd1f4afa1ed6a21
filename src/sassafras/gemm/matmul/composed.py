"""What `sassafras.matmul` is out of torch's operations, which serve whatever our kernels do not.

They round to the tensors' type after each operation; our kernels round once.
"""

from __future__ import annotations

from typing import Any

import torch

from sassafras.core import SassafrasError

from ..configs.epilogue import ACTIVATIONS
from ..select import epilogue_selector
from . import plain_tensors
from .problem import broadcast

_WHERE = "sassafras.matmul"


def asks_more(bias: Any, activation: str | None, alpha: float, beta: float) -> bool:
    """Whether a call is for more than a product."""
    return bias is not None or activation is not None or alpha != 1.0 or beta != 0.0


def composed(
    a: Any,
    b: Any,
    out: Any = None,
    bias: Any = None,
    activation: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    addend: Any = None,
) -> Any:
    """activation(alpha * a @ b + beta * addend + bias) by torch. Raises what its operations raise.

    Args:
        addend: None: `out`.
    """
    if addend is not None:
        value = composed(a, b, out, bias, None, alpha)
        return activated(value + addend if beta == 1 else value + beta * addend, activation)
    if not asks_more(bias, activation, alpha, beta):
        return torch.matmul(a, b) if out is None else torch.matmul(a, b, out=out)
    if out is not None and not torch.compiler.is_compiling() and wants_grad(a, b, out, bias):
        raise RuntimeError("sassafras.matmul(): out=... does not support automatic differentiation")
    scale: dict[str, Any] = {} if alpha == 1 else {"alpha": alpha}
    if out is None and _library_fuses(a, b, bias, activation):
        return torch._addmm_activation(bias, a, b, **scale, use_gelu=activation == "gelu_tanh")
    alike = a.dim() == b.dim() and (a.dim() == 2 or a.shape[:1] == b.shape[:1])
    add = {2: torch.addmm, 3: torch.baddbmm}.get(a.dim() if alike else 0)
    row = bias is not None and bias.dim() == 1  # vmap has more
    if beta:
        if add is not None and out.dim() == a.dim():
            value = add(out, a, b, beta=beta, **scale)
        else:
            value = torch.matmul(a, b) * alpha + beta * out
        value = value if bias is None else value + bias
    elif row and add is not None:
        value = add(bias, a, b, **scale)
    elif row and b.dim() == 2 and not scale:
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
            where=_WHERE,
        )
    return out.copy_(value)


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


def fits(a: Any, b: Any) -> bool:
    """Two matrices, or batches of them, that torch would multiply, none of them empty."""
    if a.dim() < 2 or b.dim() < 2 or a.shape[-1] != b.shape[-2] or 0 in (*a.shape, *b.shape):
        return False
    return broadcast(a.shape[:-2], b.shape[:-2]) is not None


def wants_grad(*tensors: Any) -> bool:
    """Whether autograd records an operation of these (None: not given)."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def check(
    a: Any,
    b: Any,
    out: Any,
    bias: Any,
    activation: str | None,
    alpha: float,
    beta: float,
    addend: Any = None,
) -> None:
    """Raises TypeError and SassafrasError for arguments that `matmul` does not take."""
    for name, number in (("alpha", alpha), ("beta", beta)):
        if isinstance(number, torch.Tensor):
            raise TypeError(f"{_WHERE}: {name} is a number, not a tensor")
    for name, tensor in (("a", a), ("b", b), ("out", out), ("bias", bias)):
        if not isinstance(tensor, torch.Tensor) and (tensor is not None or name in "ab"):
            raise TypeError(f"{_WHERE}: {name} is no tensor but {type(tensor).__name__}")
    if activation not in ACTIVATIONS:
        known = ", ".join(str(name) for name in ACTIVATIONS)
        raise SassafrasError(f"no activation {activation!r}", where=_WHERE, hint=f"one of {known}")
    if beta and out is None and addend is None:
        raise SassafrasError("beta is a factor of what out holds, and there is no out", where=_WHERE)
    if bias is not None:
        if b.dim() < 2 or bias.dim() != 1 or bias.shape[0] != b.shape[-1]:
            raise SassafrasError(
                f"bias {tuple(bias.shape)} has not one value for each column of b {tuple(b.shape)}",
                where=_WHERE,
            )
        if bias.device != a.device:
            raise SassafrasError(f"bias is on {bias.device}, a on {a.device}", where=_WHERE)


def _library_fuses(a: Any, b: Any, bias: Any, activation: str | None) -> bool:
    """Whether torch reaches cuBLASLt's own epilogue. Its GELU is the tanh form (on the CPU it is another).

    Of empty operands torch leaves the activation out; a subclass may have rules for addmm and relu alone.
    """
    extra = epilogue_selector.Extra(bias is not None, activation)
    return (
        epilogue_selector.library_fuses(extra, a.dim(), b.dim())
        and bias.dim() == 1
        and a.device.type == "cuda"
        and fits(a, b)
        and all(type(t) in plain_tensors.KINDS for t in (a, b, bias))
        and not torch.compiler.is_compiling()
        and not plain_tensors.observed()
        and not wants_grad(a, b, bias)
    )
