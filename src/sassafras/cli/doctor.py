"""``sassafras doctor``"""

from __future__ import annotations

from dataclasses import asdict

import typer

from . import options
from .console import print_json, print_table


def command(json: options.Json = False) -> None:
    """List the GPU, driver, tools and packages that were found, and what each missing one is needed for.

    Exit code 0 when the main job can run at least on the timing model, else 1.
    """
    from sassafras.api.doctor import abilities, diagnose

    findings = diagnose()
    able = abilities(findings)
    if json:
        print_json({"findings": [asdict(f) for f in findings], "abilities": [asdict(a) for a in able]})
    else:
        rows = [["found" if f.found else "missing", f.name, f.version, f.needed_for] for f in findings]
        print_table("", ["", "what", "version and place", "needed for"], rows)
        for ability in able:
            verdict = "yes" if ability.ready else "no: missing " + ", ".join(ability.missing)
            print(f"{ability.name}: {verdict}")
            if ability.hint and not ability.ready:
                print(f"  {ability.hint}")
    raise typer.Exit(0 if able[0].ready else 1)
