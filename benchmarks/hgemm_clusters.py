"""Do clusters of four and eight pay, since the L2 sends less? And is it cycles or the clock that decides?

    python benchmarks/hgemm_clusters.py --cache .carry/cl --prepare    # compiles them; no GPU needed
    python benchmarks/hgemm_clusters.py --cache .carry/cl              # writes hgemm-clusters.json

Contestants: cuBLASLt's three best, kernels of ours in clusters of one and two in all orders, and such in
clusters of four and eight that nothing ships. First all interleaved; then the best of each kind alone for a
while, so that each has the clock that its own power leaves: microseconds, gigahertz and cycles of a launch.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Any

from changed_kernel import algorithms, arguments, bound, in_orders, interleaved, without_gpu
from common import write
from gpu_clocks import Cycles

SHAPES = (
    "4096x4096x512", "2048x16384x512", "8192x8192x512", "8192x8192x1024", "4096x4096x1024", "16384x4096x1024",
    "8192x8192x2048", "8192x8192x4096", "4096x4096x4096", "8192x8192x16384",
)  # fmt: skip
ORDERS = ("g1", "g2", "g4", "g8", "v1", "v2", "v4", "v8")
#: columns, ping-pong, options of tiles in larger clusters
TILES: tuple[tuple[int, bool, dict[str, Any]], ...] = (
    (128, True, {}), (160, True, {}), (176, True, {}), (192, True, {"most": 4, "buffers": 3}),
    (256, False, {"lead": 3}),
)  # fmt: skip
#: milliseconds that a contestant works alone, twice: to warm up, and measured
ALONE = 30.0
#: of each kind, how many work alone
ALONE_OF = 3


def alone(cycles: Cycles, enqueue: Any, guess: float) -> dict[str, float]:
    """One contestant for twice `ALONE` milliseconds: of the second half microseconds, GHz, cycles."""
    count, us = cycles(enqueue, guess, milliseconds=ALONE)
    return {"us": us, "ghz": round(count / us / 1000, 4), "cycles": round(count)}


def fewer(tools: Any, config: Any, operands: Any, ctas: int) -> Any:
    """A persistent configuration on fewer multiprocessors."""
    launch = dataclasses.replace(config.launch(operands.shape), grid=(ctas, 1, 1))
    return bound(tools, config.instance, launch, config.layout, operands)


def answer(tools: Any, cycles: Cycles, shape: Any, instances: list[Any]) -> dict[str, Any]:
    """All contestants of a shape."""
    operands = tools.operands(shape, 3)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    theirs = [
        (f"lt {layout} {algorithm.blob.hex()[:16]} {algorithm.workspace}", enqueue)
        for (layout, algorithm), enqueue in algorithms(tools, shape, operands)
    ]
    us = interleaved(tools, theirs, 3)
    theirs = sorted(theirs, key=lambda x: us[x[0]])[:ALONE_OF]
    ours = [
        (config.name, tools.ours(config, operands), config)
        for instance in instances
        for config in in_orders(instance, shape, ORDERS)
    ]
    us = interleaved(tools, [theirs[0], *((n, e) for n, e, _ in ours)], 3, length=150.0)
    ranked = sorted(ours, key=lambda x: us[x[0]])
    old = [x for x in ranked if x[2].cluster <= 2][: ALONE_OF + 2]
    best: dict[str, Any] = {}
    for x in ranked:
        if x[2].cluster > 2:
            best.setdefault(x[2].instance.name, x)
    new = list(best.values())[:10]
    finals = [*theirs, *((n, e) for n, e, _ in (*old, *new))]
    finals += [(f"{n} on {c}", fewer(tools, config, operands, c)) for n, _, config in old[:1] for c in (120,)]
    wrong = {n: why for n, e in finals[len(theirs) :] if (why := operands.check(e).why)}
    us = interleaved(tools, finals, 15)
    few = [*theirs[:2], *finals[len(theirs) :][:2], finals[-1]]
    few += sorted(((n, e) for n, e, _ in new), key=lambda x: us[x[0]])[:ALONE_OF]
    each = {name: alone(cycles, enqueue, us[name]) for name, enqueue in few}
    again = {name: alone(cycles, enqueue, us[name]) for name, enqueue in reversed(few)}
    return {
        "shape": str(shape), "us": dict(sorted(us.items(), key=lambda x: x[1])), "wrong": wrong,
        "alone": each, "alone_again": again,
    }  # fmt: skip


def chosen() -> list[Any]:
    """Our kernels that may win where C is large, and larger clusters."""
    from sassafras.gemm.warp_specialized_instances import INSTANCES, deepest

    ours = [
        i for i in INSTANCES
        if not i.swapped and i.rows * i.columns >= 128 * 128 and (i.ping_pong or i.columns == 256)
        and i.stages >= 4 and (i.columns, i.stages) != (128, 4)
    ]  # fmt: skip
    larger = [
        deepest(layout, 128, columns, 2, ping_pong, cluster_m=m, cluster_n=n, **options)
        for layout in ("tn", "nn")
        for columns, ping_pong, options in TILES
        for m, n in ((2, 2), (4, 1), (1, 4), (2, 4), (4, 2))
    ]
    return [*ours, *(instance for instance in larger if instance.reject() is None)]


def main() -> int:
    """Answer all shapes."""
    given = arguments(__doc__).parse_args()
    from sassafras.gemm.compile import build
    from sassafras.gemm.shapes import Shape

    instances = chosen()
    build(instances, given.cache)
    if given.prepare:
        return 0
    if without_gpu():
        return 2
    from sassafras.device.cuda import environment
    from sassafras.gemm.stage import Stage

    tools, rows, begin = Stage(given.cache), [], time.perf_counter()
    cycles = Cycles(tools)
    for text in SHAPES:
        if time.perf_counter() - begin > given.seconds:
            break
        rows.append(answer(tools, cycles, Shape.parse(text), instances))
        row = rows[-1]
        print(text, f"{time.perf_counter() - begin:.0f} s", list(row["us"].items())[:5], row["wrong"])
        for name, one in row["alone"].items():
            print("   ", name, one, row["alone_again"][name], flush=True)
        write("hgemm-clusters", rows, {"shapes": len(rows)}, environment(), seed=3, out=given.out)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
