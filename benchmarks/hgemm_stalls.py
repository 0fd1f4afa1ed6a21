"""What do the warps of a persistent kernel wait for? Clocks around every wait; and the kernel as it was.

    python benchmarks/hgemm_stalls.py --cache .carry/stalls --prepare    # compiles; no GPU needed
    python benchmarks/hgemm_stalls.py --cache .carry/stalls              # writes hgemm-stalls.json

The text of the warp-specialised kernel with clocks: one thread of each multiplying warpgroup adds up what it
waits for the first k tile of a tile, for the others, for its turn and for its last products, and what storing
takes; the loader what it waits for a free stage and how long it computes where the next tile lies. Cycles a
tile, means over all CTAs. Beside it, interleaved, without clocks: the kernel as it ships, and with the loader
that divided and looped over lanes (docs/experiments/2026-11-22-hgemm-loader.md).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from changed_kernel import Changed, arguments, interleaved, without_gpu
from common import geomean, write

Edits = tuple[tuple[str, str], ...]
SHAPES = ("4096x4096x256", "2048x16384x512", "4096x4096x512", "4096x12288x512", "8192x8192x1024")
CONFIGS = (
    "ws_tn_128x128_pp2s6b2c1x1/g2/k1", "ws_tn_128x128_pp2s6b2c1x1/h/k1", "ws_tn_128x128_pp2s6b2c2x1/g4/k1",
    "ws_nn_128x128_pp2s6b2c2x1/g4/k1", "ws_tn_128x160_pp2s5b2c2x1/g4/k1", "ws_tn_128x144_pp2s5b3c2x1/g4/k1",
    "ws_tn_128x192_pp2s4b3c1x2/v4/k1", "ws_tn_128x192_pp2s4b3c2x1/g4/k1", "ws_tn_128x256_co2s4b2c1x1l3/g4/k1",
)  # fmt: skip
#: columns of a tile that leave registers for sums
WITH_CLOCKS = 160
#: sums of a thread, and threads of a CTA that have some: the loader, two multipliers
SUMS, THREADS = 12, 4
NOW = "(u32)clock64()"


def clocked(text: str, into: str) -> str:
    """The text with the cycles that it takes added to a sum."""
    return f"{{ const u32 from = {NOW}; {text} w[{into}] += {NOW} - from; }}"


def kept(thread: str) -> str:
    """Writes the sums of a CTA's thread to the workspace."""
    at = f"((u32 *)p.workspace)[(blockIdx.x * {THREADS} + {thread}) * {SUMS} + i]"
    return f"for (int i = 0; i < {SUMS}; ++i) {at} = w[i];"


def clocks() -> Edits:
    """Sums: 0, 1 first and other k tiles, 2 turn, 3 last products, 4 stores, 5 multiply, 6 tiles, 7 all;
    8 to 11 parts of the stores. The loader's: 0 waits, 1 where tiles lie."""
    sums = f"u32 (&w)[{SUMS}]"
    begin = f"u32 w[{SUMS}] = {{}};"
    full = "barrier_wait<2>(at.full(ring.stage), ring.phase);"
    empty = "barrier_wait<1>(at.empty(ring.stage), ring.phase ^ 1);"
    turn = "barrier_wait<3>(at.turn(consumer), ((number - 1) / CONSUMERS) & 1);"
    multiply = "multiply(acc, at, ring, sharer * ROWS, k_tiles, (consumer + 1) % CONSUMERS, lane, to"
    store = "store<0>(p, acc[block], buffers, buffer, row + 64 * block, column, batch, lane, warp, "
    store += "1 + consumer"
    again = "NEXT : BN - WIDTH>(p, d, buffers, next, row, column, batch, lane, warp,"
    again += "\n" + 82 * " " + "named_barrier"
    signature, from_ = (
        "int column, int batch, int lane, int warp, int named_barrier",
        "{\n        if constexpr (FROM",
    )
    wait = "if (first && is_elected(lane)) store_wait<BUFFERS - 1>();"
    place = "            work.place(p, row, column);\n            const int batch = leave_batch(p, row);\n"
    write_, next_ = (
        "Out::template write<FROM>(buffer, d, lane, TOGETHER ? warp : 0);",
        "            next = next + 1 == BUFFERS",
    )
    items = "int buffer = 0, item = 0; //"
    ask = "            if (first && elected()) { //"
    last = "column = min((column * CLUSTER_N + rank_n) * BN, p.last_column);\n            for (int k"
    return (
        ("int lane, int to) {\n        // lower", f"int lane, int to, {sums}) {{\n        // lower"),
        (full, clocked(full, "k > 0")),
        (turn, clocked(turn, "2")),
        (f"const int last = {multiply});", f"int last; {clocked(f'last = {multiply}, w);', '5')}"),
        ("finish(acc, at, last, lane, to);", clocked("finish(acc, at, last, lane, to);", "3")),
        (f"{signature}) {from_}", f"{signature}, {sums}) {from_}"),
        (f"{again});", f"{again}, w);"),
        (f"{store});", f"{clocked(f'{store}, w);', '4')} ++w[6];"),
        (wait, clocked(wait, "8")),
        (write_, clocked(write_, "9")),
        ("            async_fence();\n", f"            {clocked('async_fence();', '10')}\n"),
        (ask, f"            const u32 asks = {NOW};\n{ask}"),
        (next_, f"            w[11] += {NOW} - asks;\n{next_}"),
        (items, f"{begin} const u32 began = {NOW};\n        {items}"),
        (
            "        if (is_elected(lane)) store_wait<0>();",
            f"        w[7] = {NOW} - began;\n        if (thread == 0) {kept('1 + consumer')}\n"
            "        if (is_elected(lane)) store_wait<0>();",
        ),
        ("        Ring ring;\n        while (work", f"        Ring ring; {begin}\n        while (work"),
        (place, f"            const u32 lies = {NOW};\n{place}"),
        (last, last.replace("            for", f"            w[1] += {NOW} - lies;\n            for")),
        (empty, clocked(empty, "0")),
        (
            "                ring.advance();\n            }\n        }\n    }\n",
            f"                ring.advance();\n            }}\n        }}\n        {kept('0')}\n    }}\n",
        ),
    )  # fmt: skip


#: the loader divides by numbers that it is not told of before
DIVIDES: Edits = (
    ("divided(tile, p.band_by, p.band_shift) * wide", "(int)((u32)tile / (u32)(wide * along)) * wide"),
    (
        "divided(in_band, whole ? p.wide_by : p.rest_by, whole ? p.wide_shift : p.rest_shift)",
        "(int)((u32)in_band / (u32)(whole ? wide : across - first))",
    ),
)
#: thread 0 and lane 0 ask for copies, which the compiler makes loops of
LOADS: Edits = (("if (broadcast(threadIdx.x >> 5) == 0 && elected()) {", "if (threadIdx.x == 0) {"),)
STORES: Edits = (
    ('            if (first && elected()) { // "lane', '            if (first && lane == 0) { // "lane'),
    (
        "if (first && is_elected(lane)) store_wait<BUFFERS - 1>()",
        "if (first && lane == 0) store_wait<BUFFERS - 1>()",
    ),
    ("if (is_elected(lane)) store_wait<0>()", "if (lane == 0) store_wait<0>()"),
)
VARIANTS: dict[str, Edits] = {
    "ships": (), "divides": DIVIDES, "loops load": LOADS, "loops store": STORES,
    "before": DIVIDES + LOADS + STORES,
}  # fmt: skip


def answer(tools: Any, shape: Any, config: Any) -> dict[str, Any]:
    """Microseconds of every variant, and cycles a tile of everything."""
    import torch

    operands = tools.operands(shape, 3)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    launch = config.launch(shape)
    a, b, c = operands.addresses(config.layout)
    words = torch.zeros(132 * THREADS * SUMS, dtype=torch.int32, device="cuda")
    addresses = {"a": a, "b": b, "c": c, "workspace": words.data_ptr(), "counters": 0}
    variants = VARIANTS | ({"clocks": clocks()} if config.instance.columns <= WITH_CLOCKS else {})
    made = [
        (name, tools._bound(Changed(config.instance, edits), launch, addresses))
        for name, edits in variants.items()
    ]
    wrong = [f"{name}: {why}" for name, enqueue in made if (why := operands.check(enqueue).why)]
    us = interleaved(tools, made, 15)
    row = {"shape": str(shape), "config": config.name, "us": us, "wrong": wrong}
    if "clocks" not in variants:
        return row
    found = words.cpu().numpy().reshape(132, THREADS, SUMS).astype(float)
    loader, multipliers = found[:, 0], found[:, 1:3].sum(axis=1)
    tiles = multipliers[:, 6]
    used = tiles > 0
    per = multipliers[used] / tiles[used, None]
    names = ("first k tile", "other k tiles", "turn", "last products", "stores", "multiplies")
    cycles = {name: round(float(np.mean(per[:, i]))) for i, name in enumerate(names)}
    parts = ("stores: buffer", "stores: writing", "stores: fence", "stores: asking")
    cycles |= {name: round(float(np.mean(per[:, 8 + i]))) for i, name in enumerate(parts)}
    for i, name in enumerate(("loader waits", "loader places")):
        cycles[name] = round(float(np.mean(loader[used, i] / tiles[used])))
    cycles["a tile"] = round(float(np.mean(per[:, 7] / 2)))
    return {**row, "cycles": cycles}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean of each variant's time over that of the kernel before, by k."""
    found: dict[str, Any] = {"asked": len(rows)}
    for k in dict.fromkeys(row["shape"].split("x")[2] for row in rows):
        of = [row["us"] for row in rows if row["shape"].endswith(f"x{k}") and "/h/" not in row["config"]]
        found[f"k {k}"] = {name: geomean(us[name] / us["before"] for us in of) for name in VARIANTS}
    return found


def main() -> int:
    """Answer all questions."""
    given = arguments(__doc__, seconds=False).parse_args()
    from sassafras.gemm import families
    from sassafras.gemm.compile import build
    from sassafras.gemm.shapes import Shape

    configs = [families.parse(name) for name in CONFIGS]
    instances = dict.fromkeys(config.instance for config in configs)
    variants = [Changed(one, edits) for one in instances for edits in VARIANTS.values()]
    variants += [Changed(one, clocks()) for one in instances if one.columns <= WITH_CLOCKS]
    build(variants, given.cache)
    if given.prepare:
        return 0
    if without_gpu():
        return 2
    from sassafras.device.cuda import environment
    from sassafras.gemm.stage import Stage

    tools = Stage(given.cache)
    asked = [(shape, config) for shape in map(Shape.parse, SHAPES) for config in configs]
    rows = [answer(tools, shape, config) for shape, config in asked if config.reject(shape) is None]
    write("hgemm-stalls", rows, summary(rows), environment(), seed=3, out=given.out)
    print(summary(rows), flush=True)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
