"""Does it matter which CTA takes which tile? Kernels that read their tile from a table, in many orders.

    python benchmarks/hgemm_order.py --cache .carry/order --prepare    # compiles; no GPU needed
    python benchmarks/hgemm_order.py --cache .carry/order              # writes hgemm-order.json

First, where CTAs are placed: the multiprocessor of each CTA of a launch, by cluster size, and which
multiprocessors are of one GPC (CTAs of a cluster are; clusters of many sizes are joined). Then, for each
question, a kernel of ours whose text is changed so that the tile comes from a table in memory (every CTA
waits some 0.5 us for it), timed in several orders, interleaved, beside the kernel as it ships and cuBLASLt's
fastest candidate. Orders: ``n``, ``m`` (that extent first), ``g8`` and others (bands, as the persistent
kernels have them), ``r4x2`` (CTA i belongs to group i % 8; the eight groups' blocks of tiles lie 4 x 2),
``gpc`` (the multiprocessors of a GPC take a compact block, as measured before), ``apart`` (the same with
tiles that share nothing), ``random``.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
from changed_kernel import Changed, algorithms, arguments, interleaved, without_gpu
from common import write

#: (shapes, configurations, compact blocks of tiles that are tried for a GPC)
QUESTIONS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("1024x512x4096", "512x1024x4096", "512x1024x8192", "256x2048x4096"), ("cs_nn_64x64_s10q1/c1",)),
    (("1024x1024x4096", "1024x1024x16384", "512x2048x8192", "2048x512x8192"), ("cs_nn_64x128_s7q1/c1",)),
    (
        ("1024x2048x4096", "1024x2048x16384", "2048x1024x8192", "512x4096x8192", "4096x512x8192"),
        ("cs_nn_128x128_s6q1/c1", "ws_nn_128x128_pp2s6b2c1x1/g4/k1"),
    ),
    (("2048x2048x4096", "2048x2048x16384", "1024x4096x8192"), ("ws_tn_128x256_co2s4b2c1x1l3/g8/k1",)),
    (
        ("8192x8192x2048", "4096x4096x8192", "16384x4096x2048"),
        ("ws_tn_128x256_co2s4b2c2x1l3/g8/k1",),
    ),
    (("4096x12288x1024", "8192x8192x512"), ("ws_tn_128x192_pp2s4b3c2x1/g8/k1",)),
)
ROUNDS = 11
GROUPS = 8

WHERE = """
extern "C" __global__ void where(unsigned *out) {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    const unsigned at = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    if (threadIdx.x == 0) out[at] = sm;
    const long long begin = clock64();
    while (clock64() - begin < 40000) {}
}
"""
#: how each family computes its tile, and what it is replaced by
PATCHES = {
    "cs": (
        "const At place(p.band);",
        "At place(p.band);\n"
        "        const u32 from_table = p.counters[blockIdx.y + gridDim.y * blockIdx.z];\n"
        "        place.row = from_table >> 16, place.column = from_table & 65535;",
    ),
    "ws": (
        "if (p.group == 0) {\n            hilbert(",
        "{\n            const u32 from_table = p.counters[tile];\n            row = from_table >> 16;\n"
        "            column = from_table & 65535;\n            return;\n        }\n"
        "        if (p.group == 0) {\n            hilbert(",
    ),
}


def from_table(instance: Any) -> Changed:
    """The kernel that reads its tile from a table."""
    return Changed(instance, (PATCHES[instance.name.split("_")[0]],))


def instances() -> list[Changed]:
    """All that are asked about."""
    from sassafras.gemm import families

    return [from_table(families.parse(name).instance) for _, names in QUESTIONS for name in names]


# -- orders -----------------------------------------------------------------------------


def compact(tiles: list[tuple[int, int]], block: tuple[int, int]) -> list[tuple[int, int]]:
    """The same tiles, block after block."""
    return sorted(tiles, key=lambda t: (t[0] // block[0], t[1] // block[1], t[0], t[1]))


def banded(tm: int, tn: int, wide: int) -> list[tuple[int, int]]:
    """In bands of `wide` rows, down their columns."""
    return [
        (row, column)
        for first in range(0, tm, wide)
        for column in range(tn)
        for row in range(first, min(tm, first + wide))
    ]


def grouped(
    tiles: list[tuple[int, int]], group: list[int], block: tuple[int, int], wave: int
) -> list[tuple[int, int]]:
    """Within every wave, the CTAs of a group take compact blocks.

    Args:
        tiles: in an order that is good over waves.
        group: of each CTA (or cluster) of a wave.
        block: rows and columns of the blocks.
        wave: CTAs (or clusters) at once.
    """
    found: list[tuple[int, int]] = []
    for begin in range(0, len(tiles), wave):
        part = tiles[begin : begin + wave]
        corner = (min(t[0] for t in part), min(t[1] for t in part))
        inside = compact([(t[0] - corner[0], t[1] - corner[1]) for t in part], block)
        turn = sorted(range(len(part)), key=lambda i: (group[i], i))
        placed: list[tuple[int, int]] = [(0, 0)] * len(part)
        for i, tile in zip(turn, inside, strict=True):
            placed[i] = (tile[0] + corner[0], tile[1] + corner[1])
        found += placed
    return found


def apart(tiles: list[tuple[int, int]], group: list[int], wave: int) -> list[tuple[int, int]]:
    """Within a wave, CTAs of a group take tiles on diagonals."""
    rows = 1 + max(t[0] for t in tiles)
    found: list[tuple[int, int]] = []
    for begin in range(0, len(tiles), wave):
        part = sorted(tiles[begin : begin + wave], key=lambda t: ((t[0] + t[1]) % rows, t[0]))
        turn = sorted(range(len(part)), key=lambda i: (group[i], i))
        placed: list[tuple[int, int]] = [(0, 0)] * len(part)
        for i, tile in zip(turn, part, strict=True):
            placed[i] = tile
        found += placed
    return found


def orders(
    tm: int, tn: int, gpcs: list[int], wave: int, persistent: bool
) -> dict[str, list[tuple[int, int]]]:
    """Tiles by CTA (or cluster), for every order."""
    rng = np.random.default_rng(0)
    n_first = [(m, n) for m in range(tm) for n in range(tn)]
    many = tm * tn > wave
    found = {"n": n_first, "m": [(m, n) for n in range(tn) for m in range(tm)]}
    if persistent:
        found |= {f"g{wide}": banded(tm, tn, wide) for wide in (4, 8, 16) if wide <= tm}
    classes = [i % GROUPS for i in range(wave)]
    for wide in (8, 16) if many else (tm,):
        base = banded(tm, tn, min(wide, tm))
        suffix = f"/g{wide}" if many else ""
        for block in ((2, 2), (2, 4), (4, 2), (4, 4), (2, 8), (8, 2), (1, 16), (16, 1)):
            if block[0] > tm or block[1] > tn or block[0] * block[1] > 2 * wave // GROUPS:
                continue
            name = f"{block[0]}x{block[1]}{suffix}"
            found[f"r:{name}"] = grouped(base, classes, block, wave)
            found[f"gpc:{name}"] = grouped(base, gpcs, block, wave)
        found[f"apart{suffix}"] = apart(base, gpcs, wave)
    found["random"] = [n_first[i] for i in rng.permutation(len(n_first))]
    return found


# -- where CTAs are placed -----------------------------------------------------------------------------


class Placement:
    """The multiprocessor of every CTA, and the GPC of every multiprocessor."""

    def __init__(self, tools: Any) -> None:
        import torch

        from sassafras.device.cuda.compile import compile_cuda

        self.tools = tools
        self.out = torch.zeros(4096, dtype=torch.int32, device="cuda")
        self.cubin = compile_cuda(WHERE, "sm_90a", name="where.cu")
        self.functions = {
            size: tools.gpu.load(self.cubin, "where", 200 << 10, (size, 1, 1)) for size in (1, 16)
        }
        joined: dict[int, int] = {}

        def root(x: int) -> int:
            while joined.setdefault(x, x) != x:
                x = joined[x]
            return x

        for size in (16, 12, 10, 8, 7, 6, 5, 4, 3, 2):
            for clusters in (132 // size, max(1, 120 // size)):
                try:
                    seen = self.launch((size * clusters, 1, 1), size)
                except Exception as error:  # a size that no GPC holds
                    print(f"clusters of {size}: {error}", flush=True)
                    break
                for begin in range(0, len(seen), size):
                    for sm in seen[begin : begin + size]:
                        joined[root(sm)] = root(seen[begin])
        alone = self.launch((132, 1, 1), 1)
        groups: dict[int, list[int]] = {}
        for sm in sorted(set(alone) | set(joined)):
            groups.setdefault(root(sm), []).append(sm)
        self.gpcs = sorted(groups.values())
        self.gpc_of = {sm: number for number, of in enumerate(self.gpcs) for sm in of}

    def launch(self, grid: tuple[int, int, int], cluster: int) -> list[int]:
        """The multiprocessor of every CTA, in the order of their numbers."""
        import ctypes

        gpu, function = self.tools.gpu, self.functions[16 if cluster > 8 else 1]
        self.out.fill_(-1)
        value = ctypes.c_uint64(int(self.out.data_ptr()))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        gpu.launch(gpu.config(grid, 128, 200 << 10, (cluster, 1, 1)), function, ctypes.addressof(pointers))
        gpu.sync()
        return [int(x) for x in self.out[: grid[0] * grid[1] * grid[2]].tolist()]

    def groups(self, ctas: int, cluster: int) -> list[int]:
        """The GPC of every cluster of a launch."""
        return [self.gpc_of[sm] for sm in self.launch((ctas, 1, 1), cluster)[::cluster]]

    def report(self) -> dict[str, Any]:
        """For the summary."""
        launches = {
            f"{ctas} in {cluster}": [self.launch((ctas, 1, 1), cluster) for _ in range(3)]
            for ctas, cluster in ((132, 1), (128, 1), (132, 2), (128, 2), (128, 4))
        }
        return {
            "gpcs": self.gpcs, "same_again": {k: v[0] == v[1] == v[2] for k, v in launches.items()},
            "gpc_of_ctas": {
                k: [self.gpc_of[sm] for sm in v[0]] for k, v in launches.items()
            }, "sm_of_ctas": {k: v[0] for k, v in launches.items()},
        }  # fmt: skip


# -- questions -----------------------------------------------------------------------------


def answer(tools: Any, place: Placement, shape: Any, name: str, lt: Any) -> dict[str, Any]:
    """One kernel on one shape, in all orders."""
    import torch

    from sassafras.gemm import families
    from sassafras.gemm.configuration import PLAIN
    from sassafras.gemm.graphs import rough_us

    config = replace(families.parse(name), mode=PLAIN)
    operands = tools.operands(shape, 3)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    launch = config.launch(shape)
    tm, tn = config.tiles(shape)
    persistent = name.startswith("ws")
    cluster = config.cluster
    ctas = launch.grid[0] * launch.grid[1] * launch.grid[2]
    wave = min(ctas, 132 // cluster * cluster) // cluster
    gpcs = place.groups(wave * cluster, cluster)
    a, b, c = operands.addresses(config.layout)
    addresses = {"a": a, "b": b, "c": c, "workspace": 0}
    changed = from_table(config.instance)
    made: list[tuple[str, Any]] = [("shipped", tools.ours(config, operands)), ("lt", lt(operands))]
    keep, wrong = [], []
    for order, tiles in orders(tm, tn, gpcs, wave, persistent).items():
        if sorted(tiles) != [(m, n) for m in range(tm) for n in range(tn)]:
            raise SystemExit(f"{order}: not every tile once")
        table = torch.tensor([m << 16 | n for m, n in tiles], dtype=torch.int32, device="cuda")
        keep.append(table)
        enqueue = tools._bound(changed, launch, {**addresses, "counters": int(table.data_ptr())})
        if why := operands.check(enqueue).why:
            wrong.append(f"{order}: {why}")
            continue
        made.append((order, enqueue))
    guess = rough_us(tools, made[0][1])
    length = 2000.0 if guess > 60 else 300.0
    us = interleaved(tools, made, ROUNDS, length)
    return {
        "shape": str(shape), "config": name, "tiles": [tm, tn], "wave": wave, "us": us, "wrong": wrong,
        "best": min((o for o in us if o not in ("lt", "shipped")), key=lambda o: us[o]),
    }  # fmt: skip


def main() -> int:
    """Answer all questions."""
    given = arguments(__doc__).parse_args()
    from sassafras.gemm import families
    from sassafras.gemm.compile import build
    from sassafras.gemm.shapes import Shape

    plain = [families.parse(name).instance for _, names in QUESTIONS for name in names]
    build([*instances(), *plain], given.cache)
    if given.prepare:
        return 0
    if without_gpu():
        return 2
    from sassafras.device.cuda import environment
    from sassafras.gemm.select import screen
    from sassafras.gemm.stage import Stage

    begin = time.perf_counter()
    tools = Stage(given.cache)
    place = Placement(tools)
    summary: dict[str, Any] = {"placement": place.report()}
    print([len(of) for of in place.gpcs], summary["placement"]["same_again"], flush=True)
    print(summary["placement"]["gpc_of_ctas"]["132 in 1"], flush=True)
    rows = []
    for shapes, names in QUESTIONS:
        for text in shapes:
            shape = Shape(*map(int, text.split("x")))

            def lt(operands: Any, shape: Any = shape) -> Any:
                usable = algorithms(tools, shape, operands)
                return screen(tools, usable, tools.watch.one(usable[0][1]), 100.0, 3)[0][2]

            for name in names:
                if time.perf_counter() - begin > given.seconds:
                    break
                rows.append(answer(tools, place, shape, name, lt))
                us = rows[-1]["us"]
                ranked = sorted(us, key=lambda o: us[o])
                print(text, name, {o: us[o] for o in ("lt", "shipped", "n", "m")},
                      "best", {o: us[o] for o in ranked[:5]}, "worst", {o: us[o] for o in ranked[-2:]},
                      rows[-1]["wrong"], flush=True)  # fmt: skip
                write("hgemm-order", rows, summary, environment(), seed=3, out=given.out)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
