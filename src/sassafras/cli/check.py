"""``sassafras check TARGET...``"""

from __future__ import annotations

from typing import Annotated

import typer

from . import options
from .console import print_json


def command(
    targets: Annotated[list[str], typer.Argument(help=options.TARGET_FORMS, show_default=False)],
    case: Annotated[str | None, typer.Option(help="Only this case [default: all].")] = None,
    arch: options.Arch = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Seconds in Triton's interpreter for each case.")
    ] = 10.0,
    json: options.Json = False,
) -> None:
    """Check workloads without a GPU: sizes, bounds, roles, grid, reference and tolerance.

    Exit code 1: something is wrong. 3: nothing is, but some checks were not possible.
    """
    from sassafras.precheck import Checker
    from sassafras.sass import archs

    if arch is not None:
        archs.get(arch)  # an unknown one is no fault of the workloads
    with Checker(seconds=seconds, arch=arch or "sm_90a") as checker:
        reports = [checker.check(target, case) for target in targets]
    if json:
        print_json([report.to_json() for report in reports])
    else:
        for report in reports:
            print(*report.findings, report.summary(), sep="\n")
    if any(report.of("wrong") for report in reports):
        raise typer.Exit(1)
    if any(report.findings for report in reports):
        raise typer.Exit(3)
