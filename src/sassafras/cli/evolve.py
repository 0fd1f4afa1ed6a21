"""``sassafras evolve TARGET``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import options
from .console import INTERRUPTED, note, print_json
from .files import folder as made_folder

#: exit code of a run whose prompts wait for answers
WAITING = 4


#: options -> the proposers that take them
_FOR = {
    **dict.fromkeys(("base_url", "key_variable", "requests_per_minute", "timeout"), ("endpoint",)),
    **{"model_device": ("local",), "wait": ("exchange",)},
}


def command(
    run: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            help="file.py[:attribute], suite:NAME[/CASE] with --whole, or gemm:MxNxK.", show_default=False
        ),
    ],
    proposer: Annotated[
        str,
        typer.Option(
            help="Source of proposals: mutate (random edits), endpoint:MODEL, local:PATH[+ADAPTER], "
            "exchange:FOLDER (answers are files), or replay:FOLDER (a recorded run)."
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
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder of prompts, answers and the transcript, which resumes the run."),
    ] = None,
    context: Annotated[
        list[Path] | None, typer.Option(help="Folder whose passages are shown in prompts. May be repeated.")
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for answers to an exchange folder.")
    ] = 3600.0,
    case: options.Case = None,
    arch: options.Arch = None,
    device: Annotated[
        str,
        typer.Option(
            help="Where candidates run: cuda (a GPU), model (no GPU; outputs are not checked), auto, or none "
            "(writes prompts, runs nothing)."
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
    command resumes and repeats no request. Exit code 4: prompts wait for answers.
    """
    from sassafras.api.evolve import evolve, replay_run, write_prompts
    from sassafras.core import SearchError
    from sassafras.search import parse_settings

    from .progress import Show

    given: dict[str, Any] = {
        "settings": parse_settings(settings or []),
        "seed": seed,
        "case": case,
        "arch": arch,
        "whole": whole,
        "context": context or (),
    }
    kind, _, place = proposer.partition(":")
    options.check(run, {name: kind in kinds for name, kinds in _FOR.items()}, f"with --proposer {kind}")
    if device == "none" or (kind == "replay" and device == "auto"):
        if kind == "replay":
            asked = {**given, "context": [*map(str, context or ())], "arch": None}
            stands = replay_run(place, target, **{name: value for name, value in asked.items() if value})
            print_json(stands.to_json()) if json else print(f"replayed: {stands.summary()}")
            return
        where = place if kind == "exchange" and place else folder
        if where is None:
            raise SearchError("--device none writes prompts, which needs a folder", hint="--folder FOLDER")
        if fresh:
            raise SearchError(
                "a run in a folder goes on", where=str(where), hint="for a fresh one name another"
            )
        found = write_prompts(target, where, **given)
        print_json(found.to_json()) if json else print(found.summary())
        raise typer.Exit(WAITING if found.waiting else 0)
    made_folder(out)
    with Show(quiet=quiet) as show:
        result = evolve(
            target,
            proposer=proposer,
            budget=budget,
            device=device,
            folder=folder,
            wait=wait,
            **given,
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
    waiting = int(result.facts.get("waiting", 0))
    if json:
        print_json(result.to_json())
    elif waiting:
        print(f"waiting for {waiting} answers; the same command goes on when they are there")
    else:
        print(result.summary())
    if not (quiet or json or waiting):
        for text in result.notes:
            note(f"note: {text}", "yellow")
        if result.from_store:
            note("this search finished before: the stored result; --fresh starts over")
        note(f"wrote {out}")
    if waiting:
        raise typer.Exit(WAITING)
    if result.reason == "interrupted":
        raise typer.Exit(INTERRUPTED)
