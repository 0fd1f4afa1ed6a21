"""``sassafras verify TARGET|ID [CUBIN]``"""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import print_json, stderr
from .files import about


def command(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            help="A workload (file.py, file.toml, suite:NAME), the ID of a stored kernel, or a program."
        ),
    ],
    cubin: Annotated[
        Path | None,
        typer.Argument(help="The cubin to verify [default: the stored one].", show_default=False),
    ] = None,
    stored: Annotated[int | None, typer.Option(help="Verify the stored kernel with this ID.")] = None,
    store: options.StorePath = None,
    case: options.Case = None,
    arch: options.Arch = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Number of launches on fresh inputs, in total.")
    ] = 1_000_000,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Stop sampling after this many seconds.")
    ] = None,
    sanitizer: Annotated[bool, typer.Option(help="Run compute-sanitizer where it is installed.")] = True,
    batch_invariant: Annotated[
        bool,
        typer.Option(
            "--batch-invariant",
            help="Compare rows of a program with build() and inputs(rows), alone and in batches.",
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Run every check that can find a tuned kernel wrong, and list the checks that are not possible here.

    Exit code 0: nothing found, everything done; 1: it is wrong; 3: nothing found, not everything done.
    """
    from sassafras.api.batch_invariance import batch_invariance
    from sassafras.api.verify import verify
    from sassafras.core import SassafrasError

    if batch_invariant:
        if (cubin, stored, case) != (None, None, None):
            what = "--batch-invariant is for a program alone"
            raise SassafrasError(what, hint="leave out the cubin, --stored and --case")
        others = ("store", "arch", "samples", "seconds", "sanitizer")
        options.check(context, dict.fromkeys(others, False), "with --batch-invariant")
        rows = batch_invariance(Path(target))
        print_json({**dataclasses.asdict(rows), "failed": rows.failed}) if json else print(rows.summary())
        raise typer.Exit(int(rows.failed))
    name: str | None = target
    if target.isdecimal():
        if stored is not None:
            raise SassafrasError(f"both {target} and --stored {stored} are given", hint="give one")
        name, stored = None, int(target)
    with about(cubin) if cubin is not None else nullcontext():
        found = verify(
            name,
            cubin,
            stored=stored,
            store=store,
            case=case,
            arch=arch,
            samples=samples,
            seconds=seconds,
            sanitizer=sanitizer,
            say=lambda text: stderr().print(text),
        )
    if json:
        print_json({**dataclasses.asdict(found), "failed": found.failed, "complete": found.complete})
    else:
        print(found.summary())
    raise typer.Exit(1 if found.failed else 0 if found.complete else 3)
