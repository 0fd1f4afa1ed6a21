"""``sassafras status``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import print_json


def command(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder of the processes' status files [default: $SASSAFRAS_STATUS]."),
    ] = None,
    store: options.StorePath = None,
    json: options.Json = False,
) -> None:
    """Show the tuned kernels that `sassafras.install()` finds, and those that programs have loaded."""
    from sassafras.deploy.report import overview

    found = overview(folder, store)
    if json:
        print_json(found.to_json())
    else:
        print(found)
