"""Which overwriting ptxas leaves to in-order queues: writes queues.json. Needs nvcc, no GPU.

    python benchmarks/queues.py [--seeds 20] [--archs sm_90a,sm_80] [--jobs 2] [--work FOLDER] [CORPUS ...]

Where an instruction overwrites what an earlier one reads late ("war"), or what an earlier one loads and
nobody uses ("waw"), ptxas waits for a scoreboard, unless it knows that the later one queues behind. For each
pair of opcodes: how often nothing that is waited for proves the earlier one done. The validator may accept
such a pair only if ptxas leaves it so (`QUEUED_WRITERS`, `QUEUED_RESULTS`), and must, or it refuses compiled
code.

A seed is 25 made kernels, random mixtures of stores, loads, shuffles and arithmetic under few registers,
compiled by nvcc's ptxas and by Triton's. CORPUS: folders of further cubins. Each finished cubin is a line of
queues.rows.jsonl in the work folder; the same command goes on behind them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import subprocess
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from common import read_lines, write

Row = dict[str, Any]
#: kernels of a seed
KERNELS = 25
#: PTX of this version is read by the older of the two ptxas
_PTX = "8.6"


def source(seed: int) -> str:
    """CUDA source of a seed's kernels."""
    rng = random.Random(seed)
    return "\n".join(_kernel(n, rng) for n in range(KERNELS))


def _kernel(number: int, rng: random.Random) -> str:
    count, width = rng.choice([4, 6, 8, 12]), rng.choice([1, 1, 2, 4])
    guarded, loop = rng.choice([0, 1, 0.5]), rng.random() < 0.4
    chances = {"shfl": (1, 3), "stg": (1, 2), "fadd": (1, 3), "ldg": (0, 0, 1), "ldg4": (0, 0, 1)}
    if shared := rng.random() < 0.8:
        chances |= {"lds": (0, 2, 3), "sts": (0, 1), "lds4": (0, 1, 3)}
    steps = [name for name, choices in chances.items() for _ in range(rng.choice(choices))]
    kind = {1: "float", 2: "float2", 4: "float4"}[width]

    def value() -> str:
        return f"v{rng.randrange(count)}"

    def step(n: int, what: str) -> list[str]:
        if what == "shfl":
            form = rng.choice(["xor_sync(-1, {}, {})", "up_sync(-1, {}, {})", "sync(-1, {}, {})"])
            return [f"{value()} = __shfl_{form.format(value(), rng.choice([1, 2, 4, 8, 16]))};"]
        if what == "fadd":
            return [f"{value()} += {value()} * {value()};"]
        if what == "lds":
            return [f"{value()} = s[(l{rng.choice(['', ' ^ 5'])}) + {4 * rng.randrange(256)}];"]
        if what == "sts":
            return [f"s[l + {256 * rng.randrange(16)}] = {value()};"]
        if what == "ldg":
            return [f"{value()} = in[t + {rng.randrange(64)} * ld];"]
        if what in ("lds4", "ldg4"):  # three of its four words are used
            place = f"((const float4*)in)[t + {rng.randrange(64)} * ld]"
            if what == "lds4":
                place = f"((float4*)s)[(l ^ {rng.choice([1, 2, 3])}) + {rng.randrange(64)}]"
            parts = rng.sample("xyzw", 3)
            return [f"float4 q{n} = {place};", *(f"{value()} += q{n}.{part};" for part in parts)]
        data = value() if width == 1 else f"make_{kind}({', '.join(value() for _ in range(width))})"
        guard = f"if (t + {rng.randrange(99)} < ld) " if rng.random() < guarded else ""
        return [f"{guard}out[t + (long)ld * {rng.randrange(99)}] = {data};"]

    lines = [
        f'extern "C" __global__ void k{number}(',
        f"const float* __restrict__ in, {kind}* __restrict__ out, int n, int ld) {{",
        "int t = threadIdx.x + blockIdx.x * blockDim.x, l = threadIdx.x;",
    ]
    lines += ["__shared__ float s[4096];"] if shared else []
    lines += [f"float v{i} = in[t + {i} * ld];" for i in range(count)]
    if shared:
        lines += [*(f"s[l + {256 * i}] = v{i};" for i in range(count)), "__syncthreads();"]
    lines += ["#pragma unroll 1", "for (int it = 0; it < n; it++) {", "t += ld;"] if loop else []
    for n in range(rng.choice([20, 40, 60])):
        lines += step(n, rng.choice(steps))
    lines += ["}"] if loop else []
    lines += [f"if (t < n) ((float*)out)[t + {i} * ld] = v{i};" for i in range(count)]
    return "\n".join([*lines, "}"])


def made(seed: int, arch: str, folder: Path) -> list[Path]:
    """Compile a seed with both compilers, with 24, 32 or any number of registers; what is there stays."""
    from sassafras.sass.tools import find_all

    few = [[], ["-maxrregcount=32"], ["-maxrregcount=24"]][seed % 3]
    stem = folder / f"seed{seed}-{arch}"
    cu, ptx = stem.with_suffix(".cu"), stem.with_suffix(".ptx")
    cubins = [folder / f"{stem.name}-{which}.cubin" for which in ("nvcc", "triton")]
    if all(path.exists() for path in cubins):
        return cubins
    cu.write_text(source(seed))
    _run("nvcc", f"-arch={arch}", "-ptx", "-o", ptx, cu)
    ptx.write_text(re.sub(r"(?m)^\.version .*", f".version {_PTX}", ptx.read_text()))
    _run("nvcc", f"-arch={arch}", "-cubin", *few, "-o", cubins[0], cu)
    ptxas = next(t.path for t in find_all("ptxas") if t.origin == "triton")
    _run(ptxas, f"-arch={arch}", *few, "-o", cubins[1], ptx)
    return cubins


def _run(*command: str | Path) -> None:
    """Run a compiler; its errors end this."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"error: {Path(command[0]).name}: {done.stderr.strip()[:500]}")


def pairs(path: str) -> Row:
    """One cubin's pairs: [kind, first, second, guarded, waited, cycles (-1 over a branch), kernel]."""
    from sassafras.core import SassafrasError
    from sassafras.sass import ARCHS, Function, Program
    from sassafras.sass.latency import LatencyTable
    from sassafras.validate import classes, kernels
    from sassafras.validate.analysis import Analysis
    from sassafras.validate.dependences import ORDER, RAW, Pair

    classes.QUEUED_WRITERS, classes.QUEUED_RESULTS = {}, {}  # of this process: every pair is looked at

    class Watched(Analysis):
        """Notes by (second, first, rule) how the two meet."""

        def __init__(self, function: Function, table: LatencyTable) -> None:
            self.met: dict[tuple[int, int, int], set[int]] = defaultdict(set)
            super().__init__(function, table)

        def _rule(self, pair: Pair) -> int | None:
            rule = super()._rule(pair)
            if rule is not None:
                self.met[pair.second, pair.first, rule].add(pair.kind)
            return rule

    program = Program.parse(Path(path).read_bytes())
    row: Row = {"path": path, "arch": program.arch, "kernels": 0, "unsupported": 0, "pairs": []}
    if program.arch not in ARCHS or ARCHS[program.arch].scheduled is False:
        return row
    latencies = LatencyTable.load(ARCHS[program.arch].table)
    for name, function in program.functions.items():
        try:
            a = Watched(function, latencies)
        except SassafrasError:
            row["unsupported"] += 1
            continue
        row["kernels"] += 1
        stall = np.array([i.control.stall for i in a.code], dtype=np.uint8)
        times, lengths = np.empty(a.count, dtype=np.int32), np.empty(len(a.blocks), dtype=np.int32)
        kernels.issue_times(stall, a.block_start, a.block_end, times, lengths)
        out = np.empty((1 << 16, 2), dtype=np.int32)
        found = a.pending(np.arange(a.count, dtype=np.int32), a.original_high, times, lengths, out)
        pending = {(int(p), int(code)) for p, code in out[:found] if 0 <= code < kernels.AT_FENCE}
        for (second, first, rule), kinds in a.met.items():
            if not a.variable[second] or RAW in kinds or kinds == {ORDER}:
                continue  # of fixed latency; or somebody has used the result, hence waited for it
            i, j = a.code[first], a.code[second]
            near = a.block_of[first] == a.block_of[second] and first < second
            cycles = int(times[second] - times[first]) if near else -1
            waited = (second, 2 * int(a.number[first]) + rule) not in pending
            row["pairs"].append(
                ["war" if rule else "waw", i.base, j.base, bool(i.guard), waited, cycles, name]
            )
    return row


def table(rows: list[Row]) -> list[Row]:
    """By kind, opcodes, architecture and compiler: how many pairs are waited for, and how many are not."""
    counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    where: dict[tuple[str, ...], set[str]] = defaultdict(set)
    least: dict[tuple[str, ...], int] = {}
    for row in rows:
        made_by = re.search(r"-(nvcc|triton)\.cubin$", row["path"])
        compiler = made_by[1] if made_by else "corpus"
        for kind, first, second, guarded, waited, cycles, kernel in row["pairs"]:
            key = (kind, first, second, row["arch"], compiler)
            counts[key]["waited" if waited else "unwaited"] += 1
            if not waited:
                counts[key]["unwaited_guarded"] += guarded
                where[key].add(f"{row['path']}:{kernel}")
                if cycles >= 0:
                    least[key] = min(cycles, least.get(key, cycles))
    names = ("kind", "first", "second", "arch", "compiler")
    return [
        {
            **dict(zip(names, key, strict=True)), "unwaited": c["unwaited"], "waited": c["waited"],
            "unwaited_guarded": c["unwaited_guarded"], "kernels": len(where[key]),
            "least_cycles": least.get(key),
        }
        for key, c in sorted(counts.items())
    ]  # fmt: skip


def summarise(rows: list[Row], cubins: list[Row]) -> Row:
    """Totals of each pair that is ever left to a queue; what the validator makes of them."""
    from sassafras.validate import classes

    accepted = {("war", a, b) for a, behind in classes.QUEUED_WRITERS.items() for b in behind}
    accepted |= {("waw", a, b) for a, behind in classes.QUEUED_RESULTS.items() for b in behind}
    totals: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        one = totals[row["kind"], row["first"], row["second"]]
        one.update({name: row[name] for name in ("unwaited", "waited", "kernels", "unwaited_guarded")})
    seen = {key for key, c in totals.items() if c["unwaited"]}

    def said(keys: Any) -> Row:
        return {" ".join(key): dict(totals[key]) for key in sorted(keys)}

    return {
        "cubins": len(cubins), "kernels": sum(row["kernels"] for row in cubins),
        "unsupported": sum(row["unsupported"] for row in cubins),
        "pairs": sum(c["unwaited"] + c["waited"] for c in totals.values()),
        "unwaited": said(seen), "unwaited_but_refused": said(seen - accepted),
        "accepted_but_not_seen": [" ".join(key) for key in sorted(accepted - seen)],
        "always_waited": said(
            key for key, c in totals.items() if key not in seen and key[1] in ("STG", "STL", "STS", "LDG")
        ),
    }  # fmt: skip


def main() -> int:
    """Make, read, count; 1 where the validator refuses what ptxas does."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", nargs="*", type=Path, help="folders of further cubins")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--archs", default="sm_90a,sm_80")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("runs/queues"))
    parser.add_argument("--out", default=os.environ.get("OUT"))
    options = parser.parse_args()
    if missing := [str(folder) for folder in options.corpus if not folder.is_dir()]:
        parser.error("there is no folder " + ", ".join(missing))
    options.work.mkdir(parents=True, exist_ok=True)
    paths = [path for folder in options.corpus for path in sorted(folder.rglob("*.cubin"))]
    for seed in range(options.seeds):
        for arch in filter(None, options.archs.split(",")):
            paths += made(seed, arch, options.work)
    journal = options.work / "queues.rows.jsonl"
    rows = {row["path"]: row for row in (read_lines(journal) if journal.exists() else ())}
    left = [str(path) for path in paths if str(path) not in rows]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool, journal.open("a") as file:
        for row in pool.map(pairs, left):
            rows[row["path"]] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
    kept = [rows[str(path)] for path in paths]
    counted = table(kept)
    summary = summarise(counted, kept)
    nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False).stdout
    told = re.search(r"V([\d.]+)", nvcc)
    environment = {"gpu": None, "python": platform.python_version(), "nvcc": told[1] if told else None}
    command = f"python benchmarks/queues.py --seeds {options.seeds} --archs {options.archs}"
    command += " CORPUS" * len(options.corpus)  # paths of this machine mean nothing
    path = write("queues", counted, summary, environment, out=options.out, command=command)
    print(json.dumps(summary, indent=1), f"\nwrote {path.name}")
    return 1 if summary["unwaited_but_refused"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
