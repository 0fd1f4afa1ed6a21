"""The benchmark and the sweep: select in one set of processes, report from others; survived and resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError

from ..configs.backward import instances, part
from ..problem.shape import Shape
from ..select.dataset import Dataset, DatasetEntry
from . import report
from .journal import belongs
from .journal import read as read_journal
from .options import Options
from .runner import Executor, Local, journals, records
from .worker import asked

SELECT = "hgemm-select"
MODES = ("offline", "server")
#: of the time of `run`, what selection may take: a run that only chose would have nothing to report
SELECTING_SHARE = 0.6
Say = Callable[[str], None]


def run(
    shapes: Sequence[Shape],
    folder: Path,
    options: Options | None = None,
    *,
    mode: str = "offline",
    processes: int = 1,
    gpus: int = 1,
    crew: Executor | None = None,
    minutes: float | None = None,
    dry: bool = False,
    fresh: bool = False,
    cache: Path | None = None,
    progress: int = 1,
    say: Say = print,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows (one a shape, in the given order) and their summary.

    Args:
        folder: journals go here; the same call resumes from them. Both modes share the selection.
        mode: ``offline`` (calls back to back, warm and cold L2) or ``server`` (isolated calls).
        processes: fresh processes that measure; the speed-up's interval is hierarchical from 2 on.
        gpus: GPUs of this host to work on at once, a worker on each.
        crew: who works instead, for example a cluster (`sassafras.cluster.gemm`).
        minutes: start no shape after so long (selection ends earlier, so that some of what it chose is
            measured); what is missing is counted as pending.
        dry: rehearse on a modelled clock, without a GPU; every row says so.
        fresh: delete earlier journals of this folder.
        cache: folder of compiled cubins.
        progress: print every so many shapes, 0 for never.

    Raises:
        SassafrasError: nothing to do, or a mode that does not exist.
        DeviceError: workers die again and again.
        CompileError, ToolMissing: our kernels cannot be built.
    """
    if mode not in MODES:
        raise SassafrasError(f"mode {mode!r} does not exist", hint="one of " + ", ".join(MODES))
    if not shapes or processes < 1 or gpus < 1:
        raise SassafrasError("the benchmark needs at least one shape, one process and one GPU")
    options = options or Options()
    crew = crew or Local(gpus)
    if part(options.layouts):
        raise SassafrasError("the benchmark measures nn and tn", where=",".join(options.layouts))
    base, texts = _begin(crew, shapes, folder, options, minutes, dry, fresh, cache, progress, say)
    # shapes that must stay untuned have journals of their own, which no dataset is made of
    apart = "" if options.tuned else "-untuned"
    chosen_in = SELECT + apart + ("-isolated" if options.isolated else "")
    until = share_of(base["deadline"], SELECTING_SHARE, time.time())
    _work(crew, folder, [(chosen_in, {**base, "mode": "select", "deadline": until})], texts, say)
    chosen = records(folder, chosen_in)
    usable = [text for text in texts if text in chosen and "error" not in chosen[text]]
    stems = [f"hgemm-{mode}{apart}-{process}" for process in range(processes)]
    selections = [str(path) for path in journals(folder, chosen_in)]
    base |= {"mode": "measure", "how": mode, "selections": selections}
    _work(crew, folder, [(stem, {**base, "process": p}) for p, stem in enumerate(stems)], usable, say)
    measured = [records(folder, stem) for stem in stems]
    rows = [_row(text, chosen, measured) for text in texts]
    return rows, report.summarise(rows)


def _work(
    crew: Executor, folder: Path, jobs: Sequence[tuple[str, dict[str, Any]]], texts: Sequence[str], say: Say
) -> None:
    """`Executor.work`, when what lies there belongs to it; no worker starts if nothing is left."""
    for stem, plan in jobs:
        for path in journals(folder, stem):
            belongs(path, asked(plan))
    crew.work(folder, jobs, texts, say)


def share_of(deadline: float | None, share: float, now: float) -> float | None:
    """The moment when so much of the time that is left will have passed; None without a deadline."""
    return None if deadline is None else now + share * (deadline - now)


def sweep(
    shapes: Sequence[Shape],
    folder: Path,
    options: Options | None = None,
    *,
    gpus: int = 1,
    crew: Executor | None = None,
    minutes: float | None = None,
    dry: bool = False,
    fresh: bool = False,
    cache: Path | None = None,
    progress: int = 25,
    say: Say = print,
) -> Dataset:
    """Time our configurations over shapes by successive halving, beside cuBLASLt and torch; the dataset of
    it.

    It is the selection of `run`, and shares its journals: a sweep resumes as a benchmark and the reverse.
    Arguments and errors as there.
    """
    if not shapes or gpus < 1:
        raise SassafrasError("a sweep needs at least one shape and one GPU")
    options = options or Options()
    crew = crew or Local(gpus)
    base, texts = _begin(crew, shapes, folder, options, minutes, dry, fresh, cache, progress, say)
    of = part(options.layouts)
    _work(crew, folder, [(_stem(of), {**base, "mode": "select"})], texts, say)
    return collected(folder, of)


def _stem(of: str) -> str:
    return f"{SELECT}-{of}" if of else SELECT


def collected(folder: Path, of: str = "") -> Dataset:
    """The dataset that the selection journals of a folder hold, of one part (`backward.part`).

    Raises:
        SassafrasError: there are none.
    """
    paths = journals(folder, _stem(of))
    if not paths:
        raise SassafrasError("no selection journal here", where=str(folder), hint="run the sweep first")
    conditions = read_journal(paths[0])[0]["header"]
    header = {
        key: conditions[key]
        for key in ("gpu", "kernels", "cublaslt", "torch", "modelled", "options")
        if key in conditions
    }
    entries = []
    for text, record in records(folder, _stem(of)).items():
        if "error" in record:
            continue
        baselines = {
            "torch": record["torch"],
            "lt_autotune": {layout: entry["us"] for layout, entry in record["lt"].items()},
        }
        lt = {
            layout: {key: entry[key] for key in ("layout", "blob", "workspace")}
            for layout, entry in record["lt"].items()
        }
        ours = {name: (us, rung) for name, (us, rung) in record["rungs"].items()}
        entries.append(DatasetEntry(Shape.parse(text), ours, baselines, lt))
    return Dataset(header, entries)


def _begin(
    crew: Executor,
    shapes: Sequence[Shape],
    folder: Path,
    options: Options,
    minutes: float | None,
    dry: bool,
    fresh: bool,
    cache: Path | None,
    progress: int,
    say: Say,
) -> tuple[dict[str, Any], list[str]]:
    """What all plans share, and the shapes' names; kernels are built, old journals deleted if asked."""
    if not dry:
        crew.prepare(cache, say, instances(options.layouts))
    folder.mkdir(parents=True, exist_ok=True)
    if fresh:
        for path in folder.glob("hgemm-*.gpu*.jsonl"):
            path.unlink()
    base = {
        "options": asdict(options),
        "cache": str(cache) if cache else None,
        "progress": progress,
        "dry": dry,
        "deadline": time.time() + 60 * minutes if minutes else None,
    }
    return base, [str(shape) for shape in shapes]


def _row(
    text: str, selected: dict[str, dict[str, Any]], measured: Sequence[dict[str, dict[str, Any]]]
) -> dict[str, Any]:
    shape = Shape.parse(text)
    head = {"shape": text, "m": shape.m, "n": shape.n, "k": shape.k, "band": shape.band}
    chosen = selected.get(text)
    if chosen is None:
        return {**head, "pending": True}
    if "error" in chosen:
        return {**head, "error": f"selection: {chosen['error']}"}
    found = [records_of[text] for records_of in measured if text in records_of]
    errors = [record["error"] for record in found if "error" in record]
    if errors:
        return {**head, "error": errors[0]}
    if len(found) < len(measured):
        return {**head, "pending": True}
    return {**head, **report.merge(found), "wrong_in_selection": len(chosen.get("wrong", []))}
