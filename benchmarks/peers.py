"""The kernels of CUDA-L2 beside ours, torch and AutoTuning; writes peers.json.

    python benchmarks/peers.py pack --cuda-l2 DIR --cutlass DIR [--shapes 340] [--seed 0] --out FILE.tar.xz
    python benchmarks/peers.py build FILE.tar.xz --folder F [--jobs N] [--limit-s S] [--nvcc NVCC]
    python benchmarks/peers.py run --folder F [--limit-s S] [--out O] [--cache C] [--resume JOURNAL]

CUDA-L2 (MIT) has kernels for 1,000 shapes, compiled with their flags; a header stands in for torch's.
`pack` draws shapes by bands. `run` needs index.json, build.jsonl and lib/ of the folder alone.

Each row is a process. Layout tn for all; theirs has B as k x n, too, and padding as its harness has it. Ways:
launches back to back, an elementwise kernel on C behind each (its time included), isolated calls (event to
event). A kernel that a graph cannot hold as it is written (it waits for the GPU, say) is called in a loop of
the host, and so are all contestants of its row; a second figure is of graphs, with its waits taken out.
The control is ours, a second time. Ahead: the interval of the ratio lies above the control's. A result is
wrong above 100 times torch's RMS error, ours above 1.1 times: the row counts nowhere. The same command goes
on behind peers.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common import RESULTS, code_digest, command_line, geomean, journal_of, journal_options, shared, write
from peers_build import Compiler, build, index_of, nvcc, pack, unpacked
from peers_worker import DRY, RATIOS

from sassafras.core import DeviceError
from sassafras.cuda.environment import available, environment
from sassafras.cuda.fork_server import ForkServer
from sassafras.cuda.worker_process import WorkerProcess, package_path
from sassafras.gemm.bench.journal import read
from sassafras.gemm.problem.shape import BANDS, Shape

Record = dict[str, Any]
WORKER = "peers_worker"
WAYS = ("back_to_back", "elementwise", "isolated")
#: of all rows, calls as they are written; of the rows that have graphs
BOTH = ("", "_graphs")
#: of a record, where there is any
KEPT = ("needs_zeros", "why_not_captured", "ours_wrong", "served")
#: a ratio below this is named; a run ends when its first rows, so many, have all failed
NAMED, GIVEN_UP = 0.98, 8
#: seconds that a worker may take to start, for a request, and for our kernels
STARTS, ANSWERS, COMPILES = 180.0, 45.0, 400.0


class Workers:
    """Workers, each for one row; the next one starts while the present one prepares."""

    def __init__(self, cache: Path | None, dry: bool) -> None:
        path = os.pathsep.join([package_path()["PYTHONPATH"], str(RESULTS.parent)])
        self._environment = {"PYTHONPATH": path} | ({DRY: "1"} if dry else {})
        self._cache = str(cache) if cache else None
        self._server = ForkServer(WORKER, environment=self._environment)
        self._next: WorkerProcess | None = None
        self._open: WorkerProcess | None = None

    def kernels(self, shapes: Sequence[str]) -> int:
        """Compile ours for these shapes ahead; how many kernels they are. Raises DeviceError."""
        process = WorkerProcess(WORKER, environment=self._environment)
        try:
            process.ask("open", STARTS, cache=self._cache)
            return int(process.ask("kernels", COMPILES, shapes=list(shapes))["kernels"])
        finally:
            process.kill()

    def row(self, question: Record, seconds: float) -> Record:
        """A row's record: ``error`` where it failed. Raises DeviceError where no worker starts."""
        process, self._next = self._next or self._begun(), None
        try:
            if not self._opened(process):  # once more
                process = self._begun()
                process.receive(STARTS)
            try:
                process.ask("load", ANSWERS, **question)
                self._next = self._begun()
                found = process.ask("prepare", ANSWERS)
                self._opened(self._next)  # from here on nothing else uses the GPU
                if not found.get("wrong"):
                    found |= process.ask("time", ANSWERS, seconds=seconds, captured=found["captured"])
            except DeviceError as error:
                return {"error": f"{error.what}; {error.where or ''}"[:300]}
        finally:
            process.kill(0.5)  # the next kernel may time configurations of its own: it has the GPU alone
        return {key: value for key, value in found.items() if key not in ("id", "seconds_in_worker")}

    def _begun(self) -> WorkerProcess:
        process = WorkerProcess(WORKER, server=self._server)
        process.send("open", cache=self._cache)
        return process

    def _opened(self, process: WorkerProcess) -> bool:
        if process is not self._open:
            self._open = process
            try:
                process.receive(STARTS)
            except DeviceError:
                process.kill()
        return process.alive

    def close(self) -> None:
        """End them."""
        if self._next is not None:
            self._next.kill()
        self._server.close()


def run(given: argparse.Namespace) -> int:
    """Time what is not timed yet, and write what is known; 3 when workers do not start, or all fail."""
    begin = time.monotonic()
    usable, reason = available()
    print(reason, flush=True)
    if not usable and not given.dry_run:
        return 2
    name = "peers" + "-dry" * given.dry_run
    where, index = environment(), index_of(given.folder)
    sources = {key: index[key] for key in ("cuda_l2", "cutlass")}
    header = {"gpu": where["gpu"], "torch": where["torch"], "sassafras": code_digest("gemm")[:16], **sources}
    built = {r["shape"]: r for r in read(given.folder / "build.jsonl")[1:] if "shape" in r}
    journal = journal_of(given, name, header)
    ready = {shape for shape, record in built.items() if "error" not in record} - set(journal.done())
    left = [kernel for kernel in shared(index["kernels"], given) if kernel["shape"] in ready]
    lost, failed = False, list[bool]()
    if left and given.limit_s > 0:
        workers = Workers(given.cache, given.dry_run)
        try:
            count = 0 if given.dry_run else workers.kernels([kernel["shape"] for kernel in left])
            print(f"{time.monotonic() - begin:6.1f} s {count} kernels of ours", flush=True)
            for kernel in left:
                if time.monotonic() - begin > given.limit_s:
                    break
                started = time.monotonic()
                library = (given.folder / "lib" / f"{kernel['shape']}.so").resolve()
                record = workers.row({**kernel, "library": str(library)}, given.seconds)
                record["seconds"] = round(time.monotonic() - started, 2)
                journal.add({"shape": kernel["shape"], **record})
                failed.append("error" in record)
                held = record.get("loops") or record.get("graphs") or {way: {} for way in WAYS}
                figures = [held[way].get("theirs_over_ours", [0])[0] for way in WAYS]
                words = [record.get(key) for key in ("captured", "seconds", "error", "wrong")]
                print(f"{time.monotonic() - begin:6.1f} s", kernel["shape"], *figures, *words, flush=True)
                if len(failed) == GIVEN_UP and all(failed):
                    raise DeviceError(f"the first {GIVEN_UP} rows failed")
        except DeviceError as error:
            print(f"error: {error}", flush=True)
            lost = True
        finally:
            workers.close()
    rows, missing = results(index["kernels"], built, journal.done())
    summary = summarised(rows, missing) | sources | {"of": index["of"], "modelled": given.dry_run}
    path = write(name, rows, summary, where, seed=index["seed"], out=given.out)
    print(*(f"{key}: {value}" for key, value in summary.items()), sep="\n")
    print(path.name)
    return 3 if lost else int(not rows)


# -- rows and summary --------------------------------------------------------------------------------------


def results(
    kernels: Iterable[Record], built: dict[str, Record], done: dict[str, Record]
) -> tuple[list[Record], dict[str, str]]:
    """(rows of kernels that were timed, shape -> why it was not)."""
    rows, missing = list[Record](), dict[str, str]()
    for kernel in kernels:
        shape = kernel["shape"]
        compiled, record = built.get(shape), done.get(shape)
        if compiled is None or "error" in compiled:
            missing[shape] = f"compilation: {compiled['error'] if compiled else 'not reached'}"
        elif record is None or "error" in record:
            missing[shape] = f"run: {record['error'] if record else 'not reached'}"
        elif "wrong" in record:
            missing[shape] = f"wrong: {record['wrong']}"
        else:
            rows.append(row_of(kernel, compiled, record))
    return rows, missing


def row_of(kernel: Record, compiled: Record, record: Record) -> Record:
    """A line of the result: ratios by way, as calls of the code as it is written, and in graphs."""
    shape = Shape.parse(kernel["shape"])
    errors = record.get("errors", {})
    row = {"shape": str(shape), "band": shape.band, "captured": record["captured"] or "no"}
    row["calls"] = "graphs" if record["captured"] == "as written" else "loops"
    row |= {"builder": kernel["builder"], "sums": "+".join(compiled["sums"]) or "no tensor cores"}
    if kernel["padded"] != [shape.m, shape.n, shape.k]:
        row["padded"] = kernel["padded"]
    for which, kind in enumerate(("rms", "max")):
        row[f"{kind}_error"] = {name: float(f"{pair[which]:.4g}") for name, pair in errors.items()}
    row |= {key: record[key] for key in KEPT if record.get(key)}
    for to, held in (("", record.get(row["calls"])), ("graphs_", record.get("graphs"))):
        if held and not (to and row["calls"] == "graphs"):
            row |= {f"{to}{way}": held[way] for way in WAYS}
    return row


def standing(ratio: Sequence[float], control: Sequence[float]) -> str:
    """``ahead``, ``behind`` or ``even`` of [median, low, high] beside the control's."""
    return "ahead" if ratio[1] > control[2] else "behind" if ratio[2] < control[1] else "even"


def summarised(rows: Sequence[Record], missing: dict[str, str]) -> Record:
    """Geometric means by way and band, who is ahead, and what did not become a row."""

    def those(way: str, graphs: str, of: Sequence[Record] | None = None) -> list[tuple[Record, Record]]:
        """Rows, and of each the column: with graphs, the one of those that have any."""
        of = rows if of is None else of
        named = [(row, f"graphs_{way}" if graphs and row["calls"] == "loops" else way) for row in of]
        return [(row, row[column]) for row, column in named if column in row]

    def means(rows: Sequence[Record]) -> Record:
        found: Record = {}
        for to, way in itertools.product(BOTH, WAYS):
            held = [at for _, at in those(way, to, rows)]
            found[f"shapes{to}"] = len(held)
            for ratio in RATIOS if held else ():
                found[f"{ratio}{to}_{way}"] = geomean((at[ratio][0] for at in held), 4)
        return found

    def places(way: str, graphs: str) -> Record:
        found = (standing(at["theirs_over_ours"], at["control"]) for _, at in those(way, graphs))
        return dict(Counter(found))

    def faster(way: str, graphs: str) -> Record:
        held = sorted((at["theirs_over_ours"], row["shape"]) for row, at in those(way, graphs))
        return {shape: ratio for ratio, shape in held if ratio[0] < NAMED}

    wrong = {shape: words for shape, words in missing.items() if words.startswith("wrong")}
    ours_wrong = [row["shape"] for row in rows if row.get("ours_wrong")]
    rows = [row for row in rows if not row.get("ours_wrong")]
    return {
        "captured": dict(Counter(row["captured"] for row in rows)),
        "sums": dict(Counter(row["sums"] for row in rows)),
        "needs_zeros": [row["shape"] for row in rows if row.get("needs_zeros")],
        **means(rows),
        "bands": {band: means(held) for band in BANDS if (held := [r for r in rows if r["band"] == band])},
        **{f"counts{to}": {way: places(way, to) for way in WAYS} for to in BOTH},
        **{f"theirs_faster{to}": {way: faster(way, to) for way in WAYS} for to in BOTH},
        "ours_wrong": ours_wrong,
        "failed": {shape: words for shape, words in missing.items() if shape not in wrong},
        "wrong": wrong,
    }


# -- command line ------------------------------------------------------------------------------------------


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__, out=None)
    commands = parser.add_subparsers(dest="command", required=True)
    packs = commands.add_parser("pack", help="draw shapes, and pack what compiles and runs without network")
    for name in ("cuda-l2", "cutlass"):
        packs.add_argument(f"--{name}", type=Path, required=True, help="checkout or git directory")
        packs.add_argument(f"--{name}-ref", default="HEAD", help="commit or tag")
    packs.add_argument("--shapes", type=int, default=340)
    packs.add_argument("--seed", type=int, default=0)
    packs.add_argument("--out", type=Path, required=True)
    builds = commands.add_parser("build", help="compile the kernels of a pack")
    builds.add_argument("pack", type=Path)
    builds.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    builds.add_argument("--nvcc", type=Path)
    builds.add_argument("--one-s", type=float, default=150.0, help="time limit of a kernel")
    runs = commands.add_parser("run", help="time the kernels of a folder")
    runs.add_argument("--seconds", type=float, default=0.05, help="GPU time of a way of calling, about")
    builds.add_argument("--limit-s", type=float, default=1e9, help="start nothing after so many seconds")
    runs.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or RESULTS))
    journal_options(runs)
    for command in (builds, runs):
        command.add_argument("--folder", type=Path, required=True)
    return parser.parse_args(words)


def main() -> int:
    """Run a command."""
    given = arguments()
    if given.command == "run":
        return run(given)
    if given.command == "pack":
        refs = given.cuda_l2_ref, given.cutlass_ref
        index = pack(given.cuda_l2, given.cutlass, refs, given.shapes, given.seed, given.out)
        bands = dict(Counter(Shape.parse(kernel["shape"]).band for kernel in index["kernels"]))
        print(len(index["kernels"]), "kernels of", index["of"], given.out.stat().st_size >> 10, "KiB", bands)
        return 0
    unpacked(given.pack, given.folder)
    compiler = Compiler(nvcc(given.nvcc), given.folder, given.one_s)
    records = build(given.pack, given.folder, compiler, given.jobs, given.limit_s)
    failed = sum("error" in record for record in records)
    print(f"{len(records)} kernels, {failed} do not compile")
    return int(failed == len(records))


if __name__ == "__main__":
    sys.exit(main())
