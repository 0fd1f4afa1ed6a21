"""``sassafras knobs TARGET``"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from .console import print_json, print_table, stderr
from .files import folder


def command(
    target: Annotated[
        str, typer.Argument(help="file.py[:attribute], file.toml, or suite:NAME[/CASE].", show_default=False)
    ],
    case: Annotated[str | None, typer.Option(help="The workload's case [default: its first].")] = None,
    arch: Annotated[
        str | None, typer.Option(help="Compile for this [default: the GPU's, or sm_90a].")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cuda (measures), or model (the timing model).")] = "auto",
    fetch: Annotated[
        str, typer.Option(help="Releases of ptxas to take from the registry first: 12.9.86,13.5.37.")
    ] = "",
    out: Annotated[Path, typer.Option(help="Folder for the choice.")] = Path("sassafras-out"),
    rows: Annotated[int, typer.Option(min=1, help="So many of the fastest are printed.")] = 12,
    json: Annotated[bool, typer.Option("--json", help="The choice as JSON on stdout.")] = False,
) -> None:
    """Find the fastest of what ptxas makes of a kernel: releases and documented options.

    Numerics are left alone: outputs are compared bitwise with the frontend's own kernel. The choice goes to
    a file that `sassafras optimize --knobs FILE` takes as its baseline.
    """
    from sassafras.api import optimize
    from sassafras.api.ptxas_options import choose
    from sassafras.frontend import ptxas_options as space

    console = stderr()
    folder(out)
    for version in filter(None, fetch.split(",")):
        console.print(f"ptxas {version}: {space.fetch(version).parent.name}", style="dim", markup=False)
    workload = optimize.load_workload(target)
    which = workload.case(case)
    with closing(optimize.open_device(device, arch)) as opened:
        made = space.of(workload, which, arch or opened.arch)
        choice = choose(
            made, workload, which, opened, say=lambda text: console.print(text, style="dim", markup=False)
        )
    path = choice.save(out)
    if json:
        print_json(choice.to_json() | {"file": str(path)})
        return
    table = [
        [r.ptxas, " ".join(r.flags), str(r.registers), r.verdict, f"{r.speedup:.4f}" if r.speedup else ""]
        for r in choice.rows[:rows]
    ]
    speed = "modelled, as selected" if choice.modelled else "speed-up"
    print_table(
        f"{len(choice.rows)} distinct kernels", ["ptxas", "flags", "registers", "verdict", speed], table
    )
    print(choice.summary())
    for line in choice.refused[:5]:
        console.print(f"refused: {line}", style="yellow", markup=False)
    console.print(f"wrote {path}", style="dim", markup=False)
