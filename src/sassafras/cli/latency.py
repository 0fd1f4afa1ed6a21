"""``sassafras latency mine | show``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import print_table
from .files import new_file

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show or build tables of the smallest issue distances that ptxas emits.",
)

Arch = Annotated[str, typer.Option(help="Architecture of the table.")]


@app.command()
def mine(
    paths: Annotated[
        list[Path], typer.Argument(help="Cubins or folders of cubins to read.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="File to write the table to.", show_default=False)],
    arch: Arch = "sm_90",
) -> None:
    """Build a latency table from a corpus of cubins."""
    from sassafras.sass.latency import mine as mine_table

    new_file(out)
    table = mine_table(paths, arch)
    table.save(out)
    print(f"{len(table)} rows written to {out}")


@app.command()
def show(
    arch: Arch = "sm_90",
    producer: Annotated[
        str | None, typer.Option(help="Print only rows whose producer has this opcode prefix.")
    ] = None,
    consumer: Annotated[
        str | None, typer.Option(help="Print only rows whose consumer has this opcode prefix.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Print only this kind of pair: raw, waw, war or issue.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="Print the table in this file instead of the packaged one.")
    ] = None,
) -> None:
    """Print the table in use, or a part of it."""
    from sassafras.core import LatencyTableError
    from sassafras.sass import archs
    from sassafras.sass.latency import LatencyTable
    from sassafras.sass.latency.table import KINDS

    if kind is not None and kind not in KINDS:
        raise LatencyTableError(f"there is no kind {kind!r} of distance", hint=f"one of {', '.join(KINDS)}")
    loaded = LatencyTable.load(archs.get(arch).table, table)
    rows = [
        [
            *key,
            str(seen.cycles),
            str(seen.samples),
            str(seen.attained),
            "yes" if loaded.distance(*key) is not None else "no",
        ]
        for key, seen in sorted(loaded.rows.items())
        if (kind is None or key[0] == kind)
        and (producer is None or key[1].startswith(producer))
        and (consumer is None or key[3].startswith(consumer))
    ]
    columns = ["kind", "producer", "slot", "consumer", "slot", "cycles", "samples", "at minimum", "trusted"]
    print_table(f"{loaded.arch}: {len(rows)} of {len(loaded)} rows", columns, rows)
