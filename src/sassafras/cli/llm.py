"""``sassafras llm corpus | train``"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from .console import note

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Train a language model of your own to write kernels.",
)


@app.command()
def corpus(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of sources and documents.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write (JSON Lines).")],
    licences: Annotated[
        str | None, typer.Option(help="Keep only files under these licences: MIT,Apache-2.0.")
    ] = None,
    passages: Annotated[int, typer.Option(min=0, help="Most passages of documents in a row.")] = 2,
) -> None:
    """Turn the kernels in folders into rows of instruction, retrieved context and code."""
    from sassafras.llm.corpus import write_corpus

    made = write_corpus(folders, out, licences=licences.split(",") if licences else (), passages=passages)
    for name in made.unread:
        note(f"note: {name} is not read: a syntax error", "yellow")
    print(f"{out}: {made.summary()}")


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="YAML file (docs/guides/evolve.md).", show_default=False)],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in the output folder.")
    ] = False,
) -> None:
    """Train a model on a corpus (sft) and with the evaluator as its reward (grpo), through TRL."""
    from sassafras.api.train import train_model

    with redirect_stdout(sys.stderr):  # trainers print their progress
        done = train_model(config, resume=resume)
    for stage in done:
        print(stage.summary())
