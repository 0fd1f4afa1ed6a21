"""Inductor's graphs that products of ours must not be in: those products become torch's operators."""

from __future__ import annotations

from typing import Any

import torch

from . import api

#: for the hash of what rewrites graphs
FILE = __file__


def waits_are_missing() -> bool:
    """Whether Inductor's kernels may end before the launches ahead of them have ended.

    With ``triton.enable_pdl`` those that load nothing have no wait. A launch of ours behind one waits for
    that one alone, and could read what the launch ahead of it is still to write.
    """
    import torch._inductor.config as settings

    return bool(getattr(settings.triton, "enable_pdl", False))


def say() -> None:
    """Warn, once, that torch's products run for that reason."""
    api.warn_once("pdl", "Inductor's kernels do not wait with triton.enable_pdl")


def replaces(graph: Any) -> bool:
    """Where `waits_are_missing`, put what operators of ours are out of torch's in their places, and say so,
    once; whether they are."""
    if not waits_are_missing():
        return False
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    for node in [node for node in graph.nodes if getattr(node.target, "namespace", "") == "sassafras"]:
        say()
        given = node.all_input_nodes
        composed = _of(node, given)
        traced = make_fx(composed, select_decomp_table())(*(one.meta["val"] for one in given))
        with graph.inserting_before(node):
            made = _inlined(graph, traced.graph, given)
        node.replace_all_uses_with(made)
        graph.erase_node(node)
    return True


def _of(node: Any, given: list[Any]) -> Any:
    """A call of torch's operators, of the tensors that a node is given."""

    def composed(*tensors: Any) -> Any:
        at = dict(zip(given, tensors, strict=True))
        args = torch.fx.map_arg(node.args, at.__getitem__)
        return packet.by_torch(*args, **torch.fx.map_arg(node.kwargs, at.__getitem__)).contiguous()

    packet = getattr(torch.ops.sassafras, node.target._opname)
    return composed


def _inlined(graph: Any, traced: Any, given: list[Any]) -> Any:
    """The result of a traced graph's copy, at the place where nodes are inserted."""
    known = dict(zip((node for node in traced.nodes if node.op == "placeholder"), given, strict=True))
    for node in traced.nodes:
        if node.op == "output":
            return known[node.args[0]]
        if node.op != "placeholder":
            known[node] = graph.node_copy(node, known.__getitem__)
    raise AssertionError("a traced graph has an output")
