"""What does a short launch pay for what its first instructions do? Variants of a kernel's text beside it.

    python benchmarks/hgemm_launch.py --cache .carry/launch --prepare    # compiles; no GPU needed
    python benchmarks/hgemm_launch.py --cache .carry/launch              # writes hgemm-launch.json

Shapes of the grid up to 1e10 FLOP that a cluster-split kernel with the quick start serves, in its best mode
and launched plainly; all variants of a shape interleaved in one process, each result checked
(docs/experiments/2026-11-22-hgemm-outside.md).
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
from changed_kernel import Changed, arguments, interleaved, without_gpu
from common import write

ROUNDS = 21
#: shapes of each band
MOST = 16
_TILE = "        const Tile tile(p, place.row, place.column);\n"
_TILES = "        const int first = place.x * p.tiles_per_slice, tiles = "
_COUNT = "min(p.tiles_per_slice, p.k_tiles - first);"
_MOVED = "row(least(tile_m * BM, p.last_row)), column(least(tile_n * BN, p.last_column))"
_WAIT = "                wait_for_predecessors(); // the others touch"
_AGAIN = "                if (AGAIN && k >= STAGES) barrier_wait<1>(full + 8, phase);\n"
_EARLY = """                for (int stage = 0; stage < min(tiles, EARLY); ++stage)
                    barrier_expect(base + BARRIERS_AT + 16 * stage, p.stage_bytes);
"""
#: name -> edits of the text
VARIANTS: dict[str, tuple[tuple[str, str], ...]] = {
    "asks whether its row of tiles is there": (
        (_TILE + _TILES + _COUNT, f"{_TILE}{_TILES}place.row * BM < p.m ? {_COUNT[:-1]} : 0;"),
    ),
    "minimum on the uniform unit": ((_MOVED, _MOVED.replace("least", "min")),),
    "moves no tile": ((_MOVED, "row(tile_m * BM), column(tile_n * BN)"),),
    "expects bytes before it waits": (
        ("initialise<0, EARLY>(p, base);\n" + _WAIT, "initialise<0, EARLY>(p, base);\n" + _EARLY + _WAIT),
        (
            _AGAIN + "                barrier_expect(full, p.stage_bytes);",
            _AGAIN + "                if (AGAIN) barrier_expect(full, p.stage_bytes);",
        ),
    ),
}


def questions() -> list[tuple[Any, Any]]:
    """(shape, configuration): what the dataset has as fastest, where that is a kernel of this kind."""
    from sassafras.gemm import dataset, families
    from sassafras.gemm.cluster_split import ClusterSplitConfig

    found: dict[str, list[tuple[Any, Any]]] = {}
    for entry in dataset.shipped():
        if entry.shape.flop > 1e10:
            continue
        name = min(entry.ranked(), key=lambda row: row[1])[0]
        config = families.parse(name)
        if not isinstance(config, ClusterSplitConfig) or config.parts > 1:
            continue
        of = config.instance
        if of.blocks and not (of.shared or of.leaves or of.lead):
            found.setdefault(entry.shape.band, []).append((entry.shape, config))
    return [one for of in found.values() for one in of[:: max(1, len(of) // MOST)][:MOST]]


def answer(tools: Any, shape: Any, config: Any) -> dict[str, Any]:
    """Microseconds of the kernel as it ships and of each variant, in both modes."""
    from sassafras.gemm.configuration import PLAIN

    operands = tools.operands(shape, 3)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    a, b, c = operands.addresses(config.layout)
    first, second = (b, a) if config.swapped else (a, b)
    addresses = {"a": first, "b": second, "c": c, "workspace": 0, "counters": 0}
    made, wrong = [], []
    for kind, one in (("best mode", config), ("plain", replace(config, mode=PLAIN))):
        launch = one.launch(shape)
        for name, edits in {"ships": (), **VARIANTS}.items():
            enqueue = tools._bound(Changed(one.instance, edits), launch, addresses)
            made.append((f"{kind}: {name}", enqueue))
            if why := operands.check(enqueue).why:
                wrong.append(f"{kind}: {name}: {why}")
    us = interleaved(tools, made, ROUNDS, digits=4)
    return {"shape": str(shape), "config": config.name, "us": us, "wrong": wrong}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean of each variant's time over the kernel's as it ships."""
    means = {
        tag: round(float(np.exp(np.mean([np.log(r["us"][tag] / r["us"][_base(tag)]) for r in rows]))), 4)
        for tag in (rows[0]["us"] if rows else ())
    }
    return {"shapes": len(rows), "over_what_ships": means}


def _base(tag: str) -> str:
    return f"{tag.split(':')[0]}: ships"


def main() -> int:
    """Answer all questions."""
    given = arguments(__doc__).parse_args()
    from sassafras.gemm.compile import build

    asked = questions()
    instances = dict.fromkeys(config.instance for _, config in asked)
    build([Changed(one, edits) for one in instances for edits in ((), *VARIANTS.values())], given.cache)
    if given.prepare:
        return 0
    if without_gpu():
        return 2
    from sassafras.device.cuda import environment
    from sassafras.gemm.stage import Stage

    begin, tools = time.perf_counter(), Stage(given.cache)
    rows: list[dict[str, Any]] = []
    for shape, config in asked:
        if time.perf_counter() - begin > given.seconds:
            break
        rows.append(answer(tools, shape, config))
    write("hgemm-launch", rows, summary(rows), environment(), seed=3, out=given.out)
    print(summary(rows), flush=True)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
