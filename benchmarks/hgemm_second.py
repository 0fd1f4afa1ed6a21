"""Few tiles and long k: k split by two launches, against our shipped best and cuBLASLt's.

    python benchmarks/hgemm_second.py --cache .carry/second --prepare    # compiles; no GPU needed
    python benchmarks/hgemm_second.py --cache .carry/second [--seconds 40] [--shapes 40] [--dry-run]

A pair (`sassafras.gemm.second_launch`): parts of k leave FP32 sums, a second kernel adds them up on all
multiprocessors. All candidates of a shape are screened, the best five tried in every mode of both launches,
and the best timed interleaved with two of ours (the shipped dataset names them) and cuBLASLt's best three.
What is timed at the end is checked against FP64 (from NaN), twice for equal bits, and once more after its
graph has run; every kernel at least once. Columns ``first`` and ``second``: microseconds of either launch
alone, back to back in the same mode. Writes hgemm-second.json to --out ($OUT, or benchmarks/results) after
every shape.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from changed_kernel import algorithms
from common import ROOT, geomean, write

#: those furthest behind cuBLASLt first; the last five are won today, by slices or without a split
SHAPES = (
    "256x512x16384", "256x1024x16384", "512x256x16384", "1024x128x16384", "128x1024x16384",
    "512x512x16384", "512x256x12288", "256x512x12288", "256x1024x12288", "1024x256x16384",
    "512x512x8192", "256x256x16384", "512x128x16384", "128x2048x8192", "1024x256x12288",
    "128x512x16384", "512x512x12288", "512x1024x12288", "512x1024x16384", "1024x512x12288",
    "2048x128x8192", "2048x256x16384", "256x2048x16384", "1024x1024x16384", "512x1024x8192",
    "1024x128x12288", "256x256x12288", "256x1024x8192", "2048x256x12288", "512x256x8192",
    "128x1024x12288", "128x2048x16384", "2048x128x16384", "128x512x12288", "512x2048x16384",
    "256x512x8192", "1024x256x8192", "512x512x4096", "1024x128x8192", "2048x64x12288",
)  # fmt: skip
#: pairs that are tried in all modes, of each shape
LEADERS = 5
#: blocks of the last round, microseconds, and its rounds
BLOCK_US, ROUNDS = 200.0, 15


def shipped_configs(shape: Any) -> list[Any]:
    """Ours: the two fastest of the shipped dataset of either layout."""
    from sassafras.gemm.entrants import recorded

    return [config for layout in ("nn", "tn") for config in recorded(shape, layout, 2)]


def prepare(cache: Path | None, shapes: list[Any], workers: int | None) -> int:
    """Compile all that the run will load; how many kernels that is."""
    from sassafras.gemm.compile import build
    from sassafras.gemm.second_launch import ADD_INSTANCES, FIRST_INSTANCES

    ours = {config.instance for shape in shapes for config in shipped_configs(shape)}
    wanted = [*FIRST_INSTANCES, *ADD_INSTANCES, *sorted(ours, key=lambda i: i.name)]
    return len(build(wanted, cache, workers))


class Contest:
    """The shapes of a run, one after the other.

    Args:
        stage: `stage.Stage` or `dry.DryStage`.
        carveout: ask for all shared memory for both kernels: a multiprocessor that had to divide its memory
            anew could not take a CTA of the second while it runs one of the first.
    """

    def __init__(self, stage: Any, carveout: bool) -> None:
        self.stage, self.carveout = stage, carveout
        self.checked: set[str] = set()
        self.wrong: list[str] = []

    def bound(self, pair: Any, operands: Any) -> tuple[Any, Any, Any]:
        """How to enqueue both launches, the first, the second. Raises CudaError."""
        stage = self.stage
        if stage.modelled:  # nothing is known of pairs: something that varies
            us = 2.0 + operands.shape.flop / 6e8 + len(pair.name) % 7
            return (
                lambda: stage.gpu.launch(us),
                lambda: stage.gpu.launch(0.9 * us),
                lambda: stage.gpu.launch(0.2 * us),
            )
        first, second = stage.ours(pair.first, operands), stage.ours(pair.second, operands)
        if not self.carveout:  # binding has asked for all of it (`all_shared`); -1 is the driver's default
            from sassafras.device.cuda.driver import call

            driver = stage.gpu.driver
            which = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            for instance in (pair.first.instance, pair.second.instance):
                call(driver.cuFuncSetAttribute, stage.function(instance).handle, which, -1)

        def both() -> None:
            first()
            second()

        return both, first, second

    def right(self, name: str, operands: Any, enqueue: Any) -> bool:
        """From NaN to the reference, twice, with equal bits; notes what is wrong."""
        why = operands.check(enqueue).why
        if not why and not self.stage.modelled:
            import torch

            before = operands.c.view(torch.int16).clone()
            operands.poison()
            enqueue()
            if not torch.equal(before, operands.c.view(torch.int16)):
                why = "two launches differ"
        if why:
            self.wrong.append(f"{operands.shape} {name}: {why}")
        return not why

    def screened(self, pairs: list[Any], operands: Any, guess: float, block_us: float, rounds: int) -> Any:
        """(microseconds, pair, enqueue), fastest first."""
        from sassafras.gemm.select import screen

        found = [(pair, self.bound(pair, operands)[0]) for pair in pairs]
        return screen(self.stage, found, guess, block_us, rounds)

    def row(self, shape: Any) -> dict[str, Any]:
        """One shape.

        Raises:
            CudaError: the context is lost.
            SassafrasError: no baseline works, or no pair is right.
        """
        from dataclasses import replace

        from sassafras.core import SassafrasError
        from sassafras.core.statistics import bootstrap_median
        from sassafras.device.cuda.timing import launches_a_block
        from sassafras.gemm.configuration import PLAIN, Mode
        from sassafras.gemm.graphs import paired, timed
        from sassafras.gemm.second_launch import candidates
        from sassafras.gemm.select import screen

        stage, begin = self.stage, time.perf_counter()
        operands = stage.operands(shape, 3)
        operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
        usable = [((la, a.workspace), call) for (la, a), call in algorithms(stage, shape, operands)]
        if not usable:
            raise SassafrasError("cuBLASLt has no algorithm that works", where=str(shape))
        lt = screen(stage, usable, stage.watch.one(usable[0][1]), 100.0, 3)
        guess = lt[0][0]
        # ours, in the shipped mode and plain
        configs = [c for config in shipped_configs(shape) for c in (config, replace(config, mode=PLAIN))]
        ours = screen(stage, [(c, stage.ours(c, operands)) for c in dict.fromkeys(configs)], guess, 100.0, 3)
        # pairs: all of them overlapping, the leaders in all modes
        ahead = [
            replace(pair, first=replace(pair.first, mode=Mode(overlap=True)))
            for layout in ("tn", "nn")
            for pair in candidates(shape, layout)
        ]
        pairs = self.screened(ahead, operands, guess, 40.0, 3)
        for _, pair, enqueue in pairs:
            if pair.first.stem.partition("/")[0] + pair.tile not in self.checked:
                self.checked.add(pair.first.stem.partition("/")[0] + pair.tile)
                self.right(pair.name, operands, enqueue)
        modes = [mode for _, pair, _ in pairs[:LEADERS] for mode in pair.in_modes()]
        modes += [replace(pair, ctas=2 * pair.ctas) for _, pair, _ in pairs[:2]]
        tried = self.screened(modes, operands, guess, 100.0, 5)
        chosen: dict[str, tuple[float, Any, Any]] = {}
        for role, wanted in (
            ("pair", lambda p: True), ("next", lambda p: p.first.stem != chosen["pair"][1].first.stem),
            ("alone", lambda p: not p.first.mode.overlap), ("plain", lambda p: not p.overlap),
        ):  # fmt: skip
            for us, pair, enqueue in tried:
                if wanted(pair) and self.right(pair.name, operands, enqueue):
                    chosen[role] = (us, pair, enqueue)
                    break
            if not chosen:
                raise SassafrasError("no pair is right", where=str(shape))
        unmoded = next((row for row in ours if row[1].mode == PLAIN), ours[0])
        final = {
            **chosen, "ours": ours[0], "ours 2": ours[min(1, len(ours) - 1)], "ours plain": unmoded,
            **{f"lt {number}": row for number, row in enumerate(lt[:3])},
        }  # fmt: skip
        names = list(final)
        blocks = [stage.block(e, launches_a_block(us, BLOCK_US)) for us, _, e in final.values()]
        table = timed(stage.gpu, stage.watch, blocks, ROUNDS)
        for name, block in zip(names, blocks, strict=True):
            if name in chosen and (why := operands.check(lambda b=block: stage.gpu.replay(b.graph)).why):
                self.wrong.append(f"{shape} {final[name][1].name} in a graph: {why}")
            block.discard(stage.gpu)
        medians = dict(zip(names, np.median(table, axis=0), strict=True))
        best_lt = min((n for n in names if n.startswith("lt")), key=lambda n: medians[n])
        best_ours = min(("ours", "ours 2", "ours plain"), key=lambda n: medians[n])
        best = chosen["pair"][1]
        _, first, second = self.bound(best, operands)
        alone = {
            key: us for us, key, _ in screen(stage, [("first", first), ("second", second)], guess, 100.0, 5)
        }

        def against(name: str) -> list[float]:
            ratio = paired(table, names.index(name), names.index("pair"))
            interval = bootstrap_median(ratio)
            return [round(float(x), 4) for x in (np.median(ratio), interval.low, interval.high)]

        tiles: dict[str, list[Any]] = {}
        for us, pair, _ in pairs:  # fastest first
            tiles.setdefault(pair.tile, [round(us, 3), f"{pair.layout} p{pair.first.parts}"])
        return {
            "shape": str(shape), "m": shape.m, "n": shape.n, "k": shape.k,
            "tiles": -(-shape.m // 128) * -(-shape.n // 128),
            "lt": round(medians[best_lt], 3), "lt_algorithm": list(final[best_lt][1]),
            "ours": round(medians[best_ours], 3), "ours_config": final[best_ours][1].name,
            "ours_plain": round(medians["ours plain"], 3),
            **{role: round(medians[role], 3) for role in chosen},
            **{f"{role}_config": row[1].name for role, row in chosen.items()},
            "over_lt": against(best_lt), "over_ours": against(best_ours),
            "first": round(alone["first"], 3), "second": round(alone["second"], 3),
            "by_tile": tiles, "by_mode": {pair.name: round(us, 3) for us, pair, _ in tried},
            "screened": len(pairs), "seconds": round(time.perf_counter() - begin, 2),
        }  # fmt: skip


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means, of all shapes and by tiles of 128 x 128."""

    def mean(some: list[dict[str, Any]], one: str, other: str) -> float | None:
        found = geomean(r[one] / r[other] for r in some)
        return found and round(found, 4)

    def of(some: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "shapes": len(some), "pair_over_lt": mean(some, "lt", "pair"),
            "ours_over_lt": mean(some, "lt", "ours"), "pair_over_ours": mean(some, "ours", "pair"),
            "best_over_lt": mean([{**r, "best": min(r["ours"], r["pair"])} for r in some], "lt", "best"),
            "beats_ours": sum(r["over_ours"][1] > 1.005 for r in some),
            "beats_lt": sum(r["over_lt"][1] > 1.005 for r in some),
        }  # fmt: skip

    groups = {
        f"{low} to {high} tiles": (low, high) for low, high in ((1, 4), (5, 8), (9, 16), (17, 32), (33, 66))
    }
    by = {name: [r for r in rows if low <= r["tiles"] <= high] for name, (low, high) in groups.items()}
    return {**of(rows), "by_tiles": {name: of(some) for name, some in by.items() if some}}


def main() -> int:
    """Run it; 1 when a shape failed or a result is wrong, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--prepare", action="store_true", help="compile, and do nothing else")
    parser.add_argument("--workers", type=int, help="with --prepare: processes")
    parser.add_argument("--seconds", type=float, default=40, help="start no shape after so long")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="the first so many")
    parser.add_argument("--only", help="these shapes instead, comma-separated")
    parser.add_argument(
        "--default-carveout", action="store_true", help="let the driver divide memory for the second kernel"
    )
    parser.add_argument("--dry-run", action="store_true", help="without a GPU, on a modelled clock")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    )
    given = parser.parse_args()
    from sassafras.core import SassafrasError
    from sassafras.device.cuda import available, environment
    from sassafras.device.cuda.driver import CudaError
    from sassafras.gemm.shapes import Shape

    texts = given.only.split(",") if given.only else SHAPES[: given.shapes]
    try:
        shapes = [Shape(*map(int, text.split("x"))) for text in texts]
    except (TypeError, ValueError):
        parser.error(f"shapes are MxNxK, comma-separated: {given.only}")
    if given.prepare:
        print(f"{prepare(given.cache, shapes, given.workers)} kernels")
        return 0
    usable, reason = available()
    if not given.dry_run:
        print(reason, flush=True)
        if not usable:
            return 2
    begin, rows, failed = time.perf_counter(), [], {}
    if given.dry_run:
        from sassafras.gemm.dry import DryStage as Stage
    else:
        from sassafras.gemm.stage import Stage  # type: ignore[assignment]
    contest = Contest(Stage(given.cache), not given.default_carveout)
    where = environment() if usable else {}
    name = "hgemm-second" + "-default-carveout" * given.default_carveout + "-dry" * given.dry_run
    for shape in shapes:
        if time.perf_counter() - begin > given.seconds:
            break
        try:
            row = contest.row(shape)
        except (SassafrasError, CudaError) as error:
            failed[str(shape)] = str(error)
            print(f"{shape}: {error}", flush=True)
            if getattr(error, "sticky", False):
                break
            continue
        rows.append(row)
        print(
            f"{row['shape']:>16}  lt {row['lt']:7.2f}  ours {row['ours']:7.2f} {row['ours_config']}  pair "
            f"{row['pair']:7.2f} {row['pair_config']}  over lt {row['over_lt'][0]:.3f}  over ours "
            f"{row['over_ours'][0]:.3f}  first {row['first']:.2f} second {row['second']:.2f}",
            flush=True,
        )
        summary = {
            "asked": len(shapes), "failed": failed, "wrong": contest.wrong, "modelled": given.dry_run,
            "kernels_checked": len(contest.checked), "seconds": round(time.perf_counter() - begin, 1),
            **summed(rows),
        }  # fmt: skip
        path = write(name, rows, summary, where, seed=3, out=given.out)
    if rows:
        print(*(f"{key}: {value}" for key, value in summary.items()), path.name, sep="\n", flush=True)
    return 1 if failed or contest.wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
