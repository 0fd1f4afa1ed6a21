"""``sassafras ptxas-options TARGET``"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import note, print_json, print_table
from .files import folder


def command(
    target: options.Target,
    case: options.Case = None,
    arch: options.Arch = None,
    device: options.Device = "auto",
    fetch: Annotated[
        str,
        typer.Option(
            help="Download these releases of ptxas from the package registry first: 12.9.86,13.5.37."
        ),
    ] = "",
    ptxas_controls: options.PtxasControls = None,
    out: Annotated[Path, typer.Option(help="Folder to write the choice to.")] = Path("sassafras-out"),
    rows: Annotated[int, typer.Option(min=1, help="Number of rows to print, fastest first.")] = 12,
    json: options.Json = False,
) -> None:
    """Find the ptxas release and the documented options that give the fastest kernel.

    Numerics are left alone: outputs are compared bitwise with the frontend's own kernel. The choice goes to
    a file that `sassafras optimize --ptxas-options FILE` takes as its baseline.
    """
    from sassafras.api import optimize
    from sassafras.api.ptxas_options import choose
    from sassafras.frontend import ptx, ptxas_options

    folder(out)
    for version in filter(None, fetch.split(",")):
        note(f"ptxas {version}: {ptxas_options.fetch(version).parent.name}")
    workload = optimize.load_workload(target)
    which = workload.case(case)
    with closing(optimize.open_device(device, arch)) as opened:
        made = ptx.of(workload, which, arch or opened.arch, controls=ptxas_controls or ())
        choice = choose(made, workload, which, opened, say=note)
    path = choice.save(out)
    if json:
        print_json(choice.to_json() | {"file": str(path)})
        return
    table = [
        [r.ptxas, " ".join(r.flags), str(r.registers), r.verdict, f"{r.speedup:.4f}" if r.speedup else ""]
        for r in choice.rows[:rows]
    ]
    speed = "modelled, as selected" if choice.modelled else "speed-up, as selected"
    print_table(
        f"{len(choice.rows)} distinct kernels", ["ptxas", "flags", "registers", "verdict", speed], table
    )
    print(choice.summary())
    for line in choice.refused[:5]:
        note(f"refused: {line}", "yellow")
    note(f"wrote {path}")
