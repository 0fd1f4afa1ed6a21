"""``torch.ops.sassafras.attention``: attention of one query row a head, as models that decode have it.

It is `AttentionCall`'s result. Its kernels (`configs.attention`) let the product behind them start, and read
its weights, while they run. `inductor_graph` puts it into the graphs of compiled models.
"""

from __future__ import annotations

from typing import Any

import torch

from . import api, served, torch_op
from .attention_problem import AttentionCall, read_attention


def serves(call: AttentionCall) -> bool:
    """See `served.in_graph`."""
    return served.in_graph(call, read_attention)


def _by_torch(*given: Any) -> Any:
    q, k, v, mask, scale = AttentionCall(*given)
    if (times := q.shape[-3] // k.shape[-3]) > 1:  # whichever of its kernels are allowed: few know groups
        k, v = (t.repeat_interleave(times, -3) for t in (k, v))
    if mask is not None:  # it may have a batch of its own (vmap)
        q = q.expand(*mask.shape[: max(0, mask.dim() - q.dim())], *q.shape)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale)


def _launched(call: AttentionCall, out: Any) -> bool:
    """Whether a kernel was launched that writes `out`."""
    return served.launched(out, "attention", *call[:4], out, call.factor)


def _run(*given: Any) -> Any:
    call = AttentionCall(*given)
    c = _fake(*given)
    return c if _launched(call, c) else _by_torch(*given).contiguous()


def _fake(q: Any, k: Any, v: Any, mask: Any = None, scale: float | None = None) -> Any:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _into(q: Any, k: Any, v: Any, *rest: Any, out: Any) -> None:
    """out = the result, in a program of Inductor's, which gives the mask if there is one."""
    call = AttentionCall(q, k, v, rest[0] if len(rest) > 1 else None, rest[-1])
    if not _launched(call, out):
        api.fell_back("attention")
        out.copy_(_by_torch(*call))


def _told_of(lines: Any, q: Any, k: Any, v: Any, mask: Any = None, scale: float | None = None) -> Any:
    """See `torch_op.register`."""
    return [t for t in (q, k, v, mask) if t is not None], (scale,)


attention = torch_op.register("attention", _run, _by_torch, _into, _fake, _told_of)
