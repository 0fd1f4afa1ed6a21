"""``torch.ops.sassafras.rms_norm`` and ``.gated``: what stands between the products of a compiled model.

Their kernels (`configs.rows`) let the product behind them start, and read its weights, while they run.
`inductor_graph` puts them into the graphs of compiled models, where products of ours are around them.
"""

from __future__ import annotations

from typing import Any

import torch

from . import api, served, swiglu, torch_op
from .problem import read_rows

_functional = torch.nn.functional


def serves(most: int, gated: bool, a: Any, other: Any = None, constant: bool = False) -> bool:
    """Whether a kernel serves a call of what stands for these in a graph; that is compiled, then.

    Args:
        most: lines of `a`, at most.
        gated, a, other, constant: as `read_rows` takes them.
    """
    engine = api._engine
    if engine is None or not (found := read_rows(gated, a, other, None, constant, engine.torch.device_type)):
        return False
    return found[0].m <= most and served.compiled_for(found[0])


def _launched(gated: bool, a: Any, other: Any, out: Any, eps: float = 0.0, constant: bool = False) -> bool:
    """Whether a kernel was launched that writes `out`."""
    return served.launched(out, "rows", gated, a, other, out, eps, constant)


# --- RMS norm ---------------------------------------------------------------------------------------------


def _norm_by_torch(a: Any, norm: Any, eps: float, constant: bool = False) -> Any:
    return _functional.rms_norm(a, norm.shape, norm, eps)


def _norm_run(a: Any, norm: Any, eps: float, constant: bool = False) -> Any:
    c = torch.empty(a.shape, dtype=a.dtype, device=a.device)
    return c if _launched(False, a, norm, c, eps, constant) else _norm_by_torch(a, norm, eps).contiguous()


def _norm_into(a: Any, norm: Any, eps: float, constant: bool, *, out: Any) -> None:
    if not _launched(False, a, norm, out, eps, constant):
        api.fell_back("rms_norm")
        out.copy_(_norm_by_torch(a, norm, eps))


def _norm_fake(a: Any, norm: Any, eps: float, constant: bool = False) -> Any:
    return a.new_empty(a.shape)


# --- silu(gate) * up --------------------------------------------------------------------------------------


def _gated_fake(gate: Any, up: Any = None) -> Any:
    return gate.new_empty((*gate.shape[:-1], gate.shape[-1] // (2 if up is None else 1)))


def _gated_run(gate: Any, up: Any = None) -> Any:
    c = _gated_fake(gate, up)
    return c if _launched(True, gate, up, c) else swiglu.gated(gate, up).contiguous()


def _gated_into(gate: Any, up: Any = None, *, out: Any) -> None:
    if not _launched(True, gate, up, out):
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
gated = torch_op.register("gated", _gated_run, swiglu.gated, _gated_into, _gated_fake, _told_of)
