"""From a command's words to shapes, and from rows to `hgemm-offline.json`."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import bench
from .select import Options
from .shapes import Shape, cuda_l2_grid, in_bands, stratified


def choose_shapes(
    grid: str, bands: str | None = None, count: int | None = None, seed: int = 0
) -> tuple[Shape, ...]:
    """The shapes of a grid name (or a comma-separated list), restricted to bands, sampled.

    Raises:
        SassafrasError: a shape or a band is malformed.
    """
    shapes = cuda_l2_grid() if grid == "cuda-l2" else tuple(Shape.parse(text) for text in grid.split(","))
    shapes = in_bands(shapes, bands.split(",") if bands else None)
    return stratified(shapes, count, seed) if count is not None else shapes


def benchmark(
    shapes: tuple[Shape, ...], folder: Path, options: Options, *, mode: str = "offline", **keywords: Any
) -> tuple[Path, dict[str, Any]]:
    """`bench.run`, then ``hgemm-offline.json`` in the folder. Returns its path and the summary."""
    rows, summary = bench.run(shapes, folder, options, mode=mode, **keywords)
    path = folder / f"hgemm-{mode}.json"
    write(path, rows, summary, options.seed)
    return path, summary


def write(path: Path, rows: list[dict[str, Any]], summary: dict[str, Any], seed: int) -> None:
    """A result file with what it was measured on and by (`docs/hgemm.md` lists the columns)."""
    from sassafras.device.cuda import environment

    found = environment()
    head = {
        "benchmark": path.stem,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": found.get("commit"),
        "seed": seed,
        "environment": found,
        "summary": summary,
    }
    lines = ",\n  ".join(json.dumps(row, default=str) for row in rows)
    body = json.dumps(head, indent=1, default=str)
    path.write_text(body[:-2] + ',\n "rows": [\n  ' + lines + "\n ]\n}\n")
