"""Who sees and writes the memory of what stands in Inductor's graphs."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch

_aten = torch.ops.aten
#: for the hash of what rewrites graphs
FILE = __file__
#: operators that read a tensor however it lies
_TORCHS = "aten", "prims"
#: operators whose result Inductor may let lie where their first argument does
_SCATTERS = {_aten.index_put.default, _aten._unsafe_index_put.default, _aten.slice_scatter.default}
_SCATTERS |= {_aten.select_scatter.default, _aten.diagonal_scatter.default}
_VIEWS = {_aten.permute.default, _aten.reshape.default, _aten.t.default, _aten.transpose.int}


def laid_out(node: Any) -> bool:
    """Whether anything but Inductor and torch's own operators sees how a node lies: a caller, an operator of
    ours or of others; or what asks for elements by their place in memory."""

    def may_see(reader: Any) -> bool:
        if reader.target is operator.getitem:
            return laid_out(reader)
        torchs = isinstance(reader.target, torch._ops.OpOverload) and reader.target.namespace in _TORCHS
        if not torchs or reader.target is _aten.as_strided.default:
            return True
        shares = any(argument.alias_info is not None for argument in reader.target._schema.arguments)
        shares |= reader.target in _SCATTERS and reader.args[0] is node
        return shares and laid_out(reader)

    return any(map(may_see, node.users))


def with_source(node: Any) -> list[Any]:
    """A node behind what it is a view of."""
    return [*(with_source(node.args[0]) if node.target in _VIEWS else ()), node]


def source(node: Any) -> Any:
    """What a node is a view of."""
    while node.target in _VIEWS:
        node = node.args[0]
    return node


def unwritten(node: Any) -> bool:
    """Whether a node is a view of an input that nothing in the graph writes."""
    found = source(node)
    return found.op == "get_attr" or (found.op == "placeholder" and not any(map(_writes, _views(found))))


def _views(node: Any) -> Iterator[Any]:
    """Readers of a node's memory."""
    for reader in node.users:
        yield reader
        if reader.target in _VIEWS:
            yield from _views(reader)


def _writes(reader: Any) -> bool:
    known = reader.op == "output" or isinstance(reader.target, torch._ops.OpOverload)
    return not known or (reader.op != "output" and reader.target._schema.is_mutable)
