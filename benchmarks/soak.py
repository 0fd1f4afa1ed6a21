"""SIGKILL at random moments, and what is lost: writes soak.json, without a GPU soak-model.json.

    python benchmarks/soak.py [--candidates 1000] [--kills 40] [--limit-s 150] [--out FOLDER]

A search of schedules evaluates candidates in worker processes; 111 of 1,000 candidates are wrong, crash, end,
hang or fill their worker (`soak_worker`). SIGKILL ends a worker, the process that owns the search, or all its
processes at once, and the search is started again until it is done. A second search runs without kills. Both
must end with the same evaluations in the same order, the same best, and a whole store.

Candidates are ranked by the timing model, which is deterministic; on a GPU each correct one also runs there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import command_line, python_path, write

Row = dict[str, Any]
HERE = Path(__file__).resolve()
#: what SIGKILL ends: a worker, or one time in so many something larger, which takes longer to start again
KINDS = {"worker": 1, "owner": 14, "all": 14}
#: host memory that a worker may hold, without and with a GPU
MOST_BYTES = 512 << 20, 3 << 30


# -- the search that is killed ------------------------------------------------------------------------------


def search(options: argparse.Namespace) -> None:
    """One sitting; prints the number of evaluations as it goes."""
    import sassafras
    from sassafras.core import Candidate, Case, Kernel, Modelled, Workload
    from sassafras.cuda.environment import available
    from sassafras.evaluate.gpu import CudaDevice
    from sassafras.evaluate.gpu.device import Limits
    from sassafras.timing_model import ModelDevice

    class SoakDevice(CudaDevice):
        """Verdicts of workers with planted faults, figures of the timing model."""

        modelled = True
        worker = "soak_worker"
        prefork = None  # type: ignore[assignment]

        def __init__(self) -> None:
            self.model = ModelDevice("sm_90a")
            most = MOST_BYTES[available()[0]]
            super().__init__(
                limits=Limits(candidate_s=options.hang_s, open_s=100.0, host_bytes=most), pairs=1
            )

        def _find(self) -> tuple[str, str]:
            return (super()._find()[0] if available()[0] else "no GPU"), self.model.arch

        def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
            self.model.open(workload, case, baseline)
            super().open(workload, case, baseline)

        def run(self, candidate: Candidate) -> Any:
            outcome = super().run(candidate)
            with options.log.open("a") as log:
                log.write(f"{candidate.digest}\n")
            if outcome.verdict.ok:
                return self.model.run(candidate)
            return Modelled(candidate.digest, outcome.verdict, detail=outcome.detail)

        def environment(self) -> dict[str, Any]:
            return self.model.environment()

    with SoakDevice() as device:
        sassafras.optimize(
            options.target, strategy="anneal", budget=f"{options.candidates}e", device=device,
            seed=options.seed, store=options.store,
            progress=lambda standing: print(standing.evaluations, flush=True),
        )  # fmt: skip


# -- the process that kills ---------------------------------------------------------------------------------


def family(pid: int) -> dict[int, tuple[int, str]]:
    """Parent and command line of each living descendant of a process."""
    found = dict[int, tuple[int, str]]()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
            if state != "Z":
                found[int(entry.name)] = int(parent), words
    kept, size = {pid}, 0
    while size != len(kept):
        size = len(kept)
        kept |= {child for child, (parent, _) in found.items() if parent in kept}
    return {child: found[child] for child in kept - {pid} if child in found}


def end(pids: Any) -> None:
    """SIGKILL to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Sitting:
    """A search's process, and how far it is."""

    def __init__(self, options: argparse.Namespace, store: Path, log: Path) -> None:
        words = ["--candidates", str(options.candidates), "--seed", str(options.seed)]
        words += ["--target", options.target]
        words += ["--hang-s", str(options.hang_s), "--store", str(store), "--log", str(log)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self.process = subprocess.Popen(
            [sys.executable, str(HERE), *words], stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={**os.environ, "PYTHONPATH": python_path(HERE.parent)},
        )  # fmt: skip
        self.at = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.at = int(line)

    def wait(self, until: float) -> None:
        """Wait for its end. Raises RuntimeError: it failed, or did not end in time."""
        try:
            status = self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            end([self.process.pid, *family(self.process.pid)])
            raise RuntimeError(f"the time is up; the search stands at {self.at}") from None
        if status:
            self._errors.seek(0)
            raise RuntimeError(f"the search ended with {status}: {self._errors.read()[-2000:]}")

    def kill(self, kind: str, chance: random.Random) -> bool:
        """SIGKILL to what `kind` names; False where there is no worker at the moment."""
        owner = self.process.pid
        others = family(owner)
        workers = [
            pid for pid, (parent, words) in others.items()
            if "soak_worker" in words and (parent != owner or "fork_server" not in words)
        ]  # fmt: skip
        if kind == "worker":
            if workers:
                end([chance.choice(sorted(workers))])
            return bool(workers)
        end([owner] if kind == "owner" else [owner, *others])
        self.process.wait()
        return True


def disturbed(
    options: argparse.Namespace, store: Path, log: Path, until: float
) -> tuple[Counter[str], set[int]]:
    """Run the search to its end in as many sittings as kills leave it; kills, and processes that it had."""
    chance = random.Random(options.seed + 1)
    rare = [kind for kind in ("owner", "all") for _ in range(-(-options.kills // KINDS[kind]))]
    plan = rare + ["worker"] * (options.kills - len(rare))
    chance.shuffle(plan)
    marks = sorted(chance.randint(1, options.candidates * 9 // 10) for _ in plan)
    sitting, seen = Sitting(options, store, log), set[int]()
    for number, kind in enumerate(plan):
        while sitting.at < marks[number] and sitting.process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.05)
        while sitting.process.poll() is None and time.monotonic() < until:
            seen |= family(sitting.process.pid).keys()
            if sitting.kill(kind, chance):
                break
            time.sleep(0.01)
        else:  # the search is done, or failed, or the time is up
            sitting.wait(until)
            return Counter(plan[:number]), seen
        if kind != "worker":
            sitting = Sitting(options, store, log)
    sitting.wait(until)
    return Counter(plan), seen


def left_behind(seen: set[int], within: float = 10.0) -> int:
    """How many of these processes still live some seconds later; they are ended."""
    deadline = time.monotonic() + within
    while alive := {pid for pid in seen if _is_ours(pid)}:
        if time.monotonic() > deadline:
            end(alive)
            return len(alive)
        time.sleep(0.1)
    return 0


def _is_ours(pid: int) -> bool:
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state != "Z" and b"soak_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def contents(store: Path) -> tuple[list[tuple[Any, ...]], bool]:
    """(digest, verdict, cycles) of every evaluation in order, and whether SQLite finds the file whole."""
    with contextlib.closing(sqlite3.connect(store)) as db:
        whole = db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        return db.execute("SELECT digest, verdict, cycles FROM evaluations ORDER BY id").fetchall(), whole


def best(rows: list[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """The first of the fastest evaluations."""
    return min((row for row in rows if row[1] is None), key=lambda row: row[2], default=None)


def compared(
    wanted: list[tuple[Any, ...]], rows: list[tuple[Any, ...]], judged: Counter[str]
) -> tuple[list[Row], Row]:
    """Rows by verdict, and what the searches without and with kills have in common.

    Args:
        wanted, rows: `contents` without and with kills.
        judged: how often each candidate was judged in the search with kills.
    """
    digests = Counter(row[0] for row in rows)
    again = sum((judged - Counter(dict.fromkeys(judged, 1))).values())
    before, after = (Counter(str(row[1] or "correct") for row in of) for of in (wanted, rows))
    table = [{"verdict": verdict, "without kills": before[verdict], "with kills": after[verdict]}
             for verdict in sorted({*before, *after})]  # fmt: skip
    return table, {
        "candidates": len(rows), "lost": len({row[0] for row in wanted} - set(digests)),
        "duplicated": digests.total() - len(digests), "judged_again": again,
        "same_evaluations_in_the_same_order": rows == wanted,
        "same_best": best(rows) is not None and best(rows) == best(wanted),
    }  # fmt: skip


def soak(options: argparse.Namespace) -> tuple[list[Row], Row]:
    """Both searches, at the same time; rows by verdict, and the summary."""
    begin = time.monotonic()
    until = begin + options.limit_s
    with tempfile.TemporaryDirectory(prefix="sassafras-soak-") as name:
        place = Path(name)
        plain = Sitting(options, place / "plain.sqlite", place / "plain.log")
        try:
            kills, seen = disturbed(options, place / "killed.sqlite", place / "killed.log", until)
            plain.wait(until)
        finally:
            end([*family(os.getpid())])
        wanted, _ = contents(place / "plain.sqlite")
        rows, whole = contents(place / "killed.sqlite")
        judged = Counter((place / "killed.log").read_text().split())
    if rows:
        del judged[rows[0][0]]  # the baseline: every sitting warms up with it
    table, summary = compared(wanted, rows, judged)
    return table, {
        "asked": options.candidates, "kills": kills.total(), "kills_asked": options.kills,
        **{f"kills_of_{kind}": kills[kind] for kind in KINDS}, **summary, "store_whole": whole,
        "processes_left_behind": left_behind(seen), "seconds": round(time.monotonic() - begin, 1),
    }  # fmt: skip


def passed(summary: Row) -> bool:
    """Nothing was lost, counted twice, or left behind; a candidate in flight at a kill is judged again."""
    return bool(
        summary["candidates"] >= summary["asked"] and summary["kills"] >= summary["kills_asked"]
        and summary["lost"] == summary["duplicated"] == summary["processes_left_behind"] == 0
        and summary["judged_again"] <= summary["kills_of_owner"] + summary["kills_of_all"]
        and summary["same_evaluations_in_the_same_order"] and summary["same_best"] and summary["store_whole"]
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """See the module; 0 when the soak passed."""
    parser = command_line(__doc__)
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--target", default="suite:softmax")
    parser.add_argument("--hang-s", type=float, default=4.0, help="a candidate's limit")
    parser.add_argument("--limit-s", type=float, default=150.0, help="of everything")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--store", type=Path, help=argparse.SUPPRESS
    )  # of a sitting, which this script starts
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.store:
        search(options)
        return 0
    if not 0 <= options.kills < options.candidates:
        parser.error("--candidates has to be above --kills")
    from sassafras.cuda.environment import available, environment

    gpu = available()[0]
    rows, summary = soak(options)
    write("soak" if gpu else "soak-model", rows, summary, environment() if gpu else {"gpu": None},
          seed=options.seed, out=options.out)  # fmt: skip
    print(json.dumps(summary, indent=1))
    return 0 if passed(summary) else 1


if __name__ == "__main__":
    raise SystemExit(main())
