"""``sassafras tune CAPTURE`` and ``sassafras tune --products GRID``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import options
from .console import note, print_json, print_table
from .files import folder

#: options of one of the two uses only
_OF_CAPTURES = {"kernels", "runner_ups", "device", "budget", "strategy", "settings", "store", "quiet", "json"}
_OF_PRODUCTS = {"bands", "shapes", "configs", "exclude", "only_configs", "recorded", "layouts", "apart"} | {
    "gpus", "minutes", "cache", "dry_run", "install",
}  # fmt: skip


def command(
    context: typer.Context,
    target: Annotated[
        Path | None, typer.Argument(help="Folder of a capture, or the captured.json in it.")
    ] = None,
    products: Annotated[
        str | None, typer.Option(help=f"Tune this grid of products instead of a capture: {options.GRIDS}.")
    ] = None,
    seed: options.Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help=f"Folder to write results to [default: sassafras-out; products: {options.PRODUCTS_FOLDER}]."
        ),
    ] = None,
    fresh: options.Fresh = False,
    kernels: Annotated[int, typer.Option(min=1, help="Tune at most this many kernels of the capture.")] = 10,
    runner_ups: Annotated[
        int, typer.Option(min=0, help="Tune at most this many further autotune configurations per kernel.")
    ] = 1,
    device: options.Device = "auto",
    budget: options.Budget = "60s",
    strategy: options.Strategy = "guided",
    settings: options.Settings = None,
    store: options.StorePath = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
    bands: options.Bands = None,
    shapes: options.Sample = None,
    configs: Annotated[
        int | None,
        typer.Option(
            help="Number of configurations to time, per shape and layout (128; with --only-configs: 24)."
        ),
    ] = None,
    exclude: options.Exclude = "",
    only_configs: Annotated[
        str,
        typer.Option(
            help="Time only configurations that match this regular expression, and the best recorded ones."
        ),
    ] = "",
    recorded: Annotated[
        int,
        typer.Option(
            help="With --only-configs: number of recorded configurations to time again, per layout."
        ),
    ] = 4,
    layouts: Annotated[str, typer.Option(help="Layouts to tune: nn,tn, or for gradients nt,tt.")] = "nn,tn",
    apart: options.Apart = True,
    gpus: options.Gpus = 1,
    minutes: options.Minutes = None,
    cache: options.Cache = None,
    dry_run: options.Dry = False,
    install: Annotated[
        bool, typer.Option(help="Let sassafras.matmul on this machine use the measured table.")
    ] = True,
) -> None:
    """Tune the kernels of a captured program, or sassafras.matmul for a grid of products.

    A capture's kernels are tuned in order of GPU time on all their shapes; the options from --kernels to
    --json apply. With --products, GEMM configurations are timed by successive halving, and the data set and
    the table of winners are written; the options from --bands on apply. The same command resumes.
    """
    _check(context, target, products)
    if target is not None:
        place = folder(out or Path("sassafras-out"))
        chosen = {"device": device, "budget": budget, "strategy": strategy, "seed": seed, "store": store}
        counts = {"most": kernels, "runner_ups": runner_ups, "fresh": fresh}
        _captured(target, place, settings or [], quiet, json, chosen | counts)
        return
    assert products is not None
    from sassafras.gemm.bench.grids import choose_shapes
    from sassafras.gemm.bench.options import Options, retuning
    from sassafras.gemm.bench.runs import RunSettings, save_sweep, sweep
    from sassafras.gemm.matmul.planner import tuned_path

    thorough = Options(
        configs=configs or 128, seed=seed, exclude=exclude, layouts=tuple(layouts.split(",")), apart=apart
    )
    if only_configs:
        thorough = retuning(thorough, only_configs, recorded, configs)
    grid = choose_shapes(products, bands, shapes, seed)
    place = folder(out or options.PRODUCTS_FOLDER)
    run = RunSettings(
        place, thorough, gpus, minutes=minutes, dry=dry_run, fresh=fresh, cache=cache, progress=25, say=note
    )
    dataset = sweep(grid, run)
    table = tuned_path(str(dataset.header.get("gpu"))) if install and not dataset.modelled else None
    paths = save_sweep(dataset, place, install=table, changed=only_configs)
    done = sum(shape in dataset.entries for shape in grid)  # journals may hold those of other grids too
    modelled = " (modelled)" if dataset.modelled else ""
    print(f"{done} of {len(grid)} shapes, {len(dataset)} and {dataset.pairs} pairs in the data set{modelled}")
    for path in paths:
        note(f"wrote {path}")


def _check(context: typer.Context, target: Path | None, products: str | None) -> None:
    """Raise SassafrasError unless one thing is named, with its own options alone."""
    from sassafras.core import SassafrasError

    if (target is None) == (products is None):
        what = (
            "nothing to tune is named" if target is None else f"both {str(target)!r} and products are named"
        )
        raise SassafrasError(what, hint="sassafras tune captured, or sassafras tune --products 64x4096x4096")
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is None or source.name != "COMMANDLINE":
            continue
        if parameter.name in (_OF_CAPTURES if target is None else _OF_PRODUCTS):
            use = "for captures" if target is None else "for --products"
            raise SassafrasError(f"{parameter.opts[0]} is {use} only", hint="sassafras tune --help")


def _captured(
    path: Path, out: Path, settings: list[str], quiet: bool, json: bool, chosen: dict[str, Any]
) -> None:
    """Tune what a capture holds; print a table and the change that the program can expect."""
    import json as format_

    from sassafras.api.optimize_captured import optimize_captured
    from sassafras.search import parse_settings

    from .progress import Show

    with Show(quiet=quiet) as show:
        report = optimize_captured(
            path,
            settings=parse_settings(settings),
            out=out,
            progress=show.progress,
            stage=show.stage,
            **chosen,
        )
    written = out / "captured-report.json"
    written.write_text(format_.dumps(report.to_json(), indent=2, sort_keys=True) + "\n")
    if json:
        print_json(report.to_json())
        return
    rows = [
        [
            row.label,
            "runner-up" if row.runner_up else f"{100 * row.share:.1f} %",
            f"{row.launches:,}",
            "" if row.ratio is None else f"{row.ratio:.3f}x {row.interval or ''}".strip(),
            row.detail,
        ]
        for row in report.rows
    ]
    ratio = "modelled" if report.modelled else "speed-up"
    print_table("", ["kernel", "share", "launches", ratio, "notes"], rows)
    print(report.conclusion())
    note(f"wrote {written}")
