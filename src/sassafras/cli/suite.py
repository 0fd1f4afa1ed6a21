"""``sassafras suite``"""

from __future__ import annotations

from . import options
from .console import print_json, print_table


def command(json: options.Json = False) -> None:
    """List the built-in workloads: optimize them as suite:NAME or suite:NAME/CASE."""
    from sassafras import suite

    workloads = [suite.load(name) for name in suite.names()]
    if json:
        print_json([{"name": w.name, "cases": [case.name for case in w.cases]} for w in workloads])
        return
    rows = [[f"suite:{w.name}", ", ".join(case.name for case in w.cases)] for w in workloads]
    print_table("", ["target", "cases (the first is the headline)"], rows)
