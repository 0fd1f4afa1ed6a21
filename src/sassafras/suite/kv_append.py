"""Append new keys and values to a paged cache: token t goes to slot slot[t]."""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Custom, Tolerance
from sassafras.frontend.triton import workload as triton_workload


@triton.jit
def kv_append_kernel(k_cache_ptr, v_cache_ptr, k_ptr, v_ptr, slot_ptr, n_elements, BLOCK: tl.constexpr):
    token = tl.program_id(1).to(tl.int64)
    elements = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = elements < n_elements
    slot = tl.load(slot_ptr + token)
    k = tl.load(k_ptr + token * n_elements + elements, mask=mask)
    v = tl.load(v_ptr + token * n_elements + elements, mask=mask)
    tl.store(k_cache_ptr + slot * n_elements + elements, k, mask=mask)
    tl.store(v_cache_ptr + slot * n_elements + elements, v, mask=mask)


def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A copy: exact. The tensors are those before the launch."""
    slots = tensors["slot_ptr"].long()
    caches = {}
    for cache, new in (("k_cache_ptr", "k_ptr"), ("v_cache_ptr", "v_ptr")):
        caches[cache] = tensors[cache].clone()
        caches[cache][slots] = tensors[new]
    return caches


def _distinct_slots(slots: int) -> Custom:
    """Each token its own slot, scattered over a cache of so many."""

    def fill(shape: tuple[int, ...], dtype: Any, generator: Any, device: Any) -> Any:
        import torch

        order = torch.randperm(slots, generator=generator, device=generator.device if generator else device)
        return order[: shape[0]].to(device=device, dtype=dtype)

    return Custom(fill)


def _case(tokens: int, heads: int, head: int) -> Case:
    block, slots = 1024, 4 * tokens
    size = heads * head
    return Case(
        name=f"{tokens}x{heads}x{head}",
        grid=(-(-size // block), tokens, 1),
        args={
            "k_cache_ptr": Buffer("bf16", (slots, heads, head), role="inout"),
            "v_cache_ptr": Buffer("bf16", (slots, heads, head), role="inout"),
            "k_ptr": Buffer("bf16", (tokens, heads, head)),
            "v_ptr": Buffer("bf16", (tokens, heads, head)),
            "slot_ptr": Buffer("i64", (tokens,), fill=_distinct_slots(slots)),
            "n_elements": size,
        },
        constants={"BLOCK": block},
        options={"num_warps": 4},
    )


workload = triton_workload(
    kv_append_kernel,
    cases=[_case(2048, 8, 128), _case(2048, 6, 128), _case(256, 32, 128), _case(2048, 5, 127)],
    reference=reference,
    tolerance=Tolerance(rtol=0.0, atol=0.0),
    name="kv_append",
    meta={"tails": ["2048x6x128"], "odd": ["2048x5x127"]},
)
