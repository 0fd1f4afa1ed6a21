"""What the validator catches and what it lets through, without a GPU: writes validator.json.

    python benchmarks/validator.py CORPUS [--quota 2] [--legal 4] [--limit N] [--plant 1] [--jobs 2]
                                    [--out FOLDER]

CORPUS is a folder that benchmarks/corpus/build.py made. Each finished cubin is a line of validator.rows.jsonl
in the output folder, and the same command goes on behind them. For every kernel (2 to 6: in every N-th cubin
with ``--plant N``):

1. the unmodified compiler output is judged: each refusal is a false rejection;
2. violations are planted, each by construction and of a class that is counted (benchmarks/planted/);
3. permutations that are legal by construction are judged;
4. control codes are regenerated for the compiler's own order and judged, and violations planted in those;
5. values get other register names, so that some read sees another value: no such copy may be proved; a copy
   that is the same program must be, and violations are planted in its schedule; likewise instructions are
   moved over branches where somebody could tell, and where nobody can;
6. the time of a judgement is taken (the analysis of the original apart).
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from common import Lines, command_line, read_lines, validator_digest, without_gpu, write
from planted import SOURCES, Subject, moves, names, permutations, places, scoreboards, swaps, timing

Row = dict[str, Any]
_COUNTS = ("kernels", "instructions", "accepted", "pinned", "legal", "legal_accepted")
#: space -> the counter of its copies
_COPIED = {"renaming": "renamed", "blocks": "moved"}
_COUNTS += tuple(f"{what}{end}" for what in ("regenerated", *_COPIED.values()) for end in ("", "_accepted"))


def one(path: str, name: str, quota: int, legal: int, seed: int) -> Row:
    """Judge one cubin's kernels and, with a quota, what was planted in them; ``error`` where that failed."""
    try:
        return _one(path, name, quota, legal, seed)
    except Exception as error:  # hours of work must not go with one cubin
        return {"name": name, "error": f"{type(error).__name__}: {error}"}


def _one(path: str, name: str, quota: int, legal: int, seed: int) -> Row:
    from sassafras.sass import ARCHS, Program
    from sassafras.validate import Validator

    data = Path(path).read_bytes()
    program = Program.parse(data)
    row: Row = {"name": name, "arch": program.arch, "unsupported": {}}
    row |= {"planted": Counter(), "caught": Counter()}
    row |= dict.fromkeys(_COUNTS, 0) | {key: [] for key in ("rejected", "missed", "refused", "milliseconds")}
    if program.arch not in ARCHS or ARCHS[program.arch].scheduled is False:
        row["skipped"] = f"{program.arch} is parsed only"
        return row
    for number, kernel in enumerate(program.functions):
        rng = np.random.default_rng([seed, number, sum(name.encode())])
        begin = time.perf_counter()
        validator = Validator(data, kernel)
        row["analysis_s"] = time.perf_counter() - begin
        report = validator.check(data)
        row["kernels"] += 1
        row["instructions"] += len(program.function(kernel))
        if not report.supported:
            row["unsupported"][kernel] = str(report.violations[0])
            continue
        row["pinned"] += len(validator.pinned)
        if not report.ok:
            row["rejected"].append(f"{kernel}: {report.violations[0]}")
            continue
        row["accepted"] += 1
        if not quota:
            continue
        subject = Subject(program, kernel)
        _plant(row, kernel, validator, (m for source in SOURCES for m in source(subject, rng, quota)))
        for note, cubin in permutations(subject, rng, legal):
            report = validator.check(cubin)
            row["milliseconds"].append((len(subject.code), 1e3 * report.seconds))
            row["legal"] += 1
            row["legal_accepted"] += report.ok
            if not report.ok:
                row["refused"].append(f"{kernel}: {note}: {report.violations[0]}")
        _regenerated(row, data, program, kernel, validator, rng, quota)
        _copies(row, data, program, kernel, subject, rng, quota, "renaming")
        _copies(row, data, program, kernel, subject, rng, quota, "blocks")
    return row


def _plant(row: Row, kernel: str, validator: Any, mutants: Iterable[Any], prefix: str = "") -> None:
    """Judge violations; what is accepted was missed."""
    for mutant in mutants:
        kind = prefix + mutant.kind
        row["planted"][kind] += 1
        if validator.check(mutant.cubin).ok:
            row["missed"].append(f"{kernel}: {kind}: {mutant.note}")
        else:
            row["caught"][kind] += 1


def _schedules(cubin: bytes, kernel: str, rng: np.random.Generator, quota: int) -> Iterator[Any]:
    """Violations of a schedule's order, distances and scoreboards."""
    from sassafras.sass import Program

    subject = Subject(Program.parse(cubin), kernel)
    for source in (scoreboards, timing, swaps, places):
        yield from source(subject, rng, quota)


def _regenerated(
    row: Row, data: bytes, program: Any, kernel: str, validator: Any, rng: np.random.Generator, quota: int
) -> None:
    """Judge regenerated control codes, and what is planted in them."""
    from sassafras.core import Kernel, SassafrasError
    from sassafras.schedule import ScheduleSpace

    try:
        made = Kernel(data, kernel, program.arch, 128)
        space = ScheduleSpace(made, program, arch_by_name=True, control="regenerate")
        changed = space.emit(space.tightened(space.start()))
    except SassafrasError:
        return  # nothing in it can move
    report = validator.check(changed)
    row["regenerated"] += 1
    row["regenerated_accepted"] += report.ok
    if not report.ok:
        row["refused"].append(f"{kernel}: regenerated: {report.violations[0]}")
        return
    _plant(row, kernel, validator, _schedules(changed, kernel, rng, quota), "regenerated: ")


def _copies(
    row: Row,
    data: bytes,
    program: Any,
    kernel: str,
    subject: Subject,
    rng: np.random.Generator,
    quota: int,
    space: str,
) -> None:
    """Judge copies (renamed, or with instructions moved over branches), wrong ones and a right one, and what
    is planted in the right one's schedule."""
    from sassafras.core import Kernel, SassafrasError
    from sassafras.schedule import spaces
    from sassafras.validate import Validator

    validator = Validator(data, kernel)
    what = _COPIED[space]
    for mutant in (names if space == "renaming" else moves)(subject, rng, max(1, quota // 2)):
        row["planted"][mutant.kind] += 1
        if validator.via(mutant.cubin).ok:
            row["missed"].append(f"{kernel}: {mutant.kind}: {mutant.note}")
            validator = Validator(data, kernel)  # (it would believe in that copy from now on)
        else:
            row["caught"][mutant.kind] += 1
    try:
        made = spaces.space_of(space, Validator, True)(Kernel(data, kernel, program.arch, 128))
    except SassafrasError:
        return  # nothing in it can move
    if not made.via:
        return  # there is no such copy, or none was proved
    report = validator.via(made.via[0])
    row[what] += 1
    row[f"{what}_accepted"] += report.ok
    if not report.ok:
        row["refused"].append(f"{kernel}: {what}: {report.violations[0]}")
        return
    _plant(row, kernel, validator, _schedules(made.via[0], kernel, rng, quota), f"{what}: ")


def main() -> None:
    """Run over the corpus, print and write the table."""
    from sassafras.sass.tools import find_all

    parser = command_line(__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--quota", type=int, default=2, help="violations of a class and kernel")
    parser.add_argument("--legal", type=int, default=4, help="legal permutations of a kernel")
    parser.add_argument("--limit", type=int, default=None, help="so many cubins, evenly taken")
    parser.add_argument("--plant", type=int, default=1, help="plant in every so many-th cubin")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lines = read_lines(options.corpus / "index.jsonl")
    if options.limit:
        lines = [lines[n] for n in np.linspace(0, len(lines) - 1, options.limit).astype(int)]
    asked = {x["name"]: 0 if n % options.plant else options.quota for n, x in enumerate(lines)}
    settings = [options.quota, options.legal, options.plant, options.seed, validator_digest()]
    journal = Lines(options.out / "validator.rows.jsonl")
    mine = (row for row in journal.rows if row.pop("settings") == settings and "error" not in row)
    done = {row["name"]: row for row in mine if row["name"] in asked}
    rows = list(done.values())
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        left = [(str(options.corpus / x["path"]), x["name"]) for x in lines if x["name"] not in done]
        jobs = [pool.submit(one, path, n, asked[n], options.legal, options.seed) for path, n in left]
        for job in as_completed(jobs):
            row = job.result()
            rows.append(row)
            journal.add({"settings": settings, **row})
            for line in (*row.get("rejected", ()), *row.get("missed", ()), *row.get("refused", ())):
                print(f"{row['name']}: {line}", flush=True)
            if "error" in row:
                print(f"{row['name']}: {row['error']}", flush=True)
            print(f"{len(rows)} of {len(lines)}: {row['name']}", flush=True)
    table, summary = _summary(rows)
    environment = without_gpu("numpy", "numba", "triton")
    environment["nvdisasm"] = [tool.version for tool in find_all("nvdisasm")]
    path = write("validator", table, summary, environment, seed=options.seed, out=options.out)
    for line in table:
        print(f"{line['caught']:6} of {line['planted']:6}  {line['class']}")
    print(json.dumps(summary, indent=1), f"\nwrote {path.name}")


def _summary(all_rows: list[Row]) -> tuple[list[Row], Row]:
    rows = [row for row in all_rows if "error" not in row]
    planted: Counter[str] = sum((Counter(r["planted"]) for r in rows), Counter())
    caught: Counter[str] = sum((Counter(r["caught"]) for r in rows), Counter())
    times = [t for r in rows for t in r["milliseconds"]]
    by_size = defaultdict(list)
    for count, milliseconds in times:
        by_size[500 * round(count / 500)].append(milliseconds)
    judged = [r for r in rows if "skipped" not in r]
    per_thousand = [t for count, t in times if 800 <= count <= 1200]
    total = {key: sum(r[key] for r in judged) for key in _COUNTS}
    summary = {
        "cubins": len(judged),
        "parsed_only": len(rows) - len(judged),
        "planted_in": sum(bool(r["planted"]) for r in judged),
        "failed": {r["name"]: r["error"] for r in all_rows if "error" in r},
        "false_rejections": sum(len(r["rejected"]) for r in judged),
        "unsupported": sum(len(r["unsupported"]) for r in judged),
        "unsupported_reasons": sorted({v for r in judged for v in r["unsupported"].values()})[:8],
        "pinned_instructions": total.pop("pinned"),
        "planted": sum(planted.values()),
        "caught": sum(caught.values()),
        "missed": [f"{r['name']}: {m}" for r in rows for m in r["missed"]][:50],
        "legal_permutations": total.pop("legal"),
        **total,
        "milliseconds_per_candidate": _median(per_thousand or [t for _, t in times]),
        "milliseconds_by_instructions": {str(k): _median(v) for k, v in sorted(by_size.items())},
        "analysis_seconds": _median([r["analysis_s"] for r in judged if "analysis_s" in r]),
    }
    return [
        {"class": kind, "planted": planted[kind], "caught": caught[kind]} for kind in sorted(planted)
    ], summary


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


if __name__ == "__main__":
    main()
