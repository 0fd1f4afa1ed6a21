"""What every benchmark shares: the format of results, and one process a GPU."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, ProcessPoolExecutor, wait
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from platform import python_version
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from sassafras.core.files import code_digest  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"


def geomean(values: Iterable[float], digits: int | None = None) -> float | None:
    """Geometric mean, None of nothing; rounded to these digits behind the point."""
    logs = [math.log(v) for v in values]
    mean = math.exp(sum(logs) / len(logs)) if logs else None
    return mean if mean is None or digits is None else round(mean, digits)


def ends(name: str, interval: Any) -> dict[str, float | None]:
    """The columns of an interval; None where there is none."""
    return {f"{name}_low": interval and interval.low, f"{name}_high": interval and interval.high}


def searched(result: Any) -> dict[str, Any]:
    """What a row says of a search by `sassafras.optimize`."""
    return {
        "speedup": result.modelled_ratio if result.modelled else result.speedup,
        **ends("speedup", result.interval),
        "null": result.null,
        **ends("null", result.null_interval),
        "improved": result.improved,
        "baseline_us": result.baseline_us,
        "evaluations": result.evaluations,
        "verdicts": dict(result.verdicts),
        "failed_after_validation": result.failed_after_validation,
        "notes": list(result.notes),
        "reason": result.reason,
        "search_seconds": round(result.seconds, 2),
    }


def without_folders(text: str) -> str:
    """A command or message without --cache and --out, and with the names alone of absolute paths."""
    text = re.sub(r" --(cache|out)[= ]\S+", "", text)
    return re.sub(r"(?<=[ =\"'])(?:/[\w.+-]+)+/(?=[\w.+-])", "", text)


def without_gpu(*packages: str) -> dict[str, Any]:
    """The environment of a result that needs no GPU: versions of Python and of these packages."""
    return {"gpu": None, "python": python_version(), **{name: version(name) for name in packages}}


def write(
    name: str,
    rows: Sequence[dict[str, Any]],
    summary: dict[str, Any],
    environment: dict[str, Any],
    *,
    seed: int = 0,
    out: str | Path | None = None,
    command: str | None = None,
    commits: str | None = None,
) -> Path:
    """Write one result file: rows and summary with what they were measured on and by.

    The commit is read from git, or from ``$SASSAFRAS_COMMIT`` where the tree travelled without its history;
    `commits` names others, where rows come from several sittings.
    """
    folder = Path(out or os.environ.get("OUT") or RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    environment = dict(environment)
    if "command" in environment:
        environment["command"] = without_folders(environment["command"])
    command = command or "python " + shlex.join([str(Path(sys.argv[0]).name), *sys.argv[1:]])
    head = {
        "benchmark": name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": without_folders(command),
        "commit": commits or commit(),
        "seed": seed,
        "environment": environment,
    }
    lines = ",\n  ".join(json.dumps(row, default=str) for row in rows)
    body = json.dumps({**head, "summary": summary}, indent=1, default=str)
    path.write_text(body[:-2] + ',\n "rows": [\n  ' + lines + "\n ]\n}\n")
    return path


def read_result(path: Path, *needed: str, of: str = "") -> dict[str, Any]:
    """A result file that the command line names.

    Args:
        path: the file.
        needed: what it must say besides its rows.
        of: what its benchmark's name begins with.

    Raises:
        SystemExit: it cannot be read, is no result file, or is of another benchmark.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SystemExit(f"error: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SystemExit(f"error: {path} is no result file: {error}") from None
    rows = found.get("rows") if isinstance(found, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SystemExit(f"error: {path} is no result file: it has no rows")
    if not str(found.get("benchmark", "")).startswith(of):
        raise SystemExit(f"error: {path} is a result of {found.get('benchmark')!r}, not of {of!r}")
    if missing := [key for key in needed if key not in found]:
        raise SystemExit(f"error: {path} has no {' and no '.join(missing)}")
    return dict(found)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """A file of JSON Lines that the command line names: its rows.

    Raises:
        SystemExit: it cannot be read, or a line is no row.
    """
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise SystemExit(f"error: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SystemExit(f"error: {path} holds no rows, one a line: {error}") from None
    if not all(isinstance(row, dict) for row in rows):
        raise SystemExit(f"error: {path} holds no rows, one a line")
    return rows


class Lines:
    """Rows in a file of JSON Lines, each there at once, so that the same command goes on behind them.

    Args:
        path: the file; its folder is made. A last line that a kill has cut off is taken out.
        resume: another one, to begin with where there is none yet.

    Raises:
        SystemExit: a file cannot be read, or a whole line is no row.
    """

    def __init__(self, path: Path, resume: Path | None = None) -> None:
        self.path, begun = path, path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        if begun and not (text := path.read_bytes()).endswith(b"\n"):
            path.write_bytes(text[: text.rfind(b"\n") + 1])
        self.rows = read_lines(path if begun else resume) if begun or resume else []
        if resume and not begun:
            self._write("x", self.rows)

    def add(self, *rows: dict[str, Any]) -> None:
        """Write rows."""
        self.rows += rows
        self._write("a", rows)

    def _write(self, mode: str, rows: Iterable[dict[str, Any]]) -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            file.writelines(json.dumps(row, default=str) + "\n" for row in rows)


def command_line(doc: str | None, out: str | Path | None = RESULTS) -> ArgumentParser:
    """A parser whose help is the module's text; --out is $OUT, else `out` (None: no --out)."""
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    if out is not None:
        default = Path(os.environ.get("OUT") or out)
        parser.add_argument("--out", type=Path, default=default, help="folder of the result")
    return parser


def journal_options(parser: ArgumentParser, *dtypes: str) -> None:
    """Options of a benchmark whose rows are lines of a journal (`journal_path`); `dtypes`: to choose from."""
    if dtypes:
        parser.add_argument("--dtypes", nargs="+", choices=dtypes, default=dtypes)
    parser.add_argument("--limit-s", type=float, default=1e9, help="start no row after so many seconds")
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--resume", type=Path, nargs="+", help="journals of earlier runs to go on with")
    parser.add_argument(
        "--share",
        type=share,
        default=(1, 1),
        help="I/N: of every N rows the I-th (a GPU each; then --resume)",
    )
    parser.add_argument("--dry-run", action="store_true", help="a rehearsal without a GPU")


def journal_path(given: Namespace, name: str) -> Path:
    """Of the benchmark's journal: NAME.jsonl in --out, which may begin as the lines of --resume's.

    Raises:
        SystemExit: a journal to go on with cannot be read, or is of other conditions than the first.
    """
    if given.cache:
        os.environ["SASSAFRAS_GEMM_CACHE"] = str(given.cache)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{name}.jsonl"
    if given.resume and not path.exists():
        from sassafras.core import SassafrasError
        from sassafras.gemm.bench.journal import read

        try:
            first, *more = [read(journal) for journal in given.resume]
        except (OSError, SassafrasError) as error:
            raise SystemExit(f"error: {error}") from None
        if any(lines[:1] != first[:1] for lines in more):
            raise SystemExit("error: the journals of --resume were written under unlike conditions")
        lines = [*first, *itertools.chain.from_iterable(lines[1:] for lines in more)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def journal_of(given: Namespace, name: str, header: dict[str, Any]) -> Any:
    """The benchmark's journal (`sassafras.gemm.bench.journal.Journal`) of rows under these conditions.

    Raises:
        SystemExit: it is of other conditions, or `journal_path` says why.
    """
    from sassafras.core import SassafrasError
    from sassafras.gemm.bench.journal import Journal

    try:
        return Journal(journal_path(given, name), header)
    except SassafrasError as error:
        raise SystemExit(f"error: {error}") from None


def share(text: str) -> tuple[int, int]:
    """``I/N`` as numbers, 1 <= I <= N. Raises ValueError, ArgumentTypeError."""
    index, of = map(int, text.split("/"))
    if not 1 <= index <= of:
        raise ArgumentTypeError(f"{text} is no share: 1/{max(of, 1)} is the first")
    return index, of


def shared(rows: Iterable[Any], given: Namespace) -> Iterator[Any]:
    """The rows that are this process's by --share."""
    index, of = given.share
    return itertools.islice(rows, index - 1, None, of)


def python_path(*folders: Path) -> str:
    """PYTHONPATH of a process that imports the package of this tree, and modules of these folders."""
    return os.pathsep.join(filter(None, map(str, (ROOT / "src", *folders, os.environ.get("PYTHONPATH", "")))))


def one_gpu(environments: Iterable[dict[str, Any] | None]) -> dict[str, Any]:
    """The environment of a result's rows, with all their commits; {} of none.

    Raises:
        SystemExit: they are of several GPUs.
    """
    found = sorted((each for each in environments if each), key=lambda each: not each.get("gpu"))
    if len(gpus := sorted({str(each["gpu"]) for each in found if each.get("gpu")})) > 1:
        raise SystemExit(f"error: rows of {' and of '.join(gpus)} make no result together")
    commits = dict.fromkeys(str(each["commit"]) for each in found if each.get("commit"))
    more = {"commit": "; ".join(commits)} if len(commits) > 1 else {}
    return {**found[0], **more} if found else {}


def validator_digest() -> str:
    """SHA-256 of the code and the tables that judge: answers of another validator are not taken over."""
    return code_digest("core", "sass", "validate")


def commit() -> str | None:
    """The commit that this tree is at, if it is known."""
    if given := os.environ.get("SASSAFRAS_COMMIT"):
        return given
    run = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.strip() or None


def _chosen() -> list[str]:
    """What CUDA_VISIBLE_DEVICES leaves us; empty when it leaves everything."""
    return [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]


def gpu_names() -> list[str]:
    """What CUDA_VISIBLE_DEVICES is to be for each GPU: of those that it names or nvidia-smi lists."""
    if chosen := _chosen():
        return chosen
    try:
        run = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return []
    return [str(n) for n in range(sum(line.startswith("GPU ") for line in run.stdout.splitlines()))]


def gpu_count() -> int:
    """GPUs that we may use."""
    return len(gpu_names())


def use_gpu(index: int) -> None:
    """Let this process see one GPU alone: the `index`-th of those that we may use."""
    chosen = _chosen()
    os.environ["CUDA_VISIBLE_DEVICES"] = chosen[index] if index < len(chosen) else str(index)


def _take_gpu(free: Any) -> None:
    use_gpu(free.get())


def per_gpu(
    work: Callable[..., Any],
    items: Sequence[tuple[Any, ...]],
    gpus: int | None = None,
    until: float = math.inf,
    each: int = 1,
) -> Iterable[tuple[int, Any]]:
    """Call ``work(*item)`` for every item, each process on a GPU of its own; (index, result) as they come.

    An exception is returned as the result, so that one failure does not lose the others.

    Args:
        until: time of `time.monotonic` after which no item begins.
        each: processes that share a GPU.
    """
    gpus = max(1, gpus or gpu_count())
    count = max(1, min(gpus * each, len(items)))
    context = get_context("spawn")
    free = context.Queue()
    for index in range(count):
        free.put(index % gpus)
    left = deque(enumerate(items))
    jobs: dict[Any, int] = {}
    with ProcessPoolExecutor(count, context, _take_gpu, (free,)) as pool:
        while left or jobs:
            while left and len(jobs) < count and time.monotonic() < until:
                index, item = left.popleft()
                try:
                    jobs[pool.submit(work, *item)] = index
                except BrokenExecutor as error:
                    yield index, error
            if not jobs:
                break
            for job in wait(jobs, return_when=FIRST_COMPLETED).done:
                yield jobs.pop(job), job.exception() or job.result()
