"""Decoding attention over a paged KV cache with grouped queries: one program a sequence and KV head."""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Custom, Tolerance, Uniform
from sassafras.frontend.triton import workload as triton_workload


@triton.jit
def paged_decode_kernel(
    o_ptr,
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    page_table_ptr,
    length_ptr,
    scale,
    max_pages,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
):
    """Caches are [pages, PAGE, KV_HEADS, HEAD]. The GROUP queries that share a KV head go through the tensor
    cores together, padded to BLOCK_GROUP rows."""
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    members = tl.arange(0, BLOCK_GROUP)
    dims = tl.arange(0, HEAD)
    slots = tl.arange(0, PAGE)
    q_offsets = ((sequence * KV_HEADS + kv_head) * GROUP + members)[:, None] * HEAD + dims[None, :]
    q = tl.load(q_ptr + q_offsets, mask=(members < GROUP)[:, None], other=0.0)
    q = (q.to(tl.float32) * (scale * 1.4426950408889634)).to(q.dtype)
    length = tl.load(length_ptr + sequence)
    acc = tl.zeros((BLOCK_GROUP, HEAD), dtype=tl.float32)
    peak = tl.full((BLOCK_GROUP,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_GROUP,), dtype=tl.float32)
    for page in range(0, tl.cdiv(length, PAGE)):
        physical = tl.load(page_table_ptr + sequence * max_pages + page).to(tl.int64)
        offsets = ((physical * PAGE + slots) * KV_HEADS + kv_head)[:, None] * HEAD + dims[None, :]
        live = page * PAGE + slots < length
        k = tl.load(k_cache_ptr + offsets, mask=live[:, None], other=0.0)
        v = tl.load(v_cache_ptr + offsets, mask=live[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k))
        scores = tl.where(live[None, :], scores, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        p = tl.exp2(scores - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(p, axis=1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
        peak = new_peak
    o = acc / total[:, None]
    tl.store(o_ptr + q_offsets, o.to(o_ptr.dtype.element_ty), mask=(members < GROUP)[:, None])


def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """FP64 attention, one sequence at a time."""
    import torch

    q = tensors["q_ptr"].double()
    sequences, kv_heads, _, head = q.shape
    out = torch.empty_like(q)
    for i in range(sequences):
        length = int(tensors["length_ptr"][i])
        pages = tensors["page_table_ptr"][i].long()
        k, v = (
            tensors[n][pages].double().reshape(-1, kv_heads, head)[:length]
            for n in ("k_cache_ptr", "v_cache_ptr")
        )
        scores = torch.einsum("hgd,nhd->hgn", q[i], k) * tensors["scale"]
        out[i] = torch.einsum("hgn,nhd->hgd", scores.softmax(-1), v)
    return {"o_ptr": out}


def _scattered_pages(pages: int) -> Custom:
    """Each sequence's pages anywhere in the cache, no page twice."""

    def fill(shape: tuple[int, ...], dtype: Any, generator: Any, device: Any) -> Any:
        import torch

        order = torch.randperm(pages, generator=generator, device=generator.device if generator else device)
        return order[: shape[0] * shape[1]].reshape(shape).to(device=device, dtype=dtype)

    return Custom(fill)


def _case(sequences: int, kv_heads: int, group: int, head: int, context: int) -> Case:
    """Lengths are drawn from 1 to `context`; half of them, on average, is what the loop runs."""
    page = 64
    max_pages = -(-context // page)
    cache = (sequences * max_pages, page, kv_heads, head)
    return Case(
        name=f"{sequences}x{kv_heads}x{group}x{head}-{context}",
        grid=(sequences, kv_heads, 1),
        args={
            "o_ptr": Buffer("bf16", (sequences, kv_heads, group, head), role="out"),
            "q_ptr": Buffer("bf16", (sequences, kv_heads, group, head)),
            "k_cache_ptr": Buffer("bf16", cache),
            "v_cache_ptr": Buffer("bf16", cache),
            "page_table_ptr": Buffer("i32", (sequences, max_pages), fill=_scattered_pages(cache[0])),
            "length_ptr": Buffer("i32", (sequences,), fill=Uniform(1, context + 1)),
            "scale": head**-0.5,
            "max_pages": max_pages,
        },
        constants={"KV_HEADS": kv_heads, "GROUP": group, "HEAD": head, "PAGE": page, "BLOCK_GROUP": 16},
        options={"num_warps": 4, "num_stages": 3},
        loop_trips=max(1, max_pages // 2),
    )


workload = triton_workload(
    paged_decode_kernel,
    cases=[
        _case(32, 8, 4, 128, 2048),
        _case(16, 8, 4, 128, 1000),
        _case(32, 8, 8, 128, 2048),
        _case(17, 8, 4, 128, 1100),
    ],
    reference=reference,
    # P and Q are rounded to BF16 (Q after scaling): scores err by about 1e-2 at |score| of 4, so weights
    # by as much, relatively; outputs are rounded to BF16 (3.9e-3)
    tolerance=Tolerance(rtol=2e-2, atol=2e-2),
    name="paged_decode",
    meta={"tails": ["16x8x4x128-1000", "17x8x4x128-1100"], "odd": []},
)
