"""What `sassafras audit` finds in cubins without their original: writes audit.json. Needs no GPU.

    python benchmarks/audit.py CORPUS... [--quota 3] [--limit N...] [--jobs 2]

CORPUS is a folder of `corpus/build.py`, or of cubins such as those of `sassafras gemm build --out`. Every
kernel is audited as it is: a finding is a false alarm. Then hazards are planted, one in each copy, and the
copy is audited alone:

- a bit of a wait mask cleared, a stall count lowered. The validator, which has the original, says whether the
  copy is wrong. What it refuses only because the original had more is *undecided*, and counted apart.
- ``DEPBAR.LE SBn, N`` and ``WARPGROUP.DEPBAR.LE gsb0, N``: N raised by one, or to the most that it can be.
  The validator refuses every changed word: `open_copies` and `open_products` say which copies are wrong.
  A wait for stores of the copy engine (UTMASTG) counts as undecided: nothing here says what they read. Of
  these, too, a kernel has at most `quota`.

At the end `reproducers/` is assembled by every ptxas that is found (``$SASSAFRAS_PTXAS`` may name more), and
audited (`miscompiled.py`). Rows of a differential run on a GPU are kept.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from common import command_line, read_lines, without_gpu, write
from miscompiled import AUDIT, DIFFERENTIAL, audits, counted
from planted.subject import poke

Row = dict[str, Any]
CLASSES = ("wait bit cleared", "stall lowered", "DEPBAR weakened", "WGMMA wait removed")
#: of a kernel whose operands the TMA unit brings: most such waits guard the release of their slot alone
TMA = "WGMMA wait removed, TMA kernel"
TRUTHS = ("hazard", "undecided", "legal")
#: words of a violation that only says: the original had more
RELATIVE = ("in the original it is not", "no smaller one is known", "than in the original")
_STALL, _YIELD, _WAIT = 41, 45, 52
#: past these a product's operands may be written, or its path left
_LEAVES = ("BRA", "EXIT", "LDGSTS", "STS", "STSM", "SYNCS")
#: place and width of N in DEPBAR.LE (low word) and WARPGROUP.DEPBAR.LE (high word)
_COPIES, _PRODUCTS = (38, 6), (8, 3)


def planted(code: Sequence[Any], rng: np.random.Generator, quota: int) -> Iterator[tuple[str, int, int, int]]:
    """(class, instruction, low word, high word) of each copy; at most `quota` of most kinds."""

    def some(items: list[Any]) -> list[Any]:
        return [items[k] for k in rng.choice(len(items), min(quota, len(items)), replace=False)]

    for i, scoreboard in some([(i, s) for i in code for s in range(6) if i.control.wait_mask >> s & 1]):
        yield CLASSES[0], i.index, i.low, i.high & ~(1 << _WAIT + scoreboard)
    for i in some([i for i in code if i.control.stall > 1]):
        stall = int(rng.integers(1, i.control.stall))
        cleared = i.high & ~(0x1F << _STALL)
        yield CLASSES[1], i.index, i.low, cleared | stall << _STALL | (1 << _YIELD if stall < 12 else 0)
    waits = [i for i in code if i.opcode == "DEPBAR.LE" and len(i.operands) == 2]
    copies = [copy for i in waits for copy in _raised(CLASSES[2], i, *_COPIES)]
    yield from copies if any(i.base == "LDGSTS" for i in code) else some(copies)
    for i in code:
        if i.opcode == "WARPGROUP.DEPBAR.LE":
            yield from _raised(CLASSES[3], i, *_PRODUCTS)


def _raised(kind: str, i: Any, shift: int, width: int) -> Iterator[tuple[str, int, int, int]]:
    now, most = int(i.operands[1], 16), (1 << width) - 1
    for n in {now + 1, most} if now < most else ():
        low, high = (w & ~(most << shift) | n << shift for w in (i.low, i.high))
        yield (kind, i.index, low, i.high) if kind == CLASSES[2] else (kind, i.index, i.low, high)


def open_copies(function: Any, analysis: Any) -> str:
    """Whether an access, or a copy of a later group, meets a copy that is not waited for: hazard, legal, or
    undecided. An access that is not known counts as hazard.

    Addresses and paths are those of `validate.shared_memory`; the rest is done here once more.
    """
    from sassafras.validate.shared_memory import Walk

    class Met(Exception):
        pass

    class Masks(Walk):
        def _touched(self, n: int, state: Any) -> np.ndarray | None:
            """The words of shared memory that an instruction accesses (of a matrix the first four), bool."""
            ops, mask = self._ops[n], np.zeros(1 << 17, dtype=bool)
            mods = self._code[n].opcode.split(".")
            narrow = 2 if "64" in mods else 1
            width = narrow if mods[0] in ("LDS", "STS", "LDGSTS") and "128" not in mods else 4
            if self._code[n].base == "HGMMA":
                pairs = [(o.named[0].register, o.position) for o in ops if o.role == "matrix"]
                wanted = [r + 2 * k for r, at in pairs for k in ((0, 1) if at == 1 else (1,))]
                values = [state.values.get(register) for register in wanted]
                places = [None if v is None else (v & 0x3FFF) << 4 for v in values]
            else:
                places = [self._address(next(o for o in ops if o.role == "address"), state)]
            for place in places:
                if place is None:
                    return None
                first = place[state.live] // 4 % (1 << 16)
                for k in range(width):
                    mask[first + k] = True
            return mask

        def _step(self, n: int, state: Any) -> None:
            i = self._code[n]
            groups = state.values.get(-1, ((),))
            if i.base == "LDGSTS":
                mine = self._touched(n, state)
                before = [words for group in groups[:-1] for words in group if words is not None]
                if mine is not None and any((mine & words).any() for words in before):
                    raise Met
                groups = (*groups[:-1], (*groups[-1], mine))
            elif i.base == "LDGDEPBAR":
                groups = (*groups, ())
            elif i.opcode == "DEPBAR.LE":
                groups = groups[max(0, len(groups) - 1 - int(i.operands[1], 16)) :]
            elif i.base in ("LDS", "LDSM", "STS", "STSM", "HGMMA") and i.guard != "!PT" and any(groups):
                mine = self._touched(n, state)
                for words in (words for group in groups for words in group):
                    if mine is None or words is None or (mine & words).any():
                        raise Met
            state.values[-1] = groups
            super()._step(n, state)

    try:
        walk = Masks(analysis.code, analysis.operands, analysis.effects, analysis.blocks, function.block)
        list(walk.findings() if any(i.base == "LDGSTS" for i in analysis.code) else ())
    except Met:
        return "hazard"
    return "undecided" if any(i.base == "UTMACMDFLUSH" for i in analysis.code) else "legal"


def open_products(function: Any, n: int) -> str:
    """Whether a product has no other wait than the one at `n` before what needs it: hazard, or legal.

    Legal is a wait beside one for as much: the next before anything that a wait may be for, or the one before
    with no product and no branch or label between. Else straight on from each product to a wait for all of
    them: a register of it that is touched on the way (by the disassembler's oracle), a write to shared memory
    or a branch counts as hazard.
    """
    code, labels = function.instructions, set(function.labels.values())

    def as_much(i: Any) -> bool:
        return i.opcode == code[n].opcode and int(i.operands[1], 16) <= int(code[n].operands[1], 16)

    products = [i for i in code if i.base == "HGMMA"]
    registers = {r for i in products for r in i.reads | i.writes if r < 256}
    for i in code[n + 1 :]:
        if as_much(i):
            return "legal"
        if i.base in (*_LEAVES, "HGMMA") or registers & (i.reads | i.writes):
            break
    for i in reversed(code[:n]):
        if as_much(i):
            return "legal"
        if i.base in ("BRA", "EXIT", "HGMMA") or code[i.index + 1].offset in labels:
            break
    for product in products:
        busy = {r for r in product.reads | product.writes if r < 256}
        for i in code[product.index + 1 :]:
            if i.opcode == code[n].opcode and i.index != n and int(i.operands[1], 16) == 0:
                break
            leaves = i.base in _LEAVES
            meets = bool(busy & (i.reads | i.writes)) and i.operands[:1] != product.operands[:1]
            if leaves or meets:
                return "hazard"
    return "legal"


def one(path: str, name: str, quota: int, seed: int) -> Row:
    """Audit one cubin as it is, and its planted copies."""
    from sassafras.core import SassafrasError
    from sassafras.sass import Program
    from sassafras.sass.control import Control
    from sassafras.validate import Validator
    from sassafras.validate.audit import Auditor

    data = Path(path).read_bytes()
    row: Row = {key: [] for key in ("unsupported", "alarms", "missed", "seconds")}
    row |= {"name": name, "kernels": 0, "counts": Counter()}
    try:
        program = Program.parse(data)
    except SassafrasError as error:
        row["unsupported"].append(str(error))
        return row
    for number, (kernel, function) in enumerate(program.functions.items()):
        begin = time.process_time()
        first = Validator(data, kernel, program=program)
        if first.unsupported:
            row["unsupported"].append(f"{kernel}: {first.unsupported}")
            continue
        row["kernels"] += 1
        row["alarms"] += [f"{kernel}: {found}" for found in Auditor(first).hazards()]
        row["seconds"].append(time.process_time() - begin)
        tma = any(i.base == "UTMALDG" for i in function.instructions)
        rng = np.random.default_rng([seed, number, sum(name.encode())])
        for kind, index, low, high in planted(function.instructions, rng, quota):
            copy = poke(data, first.start + 16 * index, low, high)
            i = function.instructions[index]
            changed = dataclasses.replace(i, low=low, high=high, control=Control.decode(high))
            if kind in CLASSES[2:]:
                shift, width = _COPIES if kind == CLASSES[2] else _PRODUCTS
                word = low if kind == CLASSES[2] else high
                changed = dataclasses.replace(
                    changed, operands=(i.operands[0], hex(word >> shift & (1 << width) - 1))
                )
            code = (*function.instructions[:index], changed, *function.instructions[index + 1 :])
            read = dataclasses.replace(
                program, functions={kernel: dataclasses.replace(function, instructions=code)}
            )
            alone = Validator(copy, kernel, program=read)
            if kind == CLASSES[3]:
                truth = open_products(function, index)
            elif kind == CLASSES[2]:
                truth = open_copies(function, alone.analysis)
            else:
                wrong = [str(violation) for violation in first.check(copy).violations]
                certain = [text for text in wrong if not any(words in text for words in RELATIVE)]
                truth = "hazard" if certain else "undecided" if wrong else "legal"
            found = next(iter(Auditor(alone).hazards()), None)
            if kind == CLASSES[3] and tma:
                kind = TMA
            row["counts"][f"{kind}|{truth}|{found is not None}"] += 1
            if truth == ("hazard" if found is None else "legal"):
                row["missed"].append(f"{kind}: {kernel}+{i.offset:#x}: {i.text}: {truth}, {found}")
    return row


def cubins(folder: Path) -> list[tuple[str, str]]:
    """(path, name) of what a folder holds."""
    if (folder / "index.jsonl").exists():
        return [(str(folder / x["path"]), x["name"]) for x in read_lines(folder / "index.jsonl")]
    return [(str(path), path.stem) for path in sorted(folder.glob("*.cubin"))]


def main() -> None:
    """Audit the corpus, plant, count, write."""
    parser = command_line(__doc__)
    parser.add_argument("corpus", type=Path, nargs="+", help="folders; without index.jsonl all cubins in one")
    parser.add_argument("--quota", type=int, default=3, help="cleared waits, and lowered stalls, of a kernel")
    parser.add_argument(
        "--limit", type=int, nargs="*", default=[], help="cubins of each CORPUS, evenly taken"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lines: list[tuple[str, str]] = []
    for folder, limit in zip_longest(options.corpus, options.limit):
        held = cubins(folder)
        taken = np.linspace(0, len(held) - 1, min(limit or len(held), len(held))).astype(int)
        lines += [held[n] for n in taken]
    rows: list[Row] = []
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        order = [lines[n] for n in np.random.default_rng(options.seed).permutation(len(lines))]
        jobs = [pool.submit(one, path, name, options.quota, options.seed) for path, name in order]
        try:
            for job in as_completed(jobs):
                rows.append(job.result())
                print(f"{len(rows)} of {len(lines)}: {rows[-1]['name']}", flush=True)
                for text in (*rows[-1]["alarms"], *rows[-1]["missed"]):
                    print(f"{rows[-1]['name']}: {text}", flush=True)
        except KeyboardInterrupt:  # what is done is an even sample
            pool.shutdown(cancel_futures=True)
    counts: Counter[str] = sum((row["counts"] for row in rows), Counter())
    table: list[Row] = []
    for kind in (*CLASSES, TMA):
        n = {(t, f): counts[f"{kind}|{t}|{f}"] for t in TRUTHS for f in (True, False)}
        hazards = n["hazard", True] + n["hazard", False]
        table.append(
            {
                "class": kind,
                "planted": sum(n.values()),
                "hazards": hazards,
                "flagged": n["hazard", True],
                "flagged_percent": round(100 * n["hazard", True] / hazards, 2) if hazards else None,
                "undecided": n["undecided", True] + n["undecided", False],
                "undecided_flagged": n["undecided", True],
                "legal": n["legal", True] + n["legal", False],
                "legal_flagged": n["legal", True],
            }
        )
    old = Path(__file__).parent / "results" / "audit.json"
    kept = json.loads(old.read_text(encoding="utf-8"))["rows"] if old.exists() else []
    published = [*audits(), *(row for row in kept if row.get("by") == DIFFERENTIAL)]
    times = sorted(t for row in rows for t in row["seconds"])
    alarms = [f"{row['name']}: {text}" for row in rows for text in row["alarms"]]
    summary = {
        "cubins": len(rows),
        "kernels": sum(row["kernels"] for row in rows),
        "not_audited": [text for row in rows for text in row["unsupported"]],
        "false_alarms": len(alarms),
        "alarms": alarms,
        **counted(published),
        "planted": sum(line["planted"] for line in table),
        "hazards": sum(line["hazards"] for line in table),
        "flagged": sum(line["flagged"] for line in table),
        "least_flagged_percent": min(
            (x["flagged_percent"] for x in table if x["hazards"] and x["class"] != TMA), default=None
        ),
        "missed": sorted(f"{row['name']}: {text}" for row in rows for text in row["missed"])[:60],
        "seconds_per_kernel": round(times[len(times) // 2], 3) if times else None,
    }
    releases = sorted({row["release"] for row in published if row["by"] == AUDIT})
    environment = without_gpu("triton") | {"ptxas": releases}
    limits = " ".join(map(str, options.limit)) or "none"
    command = (
        f"python benchmarks/audit.py {len(options.corpus)} folders --quota {options.quota} --limit {limits}"
    )
    rows_out = table + published
    path = write("audit", rows_out, summary, environment, seed=options.seed, out=options.out, command=command)
    shown = {k: v for k, v in summary.items() if k != "missed"}
    print(json.dumps(table, indent=1), json.dumps(shown, indent=1))
    print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
