"""SwiGLU's pair in one kernel: silu(x @ gate^T) * (x @ up^T), of `sassafras.linear` and of compiled models.

``torch.ops.sassafras.swiglu(a, b, other, bias)`` is silu(gate) * up with gate | up = a @ b + bias; with
`other`, gate is a @ b and up is a @ other. `rewrite` puts it into Inductor's graphs, in place of a product of
ours (or two) with the operations behind it, where the stream kernel serves it.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

import torch

from sassafras.core import SassafrasError

from ..configs.epilogue import NUMBERS, SWIGLU
from . import api, plain_tensors, torch_op
from .composed import composed, wants_grad
from .problem import MatmulCall, Problem

_aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
_SPLIT = _aten.split.Tensor, _aten.split_with_sizes.default


def gated(inner: Any) -> Any:
    """silu of the first half of the columns, times the second, by torch."""
    gate, up = inner.chunk(2, dim=-1)
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


# -- the operator -------------------------------------------------------------------------------------------


def _by_torch(a: Any, b: Any, other: Any = None, bias: Any = None) -> Any:
    if other is None:
        return gated(composed(a, b, None, bias))
    return torch.nn.functional.silu(torch.matmul(a, b)) * torch.matmul(a, other)


def _run(a: Any, b: Any, other: Any = None, bias: Any = None) -> Any:
    given = [t for t in (a, b, other, bias) if t is not None]
    result = None
    if all(map(plain_tensors.plain, given)):
        result = api._served(a, b, None, bias, SWIGLU, 1.0, float(other is not None), other)
    return result if isinstance(result, torch.Tensor) else _by_torch(a, b, other, bias).contiguous()


def _fake(a: Any, b: Any, other: Any = None, bias: Any = None) -> Any:
    columns = b.shape[1] if other is not None else b.shape[1] // 2
    return a.new_empty((*a.shape[:-1], columns))


def _into(a: Any, b: Any, third: Any = None, *, out: Any) -> None:
    """out = the result, in a program of Inductor's; `third`: `other` or, of one extent, the bias."""
    other, bias = (None, third) if third is None or third.dim() == 1 else (third, None)
    result = api._served(a, b, out, bias, SWIGLU, 1.0, float(other is not None), other)
    if not isinstance(result, torch.Tensor):
        out.copy_(_by_torch(a, b, other, bias))


_swiglu = torch_op.register("swiglu", _run, _by_torch, _into, _fake)

# -- Inductor's graphs --------------------------------------------------------------------------------------


def rewrite(graph: Any) -> int:
    """Put the operator into a graph of Inductor's (after autograd, decomposed); how many were put there.

    A place is rewritten where nothing else reads what lies between, extents are known, and the chooser lets a
    kernel of ours serve it, which is compiled here: the first run has it.
    """
    found = 0
    for node in list(graph.find_nodes(op="call_function", target=_aten.mul.Tensor)):
        if (pair := _pair(node)) is None:
            continue
        given, between = pair
        with graph.inserting_before(node):
            made = _call(graph, _swiglu, *given)
            if (shape := [*node.meta["val"].shape]) != [*made.meta["val"].shape]:
                made = _call(graph, _aten.reshape.default, made, shape)
        node.replace_all_uses_with(made)
        for old in sorted(between, reverse=True):
            graph.erase_node(old)
        found += 1
    return found


def _call(graph: Any, target: Any, *args: Any) -> Any:
    made = graph.call_function(target, args)
    made.meta["val"] = target(*(a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args))
    return made


def _pair(node: Any) -> tuple[tuple[Any, ...], set[Any]] | None:
    """(the operator's arguments, the nodes it replaces) where this product is silu(gate) * up."""
    if not all(isinstance(factor, torch.fx.Node) for factor in node.args):
        return None
    for first, second in (node.args, node.args[::-1]):
        seen = {node}
        if (inside := _silu(first, seen)) is None:
            continue
        (gate, left), (up, right) = _half(inside, seen), _half(second, seen)
        ours, others = _product(gate), _product(up)
        if ours is None or others is None or any({*old.users} - seen for old in seen - {node}):
            continue
        (a, b, bias), (a2, b2, bias2) = ours, others
        if gate is up and (left, right) == (0, 1):
            given = a, b, None, bias
        elif gate is not up and left is right is bias is bias2 is None and (a is a2 or _alike(a, a2)):
            given = a, b, b2, None
        else:
            continue
        x, weight, other, result = values = [t.meta.get("val") for t in (a, b, b2, node)]
        if not all(isinstance(v, torch.Tensor) for v in values) or result.dtype != x.dtype:
            continue
        static = all(isinstance(extent, int) for v in values for extent in (*v.shape, *v.stride()))
        exact = {old.args[1] for old in seen if old.target is _CAST} <= {torch.float32, x.dtype}
        if static and exact and _served(x, weight, other, given):
            return given, seen
    return None


def _served(a: Any, b: Any, other: Any, given: tuple[Any, ...]) -> bool:
    """Whether a kernel of ours serves it; that is compiled, then."""
    engine = api._engine
    if engine is None or a.dtype not in plain_tensors.DTYPES or not a.is_contiguous() or b.dim() != 2:
        return False
    if b.shape != other.shape or b.stride() != other.stride() or b.stride(0) != 1:
        return False
    (k, n), (_, _, apart, bias) = b.shape, given
    total = n if apart is None else 2 * n
    extra = MatmulCall(a, b, None, bias, NUMBERS[SWIGLU], beta=float(apart is not None)).extra
    of = a.device.index or 0, int(a.dtype == torch.bfloat16), a.numel() // k, total, k
    problem = Problem(*of, 1, k, b.stride(1), total // 2, 1, extra=extra)
    if engine.choose(problem).member != "ours":
        return False
    for _ in range(2):  # a second time with the kernel that has been compiled
        engine.serve(tuple(problem))
        api.settle()
    return True


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


def _product(node: Any) -> tuple[Any, Any, Any] | None:
    """(a, b, bias) of a product of ours; None: something else."""
    if node.target is torch.ops.sassafras.mm.default:
        return *node.args, None
    more = [*node.args[3:]]
    if node.target is torch.ops.sassafras.fused.default and more in (["none", 1.0], ["none", 1.0, None]):
        return node.args[:3]
    return None


def _alike(x: Any, y: Any) -> bool:
    """Reshapes of one node to the same extents."""
    return x.target is y.target is _aten.reshape.default and x.args == y.args


@cache
def _passes() -> type | None:
    """The class of passes; None on a torch without it."""
    try:
        from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
    except ImportError:
        return None

    class Pass(CustomGraphPass):
        """Those that were configured before, then `rewrite`."""

        def __init__(self, before: Any) -> None:
            self.before = [*before] if isinstance(before, list | tuple) else [before] if before else []

        def __call__(self, graph: Any) -> None:
            for one in self.before:
                one(graph)
            rewrite(graph)

        def uuid(self) -> Any:
            """Of all; None, without which no graph is cached, where one has none."""
            known = [one.uuid() if isinstance(one, CustomGraphPass) else None for one in self.before]
            return None if None in known else (get_hash_for_files((__file__,)), *known)

    return Pass


def install() -> None:
    """Have Inductor's graphs rewritten, behind a pass of the user's, once. Graphs without our operators are
    not changed, so nothing takes it out."""
    import torch._inductor.config as settings

    if (made := _passes()) and not isinstance(settings.post_grad_custom_pre_pass, made):
        settings.post_grad_custom_pre_pass = made(settings.post_grad_custom_pre_pass)


torch_op.ON_INDUCTOR.append(install)
