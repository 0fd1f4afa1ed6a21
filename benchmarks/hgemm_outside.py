"""What do rows of a tile that lie outside of A cost, and does a smaller box help?

    python benchmarks/hgemm_outside.py --cache .carry/outside --prepare    # compiles; no GPU needed
    python benchmarks/hgemm_outside.py --cache .carry/outside              # writes hgemm-outside.json

A tensor copy fills what lies outside of the matrix with zeros. Rows outside need none: what they multiply is
not stored. Here kernels with the quick start load A's tile in boxes of so many rows, and only those boxes
that have a row inside; their stages expect so many bytes less. Timed beside the kernel as it ships (one box
for the whole tile), interleaved, with cuBLASLt's fastest candidate; each result is checked. ``full`` is the
same kernel on a matrix whose last tile is full: what the loop takes where nothing lies outside.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from changed_kernel import Changed, without_gpu
from common import ROOT, write

#: rows of a box; that of the whole tile is as it ships, but for a loop of one turn and a computed number
BOXES = (8, 16, 32, 64)
#: shapes whose last tile has few rows inside, and configurations (A as m x k, not transposed)
QUESTIONS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("130x2048x2048", "150x2048x2048", "155x2048x2048", "195x2048x2048", "88x2048x8192", "133x2048x8192"),
        ("cs_nn_64x64_s10q1/c1", "cs_nn_64x64_s10q1/c1g4", "cs_nn_64x128_s7q1/c1", "cs_tn_64x64_s10q1/c1"),
    ),
    (
        ("69x3264x3264", "70x1984x7168", "89x4032x8704", "200x4096x4096", "296x4096x4096"),
        ("cs_nn_64x64_s10q1/c1", "cs_nn_64x128_s7q1/c1", "cs_nn_128x64_s7q1/c1"),
    ),
    (
        ("2x4288x1408", "16x5120x2048", "13x7808x6400", "41x8384x1600", "58x6656x7488"),
        ("cs_nn_64x64_s10q1/c1", "cs_tn_64x64_s10q1/c1"),
    ),
)  # fmt: skip
ROUNDS = 11

_LOAD = """                } else {
                    A::load(to_a, p.map_a, row, at, 0, full);
                    B::load(to_b, p.map_b, column, at, 0, full);"""
_IN_BOXES = """                } else {
#pragma unroll
                    for (int r = 0; r < BM; r += BOX)
                        if (row + r < p.m) copy_tile(to_a + r * ROW_BYTES, p.map_a, at, row + r, full);
                    B::load(to_b, p.map_b, column, at, 0, full);"""
_AGAIN = "                if (AGAIN && k >= STAGES) barrier_wait<1>(full + 8, phase);\n"
_EXPECT = _AGAIN + "                barrier_expect(full, STAGE);"
_EXPECT_INSIDE = _AGAIN + "                barrier_expect(full, BLOCKS * (inside * ROW_BYTES + B::BYTES));"
_BEGIN = "        int stage = from; // below STAGES\n        u32 phase = 1;\n"


def loading(instance: Any, box: int) -> Changed:
    """The kernel that loads A's tile in boxes of so many rows."""
    up = f"(p.m - row + {box - 1}) / {box} * {box}"
    inside = f"        const int inside = min(BM, max(0, {up}));\n"
    copies = _IN_BOXES.replace("BOX", str(box))
    return Changed(instance, ((_LOAD, copies), (_EXPECT, _EXPECT_INSIDE), (_BEGIN, _BEGIN + inside)))


def instances() -> list[Changed]:
    """All that are asked about."""
    from sassafras.gemm import families

    names = {name for _, of in QUESTIONS for name in of}
    return [loading(families.parse(name).instance, box) for name in sorted(names) for box in BOXES]


def in_boxes(tools: Any, config: Any, operands: Any, box: int) -> Any:
    """How to enqueue a configuration whose kernel loads A in boxes of so many rows."""
    from sassafras.gemm.hopper import operand_map

    launch, shape = config.launch(operands.shape), operands.shape
    maps = launch.tensor_maps | {"map_a": operand_map("a", shape.m, shape.k, box, False, "fp16")}
    a, b, c = operands.addresses(config.layout)
    addresses = {"a": a, "b": b, "c": c, "workspace": 0, "counters": 0}
    return tools._bound(loading(config.instance, box), replace(launch, tensor_maps=maps), addresses)


def answer(tools: Any, shape: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """One shape: microseconds by configuration and box; also where the last tile is full."""
    from hgemm_second import algorithms

    from sassafras.device.cuda.timing import launches_a_block
    from sassafras.gemm import families
    from sassafras.gemm.graphs import rough_us, timed
    from sassafras.gemm.select import screen

    operands = tools.operands(shape, 3)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    usable = algorithms(tools, shape, operands)
    made = [("lt", screen(tools, usable, tools.watch.one(usable[0][1]), 100.0, 3)[0][2])]
    wrong = []
    filled = replace(shape, m=-(-shape.m // 128) * 128)
    others = tools.operands(filled, 3)
    others.calibrate(tools.gemm_ex("nn", others, strict=True))
    for name in names:
        config = families.parse(name)
        if config.reject(shape) or config.reject(filled):
            continue
        made.append((f"{name} full", tools.ours(config, others)))
        for box in (None, *BOXES):
            tag = f"{name} {'ships' if box is None else f'box {box}'}"
            enqueue = tools.ours(config, operands) if box is None else in_boxes(tools, config, operands, box)
            if why := operands.check(enqueue).why:
                wrong.append(f"{tag}: {why}")
            else:
                made.append((tag, enqueue))
    guess = rough_us(tools, made[0][1])
    blocks = [tools.block(enqueue, launches_a_block(guess, 300.0)) for _, enqueue in made]
    times = np.median(timed(tools.gpu, tools.watch, blocks, ROUNDS, warm=2), axis=0)
    for block in blocks:
        block.discard(tools.gpu)
    us = {tag: round(float(t), 3) for (tag, _), t in zip(made, times, strict=True)}
    return {"shape": str(shape), "full": str(filled), "us": us, "wrong": wrong}


def main() -> int:
    """Answer all questions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--prepare", action="store_true", help="compile, and do nothing else")
    parser.add_argument("--seconds", type=float, default=60, help="begin no shape after so long")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    )
    given = parser.parse_args()
    from sassafras.gemm.compile import build
    from sassafras.gemm.shapes import Shape

    made = instances()
    build([*made, *dict.fromkeys(one.base for one in made)], given.cache)
    if given.prepare:
        return 0
    if without_gpu():
        return 2
    from sassafras.device.cuda import environment
    from sassafras.gemm.stage import Stage

    begin, tools = time.perf_counter(), Stage(given.cache)
    rows: list[dict[str, Any]] = []
    for shapes, names in QUESTIONS:
        for text in shapes:
            if time.perf_counter() - begin > given.seconds:
                break
            rows.append(answer(tools, Shape.parse(text), names))
            us = rows[-1]["us"]
            print(
                text,
                {tag: us[tag] for tag in sorted(us, key=lambda tag: us[tag])},
                rows[-1]["wrong"],
                flush=True,
            )
            write("hgemm-outside", rows, {"shapes": len(rows)}, environment(), seed=3, out=given.out)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
