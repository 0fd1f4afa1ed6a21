"""``torch.ops.sassafras.layer``: a linear layer with what surrounds it, in one launch of the stream kernel.

It is `LayerCall`'s result. `inductor_graph` puts it into the graphs of compiled models.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..configs.epilogue import NUMBERS, SWIGLU
from . import api, plain_tensors, torch_op
from .composed import activated, composed
from .problem import MatmulCall
from .swiglu import gated

#: the letter of each optional tensor in what a program of Inductor's calls
_LETTERS = {"o": "other", "b": "bias", "r": "residual", "n": "norm"}


class LayerCall(NamedTuple):
    """activation(x @ b + residual + bias), where x is a, RMS-normalised if there is a `norm`.

    ``swiglu`` is silu(gate) * up with gate | up = x @ b + bias; with `other`, gate is x @ b and up x @ other.

    Attributes:
        a: (..., k).
        b, other: (k, n).
        bias: (n).
        residual: of the result's shape, contiguous; not with ``swiglu``.
        norm: (k): x is a * norm / sqrt(mean of a row's squares + eps).
        activation: ``none`` or a name of `epilogue.NUMBERS`.
        constant: b, other and norm were written before the launch ahead of this one began.
    """

    a: Any
    b: Any
    other: Any = None
    bias: Any = None
    residual: Any = None
    norm: Any = None
    eps: float = 0.0
    activation: str = "none"
    constant: bool = False

    @property
    def name(self) -> str | None:
        """The activation's name as `matmul` takes it."""
        return None if self.activation == "none" else self.activation

    @property
    def product(self) -> MatmulCall:
        """As the launcher takes it."""
        addend = self.residual if self.other is None else self.other
        more = float(addend is not None), addend, self.norm, self.eps, self.constant
        return MatmulCall(self.a, self.b, None, self.bias, NUMBERS[self.name], 1.0, *more)


def _by_torch(*given: Any) -> Any:
    call = LayerCall(*given)
    norm, x = call.norm, call.a
    if norm is not None:
        x = torch.nn.functional.rms_norm(x, norm.shape, norm, call.eps)
    if call.other is not None:
        return gated(torch.matmul(x, call.b), torch.matmul(x, call.other))
    value = composed(x, call.b, None, call.bias)
    value = value if call.residual is None else value + call.residual
    return gated(value) if call.name == SWIGLU else activated(value, call.name)


def _served(call: LayerCall, out: Any = None) -> Any:
    """The result, or no tensor where no kernel of ours serves."""
    given = [t for t in call[:6] if t is not None]
    if not all(map(plain_tensors.plain, given)) or (call.name == SWIGLU and call.residual is not None):
        return None
    a, b, _, bias, _, *more = call.product[:11]
    return api._served(a, b, out, bias, call.name, *more)


def _run(*given: Any) -> Any:
    result = _served(LayerCall(*given))
    return result if isinstance(result, torch.Tensor) else _by_torch(*given).contiguous()


def _fake(*given: Any) -> Any:
    call = LayerCall(*given)
    halves = 2 if call.name == SWIGLU and call.other is None else 1
    return call.a.new_empty((*call.a.shape[:-1], call.b.shape[1] // halves))


def _into(a: Any, b: Any, *rest: Any, out: Any) -> None:
    """out = the result, in a program of Inductor's, which gives the optional tensors that are there."""
    *tensors, letters, eps, activation, constant = rest
    given = dict(zip((_LETTERS[letter] for letter in letters), tensors, strict=True))
    call = LayerCall(a, b, eps=eps, activation=activation, constant=constant, **given)
    if not isinstance(_served(call, out), torch.Tensor):
        api.fell_back("layer")
        out.copy_(_by_torch(*call))


def _told_of(lines: Any, *given: Any) -> torch_op.Told | None:
    """See `torch_op.register`."""
    if not lines.is_contiguous():
        return None
    call = LayerCall(*given)
    letters = "".join(x for x, name in _LETTERS.items() if getattr(call, name) is not None)
    return [call.a, call.b, *(getattr(call, _LETTERS[letter]) for letter in letters)], (letters, *call[6:])


layer = torch_op.register("layer", _run, _by_torch, _into, _fake, _told_of)
