"""Questions to the hardware about our HGEMM kernels: overlapping launches, one CTA a multiprocessor.

    python benchmarks/hgemm_probe.py --cache .carry/gemm --prepare    # compiles; no GPU needed
    python benchmarks/hgemm_probe.py --cache .carry/gemm              # writes hgemm-probe.json
    python benchmarks/hgemm_probe.py --cache .carry/gemm --ask 64x8192x8192=cs_tn_64x64_s10q1/c1,... --ask ...
    ncu ... python benchmarks/hgemm_probe.py --cache .carry/gemm --once SHAPES   # for ncu

Every configuration is timed in all its modes (`sassafras.gemm.configuration.Mode`). Baseline: cuBLASLt's
fastest candidate of either layout, from the same run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from changed_kernel import algorithms
from common import write

#: shape -> configurations in question
QUESTIONS: dict[str, tuple[str, ...]] = {
    "64x64x1024": ("lean_tn_m1n1s4x/w1x1x8/c1", "lean_tn_swapped_m1n1s4/w1x1x8/c1"),
    "128x256x1024": ("lean_tn_m1n2s4/w1x2x4/c2", "cs_tn_64x32_s8/c4", "staged_nn_32x64_w2x2s4/c8"),
    "256x2048x256": ("cs_tn_64x64_s6/c1", "cs_nn_128x64_s8/c1", "cs_tn_128x64_s8/c1"),
    "1024x1024x1024": ("cs_tn_64x128_s8/c1", "cs_tn_128x64_s8/c1", "cs_tn_128x128_s6/c2"),
    "4096x512x1024": ("cs_tn_128x128_s6/c1", "ws_tn_128x128_pp2s6b2c2x1/g1/k1"),
    "256x1024x2048": ("cs_nn_64x64_s6/c2", "cs_tn_64x128_s8/c4", "cs_tn_128x128_s6/c8"),
    "2048x128x2048": ("cs_tn_64x64_s6/c2", "cs_tn_64x128_s8/c4", "cs_tn_128x128_s6/c8"),
    "128x512x8192": ("cs_nn_64x128_s8/c8", "cs_tn_64x64_s6/c8", "cs_tn_64x128_s8/c8"),
    "256x512x16384": ("cs_nn_64x128_s8/c6", "cs_tn_128x128_s6/c8", "ws_tn_128x256_co2s4b2c2x1/g8/k8"),
    "200x4096x4096": ("ws_tn_64x128_pp2s8b2c1x1/g4/k1", "cs_tn_128x128_s6/c2", "cs_tn_128x64_s8/c1"),
    "12288x256x512": ("ws_tn_192x128_co3s4b2c1x1/g4/k1", "ws_tn_128x128_pp2s6b2c2x1/g1/k1"),
    "256x8192x2048": ("cs_tn_128x128_s6/c1", "ws_tn_128x128_pp2s6b2c2x1/g1/k1"),
    "4096x8192x256": ("ws_nn_128x128_pp2s6b2c2x1/g1/k1", "ws_tn_128x256_co2s4b2c2x1/g8/k1"),
    "16384x16384x512": ("ws_tn_128x128_pp2s6b2c2x1/g16/k1", "ws_nn_128x256_co2s4b2c2x1/g16/k1"),
    "2048x1024x2048": ("cs_tn_128x128_s6/c1", "ws_tn_128x128_pp2s6b2c2x1/g1/k1"),
}


def prepare(cache: Path | None, questions: Mapping[str, Sequence[str]]) -> None:
    """Compile the kernels in question."""
    from sassafras.gemm import families
    from sassafras.gemm.compile import build

    instances = list({families.parse(c).instance for configs in questions.values() for c in configs})
    build(instances, cache)


def baseline(tools: Any, screen: Any, shape: Any, operands: Any) -> list[tuple[float, Any, Any]]:
    """cuBLASLt's candidates of both layouts, fastest first: (microseconds, (layout, algorithm), enqueue)."""
    usable = algorithms(tools, shape, operands)
    return screen.rough(usable, tools.watch.one(usable[0][1]))


def main() -> None:
    """Answer all questions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--once", help="shapes, comma-separated: launch each contestant once, timing nothing")
    parser.add_argument(
        "--ask", action="append", default=[], metavar="SHAPE=CONFIG,...",
        help="these questions instead of the usual ones; may be given again",
    )  # fmt: skip
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=float, default=90)
    options = parser.parse_args()
    asked = dict(text.partition("=")[::2] for text in options.ask)
    questions = {shape: tuple(configs.split(",")) for shape, configs in asked.items()} or QUESTIONS
    if options.prepare:
        prepare(options.cache, questions)
        return
    from sassafras.device.cuda import environment
    from sassafras.gemm import families
    from sassafras.gemm.select import Screen
    from sassafras.gemm.shapes import Shape
    from sassafras.gemm.stage import Stage

    tools, rows, begin = Stage(options.cache), [], time.perf_counter()
    screen = Screen(tools)
    wanted = options.once.split(",") if options.once else list(questions)
    for text in wanted:
        if time.perf_counter() - begin > options.seconds:
            break
        shape = Shape(*map(int, text.split("x")))
        operands = tools.operands(shape, 3)
        operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
        ranked = baseline(tools, screen, shape, operands)
        if options.once:
            import torch

            torch.cuda.profiler.start()
            ranked[0][2]()
            for config in questions.get(text, ()):
                tools.ours(families.parse(config), operands)()
            tools.gpu.sync()
            torch.cuda.profiler.stop()
            continue
        best = screen.final(ranked[:4], 0.02, 200.0)[0]
        row: dict[str, Any] = {
            "shape": text,
            "lt_us": best[0],
            "lt": [best[1][0], str(best[1][1])],
            "times": [],
        }
        for name in questions[text]:
            config = families.parse(name)
            if why := config.reject(shape):
                row["times"].append({"config": name, "rejected": why})
                continue
            contestants = []
            for mode in config.in_modes():
                enqueue = tools.ours(mode, operands)
                check = operands.check(enqueue)
                if check.why:
                    row["times"].append({"config": mode.name, "wrong": check.why})
                else:
                    contestants.append((best[0], mode.name, enqueue))
            for us, key in screen.final(contestants, 0.05, 200.0):
                row["times"].append({"config": key, "us": round(us, 3), "ratio": round(best[0] / us, 4)})
        rows.append(row)
        print(json.dumps(row), flush=True)
    if not options.once:
        print(write("hgemm-probe", rows, {}, environment(), out=options.out).name)


if __name__ == "__main__":
    main()
