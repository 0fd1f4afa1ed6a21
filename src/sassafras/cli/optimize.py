"""``sassafras optimize TARGET...``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .console import INTERRUPTED, error, note, print_json, stderr
from .files import folder

if TYPE_CHECKING:
    from sassafras.jobs.result import Result


def command(
    context: typer.Context,
    targets: Annotated[list[str], typer.Argument(help=options.TARGET_FORMS, show_default=False)],
    case: Annotated[
        str | None, typer.Option(help="The workload's case, or all: a search each [default: its first].")
    ] = None,
    arch: options.Arch = None,
    ptxas: Annotated[
        Path | None, typer.Option(resolve_path=True, help="Assemble the baseline with this ptxas executable.")
    ] = None,
    ptxas_options: Annotated[
        Path | None, typer.Option(help="Use the baseline that `sassafras ptxas-options` wrote to this file.")
    ] = None,
    ptxas_controls: options.PtxasControls = None,
    space: options.Space = "swaps",
    device: options.Device = "auto",
    strategy: Annotated[
        str | None,
        typer.Option(help="guided, anneal, greedy, random_walk, list, ppo or sip [default: guided]."),
    ] = None,
    settings: options.Settings = None,
    preset: Annotated[
        str | None, typer.Option(help="Use a paper's protocol instead of a strategy: cuasmrl or sip.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Limit of each search in time or evaluations: 60s, 5m, 3000e, or 60s,3000e."),
    ] = None,
    effort: Annotated[
        str | None, typer.Option(help="Instead of a budget: quick (10s), normal (60s, default), full (10m).")
    ] = None,
    seed: options.Seed = 0,
    store: options.StorePath = None,
    out: Annotated[Path, typer.Option(help="Folder to write the cubin and its JSON file to.")] = Path(
        "sassafras-out"
    ),
    fresh: options.Fresh = False,
    cluster: options.Cluster = None,
    workers: options.Workers = None,
    check: Annotated[bool, typer.Option(help="Check the workload before a modelled run.")] = True,
    compile_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that the compilation of the kernel may take.")
    ] = 300.0,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Search for a faster schedule of a kernel, prove it legal, measure it, and store it.

    Ctrl-C keeps the best so far (exit code 130); the same command resumes. Without a GPU the timing model
    judges, and the result says so. Several targets or --case all end in a table.
    """
    from sassafras.cuda.ahead import begin

    if cluster is None:
        begin(device)  # processes with PyTorch, while this one imports
    from sassafras.api.optimize import optimize
    from sassafras.api.optimize_all import optimize_all
    from sassafras.core import SearchError
    from sassafras.frontend.triton import leave_torch_out
    from sassafras.search import parse_settings

    from .progress import Show

    if budget is not None and effort is not None:
        raise SearchError(f"both --budget {budget} and --effort {effort} are given", hint="give one")
    if preset is not None and effort is not None:
        raise SearchError("a preset has a budget of its own", hint="leave out --effort, or give --budget")
    folder(out)
    leave_torch_out()
    several = len(targets) > 1 or case == "all"
    with Show(quiet=quiet) as show:
        own = ("targets", "out", "quiet", "json")
        given: dict[str, Any] = {k: v for k, v in context.params.items() if k not in own}
        given["settings"] = parse_settings(settings or [])
        given |= {"effort": effort or "normal", "progress": show.progress, "stage": show.stage}
        if several:
            found = optimize_all(targets, finished=lambda one: one.save(out), **given)
        else:
            result = optimize(targets[0], **given)
    if not several:
        where = f"{targets[0]} --case {result.case}" + f" --space {space}" * (space != "swaps")
        _show(result, result.save(out), targets[0], where, quiet, json)
        raise typer.Exit(INTERRUPTED if result.reason == "interrupted" else 0)
    if json:
        print_json({"results": [one.to_json() for one in found.results], "failures": found.failures})
    else:
        print(found.summary())
        note(f"wrote {len(found.results)} cubins with their evidence to {out}")
    if any(one.reason == "interrupted" for one in found.results):
        raise typer.Exit(INTERRUPTED)
    if found.failures:
        error(f"{len(found.failures)} of {len(found.failures) + len(found.results)} could not be searched")
        raise typer.Exit(2)


def _show(result: Result, files: tuple[Path, Path], target: str, case: str, quiet: bool, json: bool) -> None:
    """One result: the line on stdout, what else is to be known on stderr."""
    if json:
        print_json(result.to_json() | {"files": [str(path) for path in files]})
        return
    print(result.summary())
    if quiet:
        return
    if rates := result.rates():
        note(rates)
    for line in result.stages():
        note(line)
    for assumption in result.assumptions():
        note(f"model assumes: {assumption}")
    for text in result.notes:
        note(f"note: {text}", "yellow")
    if result.failed_after_validation:
        with_them = f", with {files[0].stem}-failed-*.cubin" if result.failures else ""
        stderr().print(
            f"{result.failed_after_validation} approved candidates failed on the device: a defect of the "
            f"validator, please report it{with_them}",
            style="red",
        )
    if result.reason == "interrupted":
        note("interrupted: this is the best so far; the same command resumes", "yellow")
    if result.from_store:
        note("this search finished before: the stored result; --fresh starts over")
    note(f"wrote {files[0]} and {files[1].name}")
    note(f"next: {_next(result, target, case)}")


def _next(result: Result, target: str, case: str) -> str:
    """The command to type after this result; `case`: target, case and space as options."""
    if result.reason == "interrupted":
        return f"sassafras optimize {case} (resumes)"
    if result.modelled and not result.improved:
        return f"sassafras optimize {case} --effort full, or the same on a machine with a GPU"
    if result.modelled:
        return f"sassafras optimize {case}, on a machine with a GPU; sassafras explain {case}"
    if not result.improved:
        other = "" if "--space" in case else ", or --space control"
        return f"sassafras optimize {case} --effort full{other}"
    return f"sassafras verify {target}; sassafras run -- python PROGRAM deploys it"
