"""What a scoreboard's fall says on a GPU of operations in front of its setter: writes scoreboards.json.

    python benchmarks/scoreboards.py run --out FOLDER [--seconds 150]     # one H100

*Pairs* (`latency/order.py`): an operation A sets no scoreboard, a later one B does and is waited for. Is
A's result there, were A's operands read? In a process's first launches of fresh modules, from scrubbed
registers, with A under pressure and B not, with one warp a multiprocessor, four, and sixteen. A pair is
*in order* here if it was *asked* (A took longer than B by their own scoreboards, so that a fault could
show) and never wrong; *wrong* if it was wrong once; *doubtful* if only the right result to compare with
seems to have been wrong; else *unasked*, which says nothing.

``run`` writes a journal beside the result and goes on behind it when called again, and ends with status 1
where a pair that is known to be wrong did not show (LDG's result by LDS). ``check`` builds every kernel
without a GPU and compares it with its text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.common import Lines, command_line, write  # noqa: E402
from benchmarks.latency import build, frame, order  # noqa: E402
from benchmarks.latency.station import Station  # noqa: E402
from benchmarks.latency.words import Book  # noqa: E402
from sassafras.cuda.environment import environment  # noqa: E402
from sassafras.sass import Program  # noqa: E402

Row = dict[str, Any]
#: instructions of a kernel, probes of one
ROOM, MOST_PROBES = 7000, 200
#: what a kernel gets, which takes milliseconds
ANSWER_SECONDS = 20.0
#: of what a later operation elsewhere is known not to vouch for: LDG is far slower than LDS
KNOWN_WRONG = (("results", "LDG", "LDS"), ("results", "LDG scattered", "LDS"))
#: cycles by which A must be later than B where a fault counts as possible
MARGIN = 4


def batches() -> list[list[order.Probe]]:
    """The probes, by kernel."""
    found, size = list[list[order.Probe]](), ROOM
    sizes: dict[order.Probe, int] = {}
    for probe in order.probes():
        # the pressure stands in a loop three times, and else only distances differ
        plain = replace(probe, pressure=0, distance=4)
        if plain not in sizes:
            code = frame.Code()
            order.section(code, 0, plain)
            sizes[plain] = len(code.lines)
        needed = sizes[plain] + 3 * probe.pressure
        if size + needed > ROOM or len(found[-1]) >= MOST_PROBES:
            found.append([])
            size = 400
        found[-1].append(probe)
        size += needed
    return found


def room() -> build.Container:
    """The container of the kernels."""
    return build.container(ROOM, order.LIVE, order.THREADS, order.SHARED_BYTES, order.LOCAL_BYTES)


def of(job: Sequence[order.Probe], gpu: object) -> list[object]:
    """What a line of the journal answers: a kernel's probes, and the GPU."""
    return [hashlib.sha256(repr(job).encode()).hexdigest()[:16], gpu]


_book: list[Book] = []


def words(job: tuple[list[order.Probe], int]) -> np.ndarray:
    """A kernel's code, uint64 (instructions, 2): a job of a process pool."""
    chosen, size = job
    if not _book:
        _book.append(Book())
    code = np.full((size, 2), _book[0].assemble("NOP", frame.Line("NOP", stall=1).control), dtype=np.uint64)
    made = order.assemble(chosen, _book[0])
    code[: len(made)] = np.array(made, dtype=np.uint64)
    return code


class Sitting:
    """Runs kernels in a worker process; one that hangs or faults is run in halves until its probe is known.

    Args:
        journal: file of what was run: the same call goes on behind it.
        end: of the time, by the monotonic clock.
    """

    def __init__(self, journal: Path, end: float) -> None:
        self.end = end
        self.journal = Lines(journal)
        self.done: dict[int, Row] = {}
        self.station = Station()

    def run(self, jobs: Sequence[list[Any]], processes: int) -> bool:
        """Every kernel that the time allows; True where that is all of them."""
        container = room()
        self.station.start()
        asked = [of(job, self.station.facts.get("name")) for job in jobs]
        known = {row["kernel"]: row for row in self.journal.rows if row["kernel"] < len(jobs)}
        self.done = {n: row for n, row in known.items() if row.get("of") == asked[n]}
        left = [n for n in range(len(jobs)) if n not in self.done]
        try:
            with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
                made = pool.map(words, [(jobs[n], container.room) for n in left])
                for n, code in zip(left, made, strict=True):
                    if time.monotonic() > self.end:
                        pool.shutdown(cancel_futures=True)
                        return False
                    row = {"kernel": n, "of": asked[n], **self._one(container.fill(code), len(jobs[n]), n)}
                    self.done[n] = row
                    self.journal.add(row)
            return True
        finally:
            self.station.stop()

    def shapes(self) -> list[tuple[int, int, int]]:
        """Blocks, threads, trials of a warp in a launch."""
        most = self.station.facts["multiprocessors"]
        return [(most, 32, 16), (most, 128, 16), (2 * most, order.THREADS, 16)]

    def _one(self, cubin: bytes, count: int, seed: int) -> Row:
        shapes, crashed = self.shapes(), []
        total: list[list[list[int]]] = [[[] for _ in range(count)] for _ in shapes]
        for first, many, found in self.station.run(
            f"kernel {seed}",
            cubin,
            count,
            ANSWER_SECONDS,
            limits=[0] * count,
            shapes=shapes,
            seed=977 * seed + 1,
            words=len(order.COUNTERS),
        ):
            if found is None:
                crashed.append(first)
                continue
            for number, counters in enumerate(found):
                for n in range(first, first + many):
                    total[number][n] = counters[n]
        return {"counters": total, "crashed": crashed}


def rows(jobs: Sequence[list[order.Probe]], sitting: Sitting) -> Iterator[Row]:
    """A row a probe and shape."""
    names = order.COUNTERS
    for n, found in sorted(sitting.done.items()):
        for shape, counters in enumerate(found["counters"]):
            for k, probe in enumerate(jobs[n]):
                row = {"part": "pairs", **asdict(probe), "shape": shape}
                if k in found["crashed"] or not counters[k]:
                    yield row | {"crashed": True}
                    continue
                values = dict(zip(names, counters[k], strict=True))
                warps = max(1, values["warps"])
                yield row | {
                    key: round(v / warps, 1) if key.endswith("_cycles") else v for key, v in values.items()
                }


def doubtful(row: Row) -> bool:
    """Whether it is the right result that was taken too early: then as many lanes differ from it with a wait
    as without, and not all."""
    return 0 < row["bad"] == row["unwaited"] < 32 * row["warps"] and row["question"] in ("results", "reads")


def by_pair(all_rows: Sequence[Row]) -> list[Row]:
    """Pairs, summed over pressures, distances and shapes."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in all_rows:
        groups[row["question"], row["first"], row["second"]].append(row)
    found = []
    for (question, first, second), members in sorted(groups.items()):
        ran = [m for m in members if "crashed" not in m]
        # A outlasts B by what each takes alone: only there could something show
        asked = [m for m in ran if m["a_cycles"] - m["distance"] - m["b_cycles"] >= MARGIN]
        bad = sum(m["bad"] for m in ran)
        crashed = len(members) - len(ran)
        unclear = not crashed and any(map(doubtful, ran)) and all(doubtful(m) for m in ran if m["bad"])
        verdict = "wrong" if bad or crashed else "in order" if asked else "unasked"
        verdict = "doubtful" if unclear else verdict
        found.append(
            {
                "part": "pairs",
                "question": question,
                "first": first,
                "second": second,
                "relied": order.relied(question, order.OPS[first], order.OPS[second]),
                "verdict": verdict,
                "bad": bad,
                "lanes": 32 * sum(m["warps"] for m in ran),
                "asked": 32 * sum(m["warps"] for m in asked),
                "crashed": crashed,
                "unwaited": sum(m["unwaited"] for m in ran),
                "later": round(
                    max((m["a_cycles"] - m["distance"] - m["b_cycles"] for m in ran), default=0), 1
                ),
            }
        )
    return found


def _gathered(pairs: Sequence[Row]) -> Iterator[Row]:
    """A row a question and A: the names of every B by verdict, with the lanes that came out wrong."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in pairs:
        groups[row["question"], row["first"]].append(row)
    for (question, first), members in groups.items():
        verdicts: Row = {"in order": [], "wrong": {}, "doubtful": {}}
        for m in members:
            if m["verdict"] == "in order":
                verdicts["in order"].append(m["second"])
            elif m["verdict"] != "unasked":  # which says nothing
                verdicts[m["verdict"]][m["second"]] = m["bad"]
        if any(verdicts.values()):
            yield {"part": "all pairs", "question": question, "first": first} | verdicts


def summarise(all_rows: Sequence[Row]) -> tuple[list[Row], Row]:
    """What is published: rows of the pairs that are relied on, of all pairs by verdict;
    and totals."""
    pairs = by_pair(all_rows)
    verdicts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    relied: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in pairs:
        verdicts[row["question"]][row["verdict"]] += 1
        if row["relied"]:
            relied[row["question"]][row["verdict"]] += 1
    known = {(r["question"], r["first"], r["second"]): r["verdict"] for r in pairs}
    summary = {
        "pairs": {q: dict(v) for q, v in verdicts.items()},
        "relied": {q: dict(v) for q, v in relied.items()},
        "relied_asked": sum(v[at] for v in relied.values() for at in v if at != "unasked"),
        "relied_wrong": sum(v.get("wrong", 0) for v in relied.values()),
        "wrong": sum(v.get("wrong", 0) for v in verdicts.values()),
        "known_wrong_missed": [list(k) for k in KNOWN_WRONG if known.get(k) not in (None, "wrong")],
    }
    chosen = (row for row in pairs if row["relied"] and row["verdict"] != "unasked")
    return [*chosen, *_gathered(pairs)], summary


def run(options: argparse.Namespace) -> int:
    """Measure; see the module."""
    end = time.monotonic() + options.seconds
    jobs = batches()
    sitting = Sitting(options.out / "scoreboards.jsonl", end)
    print(f"{len(jobs)} kernels, {sum(map(len, jobs))} probes", flush=True)
    whole = sitting.run(jobs, options.jobs)
    published, summary = summarise(list(rows(jobs, sitting)))
    where = environment() | {"multiprocessors": sitting.station.facts["multiprocessors"]}
    write("scoreboards", published, summary | {"whole": whole}, where, out=options.out)
    print(json.dumps(summary, indent=1))
    return 1 if summary["known_wrong_missed"] or not whole else 0


def check(options: argparse.Namespace) -> int:
    """Build every kernel, disassemble some, compare with the text: no GPU."""
    wrong, jobs, container = 0, batches(), room()
    print(f"{len(jobs)} kernels, {sum(map(len, jobs))} probes, {container.room} instructions each")
    for n in range(0, len(jobs), max(1, len(jobs) // options.kernels)):
        code = frame.Code()
        order.prologue(code)
        for k, probe in enumerate(jobs[n]):
            order.section(code, k, probe)
        made = Program.parse(container.fill(words((jobs[n], container.room)))).function(build.NAME)
        for line, i in zip(code.lines, made.instructions, strict=False):
            if not (build.plain(line.text) == build.plain(i.text) and line.control == i.control):
                wrong += 1
                print(f"{line.text} {line.control}  became  {i.text} {i.control}")
    print(f"{wrong} differ")
    return 1 if wrong else 0


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = command_line(__doc__, out=".")
    parser.add_argument("step", choices=("run", "check"))
    parser.add_argument("--seconds", type=float, default=150.0, help="run: stop then")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="builders")
    parser.add_argument("--kernels", type=int, default=8, help="check: how many")
    options = parser.parse_args(arguments)
    return {"run": run, "check": check}[options.step](options)


if __name__ == "__main__":
    raise SystemExit(main())
