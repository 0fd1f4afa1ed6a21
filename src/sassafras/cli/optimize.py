"""``sassafras optimize TARGET``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import print_json, stderr
from .files import folder


def command(
    target: Annotated[
        str,
        typer.Argument(
            help="file.py[:attribute], file.toml, captured.json[:KERNEL], or suite:NAME[/CASE].",
            show_default=False,
        ),
    ] = "",
    captured: Annotated[
        Path | None, typer.Option(help="Instead of TARGET: all kernels of a capture, by GPU time.")
    ] = None,
    kernels: Annotated[int, typer.Option(min=1, help="With --captured: at most so many kernels.")] = 10,
    runner_ups: Annotated[
        int, typer.Option(min=0, help="With --captured: other autotune configurations to try a kernel.")
    ] = 1,
    case: Annotated[str | None, typer.Option(help="The workload's case [default: its first].")] = None,
    arch: Annotated[
        str | None, typer.Option(help="Compile for this [default: the GPU's, or sm_90a].")
    ] = None,
    ptxas: Annotated[Path | None, typer.Option(help="Assemble the baseline with this ptxas.")] = None,
    knobs: Annotated[
        Path | None, typer.Option(help="Baseline chosen by `sassafras knobs`: the file that it wrote.")
    ] = None,
    space: Annotated[
        str, typer.Option(help="What may change: swaps, control, renaming or blocks.")
    ] = "swaps",
    device: Annotated[str, typer.Option(help="auto, cuda (measures), or model (the timing model).")] = "auto",
    strategy: Annotated[
        str, typer.Option(help="guided, anneal, greedy, random_walk, list or ppo.")
    ] = "guided",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the strategy, NAME=VALUE; repeatable.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Network of ppo: pretrained, fresh, untrained or a checkpoint [default: pretrained]."
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(help="Seconds or evaluations: 60s, 5m, 3000e, or 60s,3000e.")
    ] = "60s",
    seed: Annotated[int, typer.Option(min=0, help="Of everything random in the search.")] = 0,
    store: Annotated[
        Path | None, typer.Option(help="The store's file [default: $SASSAFRAS_STORE or the data folder].")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the winner's cubin and JSON.")] = Path(
        "sassafras-out"
    ),
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of resuming.")] = False,
    cluster: Annotated[
        str | None, typer.Option(help="Search on all GPUs of a Ray cluster: auto, or HOST:PORT.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Of the cluster, how many [default: all].")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result line only.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
) -> None:
    """Search a faster schedule for a kernel, prove it legal, measure it, keep it.

    Ctrl-C keeps the best so far; the same command resumes. Without a GPU the timing model judges, and the
    result says so.
    """
    from sassafras.api.optimize import optimize
    from sassafras.core import SassafrasError
    from sassafras.search import parse_settings

    from .progress import Show

    chosen = parse_settings(settings or []) | ({} if policy is None else {"policy": policy})
    if (captured is None) == (not target):
        what = "no target is named" if captured is None else f"both {target!r} and a capture are named"
        raise SassafrasError(what, hint="sassafras optimize suite:softmax, or --captured FOLDER")
    folder(out)
    if captured is not None:
        from .captured import tune

        tune(
            captured,
            kernels=kernels,
            runner_ups=runner_ups,
            out=out,
            quiet=quiet,
            json=json,
            device=device,
            budget=budget,
            strategy=strategy,
            settings=chosen,
            seed=seed,
            store=store,
            fresh=fresh,
        )
        return
    with Show(quiet=quiet) as show:
        result = optimize(
            target,
            strategy=strategy,
            settings=chosen,
            budget=budget,
            device=device,
            seed=seed,
            case=case,
            arch=arch,
            ptxas=ptxas,
            knobs=knobs,
            space=space,
            store=store,
            fresh=fresh,
            cluster=cluster,
            workers=workers,
            progress=show.progress,
            stage=show.stage,
        )
    files = result.save(out)
    if json:
        print_json(result.to_json() | {"files": [str(path) for path in files]})
        return
    print(result.summary())
    if quiet:
        return
    console = stderr()
    for assumption in result.assumptions():
        console.print(f"model assumes: {assumption}", style="dim", markup=False)
    for note in result.notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    if result.failed_after_validation:
        console.print(
            f"{result.failed_after_validation} approved candidates failed on the device: a defect of the "
            "validator, please report it with `sassafras store export`",
            style="red",
        )
    if result.reason == "interrupted":
        console.print("interrupted: this is the best so far; the same command resumes", style="yellow")
    if result.from_store:
        console.print("this search finished before: the stored result; --fresh starts over", style="dim")
    console.print(f"wrote {files[0]} and {files[1].name}", style="dim", markup=False)
