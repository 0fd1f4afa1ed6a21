"""Kill everything at random moments and count what is lost: writes soak.json.

    python benchmarks/soak.py run [--device model] [--candidates 1000] [--out FOLDER]   # some minutes
    python benchmarks/soak.py run --device cuda [--candidates 1000]                     # on a GPU

A search evaluates candidates of which some are wrong, crash their worker, end it, hang, or leak memory. A
second process sends SIGKILL to its workers and to the search itself, at random moments, and starts the search
again until it is done. Beside it the same search runs undisturbed. Both must end with the same evaluations in
the same order, the same best, a whole store, and no process left behind.

``--device model``: `optimize` with annealing on the timing model; candidates' faults happen in real worker
processes (`soak_worker.py`) behind the parent's side of `CudaDevice`. ``--device cuda``: real kernels with
planted faults (tests/gpu/faults.cu), copies of which differ in one constant.
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

from common import ROOT, write

Row = dict[str, Any]
HERE = Path(__file__).resolve().parent
WORKERS = ("soak_worker", "sassafras.device.cuda.worker")
#: expected verdict of each fault on a GPU
GPU_FAULTS = {
    "none": "correct", "wrong": "wrong_result", "last_element": "wrong_result",
    "past_the_end": "wrong_result",
    "modifies_input": "wrong_result", "writes_nothing": "wrong_result", "wrong_later": "wrong_result",
    "illegal_address": "crashed", "hangs": "timed_out",
}  # fmt: skip
#: how many of 1,000 copies have each fault; the rest is correct
GPU_SHARES = {"illegal_address": 20, "hangs": 10, "wrong_later": 20} | dict.fromkeys(
    ("wrong", "last_element", "past_the_end", "modifies_input", "writes_nothing"), 20
)
SALT = 0x5A17F00D


# -- the search that is killed ------------------------------------------------------------------------------


def search(options: argparse.Namespace) -> int:
    """One sitting: prints the number of evaluations as it goes, at last the outcome as JSON."""
    os.environ["PYTHONPATH"] = str(HERE) + os.pathsep + os.environ.get("PYTHONPATH", "")
    work = _on_gpu if options.device == "cuda" else _on_model
    print(json.dumps(work(options)), flush=True)
    return 0


def _tell(standing: Any) -> None:
    print(f"at {standing.evaluations}", flush=True)


def _on_model(options: argparse.Namespace) -> Row:
    import sassafras
    from sassafras.core import Candidate, Case, Kernel, Modelled, Workload
    from sassafras.device import ModelDevice
    from sassafras.device.cuda.device import CudaDevice, Limits
    from sassafras.device.cuda.process import WorkerProcess

    class SoakDevice(CudaDevice):
        """The parent's side of `CudaDevice`, with workers that hold no GPU, and the model's figures."""

        modelled = True  # type: ignore[assignment]

        def __init__(self) -> None:
            self.model = ModelDevice("sm_90a")
            super().__init__(limits=Limits(candidate_s=options.hang_s, open_s=120.0, host_bytes=200 << 20))

        def _find(self) -> tuple[str, str]:
            return "soak on the timing model", "sm_90a"

        def _new_worker(self) -> WorkerProcess:
            return WorkerProcess(memory_bytes=self.limits.host_bytes, module="soak_worker")

        def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
            self.model.open(workload, case, baseline)
            super().open(workload, case, baseline)

        def run(self, candidate: Candidate) -> Any:
            outcome = super().run(candidate)
            with Path(options.log).open("a") as log:
                log.write(f"{candidate.digest}\n")
            if outcome.verdict.ok:
                return self.model.run(candidate)
            return Modelled(candidate.digest, outcome.verdict, detail=outcome.detail)

        def environment(self) -> dict[str, Any]:
            return self.model.environment()

    result = sassafras.optimize(
        options.target, strategy="anneal", budget=f"{options.candidates}e", device=SoakDevice(),
        seed=options.seed, store=options.store, progress=_tell,
    )  # fmt: skip
    return {
        "best": result.kernel.digest,
        "evaluations": result.evaluations,
        "verdicts": dict(result.verdicts),
    }


def salted(cubin: bytes, number: int) -> bytes:
    """The same code with another constant in a comparison that is never true."""
    old = SALT.to_bytes(4, "little")
    if old not in cubin:
        raise ValueError("the constant to salt is not in the code")
    return cubin.replace(old, (SALT ^ (number + 1)).to_bytes(4, "little"))


class Copies:
    """Copies of a kernel that all differ; number n has the fault of card n of the deck, 0 is the baseline.

    Which copy comes next does not depend on the last one's verdict: a walk stays where it is when a candidate
    is wrong, and would otherwise be offered the same one for ever.
    """

    def __init__(self, baseline: Any, codes: dict[str, bytes], deck: list[str]) -> None:
        self.baseline, self.codes, self.deck = baseline, codes, deck
        #: digest -> verdict that it must get
        self.expected: dict[str, str] = {}

    def start(self) -> int:
        """The baseline."""
        return 0

    def sample(self, state: int, rng: Any) -> int:
        """Any copy: they are so many that hardly one comes twice."""
        return 1 + int(rng.integers(1 << 20))

    def apply(self, state: int, move: int) -> int:
        """The copy itself."""
        return move

    def candidate(self, state: int) -> Any:
        """The copy as a candidate."""
        from sassafras.core import Candidate

        if state == 0:
            return Candidate(self.baseline, {"fault": "none"})
        fault = self.deck[state % len(self.deck)]
        kernel = self.baseline.with_cubin(salted(self.codes[fault], state))
        self.expected[kernel.digest] = GPU_FAULTS[fault]
        return Candidate(kernel, {"fault": fault})


def _on_gpu(options: argparse.Namespace) -> Row:
    sys.path.insert(0, str(ROOT / "tests" / "gpu"))
    import affine

    from sassafras import search as searching
    from sassafras.core import Budget
    from sassafras.device.cuda import CudaDevice, Limits
    from sassafras.device.cuda.compile import compile_cuda
    from sassafras.evaluate import Evaluator
    from sassafras.frontend import load
    from sassafras.job import StoreRecorder
    from sassafras.store import Store

    text = affine.SOURCE.read_text().replace(
        "const int i =", f"if (n == {SALT:#x}) y[0] = 0.0f;\n    const int i =", 1
    )
    device = CudaDevice(limits=Limits(candidate_s=options.hang_s))
    workload = load(f"{ROOT / 'tests/gpu/affine.py'}:workload")
    baseline = workload.build(workload.cases[0], device.arch)
    codes = {
        fault: compile_cuda(f"#define FAULT {affine.FAULTS[fault]}\n{text}", device.arch)
        for fault in GPU_FAULTS
    }
    deck = [fault for fault, share in GPU_SHARES.items() for _ in range(share * options.candidates // 1000)]
    deck += ["none"] * (options.candidates - len(deck))
    random.Random(options.seed).shuffle(deck)

    space = Copies(baseline, codes, deck)

    class Logged(Evaluator):
        def evaluate(self, candidate: Any) -> Any:
            outcome = super().evaluate(candidate)
            with Path(options.log).open("a") as log:
                log.write(f"{candidate.digest}\n")
            return outcome

    with device, Store.open(options.store) as store:
        device.open(workload, workload.cases[0], baseline)
        run_id = store.begin_run(
            {"soak": options.seed, "candidates": options.candidates}, kernel=baseline, workload="soak",
            case=workload.cases[0].name, device=device.name, modelled=False, strategy="random_walk",
            seed=options.seed,
        )  # fmt: skip
        found = searching.run(
            searching.get("random_walk"), space, Logged(device, None, baseline),
            Budget(evaluations=options.candidates), seed=options.seed,
            recorder=StoreRecorder(store, run_id), progress=_tell,
        )  # fmt: skip
        mistaken = sum(
            str(outcome.verdict) != space.expected.get(outcome.digest, "correct")
            for outcome, _ in store.recorded(run_id)
        )
    return {
        "best": "",
        "evaluations": found.evaluations,
        "verdicts": dict(found.verdicts),
        "mistaken": mistaken,
    }


# -- whoever kills ------------------------------------------------------------------------------------------


class Sitting:
    """A search's process, and what it printed so far."""

    def __init__(self, options: argparse.Namespace, store: Path, log: Path) -> None:
        words = [
            "search", "--device", options.device, "--candidates", str(options.candidates), "--seed",
            str(options.seed), "--target", options.target, "--hang-s", str(options.hang_s),
            "--store", str(store), "--log", str(log),
        ]  # fmt: skip
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
            [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        )}  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *words], stdout=subprocess.PIPE,
            stderr=self._errors, text=True, env=environment,
        )  # fmt: skip
        self.at = 0
        self.result: Row | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("at "):
                with contextlib.suppress(ValueError):
                    self.at = int(line[3:])
            elif line.startswith("{"):
                with contextlib.suppress(ValueError):
                    self.result = json.loads(line)

    def wait(self, seconds: float) -> Row:
        """Its result. Raises RuntimeError when it ended without one, TimeoutError when it does not end."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise TimeoutError(f"the search stands at {self.at}") from None
        self._reader.join(10)
        if self.result is None:
            self._errors.seek(0)
            raise RuntimeError(f"the search ended with {status}: {self._errors.read()[-2000:]}")
        return self.result

    def workers(self) -> list[int]:
        """Process ids of its workers."""
        return [pid for pid, parent in _processes() if parent == self.process.pid]


def _processes() -> list[tuple[int, int]]:
    """(id, parent's id) of every living worker process on this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if any(word in WORKERS for word in words):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if fields[0] != "Z":
                    found.append((int(entry.name), int(fields[1])))
    return found


def disturbed(
    options: argparse.Namespace, store: Path, log: Path, chance: random.Random
) -> tuple[Row, Counter[str]]:
    """Run the search to its end, killing it and its workers; its result and the kills."""
    kills: Counter[str] = Counter()
    seen: set[int] = set()
    wanted = {"worker": options.worker_kills, "parent": options.parent_kills}
    deadline = time.monotonic() + options.limit_s
    while True:
        sitting = Sitting(options, store, log)
        left = sum(wanted.values()) - sum(kills.values())
        while sitting.process.poll() is None and time.monotonic() < deadline and left > 0:
            mark = sitting.at + chance.randint(1, max(1, (options.candidates - sitting.at) // (left + 1)))
            while sitting.process.poll() is None and sitting.at < mark and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(chance.random() * 0.05)
            seen.update(sitting.workers())
            kind = chance.choices(list(wanted), [max(0, wanted[k] - kills[k]) for k in wanted])[0]
            if kind == "parent":
                sitting.process.kill()
                sitting.process.wait()
                kills["parent"] += 1
                break
            for pid in sitting.workers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    kills["worker"] += 1
            left = sum(wanted.values()) - sum(kills.values())
        if sitting.process.poll() == -signal.SIGKILL:
            continue
        result = sitting.wait(max(1.0, deadline - time.monotonic()))
        result["left_behind"] = _left_behind(seen)
        return result, kills


def _left_behind(seen: set[int], within: float = 10.0) -> int:
    """How many of the workers seen still live, some seconds after their parents died."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not (alive := seen & {pid for pid, _ in _processes()}):
            return 0
        time.sleep(0.1)
    return len(alive)


def contents(store: Path) -> tuple[list[tuple], bool]:
    """(digest, verdict, cycles) of every evaluation in order, and whether SQLite finds the file whole."""
    with contextlib.closing(sqlite3.connect(store)) as db:
        whole = db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        rows = db.execute("SELECT digest, verdict, cycles FROM evaluations ORDER BY id").fetchall()
    return rows, whole


def soak(options: argparse.Namespace) -> tuple[list[Row], Row]:
    """Both searches; rows by verdict, and the summary."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sassafras-soak-") as name:
        place = Path(name)
        plain = Sitting(options, place / "plain.sqlite", place / "plain.log").wait(options.limit_s)
        calm = time.monotonic() - begin
        result, kills = disturbed(
            options, place / "killed.sqlite", place / "killed.log", random.Random(options.seed + 1)
        )
        wanted, _ = contents(place / "plain.sqlite")
        rows, whole = contents(place / "killed.sqlite")
        judged = Counter((place / "killed.log").read_text().split())
    digests = Counter(digest for digest, *_ in rows)
    lost = len({row[0] for row in wanted} - set(digests))
    if rows:
        del judged[rows[0][0]]  # the baseline: every sitting warms up with it
    again = sum(judged.values()) - len(judged)
    if options.device == "cuda":  # times vary from run to run, verdicts must not
        same_order = [row[:2] for row in rows] == [row[:2] for row in wanted]
    else:
        same_order = rows == wanted
    verdicts = Counter(str(row[1]) for row in rows)
    before = Counter(str(row[1]) for row in wanted)
    table = [
        {"fault": "none" if verdict == "None" else verdict, "count": count,
         "lost": max(0, before[verdict] - count), "duplicated": max(0, count - before[verdict])}
        for verdict, count in sorted(verdicts.items())
    ]  # fmt: skip
    summary = {
        "device": options.device, "asked": options.candidates, "candidates": len(rows),
        "kills": sum(kills.values()),
        "kills_of_workers": kills["worker"], "kills_of_the_search": kills["parent"], "lost": lost,
        "duplicated": sum(digests.values()) - len(digests),
        "judged_again": again,  # a candidate in flight when the search was killed, at most one a kill
        "same_evaluations_in_the_same_order": same_order, "same_best": result["best"] == plain["best"],
        "store_whole": whole, "processes_left_behind": result["left_behind"],
        "undisturbed_s": round(calm, 1), "seconds": round(time.monotonic() - begin, 1),
    }  # fmt: skip
    if "mistaken" in result:
        summary["wrong_verdicts"] = result["mistaken"] + plain["mistaken"]
    return table, summary


def passed(summary: Row) -> bool:
    """True when nothing was lost, counted twice, or left behind."""
    return bool(
        summary["candidates"] >= summary["asked"]
        and summary["lost"] == summary["duplicated"] == summary["processes_left_behind"] == 0
        and summary["judged_again"] <= summary["kills_of_the_search"]
        and summary["same_evaluations_in_the_same_order"] and summary["same_best"] and summary["store_whole"]
        and not summary.get("wrong_verdicts")
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """See the module; 0 when the soak passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("run", "search"))
    parser.add_argument("--device", choices=("model", "cuda"), default="model")
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--worker-kills", type=int, default=40)
    parser.add_argument("--parent-kills", type=int, default=10)
    parser.add_argument("--target", default="suite:rotary")
    parser.add_argument("--hang-s", type=float, default=4.0, help="a candidate's limit")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="of each of the two searches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--log", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step == "search":
        return search(options)
    rows, summary = soak(options)
    environment: Row = {"gpu": "none (timing model)"}
    if options.device == "cuda":
        from sassafras.device.cuda import environment as found

        environment = found()
    name = "soak" if options.device == "cuda" else "soak-model"
    write(name, rows, summary, environment, seed=options.seed, out=options.out)
    print(json.dumps(summary, indent=1))
    return 0 if passed(summary) else 1


if __name__ == "__main__":
    raise SystemExit(main())
