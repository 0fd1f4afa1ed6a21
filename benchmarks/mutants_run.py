"""Mutants of many kernels, judged by the validator and, if approved, by the second model: mutants-run.json.

    python benchmarks/mutants_run.py FOLDER... --count 2000000 --seconds 480       # CPU only, all cores

Every kernel for sm_90 of the cubins in the folders gets its share. A mutant has one to four random edits
(`mutants/edits.py`): instructions exchanged, moved within a block or over a branch; stall counts, waits,
scoreboards, reuse flags, guards and registers changed. Of each kernel some copies are planted as well
(`planted`: values under wrong names, instructions over branches where that matters), which `Validator.via`
must refuse.

A mutant does not count where its bytes equal the original's, or where the second model sees the same program
instruction by instruction (only yield bits or unused flags differ). An approved one is *equal* by the second
model, or a *disagreement*: wrong, or more than the model knows. A disagreement is written down with its
number: ``--rebuild KERNEL NUMBER`` makes its bytes again for a GPU.

Approved and different must be explained one by one; a kernel of which the second model does not accept the
compiler's own code is left out and named.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from common import write
from mutants.edits import Editor

Row = dict[str, Any]
#: disagreements written down for each kernel
KEPT = 12
COUNTED = ("mutants", "approved", "equal", "different", "idle", "same_bytes", "repeated")


def kernels(folders: list[Path], most: int | None) -> list[tuple[str, str]]:
    """(path, kernel) of every kernel for sm_90, equal code once; with `most`, as many, evenly taken."""
    from sassafras.core import SassafrasError
    from sassafras.sass.cubin import Cubin

    found, seen = [], set()
    for folder in folders:
        for path in sorted(folder.rglob("*.cubin")):
            if "parse-only" in path.parts:
                continue
            try:
                cubin = Cubin.parse(path.read_bytes())
            except SassafrasError:
                continue
            if cubin.sm != 90:
                continue
            for entry in cubin.entries.values():
                mark = hashlib.blake2b(entry.text.data, digest_size=16).digest()
                if mark not in seen:
                    seen.add(mark)
                    found.append((str(path), entry.name))
    if most and most < len(found):
        found = [found[n] for n in np.linspace(0, len(found) - 1, most).astype(int)]
    return found


def one(path: str, name: str, folders: list[str], first: int, count: int, seed: int, copies: int,
        until: float) -> Row:  # fmt: skip
    """Mutants `first` to `first + count` of one kernel: what became of them."""
    begin = time.perf_counter()
    row: Row = {"kernel": name, "cubin": _shown(path, folders), "first": first, "mutants": 0}
    try:
        _one(row, Path(path).read_bytes(), name, first, count, seed, copies, until)
    except Exception as error:  # one kernel's trouble must not cost the others
        row["left_out"] = f"{type(error).__name__}: {error}"[:300]
    row["seconds"] = round(time.perf_counter() - begin, 2)
    return row


def _shown(path: str, folders: list[str]) -> str:
    for folder in folders:
        if path.startswith(folder):
            return path[len(folder) :].lstrip("/")
    return Path(path).name


def _one(
    row: Row, data: bytes, name: str, first: int, count: int, seed: int, copies: int, until: float
) -> None:
    from second_model import IDLE, SecondModel, Unread

    from sassafras.sass import Emitter, Program
    from sassafras.validate import Validator

    if time.time() > until:
        row["left_out"] = "no time was left"
        return
    row["sha256"] = hashlib.sha256(data).hexdigest()[:16]
    program = Program.parse(data)
    function = program.function(name)
    row["instructions"] = len(function)
    validator = Validator(data, name)
    if not (report := validator.check(data)).ok:
        row["left_out"] = f"the validator refuses the original: {report.violations[0]}"[:300]
        return
    try:
        second = SecondModel(data, name)
    except Unread as error:
        row["left_out"] = f"the second model cannot read it: {error}"
        return
    if not second.sound:
        row["left_out"] = f"the second model does not accept the original: {second.trouble}"
        return
    editor, emitter = Editor(function, seed), Emitter(program, name)
    if editor.empty:
        row["left_out"] = "nothing in it can be edited"
        return
    row["opened_s"] = 0.0
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    found: list[Row] = []
    spent_validating = spent_judging = 0.0
    seen: set[bytes] = set()
    number = first
    while number < first + count and (number & 15 or time.time() < until):
        made = editor.make(number)
        number += 1
        if made is None:
            counts["same_bytes"] += 1
            continue
        order, words, edits = made
        mark = hashlib.blake2b(words.tobytes(), digest_size=8).digest()
        if mark in seen:
            counts["repeated"] += 1
            continue
        seen.add(mark)
        mutant = emitter.write(order, words)
        start = time.perf_counter()
        approved = validator.check(mutant).ok
        spent_validating += time.perf_counter() - start
        if not approved:
            counts["mutants"] += 1
            kinds.update(edits)
            continue
        start = time.perf_counter()
        judged = second.judge(mutant)
        spent_judging += time.perf_counter() - start
        if judged.verdict == IDLE:
            counts["idle"] += 1
            continue
        counts["mutants"] += 1
        counts["approved"] += 1
        kinds.update(edits)
        counts[judged.verdict] += 1
        if judged.verdict != "equal" and len(found) < KEPT:
            found.append({"number": number - 1, "edits": edits, "why": judged.why, "where": judged.where})
    planted = _planted(program, name, validator, second, copies, seed, until) if copies and not first else {}
    row |= {
        **{k: counts[k] for k in COUNTED},
        "planted": planted, "disagreements": found, "kinds": dict(kinds), "next": number,
        "validating_ms": round(1e3 * spent_validating / max(1, number - first), 3),
        "judging_ms": round(1e3 * spent_judging / max(1, counts["approved"] + counts["idle"]), 3),
    }  # fmt: skip


def _planted(program: Any, name: str, validator: Any, second: Any, most: int, seed: int, until: float) -> Row:
    """Copies that are another program: how many of them `Validator.via` proved, and the second model."""
    from planted import Subject, moves, names

    from sassafras.validate import Validator

    counts: Counter[str] = Counter()
    subject = Subject(program, name)
    for source in (names, moves):
        rng = np.random.default_rng([seed, len(subject.code)])
        for n, mutant in enumerate(source(subject, rng, 1)):
            if n >= most or time.time() > until:
                break
            counts["copies"] += 1
            if validator.via(mutant.cubin).ok:
                counts["proved"] += 1
                counts["proved_by_second"] += second.via(mutant.cubin).verdict == "equal"
                validator = Validator(validator.original.tobytes(), name)
    return dict(counts)


def rebuild(path: str, name: str, number: int, seed: int) -> bytes:
    """The bytes of one mutant."""
    from sassafras.sass import Emitter, Program

    program = Program.parse(Path(path).read_bytes())
    made = Editor(program.function(name), seed).make(number)
    if made is None:
        raise SystemExit("this number changed nothing")
    return Emitter(program, name).write(made[0], made[1])


def main() -> int:
    """See the module; 0 where no approved mutant is different."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=2_000_000, help="mutants in all")
    parser.add_argument("--seconds", type=float, default=480.0, help="begin nothing after that")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--kernels", type=int, help="at most so many, evenly taken")
    parser.add_argument("--copies", type=int, default=1, help="planted copies of each kind and kernel")
    parser.add_argument("--untaught", action="store_true", help="without learning from all kernels first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rebuild", nargs=2, metavar=("KERNEL", "NUMBER"), help="write a mutant to --out, and end"
    )
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    options = parser.parse_args()
    begin = time.time()
    chosen = kernels(options.folders, options.kernels)
    if options.rebuild:
        name, number = options.rebuild
        for path, kernel in chosen:
            if kernel == name:
                made = rebuild(path, name, int(number), options.seed)
                place = Path(options.out, f"{Path(path).stem}-{number}.cubin")
                place.write_bytes(made)
                print(place)
        return 0
    rows = _rounds(options, chosen, begin)
    merged = _merged(rows)
    summary = _summary(merged, chosen, options.folders, time.time() - begin)
    shown = [{k: v for k, v in row.items() if k not in ("kinds", "first", "next")} for row in merged]
    path = write("mutants-run", shown, summary, _environment(options), seed=options.seed, out=options.out,
                 command=_command(options))  # fmt: skip
    print(json.dumps({k: v for k, v in summary.items() if k != "left_out"}, indent=1))
    print(f"wrote {path}")
    return 1 if summary["disagreements"] else 0


def learn(items: list[tuple[str, str]], until: float) -> list[list[Any]]:
    """What the compiler leaves between unmeasured pairs in some kernels (`second_model.latency`)."""
    from second_model import Unread
    from second_model.kernel import Kernel
    from second_model.latency import packed, pooled
    from second_model.reading import listing

    found = []
    for path, name in items:
        if time.time() > until:
            break
        try:
            found.append(Kernel(listing(Path(path).read_bytes(), name)).seen())
        except Unread:
            continue
        except Exception as error:  # this kernel teaches nothing; `one` says why
            print(f"{Path(path).name}: {type(error).__name__}: {error}", flush=True)
    return packed(pooled(found))


def _taught(rows: list[list[Any]]) -> None:
    """A worker's initialiser: the second model learns what all kernels show."""
    from second_model.latency import latencies, unpacked

    latencies().learn(unpacked(rows))


def _rounds(options: argparse.Namespace, chosen: list[tuple[str, str]], begin: float) -> list[Row]:
    """Every kernel its share; then what is still missing, from those that are quick."""
    rows: list[Row] = []
    until = begin + options.seconds
    folders = [str(f) for f in options.folders]
    share = -(-options.count // max(1, len(chosen)))
    # a kernel that is slow gives way to the others when its share of the time is over
    slice_s = 1.4 * options.seconds * options.workers / max(1, len(chosen))
    context = get_context("spawn")
    taught: list[list[Any]] = []
    if not options.untaught:
        with ProcessPoolExecutor(options.workers, context) as pool:
            parts = [chosen[n :: 4 * options.workers] for n in range(4 * options.workers)]
            limit = begin + 0.3 * options.seconds
            for made in as_completed([pool.submit(learn, part, limit) for part in parts if part]):
                taught += made.result()
        print(
            f"{time.time() - begin:.0f} s: {len(taught)} distances learnt from {len(chosen)} kernels",
            flush=True,
        )
    with ProcessPoolExecutor(options.workers, context, _taught, (_merge(taught),)) as pool:
        jobs = [(path, name, 0, share, options.copies) for path, name in _large_first(chosen)]
        for round_ in range(6):
            asked = {
                pool.submit(
                    _timed, path, name, folders, first, count, options.seed, copies, until, slice_s
                ): 1
                for path, name, first, count, copies in jobs
            }
            for n, job in enumerate(as_completed(asked)):
                row = job.result()
                rows.append(row)
                for found in row.get("disagreements", ()):
                    print(f"{row['cubin']}: {row['kernel'][:60]}: {found}", flush=True)
                if n % 25 == 0:
                    total = sum(r["mutants"] for r in rows)
                    print(
                        f"{time.time() - begin:.0f} s: round {round_}, {n + 1} of {len(asked)}: {total}",
                        flush=True,
                    )
            missing = options.count - sum(r["mutants"] for r in rows)
            if missing <= 0 or time.time() > until - 5:
                break
            jobs = _more(rows, chosen, missing, options.workers, until - time.time())
            if not jobs:
                break
    return rows


def _merge(rows: list[list[Any]]) -> list[list[Any]]:
    """Rows of several workers as one of each pair, the least distance and the kernels that have it."""
    found: dict[tuple[str, ...], tuple[int, int]] = {}
    for *key, cycles, met in rows:
        least, known = found.get(tuple(key), (1 << 20, 0))
        if cycles <= least:
            found[tuple(key)] = (cycles, met + (known if cycles == least else 0))
    return [[*key, *value] for key, value in sorted(found.items())]


def _timed(
    path: str, name: str, folders: list[str], first: int, count: int, seed: int, copies: int, until: float,
    slice_s: float,
) -> Row:  # fmt: skip
    return one(path, name, folders, first, count, seed, copies, min(until, time.time() + slice_s))


def _large_first(chosen: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted(chosen, key=lambda item: -Path(item[0]).stat().st_size)


def _more(
    rows: list[Row], chosen: list[tuple[str, str]], missing: int, workers: int, left: float
) -> list[tuple]:
    """Further numbers of the kernels that were quickest a mutant, as many as may be done."""
    paths = {(name, Path(path).name): path for path, name in chosen}
    last: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = (row["kernel"], Path(row["cubin"]).name)
        if row.get("mutants", 0) > 200 and row.get("next", 0) >= last.get(key, {}).get("next", 0):
            last[key] = row
    quick = sorted(last.items(), key=lambda item: item[1]["seconds"] / item[1]["mutants"])
    quick = quick[: max(workers, len(quick) // 2)]
    if not quick or left < 10:
        return []
    share = -(-int(1.1 * missing) // len(quick))
    return [(paths[key], key[0], row["next"], share, 0) for key, row in quick if key in paths]


def _merged(rows: list[Row]) -> list[Row]:
    """One row a kernel."""
    merged: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = (row["cubin"], row["kernel"])
        known = merged.get(key)
        if known is None:
            merged[key] = dict(row)
            continue
        for name in (
            "mutants",
            "approved",
            "equal",
            "different",
            "idle",
            "same_bytes",
            "repeated",
            "seconds",
        ):
            known[name] = round(known.get(name, 0) + row.get(name, 0), 2)
        known["disagreements"] = [*known.get("disagreements", ()), *row.get("disagreements", ())]
        known["kinds"] = dict(Counter(known.get("kinds", {})) + Counter(row.get("kinds", {})))
    return [merged[key] for key in sorted(merged)]


def _summary(rows: list[Row], chosen: list[tuple[str, str]], folders: list[Path], seconds: float) -> Row:
    judged = [r for r in rows if "left_out" not in r]
    why = Counter(d["why"] for r in judged for d in r["disagreements"])
    per_folder = {}
    for n, folder in enumerate(folders):
        names = {(Path(p).name, k) for p, k in chosen if p.startswith(str(folder))}
        mine = [r for r in judged if (Path(r["cubin"]).name, r["kernel"]) in names]
        per_folder[f"folder {n + 1}"] = {"kernels": len(mine), "mutants": sum(r["mutants"] for r in mine)}
    kinds: Counter[str] = sum((Counter(r["kinds"]) for r in judged), Counter())
    planted: Counter[str] = sum((Counter(r["planted"]) for r in judged), Counter())
    return {
        "kernels": len(judged), "instructions": sum(r["instructions"] for r in judged),
        "mutants": sum(r["mutants"] for r in judged), "approved": sum(r["approved"] for r in judged),
        "equal": sum(r["equal"] for r in judged), "disagreements": sum(r["different"] for r in judged),
        "disagreements_by_reason": dict(why), "idle_not_counted": sum(r["idle"] for r in judged),
        "same_bytes_not_counted": sum(r["same_bytes"] + r["repeated"] for r in judged),
        # a disagreement is settled on a GPU, by another script; until then it is not known to be wrong
        "approved_but_wrong": None if why else 0, "run_on_gpu": 0,
        "planted_copies": planted["copies"], "planted_copies_proved": planted["proved"],
        "edits": dict(sorted(kinds.items())), "sources": per_folder, "seconds": round(seconds, 1),
        "mutants_per_second": round(sum(r["mutants"] for r in judged) / max(1.0, seconds), 1),
        "left_out": {f"{r['cubin']}: {r['kernel']}": r["left_out"] for r in rows if "left_out" in r},
    }  # fmt: skip


def _command(options: argparse.Namespace) -> str:
    return (
        f"python mutants_run.py {len(options.folders)} folders --count {options.count} "
        f"--seconds {options.seconds:g} "
        f"--copies {options.copies} --seed {options.seed}"
    )


def _environment(options: argparse.Namespace) -> Row:
    from mutants.plan import validator_digest

    from sassafras.sass.tools import find_all

    model = b"\0".join(
        p.read_bytes() for p in sorted((Path(__file__).parent / "second_model").glob("*")) if p.is_file()
    )
    return {
        "gpu": None, "python": platform.python_version(), "workers": options.workers,
        "validator": validator_digest(), "second_model": hashlib.sha256(model).hexdigest()[:16],
        "nvdisasm": [t.version for t in find_all("nvdisasm")],
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
