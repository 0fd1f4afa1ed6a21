"""What do rows of a tile that lie outside of a matrix cost, and what does a last tile that ends with it save?

    python benchmarks/hgemm_outside.py --cache .carry/gemm              # writes hgemm-outside.json

A tensor copy fills what lies outside with zeros. Our kernels ask for none of it: the last tile begins so far
up that it ends with the matrix, and a matrix smaller than a tile comes in smaller boxes. Timed beside the
same kernel with its tiles apart and boxes as large as tiles, interleaved, with cuBLASLt's fastest candidate;
each result is checked. ``full`` is the kernel on a matrix whose last tile is full. (At commit e11d9ad, before
kernels did this, the same script tried boxes of 8 to 64 rows.)
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

from changed_kernel import algorithms, arguments, interleaved, without_gpu
from common import write

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


def apart(tools: Any, config: Any, operands: Any) -> Any:
    """How to enqueue a configuration whose tiles lie apart, in boxes as large as they are."""
    from sassafras.gemm import hopper

    launch, shape, (rows, columns) = config.launch(operands.shape), operands.shape, config.tile
    mn_a, mn_b = hopper.majors(config.layout, config.swapped)
    maps = {
        "map_a": hopper.operand_map("a", shape.m, shape.k, rows, mn_a, "fp16"),
        "map_b": hopper.operand_map("b", shape.n, shape.k, columns, mn_b, "fp16"),
    }
    whole = hopper.stage_bytes(rows, columns) * max(1, config.instance.blocks)
    places = {"last_row": hopper.APART, "last_column": hopper.APART, "stage_bytes": whole}
    a, b, c = operands.addresses(config.layout)
    addresses = {"a": a, "b": b, "c": c, "workspace": 0, "counters": 0}
    launch = replace(launch, tensor_maps=maps, scalars=launch.scalars | places)
    return tools._bound(config.instance, launch, addresses)


def answer(tools: Any, shape: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """One shape: microseconds of configurations as they ship, tiles apart, where the last one is full."""
    from sassafras.gemm import families
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
        for kind, enqueue in (
            ("ships", tools.ours(config, operands)),
            ("apart", apart(tools, config, operands)),
        ):
            tag = f"{name} {kind}"
            if why := operands.check(enqueue).why:
                wrong.append(f"{tag}: {why}")
            else:
                made.append((tag, enqueue))
    us = interleaved(tools, made, ROUNDS)
    return {"shape": str(shape), "full": str(filled), "us": us, "wrong": wrong}


def main() -> int:
    """Answer all questions."""
    given = arguments(__doc__, prepare=False).parse_args()
    from sassafras.gemm.shapes import Shape

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
