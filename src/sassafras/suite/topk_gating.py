"""Mixture-of-experts gating: softmax over the experts, the top k of them, weights renormalised."""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Tolerance
from sassafras.frontend.triton import workload as triton_workload


@triton.jit
def topk_gating_kernel(
    weight_ptr,
    expert_ptr,
    logits_ptr,
    n_tokens,
    n_experts,
    TOPK: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
):
    """Ties go to the lower expert. TOPK is a power of two."""
    tokens = tl.program_id(0) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    experts = tl.arange(0, BLOCK_EXPERTS)
    slots = tl.arange(0, TOPK)
    live = (tokens < n_tokens)[:, None]
    offsets = tokens[:, None] * n_experts + experts[None, :]
    x = tl.load(logits_ptr + offsets, mask=live & (experts < n_experts)[None, :], other=-float("inf"))
    peak = tl.max(x, axis=1)
    peak = tl.where(tokens < n_tokens, peak, 0.0)
    weights = tl.zeros((BLOCK_TOKENS, TOPK), dtype=tl.float32)
    chosen = tl.zeros((BLOCK_TOKENS, TOPK), dtype=tl.int32)
    for slot in tl.static_range(TOPK):
        best, index = tl.max(x, axis=1, return_indices=True)
        here = (slots == slot)[None, :]
        weights = tl.where(here, tl.exp(best - peak)[:, None], weights)
        chosen = tl.where(here, index[:, None], chosen)
        x = tl.where(experts[None, :] == index[:, None], -float("inf"), x)
    weights = weights / tl.sum(weights, axis=1)[:, None]
    out = tokens[:, None] * TOPK + slots[None, :]
    tl.store(weight_ptr + out, weights, mask=live)
    tl.store(expert_ptr + out, chosen, mask=live)


def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """FP64; a stable descending sort gives ties to the lower expert."""
    import torch

    k = tensors["weight_ptr"].shape[1]
    values, indices = torch.sort(tensors["logits_ptr"].double(), dim=1, descending=True, stable=True)
    return {"weight_ptr": values[:, :k].softmax(-1), "expert_ptr": indices[:, :k].int()}


def _case(tokens: int, experts: int, topk: int, block_tokens: int, block_experts: int) -> Case:
    return Case(
        name=f"{tokens}x{experts}x{topk}",
        grid=(-(-tokens // block_tokens), 1, 1),
        args={
            "weight_ptr": Buffer("fp32", (tokens, topk), role="out"),
            "expert_ptr": Buffer("i32", (tokens, topk), role="out"),
            "logits_ptr": Buffer("fp32", (tokens, experts)),
            "n_tokens": tokens,
            "n_experts": experts,
        },
        constants={"TOPK": topk, "BLOCK_TOKENS": block_tokens, "BLOCK_EXPERTS": block_experts},
        options={"num_warps": 8},
    )


workload = triton_workload(
    topk_gating_kernel,
    cases=[
        _case(4096, 64, 8, 16, 64),
        _case(4080, 48, 8, 16, 64),
        _case(4096, 8, 2, 64, 8),
        _case(4096, 256, 8, 4, 256),
        _case(4095, 60, 8, 16, 64),
    ],
    reference=reference,
    # FP32 exponentials of at most 8 terms; experts are compared exactly (atol < 1)
    tolerance=Tolerance(rtol=2e-5, atol=1e-7),
    name="topk_gating",
    meta={"tails": ["4080x48x8"], "odd": ["4095x60x8"]},
)
