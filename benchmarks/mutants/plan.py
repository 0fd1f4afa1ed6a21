"""Making mutants and judging them with the validator: no GPU. One compressed file a kernel."""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import time
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.core.files import write_whole

Row = dict[str, Any]
KINDS = ("swap", "move", "stall", "wait", "scoreboard", "reuse")
#: how often each kind is drawn. "wide": one to four edits; "near": one edit, and nothing moves far, so that
#: what is refused is refused for one small reason
CHANCES = {"wide": (0.2, 0.25, 0.25, 0.12, 0.1, 0.08), "near": (0.3, 0.0, 0.3, 0.16, 0.14, 0.1)}
FORMAT = 2


class NoPlan(ValueError):
    """There is no plan, or it is one of another version or another validator."""


def mutate(
    function: Any, rng: np.random.Generator, edits: str = "wide"
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """One mutant: order, upper words by position, and the kinds of edits that made it."""
    from sassafras.sass.opcodes import BRANCHES

    order = np.arange(len(function))
    high = function.words[:, 1].copy()
    fixed = np.array([i.base in BRANCHES or i.base == "NOP" for i in function.instructions])
    blocks = [b for b in function.blocks if b.end - b.start > 2 and not fixed[b.start : b.end].all()]
    sizes = np.array([b.end - b.start for b in blocks], dtype=float)
    kinds: list[str] = []
    for _ in range(1 if edits == "near" else min(int(rng.geometric(0.55)), 4)):
        block = blocks[rng.choice(len(blocks), p=sizes / sizes.sum())]
        at = int(rng.integers(block.start, block.end))
        if fixed[order[at]]:
            continue
        kind = str(rng.choice(KINDS, p=CHANCES[edits]))
        if kind in ("swap", "move"):
            reach = 1 if kind == "swap" else int(rng.integers(2, 25))
            to = int(np.clip(at + reach * rng.choice((-1, 1)), block.start, block.end - 1))
            if to == at or fixed[order[min(at, to) : max(at, to) + 1]].any():
                continue
            for array in (order, high):
                moved = array[at]
                rest = np.delete(array[block.start : block.end], at - block.start)
                array[block.start : block.end] = np.insert(rest, to - block.start, moved)
        else:
            high[at] = np.uint64(_edit(int(high[at]), kind, rng))
        kinds.append(kind)
    return order, high, kinds


def _edit(word: int, kind: str, rng: np.random.Generator) -> int:
    def put(shift: int, width: int, value: int) -> int:
        mask = ((1 << width) - 1) << shift
        return (word & ~mask) | (value << shift)

    if kind == "stall":
        old = word >> 41 & 0xF
        lowered = max(1, old - int(rng.integers(1, 4)))
        value = lowered if rng.random() < 0.5 else int(rng.integers(1, 16))
        edited = put(41, 4, value)
        return edited & ~(1 << 45) if value >= 12 else edited
    if kind == "wait":
        return word ^ (1 << (52 + int(rng.integers(6))))
    if kind == "scoreboard":
        return put(46 if rng.random() < 0.5 else 49, 3, int(rng.choice((0, 1, 2, 3, 4, 5, 7))))
    return word ^ (1 << (58 + int(rng.integers(3))))


def validator_digest() -> str:
    """Hash of everything that a verdict depends on: a plan of another validator is stale."""
    import sassafras

    root = Path(str(sassafras.__file__)).parent
    files = sorted([*root.glob("validate/*.py"), *root.glob("sass/**/*.py"), *root.glob("sass/**/*.json")])
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


def difference(old: bytes, new: bytes) -> list[tuple[int, str]]:
    """(offset, bytes as hexadecimal) of every run of bytes that changed; both are equally long."""
    a, b = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    places = np.flatnonzero(a != b)
    runs: list[tuple[int, str]] = []
    for run in np.split(places, np.flatnonzero(np.diff(places) > 4) + 1):
        if run.size:
            runs.append((int(run[0]), new[run[0] : run[-1] + 1].hex()))
    return runs


def patched(old: bytes, runs: list[tuple[int, str]]) -> bytes:
    """The inverse of `difference`."""
    data = bytearray(old)
    for offset, text in runs:
        piece = bytes.fromhex(text)
        data[offset : offset + len(piece)] = piece
    return bytes(data)


def make(name: str, count: int, seed: int, path: str, edits: str = "wide") -> Row:
    """Make and judge `count` mutants of one kernel's headline variant; write them; what was found."""
    from sassafras.evaluate.gpu.protocol import kernel_facts
    from sassafras.sass import Program
    from sassafras.targets import load
    from sassafras.validate import Validator

    begin = time.perf_counter()
    workload = load(f"suite:{name}")
    kernel = workload.build(workload.cases[0], "sm_90a")
    program = Program.parse(kernel.cubin)
    function = program.function(kernel.name)
    validator = Validator(kernel.cubin, kernel.name)
    rng = np.random.default_rng([seed, len(function), sum(name.encode())])
    mutants: list[Row] = []
    seen = {kernel.cubin}
    judging = 0.0
    while len(mutants) < count:
        order, high, kinds = mutate(function, rng, edits)
        cubin = program.emit(kernel.name, order, high)
        if cubin in seen:
            continue
        seen.add(cubin)
        start = time.perf_counter()
        report = validator.check(cubin)
        judging += time.perf_counter() - start
        mutants.append({
            "n": len(mutants), "ok": bool(report.ok), "kinds": kinds, "runs": difference(kernel.cubin, cubin),
            "digest": hashlib.sha256(cubin).hexdigest()[:16],
            "why": "" if report.ok else str(report.violations[0])[:160],
        })  # fmt: skip
    plan = {
        "format": FORMAT, "kernel": name, "case": workload.cases[0].name, "seed": seed, "edits": edits,
        "validator": validator_digest(), "facts": kernel_facts(kernel), "instructions": len(function),
        "cubin": base64.b64encode(kernel.cubin).decode(), "mutants": mutants,
        "judging_ms": round(1e3 * judging / max(1, len(mutants)), 3),
    }  # fmt: skip
    place = Path(path)
    write_whole(place, lzma.compress(json.dumps(plan).encode(), preset=3))
    approved = sum(mutant["ok"] for mutant in mutants)
    return {
        "kernel": name, "mutants": len(mutants), "approved": approved, "judging_ms": plan["judging_ms"],
        "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip


def read(path: Path) -> Row:
    """A plan file. Raises NoPlan when it was made by another version of this script."""
    plan: Row = json.loads(lzma.decompress(path.read_bytes()))
    if plan.get("format") != FORMAT:
        raise NoPlan(f"{path.name} was made by another version: make the plan again")
    return plan
