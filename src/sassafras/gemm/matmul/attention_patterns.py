"""Patterns in Inductor's graphs (decomposed): attention of one query row, in torch's operators."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import torch

from ..configs.attention import MOST_BYTES
from . import attention_op
from .attention_problem import AttentionCall
from .graph_patterns import known, lies

_aten = torch.ops.aten
#: for the hash of what rewrites graphs
FILE = __file__
_NAMES = "flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu"
_ATTENTION = {
    getattr(_aten, f"_scaled_dot_product_{name}").default
    for name in _NAMES
    if hasattr(_aten, f"_scaled_dot_product_{name}")
}
#: what torch's masks for cuDNN have for keys that are not seen, in FP16 and in BF16
_CUDNN = -65504.0, -65536.0
_FILLED = _aten.full.default, _aten.scalar_tensor.default
#: their arguments that leave results as they are, or say what `AttentionCall` says
_KNOWN = {
    *("query", "key", "value", "attn_bias", "attn_mask", "scale"),
    *("dropout_p", "is_causal", "compute_log_sumexp", "return_debug_mask"),
}


def served(node: Any) -> AttentionCall | None:
    """The first of a node's calls (`attention`) that a kernel serves, which lays the result as torch does."""
    for call in attention(node):
        if not known(node).is_contiguous():
            break
        q, k, v, mask = map(lies, call[:4])
        if any(isinstance(at := t.storage_offset(), int) and at % 8 for t in (q, k, v)):
            continue  # kernels read 16 bytes at a time
        if call.mask is not None:
            if mask is None or (_hidden(call.mask) is None and 2 * (k.numel() + v.numel()) > MOST_BYTES):
                break  # it is read whole
            mask = mask.reshape([*[1] * (4 - mask.dim()), *mask.shape])
        if attention_op.serves(AttentionCall(q, k, v, mask, call.scale)):
            return call
    return None


def attention(node: Any) -> Iterator[AttentionCall]:
    """Calls that compute a node, the first result of torch's attention, where nothing reads the others.

    Keys and values that are repeated for heads of a group come unrepeated first, then as they are. Without
    dropout; without a causal mask, by which the query sees the first key alone.
    """
    if node.target is not operator.getitem or node.args[1] != 0 or node.args[0].target not in _ATTENTION:
        return
    whole = node.args[0]
    if any(other is not node and other.users for other in whole.users) or known(node) is None:
        return
    names = [argument.name for argument in whole.target._schema.arguments]
    given = dict(zip(names, whole.args, strict=False)) | whole.kwargs
    if not {*given} <= _KNOWN or given.get("dropout_p", 0.0) != 0.0 or given.get("is_causal", False):
        return
    q, k, v = (given[name] for name in ("query", "key", "value"))
    if not isinstance(scale := given.get("scale"), int | float | None):
        return
    mask = _source(given.get("attn_bias", given.get("attn_mask")))
    values = [known(t) for t in (q, k, v)]
    if any(value is None or value.dim() != 4 for value in values):
        return
    apart = tuple(map(_unrepeated, (k, v)))
    shared = None not in apart and known(apart[0]).shape == known(apart[1]).shape
    for keys, rows in ([apart] if shared else []) + [(k, v)]:
        yield AttentionCall(q, keys, rows, mask, scale)


def _source(mask: Any) -> Any:
    """What a mask is expanded from: kernels read it by strides."""
    while isinstance(mask, torch.fx.Node) and mask.target is _aten.expand.default:
        mask = mask.args[0]
    return mask


def infinite(graph: Any, mask: Any) -> Any:
    """A mask that torch makes of bools, with -inf where cuDNN's has -65504: kernels leave keys out by that.
    Where no key is seen results are zeros; cuDNN's were those of no mask (pytorch issue 177842)."""
    if (at := _hidden(mask)) is None or _constant(mask.args[at]) not in _CUDNN:
        return mask
    for other in mask.args[0].users:  # the layer before has made it
        if other.meta.get("sassafras_of") is mask:
            return other
    with graph.inserting_after(mask):
        made = graph.node_copy(mask)
    with graph.inserting_before(made):
        least = graph.node_copy(mask.args[at])
    least.update_arg(least.target is _aten.full.default, -math.inf)
    least.meta["val"] = torch.full_like(least.meta["val"], -math.inf)
    made.update_arg(at, least)
    made.meta["sassafras_of"] = mask
    return made


def _hidden(mask: Any) -> int | None:
    """Of a mask that is made of bools, which argument stands for keys that are not seen: -inf, and what torch
    writes for cuDNN."""
    if mask.target is not _aten.where.self:
        return None
    values, least = [_constant(value) for value in mask.args[1:]], (-math.inf, *(_CUDNN * _torchs(mask)))
    return next((n for n in (1, 2) if values[n - 1] in least and values[2 - n] == 0.0), None)


def _torchs(node: Any) -> bool:
    """Whether torch's attention has made a node, not its caller, whose -65504 is no -inf: with all keys at it
    the result is that of no mask."""
    if made := node.meta.get("source_fn_stack"):  # of torch.compile
        return made[-1][1] is torch.nn.functional.scaled_dot_product_attention
    return "scaled_dot_product_attention" in node.meta.get("torch_fn", ("",))[-1]  # of torch.export


def _constant(node: Any) -> float | None:
    if not isinstance(node, torch.fx.Node) or node.target not in _FILLED:
        return None
    value = node.args[node.target is _aten.full.default]
    return float(value) if isinstance(value, int | float) else None


def _unrepeated(node: Any) -> Any:
    """x (sequences, heads, keys, head) of a node that has each head several times in a row; None: something
    else. So transformers' repeat_kv and torch's repeat_interleave come out."""
    if node.target is not _aten.reshape.default:
        return None
    merged, inner = known(node), node.args[0]
    while inner.target is _aten.clone.default:
        inner = inner.args[0]
    expanded = known(inner)
    if inner.target is not _aten.expand.default or expanded is None or merged is None:
        return None
    batch, heads, times, *rest = expanded.shape
    if expanded.dim() != 5 or merged.shape != (batch, heads * times, *rest):
        return None
    one, source = inner.args[0], known(inner.args[0])
    if source is None or source.shape != (batch, heads, 1, *rest):
        return None
    return one.args[0] if one.target is _aten.unsqueeze.default and one.args[1] in (2, -3) else None
