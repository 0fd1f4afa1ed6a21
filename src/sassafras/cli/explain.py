"""``sassafras explain TARGET``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import print_json, stderr


def command(
    target: Annotated[
        str,
        typer.Argument(
            help="A target of optimize (its best stored kernel), run:N, or a result's JSON file.",
            show_default=False,
        ),
    ],
    tuned: Annotated[Path | None, typer.Option(help="Explain this cubin instead of the stored one.")] = None,
    case: Annotated[str | None, typer.Option(help="The workload's case [default: its first].")] = None,
    arch: Annotated[str | None, typer.Option(help="Compile for this [default: sm_90a].")] = None,
    device: Annotated[str, typer.Option(help="auto, cuda (measures), or model (the timing model).")] = "auto",
    limit: Annotated[int, typer.Option(help="Judge at most so many schedules.")] = 600,
    keep: Annotated[float, typer.Option(help="Part of the gain that the moves named have to keep.")] = 0.95,
    remeasure: Annotated[
        int, typer.Option(help="Re-measure (on the model: re-draw) so many of the largest moves.")
    ] = 5,
    most: Annotated[int, typer.Option(help="List at most so many moves.")] = 20,
    store: Annotated[
        Path | None, typer.Option(help="The store's file [default: $SASSAFRAS_STORE or the data folder].")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the JSON here, and the reduced schedule's cubin beside it.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The explanation as JSON on stdout.")] = False,
) -> None:
    """Say which moves of a tuned schedule gave how much, and why."""
    from sassafras.report.explain import explain

    console = stderr()
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
        stage=lambda text: console.print(text, style="dim", markup=False),
    )
    if save is not None:
        found.save(save)
    if json:
        print_json(found.to_json())
    else:
        print(found.text(most))
        for line in found.assumptions:
            console.print(f"model assumes: {line}", style="dim", markup=False)
