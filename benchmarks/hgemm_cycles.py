"""Where do the cycles of a launch go? Cycles of kernels over problems that fill all multiprocessors evenly.

    python benchmarks/hgemm_cycles.py --cache .carry/cl --prepare    # compiles; no GPU needed
    python benchmarks/hgemm_cycles.py --cache .carry/cl              # writes hgemm-cycles.json

Microseconds swing with the clock that the power limit leaves, by some per cent from one 30 ms to the next;
cycles agree within 0.2 %. Whole waves of tiles of different sizes and k tell what a launch, a tile and a k
tile cost; for cuBLASLt's kernels, by name, and for ours. Then shapes of the benchmark.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from changed_kernel import Changed, algorithms, arguments, bound, in_orders, without_gpu
from common import write
from gpu_clocks import Cycles

#: columns of a tile, waves, k: 128 x columns tiles, 12 of them along m and 11 along n fill a wave
COLUMNS, WAVES, KS = (128, 160, 192, 256), (1, 2, 4, 8), (64, 256, 512, 1024, 4096)
SHAPES = (
    "4096x4096x512", "2048x16384x512", "16384x2048x512", "8192x8192x512", "16384x4096x1024",
    "8192x8192x1024", "8192x4096x1024", "4096x4096x1024", "8192x8192x2048", "12288x8192x2048",
    "8192x8192x4096", "8192x8192x16384",
)  # fmt: skip
_EXPECT = "                barrier_expect(full, p.stage_bytes);\n                if constexpr (EPILOGUE) {\n"
_NOTHING = _EXPECT.replace("p.stage_bytes", "0").replace(
    "if", "if constexpr (true) {\n                } else if"
)
_STORE = (
    "                store<0>(p, acc[block], buffers, buffer, row + 64 * block, column, batch, lane, warp, "
    "1 + consumer);"
)
_LOADS = (_EXPECT, _NOTHING)
_SAME = tuple(
    (text, text.replace("k * TILE_K", "0"))
    for text in (
        "A::load(stage, p.map_a, row, k * TILE_K, rank_n, mask_a, full);",
        "B::load(stage + A::BYTES, p.map_b, column, k * TILE_K, rank_m, mask_b, full);",
    )
)
_STORES = (_STORE, _STORE.replace("store<0>", "if (p.k_tiles < 0) store<0>"))
#: kernels with something left out: what remains tells what it costs
VARIANTS: dict[str, tuple[tuple[str, str], ...]] = {
    "no loads": (_LOADS,), "always the first k tile": _SAME, "no stores": (_STORES,),
    "neither": (_LOADS, _STORES),
}  # fmt: skip
ORDERS = ("g1", "g2", "g4", "g8", "v2", "v4")


def kernel_name(tools: Any, enqueue: Any) -> str:
    """Of the last kernel that is enqueued; `+` before it where there is more."""
    from sassafras.device.cuda.driver import call

    gpu, driver = tools.gpu, tools.gpu.driver
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    call(driver.cuStreamBeginCapture, gpu.stream, mode)
    enqueue()
    graph = call(driver.cuStreamEndCapture, gpu.stream)
    _, count = call(driver.cuGraphGetNodes, graph, 0)
    nodes, _ = call(driver.cuGraphGetNodes, graph, count)
    names = []
    for node in nodes[:count]:
        try:
            found = call(driver.cuGraphKernelNodeGetParams, node)
            try:
                name = call(driver.cuFuncGetName, found.func)
            except Exception:
                name = call(driver.cuKernelGetName, found.kern)
            names.append(name.decode() if isinstance(name, bytes) else str(name))
        except Exception:
            names.append("")
    call(driver.cuGraphDestroy, graph)
    return "+" * (len(names) - 1) + (names[-1] if names else "")


def theirs(tools: Any, cycles: Cycles, shape: Any, operands: Any) -> list[dict[str, Any]]:
    """Every kernel of cuBLASLt's candidates: the best of its name."""
    from sassafras.gemm.graphs import rough_us

    best: dict[str, dict[str, Any]] = {}
    for (layout, algorithm), enqueue in algorithms(tools, shape, operands):
        name = kernel_name(tools, enqueue)
        count, us = cycles(enqueue, rough_us(tools, enqueue))
        if name not in best or count < best[name]["cycles"]:
            best[name] = {"name": name, "layout": layout, "cycles": count, "us": us}
            best[name] |= {"algorithm": algorithm.blob.hex()[:24], "workspace": algorithm.workspace}
    return sorted(best.values(), key=lambda x: x["cycles"])


def ours(tools: Any, cycles: Cycles, shape: Any, operands: Any, instances: Any) -> Iterator[dict[str, Any]]:
    """Every instance: the best of its orders."""
    from sassafras.gemm.graphs import rough_us

    for instance in instances:
        found = []
        for config in in_orders(instance, shape, ORDERS):
            enqueue = tools.ours(config, operands)
            found.append((*cycles(enqueue, rough_us(tools, enqueue)), config.name, enqueue))
        if found:
            count, us, name, enqueue = min(found)
            yield {"name": name, "cycles": count, "us": us, "wrong": operands.check(enqueue).why}


def left_out(
    tools: Any, cycles: Cycles, shape: Any, operands: Any, instances: Any
) -> Iterator[dict[str, Any]]:
    """Instances with something left out; their results are wrong, and nobody looks."""
    from sassafras.gemm.graphs import rough_us
    from sassafras.gemm.warp_specialized import WarpSpecializedConfig

    for instance in instances:
        config = WarpSpecializedConfig(instance, 4, 1)
        for name, edits in VARIANTS.items():
            enqueue = bound(tools, Changed(instance, edits), config.launch(shape), config.layout, operands)
            count, us = cycles(enqueue, rough_us(tools, enqueue))
            yield {"name": f"{config.name}, {name}", "cycles": count, "us": us}


def main() -> int:
    """All of it."""
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=("even", "shapes"), help="whole waves, or the benchmark's shapes")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="of the benchmark")
    given = parser.parse_args()
    from sassafras.gemm.compile import build
    from sassafras.gemm.shapes import Shape
    from sassafras.gemm.warp_specialized_instances import CANDIDATES, INSTANCES

    instances = [
        i for i in (*INSTANCES, *CANDIDATES)
        if i.layout == "tn" and not i.swapped and i.rows * i.columns >= 128 * 112
        and (i.ping_pong or i.columns == 256)
    ]  # fmt: skip
    opened = [i for i in INSTANCES if i in instances and (i.cluster_m == 2 or i.cluster_n == 2)]
    opened = [i for i in opened if i.columns in COLUMNS and (i.ping_pong or i.lead)]
    build([*instances, *(Changed(i, edits) for i in opened for edits in VARIANTS.values())], given.cache)
    if given.prepare:
        return 0
    if without_gpu():
        return 2
    from sassafras.device.cuda import environment
    from sassafras.gemm.stage import Stage

    tools, rows, begin = Stage(given.cache), [], time.perf_counter()
    cycles = Cycles(tools)
    even = [(c, w, k) for c in COLUMNS for k in KS for w in WAVES if w == 4 or k in (64, 512)]
    asked = [(Shape.parse(text), instances) for text in given.shapes.split(",") if given.only != "even"]
    if given.only != "shapes":
        asked += [
            (Shape(12 * 128, 11 * c * w, k), [i for i in instances if i.columns == c]) for c, w, k in even
        ]
    parts = {f"{12 * 128}x{11 * c * w}x{k}" for c in COLUMNS for w, k in ((4, 512), (8, 512), (4, 4096))}
    for shape, of in asked:
        if time.perf_counter() - begin > given.seconds:
            print("out of time before", shape)
            break
        operands = tools.operands(shape, 3)
        operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
        if shape == asked[0][0]:
            for _ in range(8000):  # to the clock of the power limit
                tools.ours(next(_configs(of)), operands)()
        found = [*ours(tools, cycles, shape, operands, of), *theirs(tools, cycles, shape, operands)[:6]]
        if str(shape) in parts:
            found += left_out(tools, cycles, shape, operands, [i for i in opened if i in of])
        rows.append({"shape": str(shape), "found": sorted(found, key=lambda x: x["cycles"])})
        print(shape, f"{time.perf_counter() - begin:.0f} s", flush=True)
        for one in rows[-1]["found"][:12]:
            print("   ", one["cycles"], one["us"], one["name"], one.get("wrong", ""), flush=True)
        write(
            "hgemm-cycles" + f"-{given.only}" * bool(given.only),
            rows,
            {"shapes": len(rows)},
            environment(),
            seed=3,
            out=given.out,
        )
    return 1 if any(one.get("wrong") for row in rows for one in row["found"]) else 0


def _configs(instances: Any) -> Iterator[Any]:
    from sassafras.gemm.warp_specialized import WarpSpecializedConfig

    return (WarpSpecializedConfig(i, 4, 1) for i in instances)


if __name__ == "__main__":
    sys.exit(main())
