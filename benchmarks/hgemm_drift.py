"""How far apart do the CTAs of a GPC run? When each loader asks for the first k tile of each of its tiles.

    python benchmarks/hgemm_drift.py --cache .carry/drift --prepare    # compiles; no GPU needed
    python benchmarks/hgemm_drift.py --cache .carry/drift              # writes hgemm-drift.json

What multiprocessors of a GPC ask for together the L2 sends once; cuBLASLt's kernels get 2.2 bytes for each
that is sent, ours 1.5 (docs/experiments/2026-11-22-hgemm-loader.md). If ours are more than some hundred
nanoseconds apart, that is why. Spreads in nanoseconds, beside what a k tile takes.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from changed_kernel import Changed, arguments, interleaved, without_gpu
from common import write

SHAPES = ("2048x16384x512", "4096x4096x512", "8192x8192x1024", "8192x8192x8192")
CONFIGS = (
    "ws_tn_128x128_pp2s6b2c1x1/g2/k1", "ws_tn_128x128_pp2s6b2c1x1/g4/k1", "ws_tn_128x128_pp2s6b2c2x1/g1/k1",
    "ws_tn_128x128_pp2s6b2c2x1/g4/k1", "ws_tn_128x192_pp2s4b3c1x2/v4/k1",
    "ws_tn_128x256_co2s4b2c1x1l3/g4/k1",
)  # fmt: skip
#: words of a CTA: its multiprocessor, then times
WORDS = 128
_ASKS = "                barrier_expect(full, p.stage_bytes);\n                if constexpr (EPILOGUE) {\n"
_RING = "        Ring ring;\n        while (work"
EDITS = (
    (
        _RING,
        "        u32 word = 1, sm; asm volatile(\"mov.u32 %0, %%smid;\" : \"=r\"(sm));\n"
        f"        u32 *const words = (u32 *)p.workspace + blockIdx.x * {WORDS};\n"
        f"        words[0] = sm;\n{_RING}",
    ),
    (
        _ASKS,
        f"                if (k == work.k_begin && word < {WORDS}) {{\n"
        "                    u32 now; asm volatile(\"mov.u32 %0, %%globaltimer_lo;\" : \"=r\"(now));\n"
        f"                    words[word++] = now;\n                }}\n{_ASKS}",
    ),
)  # fmt: skip


def spreads(times: np.ndarray, gpcs: list[int]) -> dict[str, float]:
    """Nanoseconds, medians over tiles: from first to last of a GPC, and the middle half of it; of all CTAs.

    Args:
        times: when each CTA began its tiles, ns, (CTAs, tiles); only tiles that all have.
        gpcs: of each CTA. GPCs with fewer than eight are left out.
    """
    large = [g for g in set(gpcs) if gpcs.count(g) >= 8]
    of = [times[[i for i, g in enumerate(gpcs) if g == one]] for one in large]
    low, high = (np.concatenate([np.quantile(t, q, axis=0) for t in of]) for q in (0.25, 0.75))
    return {
        "gpc": float(np.median(np.concatenate([np.ptp(t, axis=0) for t in of]))),
        "gpc_half": float(np.median(high - low)),
        "all": float(np.median(np.ptp(times, axis=0))),
        "tile": float(np.median(np.diff(times, axis=1))),
    }


def answer(tools: Any, gpc_of: dict[int, int], shape: Any, config: Any) -> dict[str, Any]:
    """Spreads of one configuration in the last of many launches, by third of the launch."""
    import torch

    operands = tools.operands(shape, 3)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    launch = config.launch(shape)
    a, b, c = operands.addresses(config.layout)
    words = torch.zeros(132 * WORDS, dtype=torch.int32, device="cuda")
    addresses = {"a": a, "b": b, "c": c, "workspace": words.data_ptr(), "counters": 0}
    enqueue = tools._bound(Changed(config.instance, EDITS), launch, addresses)
    wrong = operands.check(enqueue).why
    us = interleaved(tools, [("timed", enqueue), ("ships", tools.ours(config, operands))], 9)
    for _ in range(20):
        enqueue()
    tools.gpu.sync()
    found = words.cpu().numpy().view(np.uint32).reshape(132, WORDS)
    ctas = int(np.prod(launch.grid))
    tiles = int(min((row[1:] > 0).sum() for row in found[:ctas]))
    times = (found[:ctas, 1 : tiles + 1] - found[:ctas, 1].min()).astype(np.int64).astype(float)
    gpcs = [gpc_of[int(sm)] for sm in found[:ctas, 0]]
    row = {"shape": str(shape), "config": config.name, "us": us, "tiles": tiles, "wrong": wrong}
    if tiles < 3:
        return row
    row["ns"] = spreads(times, gpcs)
    row["ns_first_tile"] = float(np.ptp(times[:, 0]))
    row["ns_a_k_tile"] = row["ns"]["tile"] / (shape.k / 64)
    return row


def main() -> int:
    """Answer all questions."""
    given = arguments(__doc__, seconds=False).parse_args()
    from sassafras.gemm import families
    from sassafras.gemm.compile import build
    from sassafras.gemm.shapes import Shape

    configs = [families.parse(name) for name in CONFIGS]
    instances = dict.fromkeys(config.instance for config in configs)
    build([made for one in instances for made in (one, Changed(one, EDITS))], given.cache)
    if given.prepare:
        return 0
    if without_gpu():
        return 2
    from hgemm_order import Placement

    from sassafras.device.cuda import environment
    from sassafras.gemm.stage import Stage

    tools = Stage(given.cache)
    gpc_of = Placement(tools).gpc_of
    asked = [(shape, config) for shape in map(Shape.parse, SHAPES) for config in configs]
    rows = [answer(tools, gpc_of, shape, config) for shape, config in asked if config.reject(shape) is None]
    write("hgemm-drift", rows, {"asked": len(rows)}, environment(), seed=3, out=given.out)
    for row in rows:
        print(row, flush=True)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
