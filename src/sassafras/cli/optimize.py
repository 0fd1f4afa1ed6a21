"""``sassafras optimize TARGET...``"""

from __future__ import annotations

import shlex
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
        _show(result, result.save(out), context, quiet, json)
        raise typer.Exit(INTERRUPTED if result.reason == "interrupted" else 0)
    if json:
        print_json({"results": [one.to_json() for one in found.results], "failures": found.failures})
    else:
        print(found.summary())
        if not quiet:
            note(f"wrote {len(found.results)} cubins with their evidence to {out}")
    if any(one.reason == "interrupted" for one in found.results):
        raise typer.Exit(INTERRUPTED)
    if found.failures:
        error(f"{len(found.failures)} of {len(found.failures) + len(found.results)} could not be searched")
        raise typer.Exit(2)


def _show(result: Result, files: tuple[Path, Path], context: typer.Context, quiet: bool, json: bool) -> None:
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
    note(f"next: {_next(result, context)}")


def _next(result: Result, context: typer.Context) -> str:
    """The command to type after a result; `explain` knows the default space and the frontend's baseline."""
    kept, made = ("arch", "store"), ("space", "ptxas", "ptxas_options", "ptxas_controls")
    optimize = _again("optimize", context, *made, *kept)
    if result.reason == "interrupted":
        return f"{_again('optimize', context, *context.params.keys() - {'fresh'})} (resumes)"
    if result.modelled and not result.improved:
        return f"{optimize} --effort full, or the same on a machine with a GPU"
    if result.modelled:
        explain = "" if _given(context, *made) else f"; {_again('explain', context, *kept)}"
        return f"{optimize}, on a machine with a GPU{explain}"
    if not result.improved:
        other = "" if "--space" in optimize else ", or --space control"
        return f"{optimize} --effort full{other}"
    run = shlex.join(["sassafras", "run", *_given(context, "store")])
    return f"{_again('verify', context, *kept)}; {run} -- python PROGRAM deploys it"


def _again(command: str, context: typer.Context, *names: str) -> str:
    """A command for the same target and case, with these of the options that were given."""
    own = _given(context, "case", *(name for name in names if name != "targets"))
    return shlex.join(["sassafras", command, *context.params["targets"], *own])


def _given(context: typer.Context, *names: str) -> list[str]:
    """Those of these options that differ from their defaults, as words."""
    words: list[str] = []
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name not in names or value == option.get_default(context):
            continue
        if isinstance(value, bool):
            words.append((option.opts if value else option.secondary_opts)[0])
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            words += [max(option.opts, key=len), str(one)]
    return words
