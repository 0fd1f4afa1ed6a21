"""``sassafras verify TARGET|ID [CUBIN]``"""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from .console import print_json, stderr
from .files import about


def command(
    target: Annotated[
        str, typer.Argument(help="A workload (file.py, file.toml, suite:NAME), or the id of a stored kernel.")
    ],
    cubin: Annotated[
        Path | None,
        typer.Argument(help="What to verify; by default what the store holds.", show_default=False),
    ] = None,
    stored: Annotated[int | None, typer.Option(help="Id of a stored kernel of this workload.")] = None,
    store: Annotated[Path | None, typer.Option(help="The store's file.")] = None,
    case: Annotated[str | None, typer.Option(help="The workload's case, by default its first.")] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture, by default the GPU's, or sm_90a.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Launches on fresh inputs, in all.")] = 1_000_000,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop sampling after so long.")] = None,
    sanitizer: Annotated[bool, typer.Option(help="Run compute-sanitizer where it is installed.")] = True,
    cluster: Annotated[
        str | None, typer.Option(help="Sample on all GPUs of a Ray cluster: auto, or HOST:PORT.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Of the cluster, how many [default: all].")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Do everything that can find a tuned kernel wrong, and say what could not be done here.

    Exit code 0: nothing found, everything done; 1: it is wrong; 3: nothing found, not everything done.
    """
    from sassafras.api.verify import verify

    name: str | None = target
    if target.isdecimal():
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
            cluster=cluster,
            workers=workers,
            say=lambda text: stderr().print(text),
        )
    if json:
        print_json({**dataclasses.asdict(found), "failed": found.failed, "complete": found.complete})
    else:
        print(found.summary())
    raise typer.Exit(1 if found.failed else 0 if found.complete else 3)
