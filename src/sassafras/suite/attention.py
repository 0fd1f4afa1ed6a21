"""Flash attention, forward: online softmax over blocks of keys, FP16 in and out."""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Tolerance
from sassafras.frontend.triton import workload as triton_workload


@triton.jit
def _attend(
    acc,
    peak,
    total,
    q,
    k_ptrs,
    v_ptrs,
    start,
    rows,
    seq,
    BLOCK_N: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One block of keys. Scores are in units of log2, so that exp2 serves."""
    cols = start + tl.arange(0, BLOCK_N)
    if MASK:
        k = tl.load(k_ptrs, mask=(cols < seq)[None, :], other=0.0)
        v = tl.load(v_ptrs, mask=(cols < seq)[:, None], other=0.0)
    else:
        k = tl.load(k_ptrs)
        v = tl.load(v_ptrs)
    scores = tl.dot(q, k)
    if CAUSAL:
        scores = tl.where(rows[:, None] >= cols[None, :], scores, -1.0e6)
    if MASK:
        scores = tl.where((cols < seq)[None, :], scores, -float("inf"))
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    p = tl.exp2(scores - new_peak[:, None])
    shrink = tl.exp2(peak - new_peak)
    total = total * shrink + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
    return acc, new_peak, total


@triton.jit
def attention_kernel(
    o_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    scale,
    seq,
    HEAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    base = tl.program_id(1).to(tl.int64) * seq * HEAD
    first = tl.program_id(0) * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD)
    q_offsets = base + rows[:, None] * HEAD + dims[None, :]
    q = tl.load(q_ptr + q_offsets, mask=(rows < seq)[:, None], other=0.0)
    q = (q.to(tl.float32) * (scale * 1.4426950408889634)).to(q.dtype)
    cols = tl.arange(0, BLOCK_N)
    k_ptrs = k_ptr + base + cols[None, :] * HEAD + dims[:, None]
    v_ptrs = v_ptr + base + cols[:, None] * HEAD + dims[None, :]
    acc = tl.zeros((BLOCK_M, HEAD), dtype=tl.float32)
    peak = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    # whole blocks that no mask touches, then those on the diagonal, or the keys left over
    if CAUSAL:
        full = tl.minimum(first, seq) // BLOCK_N * BLOCK_N
        last = tl.minimum(first + BLOCK_M, seq)
    else:
        full = seq // BLOCK_N * BLOCK_N
        last = seq
    for start in range(0, full, BLOCK_N):
        acc, peak, total = _attend(
            acc, peak, total, q, k_ptrs, v_ptrs, start, rows, seq, BLOCK_N, False, False
        )
        k_ptrs += BLOCK_N * HEAD
        v_ptrs += BLOCK_N * HEAD
    if CAUSAL:
        for start in range(full, last, BLOCK_N):
            acc, peak, total = _attend(
                acc, peak, total, q, k_ptrs, v_ptrs, start, rows, seq, BLOCK_N, True, True
            )
            k_ptrs += BLOCK_N * HEAD
            v_ptrs += BLOCK_N * HEAD
    elif full < last:
        acc, peak, total = _attend(acc, peak, total, q, k_ptrs, v_ptrs, full, rows, seq, BLOCK_N, True, False)
    o = acc / total[:, None]
    tl.store(o_ptr + q_offsets, o.to(o_ptr.dtype.element_ty), mask=(rows < seq)[:, None])


def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """FP32 attention of the upcast inputs, head by head (the score matrix of one head fits in memory)."""
    return {"o_ptr": _attention(tensors, causal=False)}


def causal_reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The same, each row seeing only the keys up to its own."""
    return {"o_ptr": _attention(tensors, causal=True)}


def _attention(tensors: Mapping[str, Any], causal: bool) -> Any:
    import torch

    out = []
    for q, k, v in zip(
        *(tensors[n].double().flatten(0, 1) for n in ("q_ptr", "k_ptr", "v_ptr")), strict=True
    ):
        scores = q @ k.T * tensors["scale"]
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -float("inf"))
        out.append(scores.softmax(-1) @ v)
    return torch.stack(out).reshape(tensors["q_ptr"].shape)


def _case(
    z: int,
    heads: int,
    seq: int,
    head: int,
    block_m: int,
    block_n: int,
    warps: int,
    stages: int,
    causal: bool = False,
) -> Case:
    shape = (z, heads, seq, head)
    return Case(
        name=f"{z}x{heads}x{seq}x{head}",
        grid=(-(-seq // block_m), z * heads, 1),
        args={
            "o_ptr": Buffer("fp16", shape, role="out"),
            "q_ptr": Buffer("fp16", shape),
            "k_ptr": Buffer("fp16", shape),
            "v_ptr": Buffer("fp16", shape),
            "scale": head**-0.5,
            "seq": seq,
        },
        constants={"HEAD": head, "BLOCK_M": block_m, "BLOCK_N": block_n, "CAUSAL": causal},
        options={"num_warps": warps, "num_stages": stages},
        loop_trips=max(1, seq // block_n // (2 if causal else 1)),
    )


# P and Q are rounded to FP16 (Q after scaling): scores err by about 2e-3 at |score| of 4, so weights by as
# much, relatively; outputs average thousands of values of size 1 and are about 0.03 in size
_TOLERANCE = Tolerance(rtol=1e-2, atol=2e-3)

workload = triton_workload(
    attention_kernel,
    cases=[
        _case(1, 4, 4096, 32, 64, 128, 4, 3),
        _case(1, 4, 4000, 32, 64, 128, 4, 3),
        _case(1, 4, 4096, 64, 128, 64, 8, 3),
        _case(1, 4, 4096, 128, 128, 64, 8, 3),
        _case(1, 4, 4001, 64, 128, 64, 8, 3),
    ],
    reference=reference,
    tolerance=_TOLERANCE,
    name="attention",
    meta={"tails": ["1x4x4000x32"], "odd": ["1x4x4001x64"]},
)

#: prefill as language models do it
causal = triton_workload(
    attention_kernel,
    cases=[
        _case(1, 16, 4096, 128, 128, 64, 8, 3, causal=True),
        _case(1, 16, 4000, 128, 128, 64, 8, 3, causal=True),
    ],
    reference=causal_reference,
    tolerance=_TOLERANCE,
    name="attention_causal",
    meta={"tails": ["1x16x4000x128"], "odd": []},
)

#: SIP's own case: its scores take 4 GiB in FP32, too much to be a case that every check of `workload` runs;
#: shorter ones of the same code, for many samples
long = triton_workload(
    attention_kernel,
    cases=[_case(1, 4, length, 64, 128, 64, 8, 3) for length in (16384, 1024, 256)],
    reference=reference,
    tolerance=_TOLERANCE,
    name="attention_long",
    meta={"tails": [], "odd": []},
)
