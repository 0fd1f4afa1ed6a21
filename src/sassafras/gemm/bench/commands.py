"""What a command writes: rows to `hgemm-offline.json`, a sweep to a dataset and a table."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sassafras.cuda.environment import environment

from ..configs import backward
from ..problem.shape import Shape
from ..select.dataset import Dataset, merge, shipped, stem
from ..select.table import TunedTable
from . import runs
from .worker import kernels_digest


def benchmark(
    shapes: Sequence[Shape],
    settings: runs.RunSettings,
    *,
    mode: str = "offline",
    processes: int = 1,
    name: str | None = None,
) -> tuple[Path, dict[str, Any]]:
    """`runs.run`, then a JSON file in the folder; returns its path and the summary.

    Files of a dry run are called ``...-dry``.
    """
    rows, summary = runs.run(shapes, settings, mode=mode, processes=processes)
    stem = (name or f"hgemm-{mode}") + ("-dry" if settings.dry else "")
    own, machine = environment(), settings.crew.environment() if settings.crew else None
    found = {**own, **(machine or {}), **{key: own.get(key) for key in ("commit", "command", "date")}}
    head = {
        "benchmark": stem,
        "date": _today(),
        "command": _command(),
        "commit": os.environ.get("SASSAFRAS_COMMIT") or found.get("commit"),
        "seed": settings.options.seed,
        "kernels": kernels_digest(),
        "modelled": bool(summary.get("modelled")),
        "environment": found,
        "summary": summary,
    }
    lines = ",\n  ".join(json.dumps(row, default=str) for row in rows)
    body = json.dumps(head, indent=1, default=str)
    path = settings.folder / f"{stem}.json"
    path.write_text(body[:-2] + ',\n "rows": [\n  ' + lines + "\n ]\n}\n")
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
    of = backward.part(dataset.header.get("options", {}).get("layouts", ()))
    name = stem(str(dataset.header.get("gpu") or "gpu"), of)
    dataset.header |= {
        "date": _today(),
        "command": _command(),
        "commit": os.environ.get("SASSAFRAS_COMMIT"),
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
        (TunedTable.load(install).merged(table) if install.is_file() else table).save(install)
        paths.append(install)
    return paths


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def _command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
