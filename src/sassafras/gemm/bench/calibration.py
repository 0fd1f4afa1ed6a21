"""Sixty seconds on a GPU without tables: the nearest GPU's table, corrected by a sample of its times here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from sassafras.core import Budget, DeviceError, SassafrasError

from ..matmul.driver import Driver
from ..matmul.loading import calibrated_path
from ..problem.shape import Shape, stratified
from ..select.correction import Correction, corrected, times_of
from ..select.dataset import Dataset, slug
from ..select.gpus import SHIPPED, measured, tables_of
from ..select.table import TunedTable
from . import runs
from .calibrate import near_table
from .options import Options

#: seconds that are kept of a budget for what follows the timing
_RESERVE = 4.0
#: shapes that the budget may reach, and FLOP of the longest: above, a time costs more than it tells
_SHAPES, _LONGEST = 480, 3e11
_STEM = "hgemm-calibrate"


def sample(table: TunedTable, seed: int = 0) -> list[Shape]:
    """Tuned shapes in the order in which they are timed: stratified by work, then shuffled."""
    shapes = sorted({shape for shape, _ in table.rows if shape.flop <= _LONGEST})
    drawn = stratified(tuple(shapes), min(_SHAPES, len(shapes)), seed)
    return [drawn[i] for i in np.random.default_rng(seed).permutation(len(drawn))]


def calibrate(near: str, settings: runs.RunSettings, *, seconds: float) -> tuple[TunedTable | None, Dataset]:
    """The table of `near`, corrected by times of a sample on this GPU (None if modelled); and these times.

    Args:
        near: the GPU whose table is the start.
        settings: where the journal lies, seed and so on; the number of minutes is not used.
        seconds: from the call to its end, kernels compiled. What was timed before is used as well.

    Raises:
        SassafrasError: nothing was timed.
        DeviceError, CompileError, ToolMissing: see `runner`.
    """
    began = time.monotonic()
    start = near_table(near)
    drawn = sample(start, settings.options.seed)
    left = (seconds - _RESERVE - (time.monotonic() - began)) / 60
    found = runs.time_sample(
        _STEM, {"mode": "calibrate", "near": near}, drawn, replace(settings, minutes=left)
    )
    if not len(found):
        raise SassafrasError("nothing was timed", where=str(settings.folder), hint="a larger --budget")
    if found.modelled:
        return None, found
    return corrected(start, Correction.fit(times_of(start), found), found), found


def calibrate_here(
    source: str,
    folder: Path,
    budget: str | Budget = "60s",
    *,
    install: bool = True,
    dry: bool = False,
    fresh: bool = False,
    cache: Path | None = None,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> tuple[TunedTable | None, Dataset, list[Path]]:
    """`calibrate` from the nearest GPU's table; the table, the times, and the files that were written.

    Args:
        source: the GPU whose table is the start; empty: the nearest one.
        folder: of the journal, the times and the table.
        budget: wall time, kernels compiled.
        install: let `sassafras.matmul` on this machine use the table.

    Raises:
        SassafrasError: this GPU has a table of its own (and no source is named), or nothing was timed.
        DeviceError: there is no GPU.
    """
    if (seconds := Budget.of(budget).seconds) is None:
        raise SassafrasError("a GPU is calibrated for a time", where=str(budget), hint="60s")
    known = {slug(one.name): one.name for one in SHIPPED}
    near, facts, driver = SHIPPED[0].name, None, ""
    if not dry:
        try:
            found = Driver()
        except DeviceError as error:
            hint = "--dry-run rehearses without one"
            raise DeviceError(f"calibration needs a GPU: {error.what}", hint=hint) from error
        facts, driver = found.hardware(0), found.version()
        name = found.facts(0)[0]
        near = tables_of(name, facts)
        if near == name and not source:
            raise SassafrasError("this GPU has a table of its own", where=name, hint="--from another GPU")
    if source:
        if slug(source) not in known:
            raise SassafrasError("no table of this GPU comes with the package", where=source, hint=measured())
        near = known[slug(source)]
    settings = runs.RunSettings(
        folder, Options(seed=seed), dry=dry, fresh=fresh, cache=cache, progress=100, say=say
    )
    table, timed = calibrate(near, settings, seconds=seconds)
    written = [folder / "calibration.jsonl.gz"]
    timed.save(written[0])
    if table is None:
        return None, timed, written
    if facts is None:
        raise DeviceError("the driver does not say what this GPU is", where=str(table.header.get("gpu")))
    table.header |= {"multiprocessors": facts.multiprocessors, "driver": driver}
    written.append(folder / f"{slug(facts.name)}.calibrated.table.json")
    table.save(written[-1])
    if install and tables_of(facts.name, facts) != facts.name:
        written.append(calibrated_path(facts))
        table.save(written[-1])
    return table, timed, written
