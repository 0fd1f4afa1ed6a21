"""What do the warps of a persistent kernel wait for? Clocks read around every wait.

    python benchmarks/hgemm_stalls.py --cache .carry/stalls --prepare    # compiles; no GPU needed
    python benchmarks/hgemm_stalls.py --cache .carry/stalls              # writes hgemm-stalls.json

The text of the warp-specialised kernel with clocks around its waits: one thread of each multiplying warpgroup
adds up what it waits for the first k tile of a tile, for the others, for its turn and for its last products, and
what storing takes; the loader what it waits for a free stage and how long it computes where the next tile lies.
Cycles a tile, means over all CTAs (docs/experiments/2026-11-22-hgemm-workspace.md).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from changed_kernel import Changed, interleaved, without_gpu
from common import ROOT, write

SHAPES = ("2048x16384x512", "4096x4096x512", "8192x8192x1024", "4096x12288x512", "4096x4096x256")
CONFIGS = (
    "ws_tn_128x128_pp2s6b2c1x1/g2/k1", "ws_tn_128x128_pp2s6b2c1x1/h/k1", "ws_tn_128x128_pp2s6b2c2x1/g4/k1",
    "ws_nn_128x128_pp2s6b2c2x1/g4/k1", "ws_tn_128x160_pp2s5b2c1x1/g4/k1", "ws_tn_128x144_pp2s6b4c2x1/g4/k1",
    "ws_tn_128x192_pp2s4b3c1x2/v4/k1", "ws_tn_128x192_pp2s4b3c2x1/g4/k1", "ws_tn_128x256_co2s4b2c1x1l3/g4/k1",
)  # fmt: skip
#: columns of a tile that leave registers for counts
WITH_CLOCKS = 160
_NOW = "(u32)clock64()"
_TILE = "            const int last = multiply(acc, at, ring, sharer * ROWS, k_tiles, (consumer + 1) % CONSUMERS, lane"
_TURN = "if (number > 0) barrier_wait<3>(at.turn(consumer), ((number - 1) / CONSUMERS) & 1);"
_STORED = "store<0>(p, acc[block], buffers, buffer, row + 64 * block, column, batch, lane);\n        }\n"
_PLACE = """            int row, column;
            work.place(p, row, column);
            const int batch = leave_batch(p, row);
            row = min((row * CLUSTER_M + rank_m) * BM, p.last_row);
            column = min((column * CLUSTER_N + rank_n) * BN, p.last_column);
            for"""
EDITS: tuple[tuple[str, str], ...] = (
    (
        "int k_tiles, int next, int lane) {\n        // lower",
        "int k_tiles, int next, int lane, u32 (&w)[12]) {\n        // lower",
    ),
    (
        "barrier_wait<2>(at.full(ring.stage), ring.phase);",
        f"const u32 t = {_NOW}; barrier_wait<2>(at.full(ring.stage), ring.phase);"
        f" w[k > 0] += {_NOW} - t;",
    ),
    (_TURN, f"const u32 t = {_NOW}; {_TURN} w[2] += {_NOW} - t;"),
    (_TILE + ");", f"const u32 m = {_NOW};\n{_TILE}, w);\n w[5] += {_NOW} - m;"),
    (
        "            finish(acc, at, last, lane);",
        f"            const u32 f = {_NOW}; finish(acc, at, last, lane); const u32 s = {_NOW}; w[3] += s - f;",
    ),
    (
        "int column, int batch, int lane) {\n        if constexpr (FROM",
        "int column, int batch, int lane, u32 (&w)[12]) {\n        if constexpr (FROM",
    ),
    (
        "store<FROM + WIDTH>(p, d, buffers, next, row, column, batch, lane);",
        "store<FROM + WIDTH>(p, d, buffers, next, row, column, batch, lane, w);",
    ),
    (
        "            if (is_elected(lane)) store_wait<BUFFERS - 1>(); // this buffer's last store has been read\n"
        "            sync_warp();\n"
        "            Out::template write<FROM>(buffer, d, lane);\n"
        "            async_fence();\n"
        "            sync_warp();\n",
        f"            const u32 t0 = {_NOW};\n"
        "            if (is_elected(lane)) store_wait<BUFFERS - 1>();\n"
        "            sync_warp();\n"
        f"            const u32 t1 = {_NOW}; w[8] += t1 - t0;\n"
        "            Out::template write<FROM>(buffer, d, lane);\n"
        f"            const u32 t2 = {_NOW}; w[9] += t2 - t1;\n"
        "            async_fence();\n"
        "            sync_warp();\n"
        f"            const u32 t3 = {_NOW}; w[10] += t3 - t2;\n",
    ),
    (
        "            next = next + 1 == BUFFERS ? 0 : next + 1;\n            store<",
        f"            w[11] += {_NOW} - t3;\n            next = next + 1 == BUFFERS ? 0 : next + 1;\n            store<",
    ),
    (_STORED, f"{_STORED[:-10].replace('lane);', 'lane, w);')}            w[4] += {_NOW} - s; ++w[6];\n        }}\n"),
    (
        "int buffer = 0, item = 0; //",
        f"u32 w[12] = {{}}; const u32 begin = {_NOW};\n        int buffer = 0, item = 0; //",
    ),
    (
        "        if (is_elected(lane)) store_wait<0>(); //",
        f"        w[7] = {_NOW} - begin;\n"
        "        if (thread == 0) for (int i = 0; i < 12; ++i)"
        " ((u32 *)p.workspace)[(blockIdx.x * 4 + 1 + consumer) * 12 + i] = w[i];\n"
        "        if (is_elected(lane)) store_wait<0>(); //",
    ),
    ("        Ring ring;\n        while (work", "        Ring ring; u32 w[12] = {};\n        while (work"),
    (_PLACE, f"            const u32 b = {_NOW};\n{_PLACE[:-15]}            w[1] += {_NOW} - b; ++w[6];\n            for"),
    (
        "barrier_wait<1>(at.empty(ring.stage), ring.phase ^ 1);",
        f"const u32 t = {_NOW}; barrier_wait<1>(at.empty(ring.stage), ring.phase ^ 1); w[0] += {_NOW} - t;",
    ),
    (
        "                ring.advance();\n            }\n        }\n    }\n",
        "                ring.advance();\n            }\n        }\n"
        "        for (int i = 0; i < 12; ++i) ((u32 *)p.workspace)[blockIdx.x * 48 + i] = w[i];\n    }\n",
    ),
)  # fmt: skip

#: as it was: the loader divides
DIVIDES = (
    ("divided(tile, p.band_by, p.band_shift) * wide", "(int)((u32)tile / (u32)(wide * along)) * wide"),
    (
        "divided(in_band, whole ? p.wide_by : p.rest_by, whole ? p.wide_shift : p.rest_shift)",
        "(int)((u32)in_band / (u32)(whole ? wide : across - first))",
    ),
)


#: as it was: thread 0 and lane 0 ask for copies, which the compiler makes loops of
LANES = (
    ("if (broadcast(threadIdx.x >> 5) == 0 && elected()) {", "if (threadIdx.x == 0) {"),
    ('            if (elected()) { // "lane', '            if (lane == 0) { // "lane'),
    ("if (is_elected(lane)) store_wait<BUFFERS - 1>()", "if (lane == 0) store_wait<BUFFERS - 1>()"),
    ("if (is_elected(lane)) store_wait<0>()", "if (lane == 0) store_wait<0>()"),
)
#: name -> edits
VARIANTS = {"divides": DIVIDES, "loops load": LANES[:1], "loops store": LANES[1:], "before": DIVIDES + LANES}


def answer(tools: Any, shape: Any, config: Any) -> dict[str, Any]:
    """Cycles a tile of everything, and microseconds with and without clocks."""
    import torch

    operands = tools.operands(shape, 3)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    launch = config.launch(shape)
    a, b, c = operands.addresses(config.layout)
    words = torch.zeros(132 * 48, dtype=torch.int32, device="cuda")
    addresses = {"a": a, "b": b, "c": c, "workspace": words.data_ptr(), "counters": 0}
    variants = {"ships": (), **VARIANTS}
    if config.instance.columns <= WITH_CLOCKS:
        variants["clocks"] = EDITS
    made = [
        (name, tools._bound(Changed(config.instance, edits), launch, addresses))
        for name, edits in variants.items()
    ]
    wrong = [f"{name}: {why}" for name, enqueue in made if (why := operands.check(enqueue).why)]
    us = interleaved(tools, made, 15)
    row = {"shape": str(shape), "config": config.name, "us": us, "wrong": wrong}
    if "clocks" not in variants:
        return row
    found = words.cpu().numpy().reshape(132, 4, 12).astype(float)
    tiles = found[:, 1:3, 6].sum(axis=1)
    used = tiles > 0
    per = found[used] / tiles[used][:, None, None]
    ours = found[used][:, 1:3, :].sum(axis=1) / tiles[used][:, None]
    names = ("first k tile", "other k tiles", "turn", "last products", "stores", "multiplies")
    mean = {name: round(float(np.mean(ours[:, i]))) for i, name in enumerate(names)}
    parts = ("stores: buffer", "stores: writing", "stores: fence", "stores: asking")
    mean |= {name: round(float(np.mean(ours[:, 8 + i]))) for i, name in enumerate(parts)}
    mean |= {
        "loader waits": round(float(np.mean(per[:, 0, 0]))),
        "loader places": round(float(np.mean(per[:, 0, 1]))),
        "a tile": round(float(np.mean(found[used][:, 1:3, 7].mean(axis=1) / tiles[used]))),
    }
    return {**row, "cycles": mean}


def main() -> int:
    """Answer all questions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--prepare", action="store_true", help="compile, and do nothing else")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    )
    given = parser.parse_args()
    from sassafras.gemm import families
    from sassafras.gemm.compile import build
    from sassafras.gemm.shapes import Shape

    configs = [families.parse(name) for name in CONFIGS]
    instances = dict.fromkeys(config.instance for config in configs)
    build(
        [
            made
            for one in instances
            for made in (
                Changed(one, edits)
                for edits in ((), EDITS, *VARIANTS.values())
                if edits != EDITS or one.columns <= WITH_CLOCKS
            )
        ],
        given.cache,
    )
    if given.prepare:
        return 0
    if without_gpu():
        return 2
    from sassafras.device.cuda import environment
    from sassafras.gemm.stage import Stage

    tools = Stage(given.cache)
    rows = [
        answer(tools, shape, config)
        for shape in map(Shape.parse, SHAPES)
        for config in configs
        if config.reject(shape) is None
    ]
    write("hgemm-stalls", rows, {"asked": len(rows)}, environment(), seed=3, out=given.out)
    for row in rows:
        print(row, flush=True)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
