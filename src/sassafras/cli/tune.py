"""``sassafras tune CAPTURE``, ``tune -- COMMAND``, ``tune --products GRID`` and ``tune --calibrate``"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options
from .console import note, print_json, print_table
from .files import folder

#: what is tuned -> options that the others lack, or share with one of them
_OPTIONS = {
    "captures": {
        "kernels",
        "runner_ups",
        "device",
        "space",
        "strategy",
        "settings",
        "store",
        "budget",
        "quiet",
        "json",
    },
    "--products": {"bands", "shapes", "configs", "exclude", "only_configs", "recorded", "layouts", "apart"}
    | {"source", "top", "gpus", "minutes", "cache", "dry_run", "install"},
    "programs": {"kernels", "runner_ups", "device", "space", "strategy", "settings", "store", "budget"}
    | {"quiet", "json", "cache", "dry_run", "install", "metric", "rounds"},
    "--calibrate": {"budget", "cache", "dry_run", "install", "source"},
}
#: of a program that is to be timed
_ROUNDS = 3


def command(
    context: typer.Context,
    target: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folder of a capture, or its captured.json; or after --, a program and its arguments.",
            show_default=False,
        ),
    ] = None,
    products: Annotated[
        str | None, typer.Option(help=f"Tune this grid of products instead of a capture: {options.GRIDS}.")
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Correct the nearest GPU's table by a sample timed on this GPU."),
    ] = False,
    seed: options.Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write results to [default: sassafras-out, in it a folder for products]."
        ),
    ] = None,
    fresh: options.Fresh = False,
    kernels: Annotated[int, typer.Option(min=1, help="Tune at most this many kernels of the capture.")] = 10,
    runner_ups: Annotated[
        int, typer.Option(min=0, help="Tune at most this many further autotune configurations per kernel.")
    ] = 1,
    metric: Annotated[
        str,
        typer.Option(
            help="Compare this time that the program prints, a regular expression with one group "
            "[default: seconds of the whole program]."
        ),
    ] = "",
    rounds: Annotated[
        int | None,
        typer.Option(
            min=0, help="Run the program this often without, with and without tuned code (with --metric: 3)."
        ),
    ] = None,
    device: options.Device = "auto",
    budget: options.Budget = "60s",
    space: options.Space = "swaps",
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
    source: options.Source = "",
    top: options.Top = 6,
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
    """Tune a program, the kernels of a capture, or sassafras.matmul for a grid of products.

    A program is run once and recorded. The products of sassafras.matmul, linear and accelerated layers that
    it calls are timed in its context, ours beside cuBLASLt's and torch, within --budget (120s). Where it
    calls none, or --space is given, its Triton kernels, torch.compile's too, are tuned within the same time,
    shared by their GPU time. With --metric or --rounds, the program then runs without, with and without tuned
    code, so many times. A capture's kernels are tuned in order of GPU time on all their shapes, --budget
    each; the options from --kernels to --json apply to both. With --products, GEMM configurations are timed
    by successive halving, and the data set and the table of winners are written; the options from --bands on
    apply. With --calibrate, a GPU without a table gets the nearest one's (or that of --from), corrected by
    what a sample takes here within --budget (60s). The same command resumes.
    """
    use = _check(context, target, products, calibrate)
    if calibrate:
        place = folder(out or options.CALIBRATION_FOLDER)
        how: dict[str, Any] = {"cache": cache, "dry": dry_run, "install": install}
        how |= {"fresh": fresh, "seed": seed}
        _calibrated(source, place, budget, how)
        return
    if target is not None:
        chosen = {"device": device, "space": space, "seed": seed, "store": store}
        if space != "compiler" or _given(context, "strategy"):  # which has one of its own
            chosen["strategy"] = strategy
        chosen |= {"most": kernels, "runner_ups": runner_ups}
        if use == "captures":
            place = folder(out or Path("sassafras-out"))
            chosen |= {"budget": budget, "fresh": fresh}
            _captured(Path(target[0]), place, settings or [], quiet, json, chosen)
            return
        own = {"cache": cache, "dry": dry_run, "install": install, "seed": seed}
        rounds = _ROUNDS * bool(metric) if rounds is None else rounds
        how = {"fresh": fresh, "metric": metric, "rounds": rounds, "products": own}
        how["kernels_too"] = _given(context, "space")
        if _given(context, "budget"):
            how["budget"] = budget
        _program(target, out, settings or [], quiet, json, chosen, how)
        return
    assert products is not None
    from sassafras.gemm.bench.grids import choose_shapes
    from sassafras.gemm.bench.options import Options, carried_over, retuning
    from sassafras.gemm.bench.runs import RunSettings, save_sweep, sweep
    from sassafras.gemm.matmul.loading import tuned_path

    thorough = Options(
        configs=configs or 128, seed=seed, exclude=exclude, layouts=tuple(layouts.split(",")), apart=apart
    )
    if source:
        thorough = carried_over(thorough, source, top)
    elif only_configs:
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


def _check(context: typer.Context, target: list[str] | None, products: str | None, calibrate: bool) -> str:
    """What is tuned (`_OPTIONS`). Raises SassafrasError unless one thing is named, with its own options."""
    from sassafras.core import SassafrasError

    named = [
        *map(repr, (target or ())[:1]),
        *["products"] * (products is not None),
        *["--calibrate"] * calibrate,
    ]
    if len(named) != 1:
        what = "both " + " and ".join(named) + " are named" if named else "nothing to tune is named"
        raise SassafrasError(
            what, hint="sassafras tune captured, -- python program.py, or --products 64x4096x4096"
        )
    use = "--calibrate" if calibrate else "--products"
    if target is not None:
        use = "programs" if _runs(target) else "captures"
    for parameter in context.command.params:
        name = parameter.name or ""
        if _given(context, name) and name in set[str]().union(*_OPTIONS.values()) - _OPTIONS[use]:
            of = " and ".join(other for other, names in _OPTIONS.items() if name in names)
            raise SassafrasError(f"{parameter.opts[0]} is for {of} only", hint="sassafras tune --help")
    if _given(context, "source") and _given(context, "only_configs"):
        raise SassafrasError("--from and --only-configs exclude each other", hint="one sweep after the other")
    return use


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _runs(target: list[str]) -> bool:
    """Whether it is a program: it has arguments, or can be run, also by its name alone."""
    return len(target) > 1 or (not Path(target[0]).is_dir() and shutil.which(target[0]) is not None)


def _program(
    command: list[str],
    out: Path | None,
    settings: list[str],
    quiet: bool,
    json: bool,
    kernels: dict[str, Any],
    how: dict[str, Any],
) -> None:
    """Record a program, tune what it calls, print what changed."""
    import json as format_

    from sassafras.api.tune_program import tune_program
    from sassafras.gemm.bench import program
    from sassafras.search import parse_settings

    from .capture import run_program
    from .progress import Show

    def run(environment: dict[str, str]) -> None:
        if code := run_program(command, environment, apart=json):
            note(f"the program ended with {code}; what it called until then is tuned", "yellow")

    place = folder(out or program.FOLDER)
    with Show(quiet=quiet) as show:
        found = tune_program(
            command,
            place,
            run,
            kernels={**kernels, "settings": parse_settings(settings), "progress": show.progress},
            progress=lambda text: show.update(lambda: text),
            stage=show.stage,
            **{"budget": program.BUDGET, **how},
        )
    written = place / "program-report.json"
    written.write_text(format_.dumps(found.to_json(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if json:
        print_json(found.to_json())
        return
    if found.products is not None:
        _products(found.products)
    if found.kernels is not None:
        _kernels(found.kernels)
    if found.left:
        note(
            f"{found.left} Triton kernels were recorded and not tuned: --space compiler, or another", "yellow"
        )
    print(found.program or f"the program was not timed: {found.why}")
    note(f"wrote {written}")


def _products(found: Any) -> None:
    """A table of a program's products."""
    rows = [
        [
            str(row.product),
            f"{row.calls:,}",
            row.ours[0][0].name if row.ours else {"lt": "cuBLASLt's algorithm"}.get(row.member, row.member),
            f"{row.before_us:.2f}",
            f"{row.us:.2f}",
            f"{row.before_us / row.us:.3f}x",
        ]
        for row in found.rows
    ]
    title = "modelled, nothing was measured" if found.modelled else ""
    print_table(title, ["product", "calls", "served by", "before (us)", "now (us)", "speed-up"], rows)
    print(found)
    note(f"wrote {found.path}")


def _calibrated(source: str, place: Path, budget: str, chosen: dict[str, Any]) -> None:
    """Time the sample, write and install the corrected table, say what it is made of."""
    from sassafras.gemm.bench.calibration import calibrate_here

    table, found, written = calibrate_here(source, place, budget, say=note, **chosen)
    modelled = " (modelled)" if found.modelled else ""
    print(f"{len(found)} shapes and {found.pairs} pairs timed{modelled}")
    if table is not None:
        error = table.header["correction"]["error"]
        of = table.header
        print(f"the table of {of['near']} is corrected for {of['gpu']}: off by {100 * error:.1f} % (RMS)")
    for path in written:
        note(f"wrote {path}")


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
    _kernels(report)
    note(f"wrote {written}")


def _kernels(report: Any) -> None:
    """A table of a program's Triton kernels."""
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
