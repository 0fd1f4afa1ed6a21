"""Which mutant runs where and when: approved ones first, faults spread, nothing lost when stopped."""

from __future__ import annotations

import base64
import json
import lzma
import multiprocessing
import os
import time
from collections import Counter, deque
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from . import lean
from .plan import NoPlan, patched, read, validator_digest

Row = dict[str, Any]
#: seconds that an approved mutant may take, and that one may take again when it did not answer (a GPU that
#: recovers from another process's fault stalls everybody on it)
HANG_S, AGAIN_S = 0.3, 4.0
#: seconds that a refused one may take: a fault answers within about one; nobody asks it twice
REFUSED_S = 3.0
START_S = 90.0
#: processes a GPU that stand by with a context: a fault takes one, and a new one needs seconds to start
STANDBY = 4
#: mutants taken at a time, so that GPUs change kernels rarely
CHUNK = 100


class Work:
    """Chunks of mutants by phase and kernel, shared by the threads of all GPUs.

    Phase 0 holds what the validator approved: that none of them is wrong is the claim. Phase 1 holds what it
    refused, in an order that spreads each kernel's violations of one class.
    """

    def __init__(self, plans: dict[str, Row], done: set[tuple[str, int]]) -> None:
        self.phases: list[dict[str, deque[list[Row]]]] = [{}, {}]
        self.total = Counter({"approved": 0, "refused": 0})
        for name, plan in plans.items():
            for phase, approved in enumerate((True, False)):
                rows = [m for m in plan["mutants"] if m["ok"] is approved]
                self.total["approved" if approved else "refused"] += len(rows)
                rows = [m for m in spread(rows) if (name, m["n"]) not in done]
                chunks = deque(rows[i : i + CHUNK] for i in range(0, len(rows), CHUNK))
                if chunks:
                    self.phases[phase][name] = chunks
        self.ready: set[str] = set()
        self.failed: dict[str, str] = {}
        self.changed = Condition()
        self.stopped = False

    def take(self, prefer: str | None) -> tuple[str, list[Row]] | None:
        """The next chunk of a kernel that is prepared, of `prefer` if it has one; None at the end."""
        with self.changed:
            while not self.stopped:
                for phase in self.phases:
                    for name in [n for n in phase if n in self.failed]:
                        del phase[name]
                    names = [n for n in phase if n in self.ready]
                    if names:
                        name = prefer if prefer in names else max(names, key=lambda n: len(phase[n]))
                        chunk = phase[name].popleft()
                        if not phase[name]:
                            del phase[name]
                        return name, chunk
                    if phase:
                        break  # approved mutants of kernels that are being prepared come first
                else:
                    return None
                self.changed.wait(0.1)
            return None

    def put_back(self, name: str, rows: list[Row]) -> None:
        """Return what was not run (a process could not be started)."""
        if rows:
            with self.changed:
                phase = self.phases[0 if rows[0]["ok"] else 1]
                phase.setdefault(name, deque()).append(rows)
                self.changed.notify_all()


def spread(rows: list[Row]) -> list[Row]:
    """The same rows with violations of one class far apart: round robin over the classes."""
    classes: dict[str, deque[Row]] = {}
    for row in rows:
        classes.setdefault(" ".join(row["why"].split()[:3]), deque()).append(row)
    queue = deque(classes.values())
    order = []
    while queue:
        one = queue.popleft()
        order.append(one.popleft())
        if one:
            queue.append(one)
    return order


class Process:
    """One lean process: starts in the background, opens kernels, runs mutants."""

    def __init__(self, device: int, window: bool, pretend: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=lean.serve, args=(theirs, device, window, pretend), daemon=True
        )
        self._process.start()
        theirs.close()
        self.ready = False
        self.window = False
        self.opened: str | None = None

    def wait_ready(self) -> bool:
        """True once it holds a context."""
        if not self.ready:
            answer = self._answer(START_S)
            self.ready = answer is not None and answer[0] == "ready"
            self.window = bool(answer and answer[2])
        return self.ready

    def open(self, folder: Path) -> str:
        """``""``, or why the kernel cannot be opened here."""
        if self.opened == folder.name:
            return ""
        answer = self.ask(START_S, "open", str(folder))
        if answer is None or answer[0] != "opened":
            return "no answer" if answer is None else answer[1]
        self.opened = folder.name
        return ""

    def ask(self, seconds: float, *request: Any) -> tuple[str, str, bool] | None:
        """An answer, or None when it did not come (in time)."""
        try:
            self.pipe.send(request)
        except OSError:
            return ("died", "the process was gone", True)
        return self._answer(seconds)

    def _answer(self, seconds: float) -> Any:
        try:
            return self.pipe.recv() if self.pipe.poll(seconds) else None
        except (EOFError, OSError):
            return ("died", "the process died", True)

    def kill(self) -> None:
        """End it, and do not wait long: a context that a fault took dies slowly."""
        self._process.kill()
        self.pipe.close()


class Gpu(Thread):
    """One GPU's thread: an active process and one standing by, already initialised."""

    def __init__(
        self, device: int, work: Work, plans: dict[str, Row], folder: Path, journal: Path, *,
        deadline: float, window: bool, pretend: bool, hang_s: float,
    ) -> None:  # fmt: skip
        super().__init__(name=f"gpu {device}")
        self.device, self.work, self.plans, self.folder = device, work, plans, folder
        self.deadline, self.hang_s = deadline, hang_s
        self._settings = (device, window, pretend)
        self._journal = journal.open("a", encoding="utf-8")
        self._cubins = {name: base64.b64decode(plan["cubin"]) for name, plan in plans.items()}
        self.counts: Counter[str] = Counter()
        self.spent: Counter[str] = Counter()
        self.problem = ""
        self._active: Process | None = None
        self._standby = deque(Process(*self._settings) for _ in range(STANDBY))

    def run(self) -> None:
        """Work until there is none left or the deadline comes."""
        try:
            prefer: str | None = None
            while time.monotonic() < self.deadline and (taken := self.work.take(prefer)):
                prefer, rows = taken
                for index, row in enumerate(rows):
                    if time.monotonic() >= self.deadline:
                        self.work.put_back(prefer, rows[index:])
                        return
                    if not self._one(prefer, row):
                        break  # the kernel was given up
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            for process in (self._active, *self._standby):
                if process is not None:
                    process.kill()
            self._journal.close()

    def _one(self, name: str, row: Row) -> bool:
        """Run one mutant and write its row; False when its kernel cannot be opened at all."""
        process = self._process(name)
        if process is None:
            return False
        cubin = patched(self._cubins[name], row["runs"])
        begin = time.monotonic()
        answer = process.ask(self.hang_s if row["ok"] else REFUSED_S, "run", cubin, row["ok"])
        self.spent[f"first_{'none' if answer is None else answer[0]}"] += time.monotonic() - begin
        if answer is None and not row["ok"]:
            answer = ("hung", f"no answer within {REFUSED_S:g} s", True)
        if answer is None or answer[0] == "died":
            self.counts["asked_again"] += 1
            self._lose()
            process = self._process(name)  # checks its own original first, however long that takes
            if process is None:
                return False
            answer = process.ask(AGAIN_S, "run", cubin, row["ok"])
            if answer is None:
                answer = ("hung", f"no answer within {AGAIN_S:g} s, twice", True)
            elif answer[0] == "died":
                answer = ("crashed", "its process died, twice", True)
        if answer[2]:
            self.counts["processes_lost"] += 1
            self._lose()
        outcome = answer[0]
        again = None
        if row["ok"] and outcome != "right":  # the claim's own counterexample: look twice
            fresh = self._process(name)
            second = fresh.ask(AGAIN_S, "run", cubin, True) if fresh is not None else None
            again = "hung" if second is None else second[0]
            if second is None or second[2]:
                self._lose()
        self._write(name, row, outcome, answer[1], again)
        return True

    def _write(self, name: str, row: Row, outcome: str, detail: str, again: str | None) -> None:
        self.counts[outcome] += 1
        kept: Row = {
            "kernel": name,
            "n": row["n"],
            "ok": row["ok"],
            "outcome": outcome,
            "kinds": row["kinds"],
        }
        kept |= {"digest": row["digest"]}
        if detail:
            kept["detail"] = detail[:160]
        if again is not None:
            kept |= {"again": again, "runs": row["runs"]}
        self._journal.write(json.dumps(kept) + "\n")
        self._journal.flush()

    def _process(self, name: str) -> Process | None:
        """A process with this kernel open, checked if it took over from a lost one, or None."""
        for _ in range(4):
            took_over, begin = self._active is None, time.monotonic()
            if self._active is None:
                self._standby.append(Process(*self._settings))
                self._active = self._standby.popleft()
            process = self._active
            if not process.wait_ready():
                self._lose()
                continue
            problem = process.open(self.folder / name)
            if not problem and took_over:
                answer = process.ask(START_S, "check")
                problem = "" if answer is not None and answer[0] == "right" else "the original is not right"
                self.spent["taking_over"] += time.monotonic() - begin
            if not problem:
                return process
            self._lose()
        with self.work.changed:
            self.work.failed[name] = f"gpu {self.device}: no lean process could open it: {problem!r}"
        return None

    def _lose(self) -> None:
        if self._active is not None:
            self._active.kill()
        self._active = None


def run(
    folder: Path, out: Path, *, gpus: int, seconds: float, only: list[str], window: bool, pretend: bool,
    hang_s: float = HANG_S, say: Any = print, seen: Path | None = None,
) -> Row:  # fmt: skip
    """Run the plans of a folder; journals in `out` and `seen` make a call go on where earlier ones stopped.

    Returns: rows a kernel, the summary, and what was left.

    Raises:
        NoPlan: no plan, or a stale one.
    """
    begin = time.monotonic()
    deadline = begin + seconds
    plans = current(folder, only)
    out.mkdir(parents=True, exist_ok=True)
    rows = journal_rows(out, plans, seen)
    work = Work(plans, {(row["kernel"], row["n"]) for row in rows})
    say(f"{len(rows)} mutants are done already; {dict(work.total)} planned")
    place = Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp", f"sassafras-mutants-{os.getpid()}")
    context = multiprocessing.get_context("spawn")
    wanted = [n for n in plans if any(n in phase for phase in work.phases)]
    maker = lean.prepare_pretended if pretend else lean.prepare
    makers = [
        context.Process(
            target=maker, args=([str(folder / f"{n}.xz") for n in wanted[g::gpus]], str(place), g)
        )
        for g in range(min(gpus, len(wanted)))
    ]
    for process in makers:
        process.start()
    threads = [
        Gpu(g, work, plans, place, out / f"mutants-gpu{g}.jsonl", deadline=deadline, window=window,
            pretend=pretend, hang_s=hang_s)
        for g in range(gpus)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    told = time.monotonic()
    while any(thread.is_alive() for thread in threads):
        _look(work, place, wanted, makers)
        time.sleep(0.1)
        if time.monotonic() - told > 15:
            told = time.monotonic()
            say(f"{told - begin:.0f} s: {dict(sum((t.counts for t in threads), Counter()))}")
        if time.monotonic() > deadline:
            with work.changed:
                work.stopped = True
                work.changed.notify_all()
    for process in makers:
        process.kill()
        process.join()
    import shutil

    shutil.rmtree(place, ignore_errors=True)
    summary = summarise(journal_rows(out, plans, seen), plans, work)
    summary["seconds"] = round(time.monotonic() - begin, 1)
    summary["asked_again"] = sum(thread.counts["asked_again"] for thread in threads)
    summary["processes_lost"] = sum(thread.counts["processes_lost"] for thread in threads)
    summary["gpus"] = gpus
    spent = sum((thread.spent for thread in threads), Counter())
    summary["seconds_spent"] = {what: round(seconds, 1) for what, seconds in sorted(spent.items())}
    if problems := [thread.problem for thread in threads if thread.problem]:
        summary["problems"] = problems
    return summary


def _look(work: Work, place: Path, wanted: list[str], makers: list[Any]) -> None:
    """Note which kernels are prepared, which failed, and which will never come."""
    gone = not any(process.is_alive() for process in makers)
    with work.changed:
        for name in wanted:
            if name in work.ready or name in work.failed:
                continue
            if (place / name / "case.json").exists():
                work.ready.add(name)
            elif (place / name / "failed").exists():
                work.failed[name] = (place / name / "failed").read_text()
            elif gone and not (place / name / "case.json").exists():
                work.failed[name] = "its preparation ended without a word"
        work.changed.notify_all()


def current(folder: Path, only: list[str]) -> dict[str, Row]:
    """The plans of a folder by kernel. Raises NoPlan: no plan, or another validator's verdicts."""
    plans = {path.stem: read(path) for path in sorted(folder.glob("*.xz")) if not only or path.stem in only}
    if not plans:
        raise NoPlan(f"no plans in {folder}: make them with `mutants_gpu.py plan` first")
    stale = [name for name, plan in plans.items() if plan["validator"] != validator_digest()]
    if stale:
        raise NoPlan(f"the validator changed since {', '.join(stale)} was planned: make the plans again")
    return plans


def _lines(folder: Path) -> list[str]:
    """The lines of all journals of a folder, compressed ones too."""
    texts = [path.read_text() for path in sorted(folder.glob("mutants-gpu*.jsonl"))]
    texts += [
        lzma.decompress(path.read_bytes()).decode() for path in sorted(folder.glob("mutants-*.jsonl.xz"))
    ]
    return [line for text in texts for line in text.splitlines()]


def journal_rows(out: Path, plans: dict[str, Row], seen: Path | None = None) -> list[Row]:
    """Every row of earlier calls that belongs to these plans; a line cut short by a kill is dropped.

    Verdicts are the plans': what a mutant did stays true when the validator changes. ``was`` is the verdict
    that it ran under, where that was another.
    """
    wanted = {(name, m["n"]): (m["digest"], m["ok"]) for name, plan in plans.items() for m in plan["mutants"]}
    found: dict[tuple[str, int], Row] = {}
    for line in [*_lines(out), *(_lines(seen) if seen is not None else [])]:
        try:
            row = json.loads(line)
            key = (row["kernel"], row["n"])
        except (ValueError, KeyError, TypeError):
            continue
        digest, ok = wanted.get(key, (None, False))
        if digest is not None and digest == row.get("digest"):
            found.setdefault(key, {**row, "ok": ok} | ({"was": row["ok"]} if row["ok"] is not ok else {}))
    return list(found.values())


def summarise(rows: list[Row], plans: dict[str, Row], work: Work) -> Row:
    """The two-by-two table, whole or partial, and one row a kernel."""
    total: Counter[str] = Counter()
    kernels: dict[str, Counter[str]] = {name: Counter() for name in plans}
    kinds: Counter[str] = Counter()
    for row in rows:
        key = f"{'approved' if row['ok'] else 'refused'}_{row['outcome']}"
        total[key] += 1
        kernels[row["kernel"]][key] += 1
        for kind in set(row["kinds"]):
            kinds[f"{kind}_{key}"] += 1
    wrong = ("wrong", "crashed", "hung", "refused", "failed")
    planned = sum(work.total.values())
    return {
        "mutants_planned": planned, "mutants_run": len(rows), "complete": len(rows) == planned,
        "approved_run": sum(v for k, v in total.items() if k.startswith("approved_")),
        "approved_planned": work.total["approved"],
        "approved_and_right": total["approved_right"],
        "approved_but_wrong": sum(total[f"approved_{w}"] for w in wrong),
        "refused_and_right": total["refused_right"],
        "refused_and_wrong": sum(total[f"refused_{w}"] for w in wrong),
        "outcomes": dict(sorted(total.items())), "kinds": dict(sorted(kinds.items())),
        "failed_kernels": dict(work.failed),
        "kernels": {name: dict(sorted(counts.items())) for name, counts in kernels.items()},
        "counterexamples": [row for row in rows if row["ok"] and row["outcome"] != "right"][:40],
        "was_approved": _corrected(rows, plans),
    }  # fmt: skip


def _corrected(rows: list[Row], plans: dict[str, Row]) -> Row:
    """What an earlier validator approved when it ran and today's refuses: outcomes, and the wrong ones."""
    why = {(name, m["n"]): m["why"] for name, plan in plans.items() for m in plan["mutants"]}
    old = [row for row in rows if row.get("was") and not row["ok"]]
    names = ("kernel", "n", "outcome", "kinds", "digest")
    return {
        "outcomes": dict(sorted(Counter(row["outcome"] for row in old).items())),
        "wrong": [
            {name: row[name] for name in names} | {"refused_now": why[row["kernel"], row["n"]]}
            for row in old if row["outcome"] != "right"
        ],
    }  # fmt: skip
