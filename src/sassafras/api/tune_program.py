"""`sassafras tune -- COMMAND`: a program's products and Triton kernels, and what the whole program gains."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sassafras.capture.parts import merge
from sassafras.capture.settings import CaptureSettings
from sassafras.core import Budget, SassafrasError
from sassafras.deploy.auto import environment, hook_path
from sassafras.deploy.records import read_statuses
from sassafras.deploy.settings import DISABLE
from sassafras.frontend.captured.files import Captured
from sassafras.gemm.bench.program import RECORD, Tuned, installed, record_of, tune_products
from sassafras.gemm.matmul.recorder import VARIABLE

from .end_to_end import EndToEnd, end_to_end, metric_pattern
from .optimize_captured import CapturedReport, optimize_captured

#: folders beside the record of products
_CAPTURED, _STATUS = "captured", "status"
#: without tuned kernels, also where the program itself asks for them
_PLAIN = {DISABLE: "1"}


@dataclass(frozen=True)
class ProgramReport:
    """What came of a program.

    Attributes:
        products: tuned products; None where it calls none.
        kernels: tuned Triton kernels; None where it launches none.
        program: its runs without and with tuned code; None where `why` says so.
        why: why it was not timed.
        left: Triton kernels that were recorded, and not tuned since that was not asked for.
    """

    products: Tuned | None
    kernels: CapturedReport | None
    program: EndToEnd | None = None
    why: str = ""
    left: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values: those of the products, ``kernels`` and ``program``."""
        found: dict[str, Any] = {} if self.products is None else self.products.to_json()
        if self.kernels is not None:
            found["kernels"] = self.kernels.to_json()
        program = self.program and self.program.to_json()
        return {**found, "program": program, "why": self.why, "left": self.left}


def tune_program(
    command: list[str],
    place: Path,
    run: Callable[[dict[str, str]], object],
    *,
    budget: str | Budget,
    rounds: int = 0,
    metric: str = "",
    fresh: bool = False,
    kernels_too: bool = True,
    products: Mapping[str, Any] | None = None,
    kernels: Mapping[str, Any] | None = None,
    stage: Callable[[str], None] = lambda text: None,
    progress: Callable[[str], None] = lambda text: None,
) -> ProgramReport:
    """Run a program once, tune what it calls, and run it without and with that.

    Args:
        command: the program and its arguments.
        place: folder of what was recorded, and of all results; the same command goes on.
        run: runs the program with an environment.
        budget: wall time of the search of its products, and again of its kernels, which share it by GPU time.
        rounds, metric: see `end_to_end`; 0 rounds: the program is not timed.
        fresh: record again, and search again.
        kernels_too: tune Triton kernels also where the program calls products.
        products: further arguments of `tune_products`.
        kernels: of `optimize_captured`.

    Raises:
        SassafrasError: it calls no product and launches no Triton kernel, or an argument is wrong.
        DeviceError: there is no GPU.
    """
    metric_pattern(metric)  # refused now, not after the search
    own, options = dict(products or {}), dict(kernels or {})
    calls, captured = _recorded(command, place, run, fresh)
    install, dry = own.pop("install", True), bool(own.get("dry"))
    tuned: Tuned | None = None
    if calls:
        tuned = tune_products(
            calls, place, budget=budget, install=False, fresh=fresh, progress=progress, say=stage, **own
        )
    report: CapturedReport | None = None
    program, left = None, 0
    try:
        if captured is not None and calls and not kernels_too:
            left = sum(1 for variant in captured.variants if variant.count)
        elif captured is not None and not dry:
            report = optimize_captured(captured, total=budget, fresh=fresh, out=place, stage=stage, **options)
        if not (why := _why_not(tuned, report, rounds)):
            status = place / _STATUS
            shutil.rmtree(status, ignore_errors=True)
            set_ = environment(store=options.get("store"), status=status)
            if tuned is not None and _changed(tuned):
                set_["SASSAFRAS_GEMM_TABLE"] = str(tuned.path.resolve())
            program = end_to_end(
                command,
                set_,
                _PLAIN,
                lambda: _deployed(status),
                rounds=rounds,
                metric=metric,
                progress=progress,
            )
    except SassafrasError as error:  # what was tuned is not lost for it
        if tuned is None and report is None:
            raise
        why = str(error)
    finally:  # not before: runs without it are to find what served before
        if tuned is not None and install and not dry:
            installed(tuned.path)
    return ProgramReport(tuned, report, program, why, left)


def _recorded(
    command: list[str], place: Path, run: Callable[[dict[str, str]], object], fresh: bool
) -> tuple[Mapping[Any, int], Captured | None]:
    """What the program calls and launches, as recorded before or now."""
    folder = place / _CAPTURED

    def recording(records: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        settings = CaptureSettings(folder.resolve())
        run(
            {
                **os.environ,
                **_PLAIN,
                VARIABLE: str(records.resolve()),
                **settings.environment(),
                "PYTHONPATH": hook_path(),
            }
        )

    calls, others = record_of(place, command, recording, fresh=fresh)
    captured = merge(folder) if any(folder.glob("part-*.json")) else None
    if not calls and captured is None:
        (place / RECORD).unlink()
        more = f"{others} batches or SwiGLU pairs, which are not tuned, and " * bool(others)
        what = "the program launched no Triton kernel, and called "
        hint = "sassafras.accelerate(model); is the program's Python this environment's?"
        raise SassafrasError(f"{what}{more}no product of sassafras on a GPU with kernels", hint=hint)
    return calls, captured


def _changed(tuned: Tuned) -> bool:
    """Whether a product is served by something faster than before."""
    return any(row.us < row.before_us for row in tuned.rows)


def _why_not(tuned: Tuned | None, report: CapturedReport | None, rounds: int) -> str:
    """Why the program is not timed."""
    if report is not None and report.interrupted:
        return "interrupted: the same command resumes"
    if not rounds:
        return "that takes a --metric that it prints, or --rounds"
    if (tuned is not None and tuned.modelled) or (report is not None and report.modelled):
        return "modelled, nothing was measured"
    better = report is not None and any(row.improved for row in report.rows)
    if not better and not (tuned is not None and _changed(tuned)):
        return "nothing to gain here: no kernel and no product was found faster"
    return ""


def _deployed(status: Path) -> list[str]:
    """Names of the kernels that the program's processes loaded with tuned code."""
    processes = read_statuses(status) if status.is_dir() else []
    found = {k.name for process in processes for k in process.kernels if k.tuned}
    return sorted(found)
