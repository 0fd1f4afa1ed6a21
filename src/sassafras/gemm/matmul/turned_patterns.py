"""Patterns in Inductor's graphs (decomposed): rotary embedding ahead of attention, with RMS norms of heads
ahead of it or not, and a cache's new rows."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized

from . import turned_op
from .graph_patterns import known, lies, rms_norm, written
from .turned_problem import TurnedCall

_aten = torch.ops.aten
#: for the hash of what rewrites graphs
FILE = __file__
#: (sequences, 1, heads, head) as (sequences, heads, 1, head), and back
_HEADS_AHEAD = [0, 2, 1, 3]
_SPLIT = _aten.split.Tensor, _aten.split_with_sizes.default
#: each of what a model's function views and casts, called for queries and for keys, is in a graph twice
_VIEWS = {
    _aten.reshape.default,
    _aten.unsqueeze.default,
    _aten.slice.Tensor,
    _aten.select.int,
    _aten.permute.default,
    _aten.expand.default,
    torch.ops.prims.convert_element_type.default,
}
#: operators and what follows their tensor
_Views = list[tuple[Any, ...]]


class _Turned(NamedTuple):
    """x, cos and sin of a node that has x turned; `views` make x (sequences, heads, 1, head)."""

    x: Any
    cos: Any
    sin: Any
    views: _Views


class _Normed(NamedTuple):
    """What is turned behind an RMS norm of each head."""

    ahead: _Turned
    norm: Any
    eps: float


class _Written(NamedTuple):
    """A row that a cache has from here on, and which."""

    cache: Any
    at: Any
    row: Any


def turn(graph: Any, attention: Any) -> tuple[Any, ...]:
    """Let a kernel of ours turn the queries and the new keys of a call of attention of ours, and write the
    caches' rows; the nodes that it stands for, none where it does not.

    The caches are inputs of the graph, or its buffers, that nothing else reads or writes.
    """
    ahead, keys, rows = replaced = attention.args[:3]
    q, new, others = _turned(ahead), _written(keys, attention), _written(rows, attention)
    if q is None or new is None or others is None or not _same(new.at, others.at):
        return ()
    k = _turned(new.row)
    if k is None or not (_same(k.cos, q.cos) and _same(k.sin, q.sin)):
        return ()
    norms, eps = [], 0.0
    if (of_q := _normed(q)) and (of_k := _normed(k)) and of_q.eps == of_k.eps:
        q, k, norms, eps = of_q.ahead, of_k.ahead, [of_q.norm, of_k.norm], of_q.eps
    steps: list[tuple[Any, _Views | None]] = [(q.x, q.views), (k.x, k.views), (others.row, [])]
    steps += [(angle, _flat(known(angle), known(ahead))) for angle in (q.cos, q.sin)]
    steps += [(node, []) for node in (new.cache, others.cache, new.at, *norms)]
    values = [lies(node) for node, _ in steps]
    if any(value is None or views is None for value, (_, views) in zip(values, steps, strict=True)):
        return ()
    if values[5].untyped_storage()._cdata == values[6].untyped_storage()._cdata:
        return ()  # Inductor lets one be written where it lies, and copies both for the other
    for n, (_, views) in enumerate(steps):
        for target, *more in views or ():
            values[n] = target(values[n], *more)
    if any(isinstance(at := value.storage_offset(), int) and at % 8 for value in (*values[:7], *values[8:])):
        return ()  # kernels read 16 bytes at a time
    if not turned_op.serves(call := TurnedCall(*values)._replace(eps=eps)):
        return ()
    with graph.inserting_before(attention):
        nodes = [_seen(graph, node, views) for node, views in steps]
        named = TurnedCall(*nodes)._replace(eps=eps)._asdict()
        made = graph.call_function(auto_functionalized, (turned_op.turned,), named)
        parts = [graph.call_function(operator.getitem, (made, i)) for i in range(3)]
    results = turned_op.fake(*call), torch.empty_like(call.keys), torch.empty_like(call.values)
    made.meta |= {"val": results, "eager_input_vals": ((turned_op.turned,), call._asdict())}
    for part, result in zip(parts, results, strict=True):
        part.meta["val"] = result
    attention.args = (parts[0], *attention.args[1:])
    attention.meta["eager_input_vals"] = ((results[0], *attention.meta["eager_input_vals"][0][1:]), {})
    keys.replace_all_uses_with(parts[1])
    rows.replace_all_uses_with(parts[2])
    return tuple(replaced)


def _flat(angle: Any, q: Any) -> _Views | None:
    """What makes cos or sin (sequences or 1, head); None where it is of another kind."""
    if angle is None or q is None or angle.dim() > 4:
        return None
    batch, *ones, head = (1,) * (4 - angle.dim()) + (*angle.shape,)
    if ones != [1, 1] or head != q.shape[-1] or batch not in (1, q.shape[0]):
        return None
    return [(_aten.reshape.default, [batch, head])]


def _seen(graph: Any, node: Any, views: Any) -> Any:
    value = lies(node)
    for target, *more in views:
        value = target(value, *more)
        node = graph.call_function(target, (node, *more))
        node.meta["val"] = value
    return node


def _turned(node: Any) -> _Turned | None:
    """x * cos + (x's second half with its sign changed, its first half) * sin."""
    inner, views = _moved(node)
    if not _is(inner, _aten.add.Tensor) or inner.kwargs:
        return None
    for straight, crossed in (inner.args, inner.args[::-1]):
        if not (_is(straight, _aten.mul.Tensor) and _is(crossed, _aten.mul.Tensor)):
            continue
        for x, cos in (straight.args, straight.args[::-1]):
            for halves, sin in (crossed.args, crossed.args[::-1]):
                if _changes(halves, x):
                    return _Turned(x, cos, sin, views)
    return None


def _normed(turned: _Turned) -> _Normed | None:
    """What is turned, where it is an RMS norm of each head."""
    inner, views = _moved(turned.x)
    if (found := rms_norm(inner)) is None:
        return None
    x, norm, eps = found
    return _Normed(turned._replace(x=x, views=[*views, *turned.views]), norm, eps)


def _moved(node: Any) -> tuple[Any, _Views]:
    """What has its heads behind its one place, and what changes that; the node itself where nothing does."""
    if _is(node, _aten.permute.default) and [*node.args[1]] == _HEADS_AHEAD:
        return node.args[0], [(_aten.permute.default, _HEADS_AHEAD)]
    return node, []


def _changes(node: Any, x: Any) -> bool:
    """Whether a node has x's halves, changed for each other, the first one's sign, too."""
    if not _is(node, _aten.cat.default) or len(node.args[0]) != 2 or node.args[1:] not in ((-1,), (3,)):
        return False
    first, second = node.args[0]
    return _is(first, _aten.neg.default) and _half(first.args[0], x) == 1 and _half(second, x) == 0


def _half(node: Any, x: Any) -> int | None:
    """Which half of x's last extent a node is."""
    size = None if (value := known(x)) is None else value.shape[-1]
    if size is None or size % 2 or value.dim() != 4:
        return None
    half = size // 2
    if _is(node, _aten.slice.Tensor) and len(node.args) == 4 and node.args[:2] in ((x, -1), (x, 3)):
        ends = node.args[2:]
        if not all(isinstance(end, int | None) for end in ends):
            return None
        return {(0, half): 0, (half, size): 1}.get(slice(*ends).indices(size)[:2])
    if _is(node, operator.getitem) and node.args[0].target in _SPLIT:
        whole, parts, *dim = node.args[0].args
        if whole is x and parts in (half, [half, half]) and dim in ([-1], [3]):
            return int(node.args[1])
    return None


def _written(node: Any, attention: Any) -> _Written | None:
    """A cache's new row: one of all sequences and heads at one place."""
    if (cache := written(node)) is None or {*node.users} - {*cache.users} != {attention}:
        return None  # it would be copied whole
    _, places, row = node.args[:3]
    at = places[2] if len(places) == 3 and places[0] is places[1] is None else None
    if (index := known(at)) is None or index.dim() != 1:
        return None
    return _Written(cache, at, row)


def _same(one: Any, other: Any) -> bool:
    """Whether two arguments are one, or the same views and casts of one."""
    nodes = [isinstance(argument, torch.fx.Node) for argument in (one, other)]
    if one is other or not all(nodes):
        return one is other or (not any(nodes) and type(one) is type(other) and one == other)
    if one.target is not other.target or one.target not in _VIEWS or one.kwargs or other.kwargs:
        return False
    return len(one.args) == len(other.args) and all(map(_same, one.args, other.args))


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.target is target
