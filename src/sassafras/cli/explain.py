"""``sassafras explain TARGET``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import note, print_json
from .files import folder, new_file


def command(
    target: Annotated[
        str,
        typer.Argument(
            help="A target of optimize (for its best stored kernel), run:N, or a result's JSON file.",
            show_default=False,
        ),
    ],
    tuned: Annotated[Path | None, typer.Option(help="Explain this cubin instead of the stored one.")] = None,
    case: options.Case = None,
    arch: options.Arch = None,
    device: options.Device = "auto",
    limit: Annotated[int, typer.Option(help="Evaluate at most this many schedules.")] = 600,
    keep: Annotated[float, typer.Option(help="Share of the gain that the listed moves must keep.")] = 0.95,
    remeasure: Annotated[int, typer.Option(min=0, help="Number of moves to re-measure, largest first.")] = 5,
    most: Annotated[int, typer.Option(min=0, help="List at most this many moves.")] = 20,
    store: options.StorePath = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write the explanation to this JSON file, and the reduced schedule's cubin beside it."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Explain how much each move of a tuned schedule gained, and why."""
    from sassafras.report.explain import explain

    if save is not None:
        folder(save.parent)
        new_file(save)
    found = explain(
        target,
        tuned=tuned,
        case=case,
        device=device,
        arch=arch,
        store=store,
        limit=limit,
        keep=keep,
        remeasure=remeasure,
        stage=note,
    )
    if save is not None:
        found.save(save)
    if json:
        print_json(found.to_json())
    else:
        print(found.text(most))
        for line in found.assumptions:
            note(f"model assumes: {line}")
