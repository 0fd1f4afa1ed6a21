"""The benchmark and the sweep: select in one set of processes, report from others; what they write."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError
from sassafras.core.files import write_whole
from sassafras.cuda.cublas import LtAlgorithm
from sassafras.cuda.environment import environment

from ..configs.backward import instances, part
from ..configs.fields import from_fields
from ..problem.shape import Shape
from ..select.dataset import Dataset, DatasetEntry, merge, shipped, stem
from ..select.table import TunedTable
from . import report, runner
from .journal import alone, belongs, damaged, journals, read, records
from .options import Options
from .runner import Say, ShapeJob
from .worker import asked_here, kernels_digest

SELECT = "hgemm-select"
MODES = ("offline", "server")
#: of the time of `run`, what selection may take: a run that only chose would have nothing to report
SELECTING_SHARE = 0.6


@dataclass(frozen=True)
class RunSettings:
    """Where and how long a benchmark or a sweep runs. The same settings resume what they began.

    Attributes:
        folder: journals go here. All modes of the benchmark, and the sweep, share the selection.
        options: how thorough it is.
        gpus: GPUs of this host to work on at once, a worker on each.
        minutes: start no shape after so long; what is missing is counted as pending.
        dry: rehearse on a modelled clock, without a GPU; every row says so.
        fresh: delete earlier journals of this folder.
        cache: folder of compiled cubins.
        progress: say every so many shapes, 0 for never.
        say: is told how it goes.
    """

    folder: Path
    options: Options = field(default_factory=Options)
    gpus: int = 1
    minutes: float | None = None
    dry: bool = False
    fresh: bool = False
    cache: Path | None = None
    progress: int = 1
    say: Say = print

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise SassafrasError("a benchmark needs at least one GPU", where=f"gpus={self.gpus}")


class _Begun(ExitStack):
    """A run under way: kernels are built, the folder is this process's (`alone`), old journals are deleted if
    asked.

    Raises:
        SassafrasError: there are no shapes, or another process works in the folder.
        DeviceError, CompileError, ToolMissing: see `runner.prepare`.
    """

    def __init__(self, shapes: Sequence[Shape], settings: RunSettings) -> None:
        super().__init__()
        if not shapes:
            raise SassafrasError("a benchmark needs at least one shape")
        self.settings = settings
        if not settings.dry:
            runner.prepare(settings.cache, settings.say, instances(settings.options.layouts))
        self.enter_context(alone(settings.folder))
        if settings.fresh:
            for path in settings.folder.glob("hgemm-*.gpu*.jsonl"):
                path.unlink()
        self.texts = [str(shape) for shape in shapes]
        self._started = time.monotonic()

    def work(
        self,
        jobs: Mapping[str, dict[str, Any]],
        texts: Sequence[str],
        selections: Mapping[str, dict[str, Any]] | None = None,
        share: float = 1.0,
        in_order: bool = False,
    ) -> None:
        """Job after job (`runner.work`), if what lies there belongs to them; nothing starts if none is left.

        Args:
            jobs: stem -> what its plan has beyond that of the others.
            share: of the minutes, what may have passed when the last shape is begun.
            in_order: see `ShapeJob`.
        """
        of = self.settings
        base = {"options": asdict(of.options), "cache": str(of.cache) if of.cache else None, "dry": of.dry}
        plans = {name: {**base, **own} for name, own in jobs.items()}
        for name, plan in plans.items():
            for path in journals(of.folder, name):
                belongs(path, asked_here(plan))
        deadline = None if of.minutes is None else self._started + 60 * share * of.minutes
        how = selections or {}, deadline, of.progress, in_order
        for name, plan in plans.items():
            runner.work(ShapeJob(of.folder, name, plan, texts, of.say, *how), of.gpus)


def run(
    shapes: Sequence[Shape], settings: RunSettings, *, mode: str = "offline", processes: int = 1
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows (one a shape, in the given order) and their summary.

    Args:
        mode: ``offline`` (calls back to back, warm and cold L2) or ``server`` (isolated calls).
        processes: fresh processes that measure; the speed-up's interval is hierarchical from 2 on.

    Raises:
        SassafrasError: nothing to do, or a mode that does not exist.
        DeviceError, CompileError, ToolMissing: see `runner`.
    """
    if mode not in MODES:
        raise SassafrasError(f"mode {mode!r} does not exist", hint="one of " + ", ".join(MODES))
    options, folder = settings.options, settings.folder
    if part(options.layouts):
        raise SassafrasError("the benchmark measures nn and tn", where=",".join(options.layouts))
    if processes < 1:
        raise SassafrasError("the benchmark needs at least one process that measures")
    # shapes that must stay untuned have journals of their own, which no dataset is made of
    apart = "" if options.tuned else "-untuned"
    chosen_in = SELECT + apart + ("-isolated" if options.isolated else "")
    measuring = {
        f"hgemm-{mode}{apart}-{process}": {"mode": "measure", "how": mode, "process": process}
        for process in range(processes)
    }
    with _Begun(shapes, settings) as begun:
        begun.work({chosen_in: {"mode": "select"}}, begun.texts, share=SELECTING_SHARE)
        chosen = records(folder, chosen_in)
        usable = [text for text in begun.texts if text in chosen and "error" not in chosen[text]]
        begun.work(measuring, usable, chosen)
    measured = [records(folder, stem) for stem in measuring]
    rows = [_row(text, chosen, measured) for text in begun.texts]
    return rows, report.summarise(rows)


def sweep(shapes: Sequence[Shape], settings: RunSettings) -> Dataset:
    """Time our configurations over shapes by successive halving, beside cuBLASLt and torch; its dataset.

    It is the selection of `run`, and shares its journals: a sweep resumes as a benchmark and the reverse.
    Errors as there.
    """
    of = part(settings.options.layouts)
    with _Begun(shapes, settings) as begun:
        begun.work({_stem(of): {"mode": "select"}}, begun.texts)
    return collected(settings.folder, of)


def time_sample(stem: str, job: dict[str, Any], shapes: Sequence[Shape], settings: RunSettings) -> Dataset:
    """The dataset of a job's journals: shapes in order, until the minutes are over. Errors as `sweep`."""
    with _Begun(shapes, settings) as begun:
        begun.work({stem: job}, begun.texts, in_order=True)
    return collected(settings.folder, stem=stem)


def _stem(of: str) -> str:
    return f"{SELECT}-{of}" if of else SELECT


def collected(folder: Path, of: str = "", stem: str = "") -> Dataset:
    """The dataset that the selection journals of a folder hold, of one part (`backward.part`).

    Args:
        stem: of other journals, whose records have the same form.

    Raises:
        SassafrasError: there are none.
    """
    stem = stem or _stem(of)
    paths = journals(folder, stem)
    if not paths:
        raise SassafrasError("no selection journal here", where=str(folder), hint="run the sweep first")
    conditions = read(paths[0])[0]["header"]
    kept = ("gpu", "kernels", "cublaslt", "torch", "modelled", "options")
    found = records(folder, stem).items()
    entries = [_entry(text, record) for text, record in found if "error" not in record]
    return Dataset({key: conditions[key] for key in kept if key in conditions}, entries)


def _entry(text: str, record: dict[str, Any]) -> DatasetEntry:
    """Of a selection's record. Raises SassafrasError: it is damaged."""
    try:
        lt_us = {layout: entry["us"] for layout, entry in record["lt"].items()}
        lt = {layout: LtAlgorithm.from_json(e).to_json() for layout, e in record["lt"].items()}
        ours = {from_fields(config): (us, rung) for config, us, rung in record["rungs"]}
        baselines = {"torch": record["torch"], "lt_autotune": lt_us}
        return DatasetEntry(Shape.parse(text), ours, baselines, lt)
    except (KeyError, TypeError, ValueError, AttributeError, SassafrasError) as error:
        raise damaged(text, error) from error


def _row(text: str, selected: dict[str, Any], measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    shape = Shape.parse(text)
    head = {"shape": text, "m": shape.m, "n": shape.n, "k": shape.k, "band": shape.band}
    chosen = selected.get(text)
    if chosen is None:
        return {**head, "pending": True}
    if "error" in chosen:
        return {**head, "error": f"selection: {chosen['error']}"}
    found = [records_of[text] for records_of in measured if text in records_of]
    for record in found:
        if "error" in record:
            return {**head, "error": record["error"]}
    if len(found) < len(measured):
        return {**head, "pending": True}
    return {**head, **report.merge(found), "wrong_in_selection": len(chosen.get("wrong", []))}


def benchmark(
    shapes: Sequence[Shape],
    settings: RunSettings,
    *,
    mode: str = "offline",
    processes: int = 1,
    name: str | None = None,
) -> tuple[Path, dict[str, Any]]:
    """`run`, then a JSON file in the folder; returns its path and the summary.

    Files of a dry run are called ``...-dry``.
    """
    rows, summary = run(shapes, settings, mode=mode, processes=processes)
    stem = (name or f"hgemm-{mode}") + ("-dry" if settings.dry else "")
    found = environment()
    head = {
        "benchmark": stem,
        **provenance(found.get("commit")),
        "seed": settings.options.seed,
        "kernels": kernels_digest(),
        "modelled": bool(summary.get("modelled")),
        "environment": found,
        "summary": summary,
    }
    lines = ",\n  ".join(json.dumps(row, default=str) for row in rows)
    body = json.dumps(head, indent=1, default=str)
    path = settings.folder / f"{stem}.json"
    write_whole(path, body[:-2] + ',\n "rows": [\n  ' + lines + "\n ]\n}\n")
    return path, summary


def save_sweep(
    dataset: Dataset, folder: Path, install: Path | None = None, *, changed: str = ""
) -> list[Path]:
    """Write a sweep's dataset and, unless it was modelled, its table of winners; returns the files.

    Args:
        changed: the sweep re-tuned only these configurations (`Options.only`): what is written is the shipped
            dataset with the sweep's shapes replaced (`dataset.merge`); the sweep alone lies beside it.
        install: where else the table goes, merged over what is there; None: nowhere.
    """
    of = part(dataset.header.get("options", {}).get("layouts", ()))
    name = stem(str(dataset.header.get("gpu") or "gpu"), of)
    dataset.header |= {
        **provenance(None),
        # those of data sets without this line were timed in shorter blocks
        "torch_times": "timed in blocks as long as those of all else",
    }
    rehearsal = f"sweep-{of}-dry.jsonl.gz" if of else "sweep-dry.jsonl.gz"
    paths = [folder / (rehearsal if dataset.modelled else f"{name}.jsonl.gz")]
    dataset.save(paths[0])
    if dataset.modelled:
        return paths
    if changed:
        alone = folder / f"{name}.retuned.jsonl.gz"
        paths[0].replace(alone)
        merge(shipped(str(dataset.header.get("gpu")), of), Dataset.load(alone), changed).save(paths[0])
        paths.append(alone)
    table = TunedTable.from_dataset(Dataset.load(paths[0]))  # of what was written, rounded as it is
    paths.append(folder / f"{name}.table.json")
    table.save(paths[-1])
    if install is not None:
        table.install(install)
        paths.append(install)
    return paths


def provenance(commit: str | None) -> dict[str, str | None]:
    """Date, command line and commit, as every file of results has them."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": os.environ.get("SASSAFRAS_COMMIT") or commit,
    }
