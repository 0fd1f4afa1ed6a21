"""``sassafras evolve TARGET``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import INTERRUPTED, note, print_json
from .files import folder


def command(
    target: Annotated[
        str,
        typer.Argument(
            help="file.py[:attribute], suite:NAME[/CASE] with --whole, or gemm:MxNxK.", show_default=False
        ),
    ],
    proposer: Annotated[
        str,
        typer.Option(
            help="Source of proposals: mutate (random edits), endpoint:MODEL, or local:PATH[+ADAPTER]."
        ),
    ] = "mutate",
    budget: Annotated[
        str,
        typer.Option(
            help="Limits in time, evaluations, tokens and dollars, one or several: 10m,200e,500kt,2.5usd."
        ),
    ] = "10m",
    base_url: Annotated[
        str | None, typer.Option(help="URL of the endpoint, for example http://host:8000/v1.")
    ] = None,
    key_variable: Annotated[
        str, typer.Option(help="Environment variable that holds the endpoint's key.")
    ] = "OPENAI_API_KEY",
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of requests per minute.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that one request may take.")] = 300.0,
    prices: Annotated[
        tuple[float, float],
        typer.Option(help="Dollars per million prompt tokens and per million answer tokens."),
    ] = (0.0, 0.0),
    whole: Annotated[bool, typer.Option("--whole", help="Rewrite the whole source, not its holes.")] = False,
    case: options.Case = None,
    arch: options.Arch = None,
    device: Annotated[
        str,
        typer.Option(
            help="Where candidates run: cuda (a GPU), model (no GPU; outputs are not checked), or auto."
        ),
    ] = "auto",
    model_device: Annotated[
        str, typer.Option(help="Device of a local language model: cpu, cuda, ...")
    ] = "cpu",
    settings: options.Settings = None,
    seed: options.Seed = 0,
    store: options.StorePath = None,
    out: Annotated[Path, typer.Option(help="Folder to write the winner and all variants to.")] = Path(
        "sassafras-out"
    ),
    fresh: options.Fresh = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Let a language model (or random edits) rewrite a kernel; compile, check and time every proposal.

    Proposals are built in a sandbox and judged in worker processes. Ctrl-C keeps the best so far; the same
    command resumes and repeats no request.
    """
    from sassafras.api.evolve import evolve
    from sassafras.search import parse_settings

    from .progress import Show

    folder(out)
    with Show(quiet=quiet) as show:
        result = evolve(
            target,
            proposer=proposer,
            settings=parse_settings(settings or []),
            budget=budget,
            device=device,
            seed=seed,
            case=case,
            arch=arch,
            whole=whole,
            store=store,
            out=out,
            fresh=fresh,
            endpoint={
                "base_url": base_url,
                "key_variable": key_variable,
                "requests_per_minute": requests_per_minute,
                "timeout_s": timeout,
                "device": model_device,
            },
            prices=prices,
            progress=show.progress,
            stage=show.stage,
        )
    if json:
        print_json(result.to_json())
        return
    print(result.summary())
    if not quiet:
        for text in result.notes:
            note(f"note: {text}", "yellow")
        if result.from_store:
            note("this search finished before: the stored result; --fresh starts over")
        note(f"wrote {out}")
    if result.reason == "interrupted":
        raise typer.Exit(INTERRUPTED)
