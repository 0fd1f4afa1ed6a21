"""Cross-entropy of logits against labels: one program a row, an online log-sum-exp over the vocabulary."""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Tolerance, Uniform
from sassafras.frontend.triton import workload as triton_workload


@triton.jit
def cross_entropy_kernel(loss_ptr, lse_ptr, logits_ptr, label_ptr, n_vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    base = logits_ptr + row.to(tl.int64) * n_vocab
    cols = tl.arange(0, BLOCK)
    # one running peak and sum a lane: the only reductions across lanes come after the loop
    peak = tl.full((BLOCK,), -1.0e30, dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n_vocab, BLOCK):
        x = tl.load(base + start + cols, mask=cols < n_vocab - start, other=-float("inf")).to(tl.float32)
        new_peak = tl.maximum(peak, x)
        total = total * tl.exp(peak - new_peak) + tl.exp(x - new_peak)
        peak = new_peak
    top = tl.max(peak, axis=0)
    lse = top + tl.log(tl.sum(total * tl.exp(peak - top), axis=0))
    label = tl.load(label_ptr + row)
    target = tl.load(base + label).to(tl.float32)
    tl.store(lse_ptr + row, lse)
    tl.store(loss_ptr + row, lse - target)


def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """FP64 on the upcast logits."""
    logits = tensors["logits_ptr"].double()
    lse = logits.logsumexp(-1)
    target = logits.gather(1, tensors["label_ptr"].long()[:, None])[:, 0]
    return {"loss_ptr": lse - target, "lse_ptr": lse}


def _case(rows: int, vocab: int) -> Case:
    block = 2048
    return Case(
        name=f"{rows}x{vocab}",
        grid=(rows, 1, 1),
        args={
            "loss_ptr": Buffer("fp32", (rows,), role="out"),
            "lse_ptr": Buffer("fp32", (rows,), role="out"),
            "logits_ptr": Buffer("bf16", (rows, vocab)),
            "label_ptr": Buffer("i32", (rows,), fill=Uniform(0, vocab)),
            "n_vocab": vocab,
        },
        constants={"BLOCK": block},
        options={"num_warps": 4},
        loop_trips=-(-vocab // block),
    )


workload = triton_workload(
    cross_entropy_kernel,
    cases=[_case(1024, 32000), _case(1024, 128256), _case(1024, 32768), _case(1024, 50257)],
    reference=reference,
    # FP32 throughout; the sum of up to 128,256 terms rescales at most a few times a lane. The loss is of size
    # 10, so an absolute 1e-5 covers cancellation against the target
    tolerance=Tolerance(rtol=1e-5, atol=2e-5),
    name="cross_entropy",
    meta={"tails": ["1024x128256"], "odd": ["1024x50257"]},
)
