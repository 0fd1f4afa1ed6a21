"""``torch.ops.sassafras.rms_norm``, ``.layer_norm`` and ``.gated``: what stands between a model's products.

Their kernels (`configs.rows`) let the product behind them start, and read its weights, while they run.
`inductor_graph` puts them into the graphs of compiled models, where products of ours are around them.
"""

from __future__ import annotations

from typing import Any

import torch

from ..configs.rows import GATED, LAYER_NORM, RMS_NORM
from . import api, served, swiglu, torch_op
from .problem import read_rows

_functional = torch.nn.functional


def serves(most: int, kind: int, a: Any, other: Any = None, bias: Any = None, constant: bool = False) -> bool:
    """Whether a kernel serves a call of what stands for these in a graph; that is compiled, then.

    Args:
        most: lines of `a`, at most.
        kind, a, other, bias, constant: as `read_rows` takes them.
    """
    if (engine := api._engine) is None:
        return False
    found = read_rows(kind, a, other, bias, None, constant, engine.torch.device_type)
    return found is not None and found[0].m <= most and served.compiled_for(found[0])


def _launched(kind: int, a: Any, other: Any, bias: Any, out: Any, eps: float, constant: bool) -> bool:
    """Whether a kernel was launched that writes `out`."""
    return served.launched(out, "rows", kind, a, other, bias, out, eps, constant)


# --- norms ------------------------------------------------------------------------------------------------


def _norm_by_torch(a: Any, norm: Any, eps: float, constant: bool = False) -> Any:
    return _functional.rms_norm(a, norm.shape, norm, eps)


def _norm_run(a: Any, norm: Any, eps: float, constant: bool = False) -> Any:
    c = torch.empty(a.shape, dtype=a.dtype, device=a.device)
    done = _launched(RMS_NORM, a, norm, None, c, eps, constant)
    return c if done else _norm_by_torch(a, norm, eps).contiguous()


def _norm_into(a: Any, norm: Any, eps: float, constant: bool, *, out: Any) -> None:
    if not _launched(RMS_NORM, a, norm, None, out, eps, constant):
        api.fell_back("rms_norm")
        out.copy_(_norm_by_torch(a, norm, eps))


def _norm_fake(a: Any, *_: Any) -> Any:
    return a.new_empty(a.shape)


def _centred_by_torch(a: Any, norm: Any, bias: Any, eps: float, constant: bool = False) -> Any:
    return _functional.layer_norm(a, norm.shape, norm, bias, eps)


def _centred_run(a: Any, norm: Any, bias: Any, eps: float, constant: bool = False) -> Any:
    c = torch.empty(a.shape, dtype=a.dtype, device=a.device)
    done = _launched(LAYER_NORM, a, norm, bias, c, eps, constant)
    return c if done else _centred_by_torch(a, norm, bias, eps).contiguous()


def _centred_into(a: Any, norm: Any, *rest: Any, out: Any) -> None:
    *bias, eps, constant = rest
    added = bias[0] if bias else None
    if not _launched(LAYER_NORM, a, norm, added, out, eps, constant):
        api.fell_back("layer_norm")
        out.copy_(_centred_by_torch(a, norm, added, eps))


# --- silu(gate) * up --------------------------------------------------------------------------------------


def _gated_fake(gate: Any, up: Any = None) -> Any:
    return gate.new_empty((*gate.shape[:-1], gate.shape[-1] // (2 if up is None else 1)))


def _gated_run(gate: Any, up: Any = None) -> Any:
    c = _gated_fake(gate, up)
    done = _launched(GATED, gate, up, None, c, 0.0, False)
    return c if done else swiglu.gated(gate, up).contiguous()


def _gated_into(gate: Any, up: Any = None, *, out: Any) -> None:
    if not _launched(GATED, gate, up, None, out, 0.0, False):
        api.fell_back("gated")
        out.copy_(swiglu.gated(gate, up))


def _told_of(lines: Any, *given: Any) -> torch_op.Told | None:
    """See `torch_op.register`."""
    from torch._inductor.ir import IRNode

    if not lines.is_contiguous():
        return None
    more = tuple(g for g in given if g is not None and not isinstance(g, IRNode))
    return [g for g in given if isinstance(g, IRNode)], more


rms_norm = torch_op.register("rms_norm", _norm_run, _norm_by_torch, _norm_into, _norm_fake, _told_of)
layer_norm = torch_op.register(
    "layer_norm", _centred_run, _centred_by_torch, _centred_into, _norm_fake, _told_of
)
gated = torch_op.register("gated", _gated_run, swiglu.gated, _gated_into, _gated_fake, _told_of)
