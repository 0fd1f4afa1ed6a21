"""``sassafras store list | show | export | import | prune``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .console import print_json, print_table
from .options import Json, StorePath

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, show, export, import and prune stored kernels and runs.",
)


@app.command("list")
def list_(store: StorePath = None, json: Json = False) -> None:
    """List tuned kernels and runs; modelled results are listed apart from measured ones."""
    from sassafras.report.listing import listing
    from sassafras.store import Store

    with Store.open(store, readonly=True) as opened:
        found = listing(opened)
    if json:
        print_json(found)
        return
    for title, rows in found.items():
        if rows:
            print_table(title, list(rows[0]), [[str(cell) for cell in row.values()] for row in rows])


@app.command()
def show(
    run: Annotated[int, typer.Argument(help="A run's number from `store list`.", show_default=False)],
    store: StorePath = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Print every evaluation, one JSON object a line.")
    ] = False,
) -> None:
    """Show the settings and the result of one run; with --jsonl, every evaluation."""
    from sassafras.report.listing import evaluation_lines, run_facts
    from sassafras.store import Store

    with Store.open(store, readonly=True) as opened:
        if jsonl:
            for line in evaluation_lines(opened, run):
                print(line)
        else:
            print_json(run_facts(opened, run))


@app.command()
def export(
    path: Annotated[Path, typer.Argument(help="File to create (JSON Lines).", show_default=False)],
    store: StorePath = None,
    winners_only: Annotated[bool, typer.Option(help="Leave out runs and evaluations.")] = False,
) -> None:
    """Write the whole store into one self-contained file."""
    from sassafras.store import Store

    with Store.open(store, readonly=True) as opened:
        print(f"wrote {opened.export(path, runs=not winners_only)} lines to {path}")


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="A file that `store export` wrote.", show_default=False)],
    store: StorePath = None,
) -> None:
    """Import an exported file after checking every hash and field."""
    from sassafras.store import Store

    with Store.open(store) as opened:
        new = opened.import_(path)
    print("imported " + (", ".join(f"{n} {kind}" for kind, n in new.items() if n) or "nothing new"))


@app.command()
def prune(
    store: StorePath = None,
    older_than: Annotated[
        float | None,
        typer.Option(
            min=0, help="Remove runs begun more than this many days ago [default: all finished runs]."
        ),
    ] = None,
    modelled: Annotated[bool, typer.Option(help="Also remove the winners of the timing model.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")
    ] = False,
) -> None:
    """Remove runs with their evaluations, and unused cubins, after asking. Measured winners stay."""
    from sassafras.core import SassafrasError
    from sassafras.store import Store

    Store.open(store, readonly=True).close()  # none is created
    with Store.open(store) as opened:
        count = opened.prune(older_than_days=older_than, modelled=modelled, dry_run=True)
        what = ", ".join(f"{n} {kind}" for kind, n in count.items() if n)
        if dry_run or not what:
            print(f"would remove {what or 'nothing'}" if dry_run else "removed nothing")
            return
        if not yes:
            if not sys.stdin.isatty():
                raise SassafrasError(
                    f"would remove {what}, and there is no terminal to ask on", hint="--yes, or --dry-run"
                )
            typer.confirm(f"remove {what}?", abort=True)
        gone = opened.prune(older_than_days=older_than, modelled=modelled)
    print("removed " + ", ".join(f"{n} {kind}" for kind, n in gone.items() if n))


@app.command()
def check(
    store: StorePath = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove winners that are refused.")] = False,
    json: Json = False,
) -> None:
    """Check every measured winner as deployment does, and validate it; exit code 1 if one fails."""
    from sassafras.deploy.fleet import check as examine
    from sassafras.store import Store

    Store.open(store, readonly=True).close()  # none is created
    with Store.open(store, readonly=not remove) as opened:
        found = examine(opened)
        refused = [one for one in found if one.problem is not None]
        for one in refused if remove else ():
            opened.remove_winner(one.winner.id)
    rows = [
        {
            "winner": str(one.winner.id),
            "kernel": one.winner.kernel.name,
            "gpu": one.winner.gpu,
            "origin": one.winner.origin,
            "tuned": one.winner.tuned[:16],
            "check": one.problem or "fit for use",
        }
        for one in found
    ]
    if json:
        print_json(rows)
    elif rows:
        print_table("", list(rows[0]), [list(row.values()) for row in rows])
    else:
        print("no measured winners")
    if refused:
        raise typer.Exit(1)


@app.command()
def tuned(
    cubin: Annotated[Path, typer.Argument(help="The compiler's cubin.", show_default=False)],
    gpu: Annotated[str, typer.Option(help='GPU model to run on, as the driver names it: "NVIDIA H200".')],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write the tuned cubin to.")],
    kernel: Annotated[
        str | None, typer.Option(help="Write the cubin only if the tuned entry has this name.")
    ] = None,
    store: StorePath = None,
) -> None:
    """Write the tuned cubin for a plain CUDA module, at build time. Exit code 1 if there is none."""
    from sassafras.core.errors import os_errors
    from sassafras.core.files import write_whole
    from sassafras.deploy import status, tuned_cubin

    from .files import new_file, read

    new_file(out)
    given = read(cubin)
    found = tuned_cubin(given, gpu, kernel=kernel, store=store)
    print(f"{cubin}: {status().kernels[-1].reason}")
    if found == given:
        raise typer.Exit(1)
    with os_errors("cannot write the cubin", out):
        write_whole(out, found)
    print(f"wrote {out}")
