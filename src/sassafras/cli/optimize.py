"""``sassafras optimize TARGET``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import note, print_json, stderr
from .files import folder


def command(
    target: options.Target,
    case: options.Case = None,
    arch: options.Arch = None,
    ptxas: Annotated[Path | None, typer.Option(help="Assemble the baseline with this ptxas.")] = None,
    ptxas_options: Annotated[
        Path | None, typer.Option(help="Start from the choice in this file of `sassafras ptxas-options`.")
    ] = None,
    space: Annotated[
        str, typer.Option(help="What may change: swaps, control, renaming or blocks.")
    ] = "swaps",
    device: options.Device = "auto",
    strategy: Annotated[
        str | None,
        typer.Option(help="guided, anneal, greedy, random_walk, list, ppo or sip [default: guided]."),
    ] = None,
    settings: options.Settings = None,
    preset: Annotated[
        str | None, typer.Option(help="A paper's protocol instead of a strategy: cuasmrl or sip.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="60s, 5m, 3000e (evaluations), or 60s,3000e [default: 60s, or the preset's]."),
    ] = None,
    seed: options.Seed = 0,
    store: options.StorePath = None,
    out: Annotated[Path, typer.Option(help="Folder for the winner's cubin and JSON.")] = Path(
        "sassafras-out"
    ),
    fresh: options.Fresh = False,
    cluster: options.Cluster = None,
    workers: options.Workers = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Search for a faster schedule of a kernel, prove it legal, measure it, and store it.

    Ctrl-C keeps the best so far; the same command resumes. Without a GPU the timing model judges, and the
    result says so.
    """
    from sassafras.api.optimize import optimize
    from sassafras.search import parse_settings

    from .progress import Show

    folder(out)
    with Show(quiet=quiet) as show:
        result = optimize(
            target,
            strategy=strategy,
            settings=parse_settings(settings or []),
            preset=preset,
            budget=budget,
            device=device,
            seed=seed,
            case=case,
            arch=arch,
            ptxas=ptxas,
            ptxas_options=ptxas_options,
            space=space,
            store=store,
            fresh=fresh,
            cluster=cluster,
            workers=workers,
            progress=show.progress,
            stage=show.stage,
        )
    files = result.save(out)
    if json:
        print_json(result.to_json() | {"files": [str(path) for path in files]})
        return
    print(result.summary())
    if quiet:
        return
    for assumption in result.assumptions():
        note(f"model assumes: {assumption}")
    for text in result.notes:
        note(f"note: {text}", "yellow")
    if result.failed_after_validation:
        stderr().print(
            f"{result.failed_after_validation} approved candidates failed on the device: a defect of the "
            "validator, please report it with `sassafras store export`",
            style="red",
        )
    if result.reason == "interrupted":
        note("interrupted: this is the best so far; the same command resumes", "yellow")
    if result.from_store:
        note("this search finished before: the stored result; --fresh starts over")
    note(f"wrote {files[0]} and {files[1].name}")
