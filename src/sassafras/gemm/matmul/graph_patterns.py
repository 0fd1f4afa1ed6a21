"""Patterns in Inductor's graphs (decomposed): SwiGLU's pair, GELU and ReLU, a residual's sum, norms."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ..configs.epilogue import SWIGLU
from .layer_op import LayerCall

_aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
#: for the hash of what rewrites graphs
FILE = __file__
_SPLIT = _aten.split.Tensor, _aten.split_with_sizes.default
_SEEN = {*_SPLIT, _aten.reshape.default, _aten.permute.default, _aten.slice.Tensor, _aten.unsqueeze.default}
_SEEN |= {_aten.select.int, _aten.unbind.int, _aten.squeeze.dim}


def known(node: Any) -> Any:
    """What stands for a node's tensor; None where it is none, or an extent or a stride is unknown."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    return value if all(isinstance(x, int) for x in (*value.shape, *value.stride())) else None


def written(node: Any) -> Any:
    """The input or buffer that a node writes into where it lies, as nothing else reads or writes; or None."""
    if node.target is not _aten.index_put.default or any(node.args[3:]):
        return None
    cache = node.args[0]
    if cache.op not in ("placeholder", "get_attr"):
        return None
    if len(node.graph.find_nodes(op=cache.op, target=cache.target)) > 1:
        return None
    back = [one for one in node.users if one.target is _aten.copy_.default and one.args[:2] == (cache, node)]
    return cache if back and {*cache.users} == {node, *back} else None


def lies(node: Any) -> Any:
    """`known`, as a program has it: `written` into an input, a view of what was put into the graph."""
    if (value := known(node)) is None or (cache := written(node)) is not None:
        return value if value is None else known(cache)
    first = node.args[0] if node.target is operator.getitem else node
    if first.target not in _SEEN or first.all_input_nodes != [first.args[0]]:
        return value
    if (source := lies(first.args[0])) is None:
        return value
    seen = first.target(source, *first.args[1:])
    return seen if first is node else seen[node.args[1]]


def product(node: Any) -> LayerCall | None:
    """A product of ours, without an activation; None: something else."""
    if node.target is torch.ops.sassafras.mm.default:
        return LayerCall(*node.args)
    more = [*node.args[3:]]
    if node.target is torch.ops.sassafras.fused.default and more in (["none", 1.0], ["none", 1.0, None]):
        a, b, bias = node.args[:3]
        return LayerCall(a, b, bias=bias)
    return None


def pair(node: Any) -> LayerCall | None:
    """The call that computes a node, where that is silu(gate) * up and nothing reads what lies between."""
    if node.target is not _aten.mul.Tensor:
        return None
    gate, up = map(known, node.args)
    if gate is None or up is None or gate.shape != up.shape:  # a row may be multiplied with all
        return None
    for first, second in (node.args, node.args[::-1]):
        seen = {node}
        if (inside := _silu(first, seen)) is None:
            continue
        (gate, left), (up, right) = _half(inside, seen), _half(second, seen)
        ours, others = product(gate), product(up)
        if ours is None or others is None or any({*old.users} - seen for old in seen - {node}):
            continue
        dtype = ours.a.meta["val"].dtype
        if not {old.args[1] for old in seen if old.target is _CAST} <= {torch.float32, dtype}:
            continue
        if node.meta["val"].dtype != dtype and not all(_casts(reader, dtype) for reader in node.users):
            continue  # the result is wider than a kernel's
        if gate is up and (left, right) == (0, 1):
            return ours._replace(activation=SWIGLU)
        plain = left is right is ours.bias is others.bias is None
        if gate is not up and plain and (ours.a is others.a or _alike(ours.a, others.a)):
            return ours._replace(other=others.b, activation=SWIGLU)
    return None


def activation(node: Any) -> LayerCall | None:
    """The call that computes a node, where that is relu or gelu of a product and nothing reads what lies
    between."""
    seen: set[Any] = {node}
    inner = _before(node, seen, _CAST)
    if inner.target is _aten.relu.default:
        name, x = "relu", inner.args[0]
    elif (found := _gelu(inner, seen)) is not None:
        name, x = found
    else:
        return None
    x = _before(x, seen, _CAST)
    seen |= {inner, x}
    if (ours := product(x)) is None or any({*old.users} - seen for old in seen - {node}):
        return None
    dtype = ours.a.meta["val"].dtype
    casts = {old.args[1] for old in seen if old.target is _CAST}
    if node.meta["val"].dtype != dtype or not casts <= {torch.float32, dtype}:
        return None
    return ours._replace(activation=name)


def _gelu(node: Any, seen: set[Any]) -> tuple[str, Any] | None:
    """(its name, x) of x / 2 * (1 + f(x)) as Inductor decomposes both of torch's; what lies between is added
    to `seen`."""
    for half, more in _factors(node):
        x, inner = _times(half, 0.5), _arguments(more, 2, _aten.add.Tensor) or (None, None)
        (of_erf,), (of_tanh,) = (
            _arguments(inner[0], 1, f) or (None,) for f in (_aten.erf.default, _aten.tanh.default)
        )
        if x is None or inner[1] != 1:
            continue
        if of_erf is not None and _times(of_erf, math.sqrt(0.5)) is x:
            seen |= {half, more, inner[0], of_erf}
            return "gelu", x
        total = _times(of_tanh, math.sqrt(2 / math.pi))
        first, cubes = _arguments(total, 2, _aten.add.Tensor) or (None, None)
        cube = _times(cubes, 0.044715)
        square = next((one for one, other in _factors(cube) if other is x), None)
        if first is x and _factors(square)[:1] == ((x, x),):
            seen |= {half, more, inner[0], of_tanh, total, cubes, cube, square}
            return "gelu_tanh", x
    return None


def _times(node: Any, factor: float) -> Any:
    """x of x * factor; None: something else."""
    x, by = _arguments(node, 2, _aten.mul.Tensor) or (None, None)
    return x if isinstance(by, float) and math.isclose(by, factor) else None


def _casts(node: Any, dtype: Any) -> bool:
    return node.target is _CAST and node.args[1] == dtype


def halves(node: Any) -> tuple[Any, ...]:
    """What a `pair`'s node multiplies: the product of both halves, or the gate's and up's."""
    for first, second in (node.args, node.args[::-1]):
        if (inside := _silu(first, set())) is not None:
            gate, up = _half(inside, set())[0], _half(second, set())[0]
            return (gate,) if gate is up else (gate, up)
    return ()


def residual(node: Any) -> tuple[Any, Any] | None:
    """(the sum, what is added) where a product's only reader, behind reshapes, adds a tensor as large."""
    inner = node
    while len(inner.users) == 1:
        (reader,) = inner.users
        if same_columns(reader):
            inner = reader
            continue
        if reader.target is not _aten.add.Tensor or reader.kwargs or len(reader.args) != 2:
            return None
        (added,) = [arg for arg in reader.args if arg is not inner] or [None]
        values = [known(t) for t in (inner, added, reader)]
        if any(v is None for v in values) or len({(v.dtype, v.shape) for v in values}) != 1:
            return None
        return (reader, added) if values[1].is_contiguous() else None
    return None


def rms_norm(node: Any) -> tuple[Any, Any, float] | None:
    """(x, weight, eps) where a node is x / sqrt(mean of the last extent's squares + eps) * weight."""
    if (result := known(node)) is None:
        return None
    uncast = partial(_uncast, dtype=result.dtype)
    for scaled, weight in _factors(uncast(node)):
        weight = uncast(weight)
        for wide, root in _factors(uncast(scaled)):
            if (found := _mean_square(root)) is None:
                continue
            x, eps = uncast(wide), found[1]
            values = known(x), known(weight)
            if x is not uncast(found[0]) or values[0] is None or values[1] is None:
                continue
            if {v.dtype for v in values} == {result.dtype} and values[1].shape == values[0].shape[-1:]:
                return x, weight, eps
    return None


def layer_norm(node: Any) -> tuple[Any, Any, Any, float] | None:
    """(x, weight, bias or None, eps) where a node is (x - its mean) / sqrt(its variance along the last extent
    + eps) * weight + bias, or without it."""
    if (result := known(node)) is None:
        return None
    uncast = partial(_uncast, dtype=result.dtype)
    scaled, bias = _arguments(uncast(node), 2, _aten.add.Tensor) or (uncast(node), None)
    for inner, weight in _factors(scaled):
        for less, root in _factors(inner):
            wide, mean = _arguments(less, 2, _aten.sub.Tensor) or (None, None)
            if wide is None or (eps := _deviation(root, wide, mean)) is None:
                continue
            found = x, *vectors = uncast(wide), uncast(weight), *([] if bias is None else [uncast(bias)])
            values = [known(one) for one in found]
            if any(value is None or value.dtype != result.dtype for value in values):
                continue
            if {value.shape for value in values[1:]} == {values[0].shape[-1:]}:
                return x, vectors[0], vectors[1] if bias is not None else None, eps
    return None


def _deviation(node: Any, wide: Any, mean: Any) -> float | None:
    """eps of 1 / sqrt(variance of `wide` along the last extent + eps), of the operator that gives `mean`."""
    (inner,) = _arguments(node, 1, _aten.rsqrt.default) or (None,)
    variance, eps = _arguments(inner, 2, _aten.add.Tensor, _aten.add.Scalar) or (None, None)
    both = [_arguments(part, 2, operator.getitem) or (None, None) for part in (variance, mean)]
    moments, value = both[0][0], known(wide)
    if moments is None or both != [(moments, 0), (moments, 1)] or value is None:
        return None
    if moments.target is not _aten.var_mean.correction or moments.args[0] is not wide:
        return None
    last = [*moments.args[1:]] in ([[-1]], [[value.dim() - 1]])
    whole = last and moments.kwargs == {"correction": 0, "keepdim": True} and value.dtype == torch.float32
    return eps if whole and isinstance(eps, float) else None


def _mean_square(node: Any) -> tuple[Any, float] | None:
    """(x, eps) of 1 / sqrt(mean of x's squares along the last extent + eps), x in FP32."""
    (inner,) = _arguments(node, 1, _aten.rsqrt.default) or (None,)
    mean, eps = _arguments(inner, 2, _aten.add.Tensor, _aten.add.Scalar) or (None, None)
    square, dims, kept = _arguments(mean, 3, _aten.mean.dim) or (None, None, None)
    x, power = _arguments(square, 2, _aten.pow.Tensor_Scalar) or (None, None)
    value = known(x)
    if value is None or value.dtype != torch.float32 or power != 2 or kept is not True:
        return None
    return (x, eps) if isinstance(eps, float) and [*dims] in ([-1], [value.dim() - 1]) else None


def _arguments(node: Any, count: int, *targets: Any) -> tuple[Any, ...] | None:
    """A node's arguments, where it is a call of one of these with so many and nothing by name."""
    if not isinstance(node, torch.fx.Node) or node.target not in targets or node.kwargs:
        return None
    return node.args if len(node.args) == count else None


def _factors(node: Any) -> tuple[tuple[Any, Any], ...]:
    """Both orders of a product's factors."""
    if not isinstance(node, torch.fx.Node) or node.target is not _aten.mul.Tensor:
        return ()
    return (node.args, node.args[::-1]) if all(isinstance(f, torch.fx.Node) for f in node.args) else ()


def _uncast(node: Any, dtype: Any) -> Any:
    """What lies before casts to FP32 and `dtype`: others leave bits out."""
    while node.target is _CAST and node.args[1] in (torch.float32, dtype):
        node = node.args[0]
    return node


def same_columns(node: Any) -> bool:
    """Whether a node is a reshape that keeps the last extent, which is known."""
    return node.target is _aten.reshape.default and _columns(node) == _columns(node.args[0]) is not None


def behind_reshapes(node: Any) -> Any:
    """What lies before reshapes that keep the last extent."""
    while same_columns(node):
        node = node.args[0]
    return node


def readers(node: Any) -> Iterator[Any]:
    """Readers of a node, through reshapes that keep its columns."""
    for reader in node.users:
        if same_columns(reader):
            yield from readers(reader)
        else:
            yield reader


def _columns(node: Any) -> int | None:
    """The last extent, where it is known."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    last = value.shape[-1] if isinstance(value, torch.Tensor) and value.dim() else None
    return last if isinstance(last, int) else None


def _before(node: Any, seen: set[Any], *targets: Any) -> Any:
    """What lies before casts and reshapes that keep columns, which are added to `seen`."""
    while node.target in (_aten.reshape.default, *targets):
        if (columns := _columns(node)) is None or columns != _columns(node.args[0]):
            break
        seen.add(node)
        node = node.args[0]
    return node


def _silu(node: Any, seen: set[Any]) -> Any:
    """x of x / (1 + exp(-x)), as Inductor decomposes silu; None: something else."""
    node = _before(node, seen, _CAST)
    if node.target is not _aten.div.Tensor:
        return None
    seen.add(node)
    x, inner = node.args
    for target, *more in ((_aten.add.Tensor, 1), (_aten.exp.default,), (_aten.neg.default,)):
        if getattr(inner, "target", None) is not target or [*inner.args[1:]] != more or inner.kwargs:
            return None
        seen.add(inner)
        inner = inner.args[0]
    return x if inner is x else None


def _half(node: Any, seen: set[Any]) -> tuple[Any, int | None]:
    """(the product that a node is a half of, which: 0 or 1), or None for the whole of it."""
    node = whole = _before(node, seen, _CAST)
    size, place, cut, dim = _columns(node), None, {node}, 0
    if node.target is operator.getitem and node.args[0].target in _SPLIT:
        parts, place = node.args
        whole, sizes, dim = (*parts.args, 0)[:3]
        place, cut = (place if sizes in (size, [size, size]) else None), {node, parts}
    elif node.target is _aten.slice.Tensor and node.args[4:] in ((), (1,)):
        whole, dim, begin = (*node.args, 0, 0)[:3]
        place = {0: 0, size: 1}.get(begin)
    if (
        place is not None
        and size
        and _columns(whole) == 2 * size
        and dim in (-1, whole.meta["val"].dim() - 1)
    ):
        seen |= cut
        node = whole
    else:
        place = None
    node = _before(node, seen)
    seen.add(node)
    return node, place


def _alike(x: Any, y: Any) -> bool:
    """Reshapes of one node to the same extents."""
    return x.target is y.target is _aten.reshape.default and x.args == y.args
