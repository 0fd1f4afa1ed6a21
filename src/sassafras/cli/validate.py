"""``sassafras validate ORIGINAL CANDIDATE``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import print_json
from .files import about, read


def command(
    original: Annotated[Path, typer.Argument(help="The compiler's cubin.", show_default=False)],
    candidate: Annotated[Path, typer.Argument(help="Its rescheduled copy.", show_default=False)],
    kernel: Annotated[
        str | None, typer.Option(help="Name of the kernel; required if the cubin holds several.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Prove that CANDIDATE computes the same as ORIGINAL with legal timing. Exit code 1 if it does not."""
    first, second = read(original), read(candidate)
    from sassafras.api.validate import prove

    with about(original):
        name, report = prove(first, second, kernel)
    violations = [str(violation) for violation in report.violations]
    if json:
        print_json({"ok": report.ok, "kernel": name, "violations": violations})
    else:
        print(f"{name}: {'legal' if report.ok else 'illegal'}")
        for violation in violations:
            print(f"  {violation}")
    raise typer.Exit(0 if report.ok else 1)
