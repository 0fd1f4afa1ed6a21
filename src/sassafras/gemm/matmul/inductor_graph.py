"""What becomes of Inductor's graphs: products of ours take in what surrounds them.

`rewrite` turns products of ours (``sassafras::mm``, ``::fused``) into ``sassafras::layer``: SwiGLU's pair, a
residual's sum behind a product, an RMS norm ahead of it, and weights that nothing in the graph writes, which
are read before the launch ahead has ended. Products that share their rows, queries, keys and values, or gate
and up, become one, ``sassafras::joined``. For more rows than the stream kernel has, norms and pairs become
``sassafras::rms_norm``, ``::layer_norm`` and ``::gated`` between products of ours: launches that overlap
those around them. Attention of one query row becomes ``sassafras::attention`` for the same reason. Products
apply the relu or gelu behind them.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import takewhile
from typing import Any

import torch

from ..configs import joined
from ..configs.epilogue import SWIGLU
from ..configs.persistent_pair import PairConfig
from ..configs.rows import GATED, LAYER_NORM, RMS_NORM
from ..configs.stream import COLUMNS, LEAST_CONSTANT
from . import (
    api,
    attention_op,
    attention_patterns,
    graph_by_torch,
    graph_memory,
    joined_op,
    plain_tensors,
    rows_op,
    turned_patterns,
)
from .graph_memory import laid_out, source, unwritten, with_source
from .graph_patterns import (
    FILE,
    activation,
    behind_reshapes,
    halves,
    known,
    layer_norm,
    lies,
    pair,
    product,
    readers,
    residual,
    rms_norm,
)
from .joined_problem import JoinedCall
from .layer_op import LayerCall, layer
from .problem import Problem

_aten = torch.ops.aten
_OURS = torch.ops.sassafras
_PRODUCTS = {
    layer,
    joined_op.joined,
    _OURS.mm.default,
    _OURS.fused.default,
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
}
#: what `rewrite` puts into graphs
_PUT = {layer, joined_op.joined, rows_op.rms_norm, rows_op.layer_norm, rows_op.gated, attention_op.attention}
#: most rows for which launches between products are ours: then reading the weights is most of a product (with
#: 128 and 256 rows such chains took models to 0.90 to 1.02 of their speed on an H200)
MOST_ROWS = 64
#: rows for which a product pays that applies its activation: up to so many if it waits for the launch ahead
#: (StarCoder2-7B at 16 and 64 rows: 1.036 and 0.918 of its speed), and from so many (1024 rows: 1.048)
MOST_WAITING, LEAST_ALONE = 16, 1024


def rewrite(graph: Any) -> int:
    """Put the operator into a graph of Inductor's; how many were put there.

    A place is rewritten where nothing else reads what lies between, extents are known, and the chooser lets
    a kernel serve it that overlaps the launch ahead or multiplies a pair, which is compiled here: the first
    run has it.
    """
    if graph_by_torch.replaces(graph) or api._engine is None:
        return 0
    for node in list(graph.nodes):  # first: pairs are products behind norms, too
        if (call := pair(node) or activation(node)) is None or known(call.a) is None:
            continue
        call = call._replace(constant=_constant(call))
        if call.name == SWIGLU:
            if _serves(call):
                _put(graph, node, call)
            else:
                _gate(graph, node, call)
        else:
            _activate(graph, node, call)
    calls = {node: call for node in graph.nodes if (call := _call(node)) is not None}
    normed, moved = _normed(calls), dict[Any, Any]()  # what was replaced -> what stands there
    for node, call in calls.items():
        place, added = (residual(node) if not (call.name or call.residual) else None) or (None, None)
        for one in filter(None, (normed.get(node), call)):
            now = LayerCall(*(moved.get(given, given) for given in one))
            fixed = now._replace(constant=_constant(now))
            if place is not None and _serves(more := fixed._replace(residual=moved.get(added, added))):
                moved[place] = _put(graph, place, more)
                break
            if fixed != call and _serves(fixed):
                moved[node] = _put(graph, node, fixed)
                break
    _join(graph)
    ours = [node for node in graph.nodes if node.target in (layer, joined_op.joined)]
    for root in dict.fromkeys(behind_reshapes(node.args[0]) for node in ours):
        _norm(graph, root)
    if any(getattr(node.target, "namespace", "") == "sassafras" for node in graph.nodes):
        for node in list(graph.nodes):  # last: where products lie is seen by then
            _attend(graph, node)
    return sum(node.target in _PUT for node in graph.nodes)


def _activate(graph: Any, node: Any, call: LayerCall) -> None:
    """Let a product of ours apply its activation, where that pays: not one that may be joined with others."""
    rows = known(call.a).shape[:-1].numel()
    if sum(reader.target in _PRODUCTS for reader in readers(behind_reshapes(call.a))) > 1:
        return
    if (call.constant or rows <= MOST_WAITING) and _serves(call):
        _put(graph, node, call)
    elif rows >= LEAST_ALONE and _serves(call, alone=True):
        _replace(graph, node, _OURS.fused.default, call.a, call.b, call.bias, call.activation, 1.0)


def _gate(graph: Any, node: Any, call: LayerCall) -> None:
    """Let a kernel of ours multiply the halves of a product, or two products, that ours serve."""
    operands = halves(node)
    values = [known(t) for t in operands]
    plain = call._replace(other=None, activation="none")
    if any(v is None for v in values) or not _serves(plain):
        return
    if rows_op.serves(MOST_ROWS, GATED, *values):
        _replace(graph, node, rows_op.gated, operands[0], *operands[1:])


def _norm(graph: Any, root: Any) -> None:
    """Let a kernel of ours normalise what a kernel of ours has left to one, or an input."""
    if root.target in _PUT or (found := _norm_of(root)) is None:
        return
    (operator_, kind), x, weight, bias, eps = found
    ahead = behind_reshapes(x)
    if ahead.op != "placeholder" and ahead.target is not layer:
        return  # Inductor normalises it in the kernel that computes it
    constant = all(unwritten(one) for one in (weight, bias) if one is not None) and _behind_product(x)
    added = None if bias is None else known(bias)
    if rows_op.serves(MOST_ROWS, kind, known(x), known(weight), added, constant):
        given = (x, weight) if kind == RMS_NORM else (x, weight, bias)
        _replace(graph, root, operator_, *given, eps, constant)


def _norm_of(root: Any) -> tuple[tuple[Any, int], Any, Any, Any, float] | None:
    """((operator, kind), x, weight, bias, eps) of a norm of rows."""
    if (found := rms_norm(root)) is not None:
        x, weight, eps = found
        return (rows_op.rms_norm, RMS_NORM), x, weight, None, eps
    centred = layer_norm(root)
    return None if centred is None else ((rows_op.layer_norm, LAYER_NORM), *centred)


def _attend(graph: Any, node: Any) -> None:
    """Let a kernel of ours attend."""
    if (call := attention_patterns.served(node)) is None:
        return
    whole, mask = node.args[0], call.mask
    if mask is not None:
        mask = attention_patterns.infinite(graph, mask)
    with graph.inserting_before(node):
        if mask is not None:
            shape = mask.meta["val"].shape
            mask = _reshaped(graph, mask, [*[1] * (4 - len(shape)), *shape])
        made = _added(graph, attention_op.attention, *call._replace(mask=mask))
    made.meta["eager_input_vals"] = ((*map(lies, made.args[:4]), call.scale), {})
    node.replace_all_uses_with(made)
    before = whole.all_input_nodes
    for one in (*whole.users, whole):  # impure by its name alone: nothing is dropped
        graph.erase_node(one)
    for one in before:
        _drop(graph, one)
    for one in turned_patterns.turn(graph, made):
        _drop(graph, one)


def _replace(graph: Any, node: Any, target: Any, *args: Any) -> None:
    """Let a call stand in a node's place."""
    with graph.inserting_before(node):
        made = _reshaped(graph, _added(graph, target, *args), [*node.meta["val"].shape])
    node.replace_all_uses_with(made)
    _drop(graph, node)


def _join(graph: Any) -> None:
    """Let a kernel of ours multiply by up to three weights, of products with the same rows and norm."""
    for node in [node for node in graph.nodes if node.target is rows_op.gated and len(node.args) == 2]:
        parts = [*dict.fromkeys(map(behind_reshapes, node.args))]
        shared, *others = map(_joins, parts)
        if shared is None or others != [shared] or any({*readers(part)} != {node} for part in parts):
            continue
        if (made := _joined(graph, parts)) is None:
            continue
        if rows_op.serves(MOST_ROWS, GATED, known(made)):
            _replace(graph, node, rows_op.gated, made)
        else:
            _drop(graph, made)
    alike: dict[Any, list[Any]] = defaultdict(list)
    for node in graph.nodes:
        if (shared := _joins(node)) is not None and not laid_out(node):
            alike[shared].append(node)
    for (root, *_), found in alike.items():
        for first in range(0, len(found) - 1, 3):
            parts = found[first : first + 3]
            least = min(part.meta["val"].shape[-1] for part in parts) * root.meta["val"].shape[-1]
            if least < joined.MOST_ELEMENTS:
                _cut(graph, parts, _joined(graph, parts))


def _joins(node: Any) -> Any:
    """What products have in common that are joined, where a node is one of a weight that may be read sooner,
    and nothing else; None: it is not."""
    if (call := _call(node)) is None or call.name or call.residual is not None or call.other is not None:
        return None
    weight = known(call.b)
    if weight is None or weight.dim() != 2 or weight.shape[1] % joined.UNIT:
        return None
    fixed = unwritten(call.b) and (call.bias is None or unwritten(call.bias))
    return (behind_reshapes(call.a), call.norm, call.eps, weight.stride(1)) if fixed else None


def _joined(graph: Any, parts: list[Any]) -> Any:
    """One call for two or three products, in the place of the first; None where no kernel serves it."""
    calls = [call for part in parts if (call := _call(part)) is not None]
    first, one = parts[0], calls[0]
    weights, biases = zip(*((call.b, call.bias) for call in calls), strict=True)
    none, constant = [None] * (3 - len(calls)), all(map(_constant, calls))
    given = [one.a, *weights, *none, *biases, *none, one.norm]
    values: list[Any] = [None if node is None else known(node) for node in given]
    if any(node is not None and value is None for node, value in zip(given, values, strict=True)):
        return None
    if not joined_op.serves(JoinedCall(*[*values, one.eps, constant])):
        return None
    ahead = {*takewhile(lambda node: node is not first, graph.nodes)}
    for node in (*weights, *filter(None, biases)):
        for view in with_source(node):
            if view not in ahead and view.op != "placeholder":
                first.prepend(view)
                ahead.add(view)
    with graph.inserting_before(first):
        return _added(graph, joined_op.joined, *given, one.eps, constant)


def _cut(graph: Any, parts: list[Any], made: Any) -> None:
    """Let the readers of products read parts of their joined result, if there is one."""
    end = 0
    for node in parts if made is not None else ():
        begin, end = end, end + node.meta["val"].shape[-1]
        _replace(graph, node, _aten.slice.Tensor, made, made.meta["val"].dim() - 1, begin, end)


def _call(node: Any) -> LayerCall | None:
    """A product's call, a pair's as well."""
    return LayerCall(*node.args) if node.target is layer else product(node)


def _normed(calls: dict[Any, LayerCall]) -> dict[Any, LayerCall]:
    """Products' calls with the RMS norm ahead of them, where each reader of the norm can take it in."""
    by_root: dict[Any, list[Any]] = defaultdict(list)
    for node, call in calls.items():
        by_root[behind_reshapes(call.a)].append(node)
    found: dict[Any, LayerCall] = {}
    for root, nodes in by_root.items():
        if (norm := rms_norm(root)) is None or {*readers(root)} != {*nodes}:
            continue
        x, weight, eps = norm
        given = {node: calls[node]._replace(a=x, norm=weight, eps=eps) for node in nodes}
        weights = sum(w.meta["val"].numel() for c in given.values() for w in (c.b, c.other) if w is not None)
        if weights >= LEAST_CONSTANT and all(_serves(c) for c in given.values()):
            found |= given
    return found


def _constant(call: LayerCall) -> bool:
    """Whether a call's weights are inputs that nothing in the graph writes, and a product of the graph's own,
    on which `a` depends, lies between whatever wrote them and the call, which `_overlaps` what is ahead."""
    weights = [w for w in (call.b, call.other, call.norm) if w is not None]
    return all(map(unwritten, weights)) and _behind_product(call.a) and _overlaps(call.a)


def _overlaps(node: Any) -> bool:
    """Whether reading weights early pays behind what computes a product's rows: few, or by a launch of ours,
    now or later. Behind others, copies of weights ahead of those of 16 to 64 rows cost 2 to 4 % (an H200)."""
    root, rows = source(node), node.meta["val"].shape[:-1].numel()  # heads are merged behind attention
    ours = getattr(root.target, "namespace", "") == "sassafras"
    if (norm := _norm_of(root)) is not None:
        ours |= _leaves(behind_reshapes(norm[1]))
    return rows <= COLUMNS or ours or attention_patterns.served(root) is not None


def _leaves(ahead: Any) -> bool:
    """Whether what is ahead of a norm is an input, or a launch of ours, now or later: then so is the norm."""
    if ahead.op == "placeholder" or ahead.target is layer or product(ahead) is not None:
        return True
    parts = map(behind_reshapes, ahead.all_input_nodes) if ahead.target is _aten.add.Tensor else ()
    return any(product(part) is not None and (residual(part) or (None,))[0] is ahead for part in parts)


def _behind_product(node: Any) -> bool:
    """Whether a node depends on a product: there surely is a launch for it, which lets none start before its
    own wait, as norms, pairs and attention of ours do."""
    seen, open_ = set(), [node]
    while open_:
        one = open_.pop()
        if one.target in _PRODUCTS:
            return True
        open_ += [before for before in one.all_input_nodes if before not in seen]
        seen |= {*one.all_input_nodes}
    return False


def _serves(call: LayerCall, alone: bool = False) -> bool:
    """Whether a kernel serves it that `_takes_in` what surrounds it, or any if `alone`; that is compiled,
    then."""
    engine, nodes = api._engine, [t for t in call[:6] if t is not None]
    values: dict[Any, Any] = {node: known(node) for node in nodes}
    if any(value is None for value in values.values()):
        return False
    a, b, other, added = values[call.a], values[call.b], values.get(call.other), values.get(call.residual)
    if a.dtype not in plain_tensors.DTYPES or not a.is_contiguous() or b.dim() != 2 or b.stride(0) != 1:
        return False
    if other is not None and (b.shape != other.shape or b.stride() != other.stride()):
        return False
    if any((v.dtype, v.device) != (a.dtype, a.device) for v in values.values()):
        return False
    (k, n), m = b.shape, a.numel() // b.shape[0]
    total, width = (n if other is None else 2 * n), (n // 2 if call.name and other is None else n)
    if added is not None and (added.numel() != m * n or not added.is_contiguous()):
        return False
    where = a.device.index or 0, int(a.dtype == torch.bfloat16)
    problem = Problem(*where, m, total, k, 1, k, b.stride(1), width, 1, extra=call.product.extra)
    if not alone and not _takes_in(engine.choose(problem).config):  # type: ignore[union-attr]
        return False
    for _ in range(2):  # a second time with the kernel that has been compiled
        engine.serve(tuple(problem))  # type: ignore[union-attr]
        api.settle()
    return engine.served[problem].member == "ours"  # type: ignore[union-attr]


def _takes_in(config: Any) -> bool:
    """Whether a launch of this configuration saves another one, or may read its weights early."""
    early = config is not None and ("early", "i32") in config.instance.parameters
    return early or isinstance(config, PairConfig)


def _put(graph: Any, node: Any, call: LayerCall) -> Any:
    """Let a call stand in a node's place; what stands there."""
    leading, shape = [*call.a.meta["val"].shape[:-1]], [*node.meta["val"].shape]
    with graph.inserting_before(node):
        if call.residual is not None:
            call = call._replace(residual=_reshaped(graph, call.residual, [*leading, shape[-1]]))
        made = _reshaped(graph, _added(graph, layer, *call), shape)
    node.replace_all_uses_with(made)
    _drop(graph, node)
    return made


def _reshaped(graph: Any, node: Any, shape: list[int]) -> Any:
    if [*node.meta["val"].shape] == shape:
        return node
    return _added(graph, _aten.reshape.default, node, shape)


def _added(graph: Any, target: Any, *args: Any) -> Any:
    made = graph.call_function(target, args)
    values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args]
    # operands lie so in the program, too: Inductor may compute one as a part of a larger result
    made.meta |= {"val": target(*values), "eager_input_vals": (tuple(values), {})}
    return made


def _drop(graph: Any, node: Any) -> None:
    """Erase a node that nothing reads, and what only it read."""
    erased, open_ = set(), [node]
    while open_:
        one = open_.pop()
        if one not in erased and one.op == "call_function" and not one.users and not one.is_impure():
            open_ += one.all_input_nodes
            erased.add(one)
            graph.erase_node(one)


def _decided_by() -> str:
    """What the chooser's answers follow from, on the device that a graph is compiled for."""
    if (engine := api._engine) is None:
        return "torch"
    ordinal = torch.cuda.current_device() if engine.torch.device_type == "cuda" else 0
    return f"{engine.gpu(ordinal).digest} {engine.everything} {api.suspended()}"


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
            """Of all, and of what decides: a tuned table, or another version, makes another graph. None,
            without which no graph is cached, where one has none."""
            known = [one.uuid() if isinstance(one, CustomGraphPass) else None for one in self.before]
            rooms = graph_memory, attention_patterns, turned_patterns, graph_by_torch
            files = __file__, FILE, *(room.FILE for room in rooms)
            return None if None in known else (get_hash_for_files(files), _decided_by(), *known)

    return Pass


def install() -> None:
    """Have Inductor's graphs rewritten, behind a pass of the user's, one that was set since, too. Graphs
    without our operators are not changed, so nothing takes it out."""
    import torch._inductor.config as settings

    if (made := _passes()) and not isinstance(settings.post_grad_custom_pre_pass, made):
        settings.post_grad_custom_pre_pass = made(settings.post_grad_custom_pre_pass)
