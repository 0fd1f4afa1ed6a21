"""Run every GPU test of the tree by one command, and write down when they were last green on which GPU.

First the kernels and the compiled launcher are built, in all processes; then the tests that measure nothing
run side by side (pytest-xdist), then those marked ``alone`` in series. With several GPUs each process of the
first has one of them, and each GPU takes files of the second. The status is 1 if any failed, or if --limit-s
ended them; with --resume, the same command then runs the tests that have not ended.

    python benchmarks/gpu_tests.py                      # all: writes benchmarks/results/gpu-tests.json
    python benchmarks/gpu_tests.py --only opinfo        # files whose path has this, to gpu-tests-part.json
    python benchmarks/gpu_tests.py --collect            # what would run
"""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gpu_records
from common import RESULTS, ROOT, command_line, gpu_names, python_path, read_result, write

#: tests that need no other word than their marker
_KINDS = {"together": "gpu and not alone", "alone": "gpu and alone", "several": "gpu and several"}
_COUNTED = ("passed", "failed", "skipped")
#: in a status's place: pytest was ended by --limit-s
_CUT = 124
#: options of pytest under which all tests run
_HARMLESS = ("--tb", "--show-capture", "-p", "no:cacheprovider", "-q", "-v", "--durations", "--color")


def files(only: Sequence[str] = ()) -> list[str]:
    """Test files that have GPU tests, relative to the tree; of `only`, those whose path contains a word."""
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text(encoding="utf-8")
    ]
    return [name for name in found if not only or any(word in name for word in only)]


def command(kind: str, names: Sequence[str], workers: int, more: Sequence[str]) -> list[str]:
    """The pytest call of one kind of tests."""
    words = [sys.executable, "-m", "pytest", *names, "-m", _KINDS[kind], "-q", "--durations=20"]
    words += ["--continue-on-collection-errors", "-p", "gpu_records"]
    if kind == "together" and workers > 1:
        words += ["-n", str(workers), "--dist", "worksteal"]  # some tests take a second, some two minutes
    return [*words, *more]


def rows(tests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a file: how many passed, failed and were skipped, how long they took, which failed."""
    found: dict[str, dict[str, Any]] = {}
    for test in tests:
        row = found.setdefault(
            test["file"], {"file": test["file"], **dict.fromkeys(_COUNTED, 0), "seconds": 0.0, "failures": []}
        )
        row[test["outcome"]] += 1
        row["seconds"] = round(row["seconds"] + test["seconds"], 2)
        if test["outcome"] == "failed":
            row["failures"].append({"test": test["test"], "why": test["why"]})
    return [found[name] for name in sorted(found)]


def jobs(
    kinds: Sequence[str], names: Sequence[str], apart: bool, last: Sequence[dict[str, Any]]
) -> list[tuple[str, Sequence[str]]]:
    """(kind, files) of each pytest call, in order; `apart`: a call for each file that has tests alone.

    Of those the longest is first, by the rows of the last result; one that it does not have may be long.
    """
    took = {row["file"]: row["seconds"] for row in last}
    found: list[tuple[str, Sequence[str]]] = []
    for kind in kinds:
        if kind == "together" or not apart:
            found.append((kind, names))
        else:
            those = [n for n in names if f"mark.{kind}" in (ROOT / n).read_text(encoding="utf-8")]
            found += [(kind, [n]) for n in sorted(those, key=lambda n: -took.get(n, math.inf))]
    return found


def places(kind: str, gpus: Sequence[str]) -> list[dict[str, str]]:
    """Variables of each pytest call of a kind that may run at once with the others of this list."""
    if len(gpus) == 1 or kind == "several":
        return [{}]
    if kind == "together":  # its processes share them out, tests/conftest.py
        return [{"SASSAFRAS_TEST_GPUS": ",".join(gpus)}]
    return [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus]


class Progress:
    """What is done of a run, in a file beside the reports, so that a later call goes on.

    Raises:
        ValueError: the folder's run is of another commit or GPU.
    """

    def __init__(self, folder: Path, of: dict[str, Any]) -> None:
        self.path = folder / "progress.json"
        self.codes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.before, self.begin = 0.0, time.perf_counter()
        self.of = of
        if self.path.is_file():
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if kept["of"] != of:
                raise ValueError(f"{folder} has a run of {kept['of']}, this is {of}: name another folder")
            self.codes, self.seconds, self.before = kept["codes"], kept["seconds"], kept["whole_s"]

    @property
    def whole_s(self) -> float:
        """Of all calls together."""
        return round(self.before + time.perf_counter() - self.begin, 1)

    def add(self, index: int, kind: str, code: int, seconds: float) -> None:
        """A pytest call has ended; one that was cut is run again by the next command."""
        # pytest's 5: nothing was selected (a file may have no test of a kind); below 0: a signal
        self.codes[f"{index:02} {kind}"] = 0 if code == 5 else abs(code)
        self.seconds[kind] = round(self.seconds.get(kind, 0.0) + seconds, 1)
        kept = {name: code for name, code in self.codes.items() if code != _CUT}
        state = {"of": self.of, "codes": kept, "seconds": self.seconds, "whole_s": self.whole_s}
        self.path.write_text(json.dumps(state), encoding="utf-8")

    def worst(self) -> dict[str, int]:
        """Kind -> its worst status."""
        found: dict[str, int] = {}
        for name, code in self.codes.items():
            found[name[3:]] = max(found.get(name[3:], 0), code)
        return found


def prepare() -> float:
    """Build all kernels and the launcher into the cache; seconds."""
    from sassafras.gemm.build import ahead_of_time, cubins, launcher

    begin = time.perf_counter()
    cubins.build(ahead_of_time.kernels())
    launcher.build(None)
    return time.perf_counter() - begin


def main() -> int:
    """Run, print, write."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default="", help="words separated by commas: files with one in their path")
    parser.add_argument("--kind", choices=tuple(_KINDS), help="run tests of one kind")
    parser.add_argument("--workers", type=int, default=min(14, os.cpu_count() or 1), help="processes at once")
    parser.add_argument("--no-build", action="store_true", help="do not build all kernels first")
    parser.add_argument("--collect", action="store_true", help="print what would run")
    parser.add_argument("--limit-s", type=float, default=86400.0, help="seconds after which tests are ended")
    parser.add_argument("--resume", type=Path, help="folder of reports: what they have is not run again")
    parser.add_argument("more", nargs="*", help="handed to pytest, after --")
    options = parser.parse_args()
    only = [word for word in options.only.split(",") if word]
    names = files(only)
    if not names:
        parser.error("no file of GPU tests has such a word in its path")
    gpus = gpu_names()
    missing = [name for name in ("pytest", "pytest_timeout", "xdist") if find_spec(name) is None]
    if missing or not (gpus or options.collect):
        parser.error(f"missing: {', '.join(missing) or 'a GPU, nvidia-smi lists none'}")
    kinds = [options.kind] if options.kind else [k for k in _KINDS if k != "several" or len(gpus) > 1]
    paths = {"PYTHONPATH": python_path(ROOT / "benchmarks")}
    if options.collect:
        calls = [[*command(kind, names, 1, options.more), "--collect-only"] for kind in kinds]
        runs = [subprocess.run(call, cwd=ROOT, env={**os.environ, **paths}, check=False) for call in calls]
        return max(run.returncode for run in runs)
    from sassafras.cuda.environment import environment

    begin = time.perf_counter()
    where = {"cpus": os.cpu_count(), **environment()}
    summary: dict[str, Any] = {"built_s": 0.0 if options.no_build else round(prepare(), 1)}
    lock = threading.Lock()
    if options.resume:
        options.resume.mkdir(parents=True, exist_ok=True)
    with nullcontext(options.resume) if options.resume else tempfile.TemporaryDirectory() as folder:
        place = {**os.environ, **paths, "SASSAFRAS_GPU_RESULTS": str(folder)}
        of = {"commit": where["commit"], "gpu": where["gpu"], "gpus": gpus, "names": names}
        progress = Progress(Path(folder), of)
        last = read_result(RESULTS / "gpu-tests.json")["rows"]
        apart = len(gpus) > 1 or options.resume is not None
        numbered = list(enumerate(jobs(kinds, names, apart, last)))

        def run(own: dict[str, str], waiting: queue.SimpleQueue[Any]) -> None:
            while True:
                try:
                    index, (kind, those) = waiting.get_nowait()
                except queue.Empty:
                    return
                started, left = time.perf_counter(), options.limit_s - (time.perf_counter() - begin)
                workers = options.workers * (len(gpus) if "SASSAFRAS_TEST_GPUS" in own else 1)
                call = command(kind, those, workers, options.more)
                own = {**own, gpu_records.RECORDS: str(Path(folder) / f"{index:02}.jsonl")}
                if kind == "together":  # Inductor's pool of each process has its share of the cores
                    own["TORCHINDUCTOR_COMPILE_THREADS"] = str(max((os.cpu_count() or 1) // workers, 2))
                try:
                    code = subprocess.run(call, cwd=ROOT, env=place | own, timeout=max(left, 0)).returncode
                except subprocess.TimeoutExpired:
                    code = _CUT
                with lock:
                    progress.add(index, kind, code, time.perf_counter() - started)

        # kind by kind: what measures time would measure the processes of the others
        for kind in kinds:
            waiting: queue.SimpleQueue[tuple[int, tuple[str, Sequence[str]]]] = queue.SimpleQueue()
            for index, job in numbered:
                if job[0] == kind and f"{index:02} {kind}" not in progress.codes:
                    waiting.put((index, job))
            here = places(kind, gpus)
            with ThreadPoolExecutor(len(here)) as threads:
                list(threads.map(run, here, [waiting] * len(here)))
        tests = gpu_records.read(sorted(Path(folder).glob("[0-9]*.jsonl")))
        summary["opinfo"] = [
            {key: value for key, value in json.loads(path.read_text()).items() if key != "rows"}
            for path in sorted(Path(folder).glob("opinfo-*.json"))
        ]
        summary["sums"] = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("sums-*.json"))]
    codes = progress.worst()
    summary |= {f"{kind}_s": progress.seconds.get(kind, 0.0) for kind in kinds}
    begun = [test for test in tests if test["outcome"] == gpu_records.BEGUN]
    found = rows([test for test in tests if test not in begun])
    summary |= {name: sum(row[name] for row in found) for name in _COUNTED}
    summary["cut_in"] = [f"{test['file']}::{test['test']}" for test in begun]
    green = summary["failed"] == 0 and summary["passed"] > 0 and not any(codes.values())
    summary |= {"green": green, "seconds": progress.whole_s, "exit_codes": codes}
    cut = _CUT in codes.values()
    whole = not (only or options.kind or cut) and all(word.startswith(_HARMLESS) for word in options.more)
    path = write("gpu-tests" if whole else "gpu-tests-part", found, summary, where, out=options.out)
    print(json.dumps({key: value for key, value in summary.items() if key not in ("opinfo", "sums")}))
    print(f"{path}: {'green' if green else 'not green'}")
    return 0 if green else 1


if __name__ == "__main__":
    sys.exit(main())
