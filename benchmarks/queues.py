"""What ptxas leaves to in-order queues, pair by pair: writes queues.json. Needs nvcc, no GPU.

    python benchmarks/queues.py [--seeds 20] [--conversions 20] [--matrix 14] [--archs sm_90a,sm_80]
        [--jobs 2] [--work FOLDER] [CORPUS ...]

An operation of variable latency reads its operands late, and its results come late. Before a register is read
or overwritten, something must say that the operation is done. Within basic blocks, for every such register:

* its own scoreboard was waited for; or
* scoreboards of later operations were: which? Where all of them are one kind, that kind *vouches* for it; or
* nothing was: then whoever overwrites the register is *queued* behind it.

The validator may rely on a pair only if ptxas does (`validate/classes.py`), and must, or it refuses compiled
code. A seed is 25 made kernels, random mixtures of stores, loads, shuffles and arithmetic under few
registers, compiled by nvcc's ptxas and by Triton's; a seed of --conversions mixes conversions of 32 and of 64
bits, transcendentals, bit counting, FP64, DMMA, and what lanes exchange. Conversions from or to 64 bits are
opcodes of their own here: ``F2I.64`` is F2I with F64, S64 or U64 in its name. CORPUS: folders of further
cubins. Each finished cubin is a line of queues.rows.jsonl in the work folder; the same command goes on behind
them. What is read and written is taken from the disassembler's liveness oracle, not from the validator.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import queues_matrix
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


#: a step of `conversions`: {f} an FP32 value, {i} a 32-bit, {l} a 64-bit integer, {d} an FP64 value
_CONVERSIONS = (
    'asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"({f}) : "f"({f}));',
    'asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"({f}) : "f"({f}));',
    'asm volatile("sqrt.approx.ftz.f32 %0, %1;" : "=f"({f}) : "f"({f}));',
    'asm volatile("tanh.approx.f32 %0, %1;" : "=f"({f}) : "f"({f}));',
    'asm volatile("rcp.approx.ftz.f64 %0, %1;" : "=d"({d}) : "d"({d}));',
    "{f} = __int2float_rd({i});", "{f} = (signed char){i};", "{i} = (int){f};", "{i} = (unsigned){f};",
    "{f} = rintf({f});", "{i} = __popc({i});", "{i} = __clz({i});", "{i} = __brev({i});",
    "{d} = {f};", "{f} = {d};", "{d} = {i};", "{i} = (int){d};", "{l} = (long long){d};", "{d} = {l};",
    "{f} = {l};", "{l} = (long long){f};", "{d} = rint({d});", "{d} = (unsigned){i};",
)  # fmt: skip
_DOUBLES = ("{d} = fma({d}, {d}, {d});", "{d} *= {d};", "{d} += {d};")
_PRODUCT = (
    'asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {{%0, %1}}, {{%2}}, {{%3}}, {{%0, %1}};"'
    ' : "+d"(d0), "+d"(d1) : "d"({d}), "d"({d}));'
)
_LANES = (
    "{i} = __shfl_xor_sync(-1, {i}, 1);", "{i} = __match_any_sync(-1, {i});", "{i} = s[{i} & 1023];",
    "{i} = __reduce_add_sync(-1, {i});", "{i} = atomicAdd(&s[{i} & 1023], {i});", "s[{i} & 1023] = {i};",
    "{i} = atomicMax(&s[{i} & 1023], {i});",
)  # fmt: skip


_CONVERTING_LIMITS: tuple[list[str], ...] = ([], ["-maxrregcount=32"], ["-maxrregcount=40"])


def conversions(seed: int) -> str:
    """CUDA source of a seed's kernels that convert."""
    rng = random.Random(1_000_003 + seed)
    return "\n".join(_converting(n, rng) for n in range(KERNELS))


def _converting(number: int, rng: random.Random) -> str:
    counts = {"f": rng.choice([2, 4, 8]), "i": rng.choice([2, 4, 8]), "l": 2, "d": rng.choice([2, 3, 5])}
    types = {"f": "float", "i": "int", "l": "long long", "d": "double"}
    # few kinds in a kernel, so that many of one kind share a scoreboard
    steps = rng.sample(_CONVERSIONS, rng.choice([2, 4, 8, len(_CONVERSIONS)]))
    steps += rng.choice([(), (), _DOUBLES, _DOUBLES, (_PRODUCT,)])
    steps += rng.choice([(), (), rng.sample(_LANES, 2)])

    def step() -> str:
        text = rng.choice(steps)
        # each place its own value
        return (
            re.sub(r"(?<!\{)\{([fild])\}(?!\})", lambda m: f"{m[1]}{rng.randrange(counts[m[1]])}", text)
            .replace("{{", "{")
            .replace("}}", "}")
        )

    lines = [
        f'extern "C" __global__ void k{number}(char* __restrict__ p, int n, int ld) {{',
        "int t = threadIdx.x + blockIdx.x * blockDim.x;", "__shared__ int s[1024];",
        "s[threadIdx.x] = t; __syncthreads();",
    ]  # fmt: skip
    for kind, count in counts.items():
        lines += [f"{types[kind]} {kind}{n} = (({types[kind]}*)p)[t + {n} * ld];" for n in range(count)]
    lines += ["#pragma unroll 1", "for (int it = 0; it < n; it++) {"] if rng.random() < 0.4 else ["{"]
    lines += [step() for _ in range(rng.choice([20, 40, 60]))]
    lines += ["}"]
    for kind, count in counts.items():
        lines += [f"(({types[kind]}*)p)[t + {n + 99} * ld] = {kind}{n};" for n in range(count)]
    return "\n".join([*lines, "}"])


def made(seed: int, arch: str, folder: Path, kind: str = "seed") -> list[Path]:
    """Compile a seed of a kind's kernels (``seed``, ``convert``, ``matrix``) with both compilers, with few
    registers or any number; what is there stays."""
    from sassafras.sass.tools import find_all

    few = queues_matrix.LIMITS[seed % 3] if kind != "convert" else _CONVERTING_LIMITS[seed % 3]
    stem = folder / f"{kind}{seed}-{arch}"
    cu, ptx = stem.with_suffix(".cu"), stem.with_suffix(".ptx")
    cubins = [folder / f"{stem.name}-{which}.cubin" for which in ("nvcc", "triton")]
    if all(path.exists() for path in cubins):
        return cubins
    texts = {
        "seed": source, "convert": conversions,
        "matrix": lambda n: "\n".join(queues_matrix.kernels(n, arch.startswith("sm_90"))),
    }  # fmt: skip
    cu.write_text(texts[kind](seed))
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


def relied_on(path: str) -> Row:
    """One cubin: by (kind, first opcode, who, second opcode), how often, and in how many kernels.

    Kinds are ``reads`` and ``results`` of the first; who is ``own``, the only opcode to vouch,
    several joined by ``|``, or ``""`` where nothing was waited for and the second is queued. The second
    is ``""`` where it is of fixed latency, or reads a result.
    """
    from sassafras.core import SassafrasError
    from sassafras.sass import ARCHS, Program

    try:
        program = Program.parse(Path(path).read_bytes())
    except SassafrasError as error:
        return {"path": path, "arch": "", "kernels": 0, "counts": [], "unread": str(error)}
    row: Row = {"path": path, "arch": program.arch, "kernels": 0, "counts": []}
    if program.arch not in ARCHS or ARCHS[program.arch].scheduled is False:
        return row
    counts: Counter[tuple[str, str, str, str]] = Counter()
    kernels: Counter[tuple[str, str, str, str]] = Counter()
    for function in program.functions.values():
        row["kernels"] += 1
        one: Counter[tuple[str, str, str, str]] = Counter()
        for block in function.blocks:
            one.update(_block(function.instructions[block.start : block.end], program.arch))
        counts.update(one)
        kernels.update(one.keys())
    row["counts"] = [[*key, count, kernels[key]] for key, count in sorted(counts.items())]
    return row


@dataclass(slots=True)
class _Late:
    """What of an operation is late: registers nobody has needed yet, and by scoreboard who would vouch."""

    base: str
    guard: str
    results: bool
    registers: set[int]
    by: dict[int, set[str]]
    done: set[str] = field(default_factory=set)


def _block(code: Sequence[Any], arch: str) -> Iterator[tuple[str, str, str, str]]:
    from sassafras.sass.registers import GPR, PRED

    late: list[_Late] = []
    for i in code:
        if i.guard in ("!PT", "!UPT"):
            continue
        c, name = i.control, _name(i)
        for one in late:
            for bit, who in one.by.items():
                if c.wait_mask >> bit & 1:
                    one.done |= who
        for one in late:
            hit = one.registers & ((i.reads | i.writes) if one.results else i.writes)
            if hit and not _exclusive(one.guard, i.guard):
                one.registers -= hit
                who = "own" if "own" in one.done else "|".join(sorted(one.done))
                # (what is read without a wait would be a fault: whoever reads is not queued behind)
                second = name if _variable(i, arch) and not (one.results and hit & i.reads) else ""
                yield "results" if one.results else "reads", one.base, who, second
        late = [one for one in late if one.registers]
        write = () if c.write_barrier is None else (c.write_barrier,)
        read = () if c.read_barrier is None else (c.read_barrier,)
        for one in late:
            for bit in write if one.results else (*write, *read):
                one.by.setdefault(bit, set()).add(name)
        if _variable(i, arch):
            own: set[str] = {"own"}
            operands = {r for r in i.reads if GPR <= r < PRED}
            results = {r for r in i.writes if GPR <= r < PRED}
            late.append(_Late(name, i.guard, False, operands, {b: set(own) for b in (*write, *read)}))
            late.append(_Late(name, i.guard, True, results, {b: set(own) for b in write}))


def _name(i: Any) -> str:
    """The opcode; conversions from or to 64 bits, and MUFU on the high word of an FP64 value, go by
    names of their own."""
    mods = i.opcode.split(".")[1:]
    if i.base == "MUFU" and mods[0].endswith("64H"):
        return "MUFU.64H"
    wide = i.base in ("F2F", "F2I", "I2F", "FRND") and not {"F64", "S64", "U64"}.isdisjoint(mods)
    return f"{i.base}.64" if wide else str(i.base)


def _exclusive(a: str, b: str) -> bool:
    return a not in ("", "PT") and b not in ("", "PT") and a.lstrip("!") == b.lstrip("!") and a != b


def _variable(i: Any, arch: str) -> bool:
    fixed = arch.startswith("sm_90") and i.base in ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX")
    return bool(i.op.variable) and not fixed and str(i.op.fence) == "none"


def table(rows: list[Row]) -> list[Row]:
    """By kind, opcodes, architecture and compiler: how often, in how many kernels."""
    counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for row in rows:
        made_by = re.search(r"-(nvcc|triton)\.cubin$", row["path"])
        for kind, first, who, second, count, kernels in row["counts"]:
            key = (kind, first, who, second, row["arch"], made_by[1] if made_by else "corpus")
            counts[key].update(count=count, kernels=kernels)
    names = ("kind", "first", "who", "second", "arch", "compiler")
    return [{**dict(zip(names, key, strict=True)), **c} for key, c in sorted(counts.items())]


def published(rows: list[Row]) -> list[Row]:
    """The rows where one kind of operation, or none, is why; all seconds of what is waited for as one."""
    counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for row in rows:
        if "|" not in row["who"]:
            second = "" if row["who"] else row["second"]
            key = (row["kind"], row["first"], row["who"], second, row["arch"], row["compiler"])
            counts[key].update(count=row["count"], kernels=row["kernels"])
    names = ("kind", "first", "who", "second", "arch", "compiler")
    return [{**dict(zip(names, key, strict=True)), **c} for key, c in sorted(counts.items())]


def summarise(rows: list[Row], cubins: list[Row]) -> Row:
    """Totals of each pair that ptxas relies on alone, and what the validator makes of it."""
    from sassafras.validate import classes

    vouched = {"reads": classes.READ_VOUCHERS, "results": classes.RESULT_VOUCHERS}
    queued = {"reads": classes.QUEUED_WRITERS, "results": classes.QUEUED_RESULTS}
    alone: dict[str, Counter[str]] = defaultdict(Counter)
    behind: dict[str, Counter[str]] = defaultdict(Counter)
    own: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for row in rows:
        kind, first, who, second = row["kind"], row["first"], row["who"], row["second"]
        n = {"count": row["count"], "kernels": row["kernels"]}
        name = f"{kind} of {first}"
        if who == "own":
            own[name] += row["count"]
        elif who and second in queued[kind].get(first, ()):
            continue  # either may be why
        elif not who:
            behind[f"{name}: {second or 'fixed latency'}"].update(n)
            if second not in queued[kind].get(first, ()):
                refused[f"{name}: {second or 'fixed latency'} behind"] += row["count"]
        else:
            if "|" not in who:
                alone[f"{name}: {who}"].update(n)
            if not set(who.split("|")) & vouched[kind].get(first, frozenset()):
                refused[f"{name}: {who}"] += row["count"]
    accepted = {
        f"{kind} of {first}: {who}"
        for kind, pairs in vouched.items()
        for first, others in pairs.items()
        for who in others
    }
    return {
        "cubins": len(cubins), "unread": sum("unread" in row for row in cubins),
        "kernels": sum(row["kernels"] for row in cubins),
        "own": dict(own.most_common()),
        "vouched_by_one_kind": {key: dict(c) for key, c in sorted(alone.items())},
        "queued": {key: dict(c) for key, c in sorted(behind.items())},
        "relied_on_but_refused": dict(refused.most_common()),
        "accepted_but_not_alone": sorted(accepted - alone.keys()),
    }  # fmt: skip


def main() -> int:
    """Make, read, count; 1 where the validator refuses what ptxas relies on."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", nargs="*", type=Path, help="folders of further cubins")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--conversions", type=int, default=20, help="seeds of kernels that convert")
    parser.add_argument("--matrix", type=int, default=0, help="seeds of queues_matrix.py besides")
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
    for kind, seeds in (("convert", options.conversions), ("matrix", options.matrix)):
        for seed in range(seeds):
            for arch in filter(None, options.archs.split(",")):
                paths += made(seed, arch, options.work, kind)
    journal = options.work / "queues.rows.jsonl"
    rows = {row["path"]: row for row in (read_lines(journal) if journal.exists() else ())}
    left = [str(path) for path in paths if str(path) not in rows]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool, journal.open("a") as file:
        for row in pool.map(relied_on, left):
            rows[row["path"]] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
    kept = [rows[str(path)] for path in paths]
    counted = table(kept)
    summary = summarise(counted, kept)
    nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False).stdout
    told = re.search(r"V([\d.]+)", nvcc)
    environment = {"gpu": None, "python": platform.python_version(), "nvcc": told[1] if told else None}
    command = f"python benchmarks/queues.py --seeds {options.seeds} --conversions {options.conversions}"
    command += f" --archs {options.archs}"
    command += f" --matrix {options.matrix}" if options.matrix else ""
    command += " CORPUS" * len(options.corpus)  # paths of this machine mean nothing
    path = write("queues", published(counted), summary, environment, out=options.out, command=command)
    print(json.dumps(summary, indent=1), f"\nwrote {path.name}")
    return 1 if summary["relied_on_but_refused"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
