"""``sassafras compare TARGET A B``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import print_json


def command(
    target: Annotated[
        str, typer.Argument(help="The workload of both cubins: file.py, file.toml, suite:NAME.")
    ],
    a: Annotated[Path, typer.Argument(help="The baseline's cubin.", show_default=False)],
    b: Annotated[Path, typer.Argument(help="The cubin to compare with it.", show_default=False)],
    case: options.Case = None,
    processes: Annotated[int, typer.Option(min=2, help="Number of fresh processes to measure in.")] = 5,
    rounds: Annotated[int, typer.Option(min=4, help="Number of interleaved rounds per process.")] = 100,
    tolerance: Annotated[
        bool, typer.Option("--tolerance", help="Compare outputs within the tolerance, not bitwise.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Measure two cubins of one workload against each other, together with an A/A control. Needs a GPU.

    Exit code 1 unless B is correct and faster, by more than the control explains.
    """
    from sassafras.api.compare import compare

    found = compare(a, b, workload=target, case=case, groups=processes, rounds=rounds, bitwise=not tolerance)
    if json:
        print_json(found.to_json())
    else:
        print(found.summary())
    raise typer.Exit(0 if found.decided == "faster" else 1)
