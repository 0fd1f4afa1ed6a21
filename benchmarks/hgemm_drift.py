"""How far apart do the CTAs of a GPC ask for the same k tile?

    python benchmarks/hgemm_drift.py --cache .carry/drift --prepare    # compiles; no GPU needed
    python benchmarks/hgemm_drift.py --cache .carry/drift              # writes hgemm-drift.json, asks.npz

What multiprocessors of a GPC ask for together the L2 sends once; cuBLASLt's kernels get 2.2 bytes for each
that is sent, ours 1.5 (docs/experiments/2026-11-22-hgemm-loader.md). Each loader notes its multiprocessor's
clock at every k tile it asks for; clocks are compared at ticks of the global timer, which all see at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from changed_kernel import Changed, arguments, bound, interleaved, without_gpu
from common import write
from gpu_clocks import Clocks

SHAPES = ("2048x16384x512", "4096x4096x512", "8192x8192x1024", "8192x8192x8192")
CONFIGS = (
    "ws_tn_128x128_pp2s6b2c1x1/g2/k1", "ws_tn_128x128_pp2s6b2c1x1/g4/k1", "ws_tn_128x128_pp2s6b2c2x1/g1/k1",
    "ws_tn_128x128_pp2s6b2c2x1/g4/k1", "ws_tn_128x192_pp2s4b3c1x2/v4/k1",
    "ws_tn_128x256_co2s4b2c1x1l3/g4/k1",
)  # fmt: skip
#: words of a CTA: its multiprocessor, then clocks, one a k tile
WORDS = 256
_ASKS = "                barrier_expect(full, p.stage_bytes);\n                if constexpr (EPILOGUE) {\n"
_RING = "        Ring ring;\n        while (work"
EDITS = (
    (
        _RING,
        '        u32 word = 1, sm; asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));\n'
        f"        u32 *const words = (u32 *)p.workspace + blockIdx.x * {WORDS};\n"
        f"        words[0] = sm;\n{_RING}",
    ),
    (_ASKS, f"                if (word < {WORDS}) words[word++] = (u32)clock64();\n{_ASKS}"),
)


def spreads(times: np.ndarray, gpcs: list[int]) -> dict[str, float]:
    """Cycles from the first to the last CTA of a GPC at the same k tile, and the middle half of it: medians.

    Args:
        times: when each CTA asked for its k tiles, cycles, (CTAs, k tiles); only such as all have.
        gpcs: of each CTA. GPCs with fewer than eight are left out.
    """
    large = [g for g in set(gpcs) if gpcs.count(g) >= 8]
    of = [times[[i for i, g in enumerate(gpcs) if g == one]] for one in large]
    low, high = (np.concatenate([np.quantile(t, q, axis=0) for t in of]) for q in (0.25, 0.75))
    whole = np.stack([np.ptp(t, axis=0) for t in of])
    third = max(1, whole.shape[1] // 3)
    return {
        "gpc": float(np.median(whole)), "gpc_half": float(np.median(high - low)),
        "first_third": float(np.median(whole[:, :third])), "last_third": float(np.median(whole[:, -third:])),
        "k_tile": float(np.median(np.diff(times, axis=1))),
        "k_tile_mean": float(np.mean(times[:, -1] - times[:, 0]) / max(1, times.shape[1] - 1)),
    }  # fmt: skip


def answer(tools: Any, gpc_of: dict[int, int], clocks: Clocks, shape: Any, config: Any) -> dict[str, Any]:
    """One configuration, in the last of many launches."""
    import torch

    operands = tools.operands(shape, 3)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    launch = config.launch(shape)
    words = torch.zeros(132 * WORDS, dtype=torch.int32, device="cuda")
    changed = Changed(config.instance, EDITS)
    enqueue = bound(tools, changed, launch, config.layout, operands, words.data_ptr())
    wrong = operands.check(enqueue).why
    us = interleaved(tools, [("timed", enqueue), ("ships", tools.ours(config, operands))], 9)
    for _ in range(20):
        enqueue()
    tools.gpu.sync()
    found = words.cpu().numpy().view(np.uint32).reshape(132, WORDS).astype(np.int64)
    ahead, quality = clocks.ahead(gpc_of)
    ctas = int(np.prod(launch.grid))
    asked = int(min((row[1:] > 0).sum() for row in found[:ctas]))
    sms = [int(sm) for sm in found[:ctas, 0]]
    times = found[:ctas, 1 : asked + 1] - np.array([ahead[sm] for sm in sms])[:, None]
    times = (times - times[0, 0] + (1 << 31)) % (1 << 32) - (1 << 31)
    gpcs = [gpc_of[sm] for sm in sms]
    return {
        "shape": str(shape), "config": config.name, "us": us, "asks": asked, "wrong": wrong,
        "clocks": quality, "cycles": spreads(times.astype(float), gpcs),
        "gpcs": gpcs, "times": times, "sms": sms,
    }  # fmt: skip


def main() -> int:
    """Answer all questions."""
    parser = arguments(__doc__, seconds=False)
    given = parser.parse_args()
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
    gpc_of, clocks = Placement(tools).gpc_of, Clocks(tools)
    asked = [(shape, config) for shape in map(Shape.parse, SHAPES) for config in configs]
    rows, raw = [], {}
    for shape, config in asked:
        if config.reject(shape) is not None:
            continue
        row = answer(tools, gpc_of, clocks, shape, config)
        raw[f"{row['shape']} {row['config']}"] = np.column_stack(
            [row.pop("sms"), row.pop("gpcs"), row.pop("times")]
        )
        rows.append(row)
        print(row, flush=True)
        write("hgemm-drift", rows, {"asked": len(rows)}, environment(), seed=3, out=given.out)
        np.savez_compressed(Path(given.out) / "asks.npz", **raw)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
