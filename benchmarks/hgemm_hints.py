"""Do stores that the L2 gives up first pay, and copies that the CTAs of a GPC ask for at the same moment?

    python benchmarks/hgemm_hints.py --cache .carry/hints --prepare    # compiles; no GPU needed
    python benchmarks/hgemm_hints.py --cache .carry/hints              # writes hgemm-hints.json

(hgemm-hints.json of 2026-11-23 is of kernels whose stores carried no policy: "ships" there is without any.)

Cycles of persistent kernels (see `hgemm_cycles`), the best of several orders of tiles, as they ship and with
changed text: what is stored, or loaded, carries a policy of the L2; loaders ask only while the clock of their
multiprocessor, which is the same for all of a GPC, is at the beginning of a period.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from changed_kernel import Changed, arguments, bound, in_orders, without_gpu
from common import geomean, write
from gpu_clocks import Cycles

SHAPES = (
    "1536x5632x512", "1536x11264x512", "4096x4096x512", "2048x16384x512", "8192x8192x512", "4096x4096x1024",
    "8192x8192x1024", "16384x4096x1024", "8192x8192x4096", "4096x4096x256",
)  # fmt: skip
INSTANCES = (
    "ws_tn_128x128_pp2s6b2c1x1", "ws_tn_128x128_pp2s6b2c2x1", "ws_tn_128x192_pp2s4b3c2x1",
    "ws_tn_128x192_pp2s5b1c1x1", "ws_tn_128x160_pp2s5b2c2x1", "ws_tn_192x128_pp2s5b1c1x2",
)  # fmt: skip
ORDERS = ("g1", "g2", "g4", "g8", "v2", "v4")
#: what `createpolicy.fractional` makes of these with a fraction of 1
POLICIES = {
    "first": "0x12F0000000000000ull",
    "last": "0x14F0000000000000ull",
    "normal": "0x1000000000000000ull",
}
_LOAD = (
    'mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "\n                 "[%4];" ::"r"(to),\n'
    '                 "l"(map), "r"(x), "r"(y), "r"(barrier)\n'
)
_SENT = (
    'mbarrier::complete_tx::bytes.multicast::cluster "\n'
    '                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),\n'
    '                 "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask)\n'
)
_ASKS = "                barrier_expect(full, p.stage_bytes);\n                if constexpr (EPILOGUE) {\n"


def stores(policy: str) -> tuple[tuple[str, str], ...]:
    """C with a policy, whatever the launch says."""
    word = f"{POLICIES[policy]};"
    return (("(u64)(u32)p.store_policy << 32;", word),)


def loads(policy: str) -> tuple[tuple[str, str], ...]:
    """A and B with a policy."""
    word = f', "l"({POLICIES[policy]})'
    alone = _LOAD.replace("::bytes ", "::bytes.L2::cache_hint ").replace("[%4];", "[%4], %5;")
    sent = _SENT.replace("::cluster ", "::cluster.L2::cache_hint ").replace("%5;", "%5, %6;")
    return (
        (_LOAD, alone.replace('"r"(barrier)', f'"r"(barrier){word}')),
        (_SENT, sent.replace('"h"(mask)', f'"h"(mask){word}')),
    )


def period(cycles: int, open_for: int) -> tuple[tuple[str, str], ...]:
    """Loaders ask in the first cycles of a period."""
    return ((_ASKS, f"                while (((u32)clock64() & {cycles - 1}) >= {open_for}) {{}}\n{_ASKS}"),)


VARIANTS: dict[str, tuple[tuple[str, str], ...]] = {
    "stores first": stores("first"), "stores normal": stores("normal"), "loads last": loads("last"),
    "period 128": period(128, 48), "period 256": period(256, 64), "period 512": period(512, 64),
    "period 1024": period(1024, 128),
    "stores first, period 256": (*stores("first"), *period(256, 64)),
}  # fmt: skip
#: such lines outlive the call, and the next contestant would pay: in rounds of their own, at the end
LATE = ("loads last",)


def answer(tools: Any, cycles: Cycles, shape: Any, instances: list[Any]) -> dict[str, Any]:
    """Every variant of every instance: the best of its orders."""
    from sassafras.gemm.graphs import rough_us

    operands = tools.operands(shape, 3)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    found: dict[str, dict[str, Any]] = {}
    plain: dict[str, tuple[tuple[str, str], ...]] = {
        "": (),
        **{k: v for k, v in VARIANTS.items() if k not in LATE},
    }
    for tags in (list(plain), [*LATE]):
        for instance in instances:
            for tag in tags:
                changed = Changed(instance, VARIANTS[tag]) if tag else instance
                best: list[tuple[float, float, str, Any]] = []
                for config in in_orders(instance, shape, ORDERS):
                    enqueue = bound(tools, changed, config.launch(shape), config.layout, operands)
                    best.append((*cycles(enqueue, rough_us(tools, enqueue)), config.name, enqueue))
                count, us, name, enqueue = min(best)
                found.setdefault(instance.name, {})[tag] = [count, us, name, operands.check(enqueue).why]
    return {"shape": str(shape), "found": found}


def main() -> int:
    """All of it."""
    given = arguments(__doc__).parse_args()
    from sassafras.gemm.compile import build
    from sassafras.gemm.shapes import Shape
    from sassafras.gemm.warp_specialized_instances import WarpSpecializedInstance

    instances = [WarpSpecializedInstance.parse(name) for name in INSTANCES]
    build([*instances, *(Changed(i, edits) for i in instances for edits in VARIANTS.values())], given.cache)
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
        print(text, f"{time.perf_counter() - begin:.0f} s")
        for name, of in rows[-1]["found"].items():
            print("   ", name, {tag or "ships": one[:2] for tag, one in of.items()}, flush=True)
        summary = {
            tag: geomean([of[tag][0] / of[""][0] for row in rows for of in row["found"].values()])
            for tag in VARIANTS
        }
        write("hgemm-hints", rows, summary, environment(), seed=3, out=given.out)
    print(summary)
    return 1 if any(one[3] for row in rows for of in row["found"].values() for one in of.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
