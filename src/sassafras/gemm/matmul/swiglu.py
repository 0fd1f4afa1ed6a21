"""SwiGLU's pair by `sassafras.linear`: silu(x @ gate^T) * (x @ up^T), in one kernel where one serves it."""

from __future__ import annotations

from typing import Any

import torch

from sassafras.core import SassafrasError

from ..configs.epilogue import NUMBERS, SWIGLU
from . import api, plain_tensors
from .composed import wants_grad


def gated(gate: Any, up: Any = None) -> Any:
    """silu(gate) * up by torch; without `up`, gate's columns hold both halves."""
    if up is None:
        gate, up = gate.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def one_launch(x: Any, weight: Any, bias: Any) -> Any:
    """An eager call in one kernel of ours; not a tensor where none serves."""
    result = api._launch_linear(x, weight, bias, None, NUMBERS[SWIGLU])
    if result is not NotImplemented or api._engine is None or not plain_tensors.quiet():
        return result
    tensors = [x, weight] if bias is None else [x, weight, bias]
    torchs = wants_grad(*tensors) or torch.is_autocast_enabled(x.device.type)
    if torchs or not all(map(plain_tensors.plain, tensors)):
        return None
    return api._served(x, weight.t(), None, bias, SWIGLU, 1.0, 0.0)


def check(weight: Any, residual: Any) -> None:
    """Raises SassafrasError for what `linear` with this activation does not take."""
    if residual is not None:
        raise SassafrasError(
            "swiglu takes no residual", where="sassafras.linear", hint="add it to the result"
        )
    if weight.dim() != 2 or weight.shape[0] % 2:
        wrong = f"weight is {tuple(weight.shape)}; swiglu takes (2n, k), the gate's rows first"
        raise SassafrasError(wrong, where="sassafras.linear")
