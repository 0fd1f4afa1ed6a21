"""``sassafras status``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import print_json


def command(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Where the processes write their status [default: $SASSAFRAS_STATUS]."),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="The store's file [default: $SASSAFRAS_STORE or the data folder].")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Say what `sassafras.install()` would find here, and which bytes running programs have loaded."""
    from sassafras.deploy.report import overview

    found = overview(folder, store)
    if json:
        print_json(found.to_json())
    else:
        print(found)
