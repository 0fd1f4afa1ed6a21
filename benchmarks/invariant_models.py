"""Whole decoders for `batch_invariant`: logits of a sequence in batches of any size, and tokens a second."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

#: sequences that decode beside the first one, which decodes alone, too
BATCHES = (2, 8, 64, 256)
#: model -> its layers
MODELS = {"llama-3.2-1b": 16, "llama-3-8b": 32}
#: rounds of interleaved replays
ROUNDS = 9


@contextmanager
def triton_products() -> Iterator[None]:
    """`batch_invariant()` with all products by the Triton kernel."""
    import sassafras
    from sassafras.gemm.matmul import batch_invariant as room

    ours = room._ours
    room._ours = lambda a, b: False
    try:
        with sassafras.batch_invariant():
            yield
    finally:
        room._ours = ours


def attended(q: Any, k: Any, v: Any, mask: Any, *, is_causal: bool, enable_gqa: bool) -> Any:
    """torch's memory-efficient attention, which splits no sequence: one CTA sums all keys of a head."""
    from torch.nn import functional

    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)


def model(name: str, kind: Any, layers: int, context: int) -> dict[str, Any]:
    """A record: logits that differ by contestant and batch, microseconds of a step."""
    import torch
    from decoder import MODELS as DIMS
    from decoder import Layer, made
    from graph_clock import Clock
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import sassafras

    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "torch": nullcontext, "sassafras": sassafras.batch_invariant, "triton": triton_products,
    }  # fmt: skip
    Layer.attend = staticmethod(attended)
    whole, inputs = made(DIMS[name], layers, BATCHES[-1], context, True, kind, "cuda")
    unequal: dict[str, dict[int, int]] = {way: {} for way in ways}
    us: dict[str, dict[int, list[float]]] = {way: {} for way in ways}
    alone: dict[str, Any] = {}
    clock = Clock(False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        for batch in (1, *BATCHES):
            part = whole if batch == BATCHES[-1] else _first(whole, batch)
            x, graphs = inputs[:batch].contiguous(), {}
            for way, enter in ways.items():
                with enter():
                    for _ in range(2):
                        logits = part(x)
                    torch.cuda.synchronize()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        logits = part(x)
                graph.replay()
                first = logits[0].clone()
                alone.setdefault(way, first)
                unequal[way][batch] = int((first.view(torch.int16) != alone[way].view(torch.int16)).sum())
                graphs[way] = graph
            table = clock.times([(graph, 1) for graph in graphs.values()], ROUNDS)
            for at, way in enumerate(graphs):
                us[way][batch] = [round(float(v), 2) for v in table[:, at]]
            del graphs, part
            gc.collect()
            torch.cuda.empty_cache()
    found = {"unequal": unequal, "us": us, "layers": layers, "context": context}
    return found | {"logits": alone["torch"].numel()}


def _first(whole: Any, batch: int) -> Any:
    """The same weights, with the caches of the first sequences."""
    part = whole.shared()
    for layer in part.layers:
        layer.keys, layer.values = layer.keys[:batch].clone(), layer.values[:batch].clone()
    return part
