"""``sassafras judge PROBLEM SOLUTION...``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import print_json


def command(
    problem: Annotated[
        Path,
        typer.Argument(
            help="A KernelBench problem (.py) or a Definition of flashinfer-bench (.json).",
            show_default=False,
        ),
    ],
    solutions: Annotated[
        list[Path],
        typer.Argument(
            help="Solutions in the same format, ModelNew (.py) or Solution (.json).", show_default=False
        ),
    ],
    workloads: Annotated[
        Path | None, typer.Option(help="Workloads of the Definition, one a line (.jsonl).")
    ] = None,
    case: Annotated[str | None, typer.Option(help="Only the workload with this uuid [default: all].")] = None,
    device: Annotated[str, typer.Option(help="Where solutions run: cuda, cpu, or auto.")] = "auto",
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="Relative and absolute tolerance [default: the format's own]."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Timed rounds of fresh inputs.")] = 8,
    call_seconds: Annotated[float, typer.Option(min=0.1, help="Time limit of one call, in seconds.")] = 10.0,
    out: Annotated[
        Path | None,
        typer.Option(help="Write results in the problem's format: traces (.jsonl), or eval_results (.json)."),
    ] = None,
    store: options.StorePath = None,
    json: options.Json = False,
) -> None:
    """Judge solutions of a KernelBench or flashinfer-bench problem in confined processes.

    The problem is executed and trusted; solutions are not. Exit code 1: not every solution is correct.
    """
    import json as encoder
    import re

    from sassafras.api.judge import Judge
    from sassafras.core.files import write_whole
    from sassafras.formats import read_solution

    from .files import new_file

    target = None if out is None else new_file(out)
    with Judge(
        problem,
        workloads,
        case=case,
        device=device,
        tolerance=tolerance,
        rounds=rounds,
        call_s=call_seconds,
        store=store,
    ) as judge:
        read = [read_solution(judge.problem, path) for path in solutions]  # all, before the first is judged
        found = []
        for solution in read:
            found.append(judge(solution))
            if not json:
                print(found[-1].summary())
    if target is not None:
        rows = [row for each in found for row in each.theirs()]
        lines = "".join(encoder.dumps(row) + "\n" for row in rows)
        if found[0].problem.format == "kernelbench":
            numbered = [{**row, "sample_id": index} for index, row in enumerate(rows)]
            number = re.match(r"\d*", problem.stem)  # KernelBench names a problem by its number
            lines = encoder.dumps({(number and number[0]) or problem.stem: numbered}, indent=4) + "\n"
        write_whole(target, lines.encode())
    if json:
        print_json([each.to_json() for each in found])
    raise typer.Exit(0 if all(each.verdict.ok for each in found) else 1)
