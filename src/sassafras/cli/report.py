"""``sassafras report [SOURCES]``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import note
from .files import new_file


def command(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="Stores, run:N, results or explanations to show [default: all runs of --store].",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")] = Path("report.html"),
    store: options.StorePath = None,
    kernels: Annotated[
        int, typer.Option(min=0, help="Number of tuned kernels to show instruction by instruction.")
    ] = 6,
    explain: Annotated[
        int,
        typer.Option(min=0, help="Evaluate at most this many schedules per explanation; 0: no explanations."),
    ] = 300,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Sassafras report",
) -> None:
    """Write one self-contained HTML page: speed-ups, searches, verdicts, kernels side by side."""
    from sassafras.report.page import write_report

    path = write_report(
        new_file(out),
        sources or (),
        store=store,
        kernels=kernels,
        explain=explain,
        title=title,
        stage=note,
    )
    print(f"wrote {path} ({path.stat().st_size / 1024:.0f} KB)")
