"""What does a kernel leave to the one that runs next? Pairs of launches, timed as a whole.

    python benchmarks/hgemm_followers.py --cache .carry/gemm      # writes hgemm-followers.json

First a product whose C is larger than the L2 has room for: by our best persistent kernel with each policy
for C (`POLICIES`; "again" is "normal" once more, the null), or by cuBLASLt's best. Then whoever follows:
nobody (the product again), the same product by torch, one of other matrices by torch, what a program does
next with C (an activation; the next layer's product), and a copy of other memory. A pair is one block of a
CUDA graph; all pairs of a shape are interleaved, an untimed pair of their own ahead of each block. What
followers pay for a policy is (pair with it - pair without it) - (alone with it - alone without it)
(docs/experiments/2026-11-23-hgemm-followers.md).
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
from changed_kernel import arguments, bound, without_gpu
from common import geomean, write

#: m x n: C of 33, 33, 67, 134 MB
SIDES = ((4096, 4096), (16384, 1024), (2048, 16384), (8192, 8192))
KS = (64, 128, 256, 512, 1024, 4096)
#: upper words of what ``createpolicy.fractional`` makes: of all lines, or of half of them
POLICIES = {"normal": 0x10000000, "first": 0x12F00000, "half first": 0x12700000, "unchanged": 0x10F00000}
FIRSTS = (*POLICIES, "again", "cublaslt")
ROUNDS, LENGTH_US = 31, 600.0
#: columns of the next layer's product
NEXT = 1024


def followers(stage: Any, shape: Any, operands: Any, other: Any) -> dict[str, Any]:
    """name -> what enqueues one call, or nothing."""
    import torch

    c, layer = operands.c, torch.randn(shape.n, NEXT, dtype=torch.float16, device="cuda")
    after, next_c = torch.empty_like(c), torch.empty(shape.m, NEXT, dtype=torch.float16, device="cuda")
    # as much as C, read and written
    words = torch.ones(c.numel() // 2, dtype=torch.int32, device="cuda")
    copied = torch.empty_like(words)
    return {
        "itself": None,
        "torch": stage.torch_matmul("tn", operands),
        "torch elsewhere": stage.torch_matmul("tn", other),
        "activation": lambda: torch.clamp_min(c, 0, out=after),
        "next layer": lambda: torch.matmul(c, layer, out=next_c),
        "copy": lambda: copied.copy_(words),
    }


def answer(stage: Any, shape: Any, config: Any, algorithm: Any) -> dict[str, Any]:
    """Medians of all pairs, and how each first one compares with "normal" before the same follower."""
    from sassafras.core.statistics import bootstrap_median
    from sassafras.device.cuda.timing import launches_a_block
    from sassafras.gemm.graphs import paired, rough_us, timed

    operands = stage.operands(shape, 3)
    operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
    (other, *_) = stage.sets(operands, 1)
    launch = config.launch(shape)

    def ours(policy: str) -> Any:
        scalars = {**launch.scalars, "store_policy": POLICIES[policy]}
        return bound(stage, config.instance, replace(launch, scalars=scalars), config.layout, operands)

    problem = stage.lt.problem(shape, algorithm.layout)
    stage.lt.check(problem, algorithm)
    firsts = {
        **{policy: ours(policy) for policy in POLICIES}, "again": ours("normal"),
        "cublaslt": stage.lt_call(problem, algorithm, operands),
    }  # fmt: skip
    wrong = {name: operands.check(call).why for name, call in firsts.items() if name != "cublaslt"}
    behind = followers(stage, shape, operands, other)
    names, blocks, pairs = [], [], []
    for follower, then in behind.items():
        for first in FIRSTS:
            calls = [firsts[first]] if then is None else [firsts[first], then]
            for one in calls:
                one()
            once = sum(rough_us(stage, one) for one in calls)
            launches = len(calls) * launches_a_block(once, LENGTH_US)
            names.append((follower, first))
            pairs.append(calls)
            blocks.append(stage.block(calls, launches))

    def before(which: int) -> None:
        for one in pairs[which]:
            one()

    table = timed(stage.gpu, stage.watch, blocks, ROUNDS, warm=2, before=before)
    for block in blocks:
        block.discard(stage.gpu)
    problem.close()
    found: dict[str, Any] = {}
    for at, (follower, first) in enumerate(names):
        of = found.setdefault(follower, {"us": {}, "of_normal": {}})
        calls = 1 if follower == "itself" else 2
        of["us"][first] = round(calls * float(np.median(table[:, at])), 3)
        if first != "normal":
            ratios = 1 / paired(table, names.index((follower, "normal")), at)
            interval = bootstrap_median(ratios)
            of["of_normal"][first] = [
                round(v, 4) for v in (float(np.median(ratios)), interval.low, interval.high)
            ]
    row = {"shape": str(shape), "k": shape.k, "config": config.name, "pairs": found}
    return {**row, "wrong": {name: why for name, why in wrong.items() if why}}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By k and follower: the pair's time over "normal"'s, and what each follower pays for "first", in us."""
    result: dict[str, Any] = {}
    for k in KS:
        for follower in rows[0]["pairs"]:
            of = [row["pairs"] for row in rows if row["k"] == k]
            if not of:
                continue
            line: dict[str, Any] = {
                first: round(geomean([pairs[follower]["of_normal"][first][0] for pairs in of]), 4)
                for first in FIRSTS[1:]
            }
            pays = [
                (pairs[follower]["us"]["first"] - pairs[follower]["us"]["normal"])
                - (pairs["itself"]["us"]["first"] - pairs["itself"]["us"]["normal"])
                for pairs in of
            ]
            result.setdefault(str(k), {})[follower] = {**line, "pays_us": [round(us, 2) for us in pays]}
    return result


def main() -> int:
    """All shapes."""
    given = arguments(__doc__, prepare=False).parse_args()
    from sassafras.gemm.cublas import LtAlgorithm
    from sassafras.gemm.dataset import shipped
    from sassafras.gemm.families import parse
    from sassafras.gemm.shapes import Shape
    from sassafras.gemm.warp_specialized import WarpSpecializedConfig

    asked: list[tuple[Any, Any, Any]] = []
    data = shipped()
    for k in KS:
        for m, n in SIDES:
            shape = Shape(m, n, k)
            entry = data[shape]
            configs = [parse(name) for name, _ in entry.ranked() if not name.endswith(("+o", "+ol"))]
            ours = next(c for c in configs if isinstance(c, WarpSpecializedConfig) and c.split == 1)
            layout = min(entry.lt, key=lambda one, entry=entry: entry.baseline_us(layout=one))  # type: ignore[misc]
            asked.append((shape, ours, LtAlgorithm.from_json(entry.lt[layout])))
    if without_gpu():
        return 2
    from sassafras.device.cuda import environment
    from sassafras.gemm.stage import Stage

    stage, rows, begin = Stage(given.cache), [], time.perf_counter()
    for shape, ours, algorithm in asked:
        if time.perf_counter() - begin > given.seconds:
            break
        rows.append(answer(stage, shape, ours, algorithm))
        print(shape, rows[-1]["config"], f"{time.perf_counter() - begin:.0f} s", flush=True)
        for follower, of in rows[-1]["pairs"].items():
            print("   ", follower, of["us"], of["of_normal"], flush=True)
        write("hgemm-followers", rows, summary(rows), environment(), seed=3, out=given.out)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
