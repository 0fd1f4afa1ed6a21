"""``sassafras tune CAPTURE``, ``tune -- COMMAND``, ``tune --products GRID`` and ``tune --calibrate``"""

from __future__ import annotations

import json as json_
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from . import options
from .console import INTERRUPTED, note, print_json, print_table
from .files import folder

_SEARCH = {"kernels", "runner_ups", "device", "space", "strategy", "settings", "store", "budget"}
_SHOWN, _TIMING = {"quiet", "json"}, {"cache", "dry_run", "install"}
#: what is tuned -> options that the others lack, or share with one of them
_OPTIONS = {
    "captures": _SEARCH | _SHOWN,
    "--products": {"bands", "shapes", "configs", "exclude", "only_configs", "recorded", "layouts", "apart"}
    | {"source", "top", "gpus", "minutes"}
    | _TIMING,
    "programs": _SEARCH | _SHOWN | _TIMING | {"metric", "rounds"},
    "--calibrate": _TIMING | {"budget", "source"},
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
            min=1,
            help="Number of configurations to time, per shape and layout (128; with --only-configs: 24).",
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
            min=0, help="With --only-configs: number of recorded configurations to time again, per layout."
        ),
    ] = 4,
    source: Annotated[
        str,
        typer.Option(
            "--from", help="Take candidates (with --calibrate: the table) from this GPU: NVIDIA H200."
        ),
    ] = "",
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
    each; the options from --kernels to --json apply to both, but --metric and --rounds to programs alone.
    With --products, GEMM configurations are timed by successive halving, and the data set and the table of
    winners are written; the options from --bands on apply. With --calibrate, a GPU without a table gets the
    nearest one's (or that of --from), corrected by what a sample takes here within --budget (60s). The same
    command resumes.
    """
    asked = SimpleNamespace(**locals())
    jobs = {"captures": _captured, "programs": _program, "--products": _grid, "--calibrate": _calibrated}
    jobs[_check(context, target, products, calibrate)](asked)


def _check(context: typer.Context, target: list[str] | None, products: str | None, calibrate: bool) -> str:
    """What is tuned (`_OPTIONS`). Raises SassafrasError unless one thing is named, with its own options."""
    from sassafras.core import SassafrasError

    named = [
        *map(repr, (target or ())[:1]),
        *["--products"] * (products is not None),
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
        if options.given(context, name) and name in set[str]().union(*_OPTIONS.values()) - _OPTIONS[use]:
            of = " and ".join(other for other, names in _OPTIONS.items() if name in names)
            raise SassafrasError(f"{parameter.opts[0]} is for {of} only", hint="sassafras tune --help")
    if options.given(context, "source") and options.given(context, "only_configs"):
        raise SassafrasError("--from and --only-configs exclude each other", hint="one sweep after the other")
    options.check(context, {"top": options.given(context, "source")}, "without --from")
    options.check(context, {"recorded": options.given(context, "only_configs")}, "without --only-configs")
    return use


def _runs(target: list[str]) -> bool:
    """Whether it is a program: it has arguments, or can be run, also by its name alone."""
    return len(target) > 1 or (not Path(target[0]).is_dir() and shutil.which(target[0]) is not None)


def _grid(asked: Any) -> None:
    """Time configurations over a grid of products; write the data set and the table of winners."""
    from sassafras.gemm.bench.grids import choose_shapes
    from sassafras.gemm.bench.options import Options, carried_over, retuning
    from sassafras.gemm.bench.runs import RunSettings, save_sweep, sweep
    from sassafras.gemm.matmul.loading import tuned_path

    thorough = Options(
        configs=asked.configs or 128,
        seed=asked.seed,
        exclude=asked.exclude,
        layouts=tuple(asked.layouts.split(",")),
        apart=asked.apart,
    )
    if asked.source:
        thorough = carried_over(thorough, asked.source, asked.top)
    elif asked.only_configs:
        thorough = retuning(thorough, asked.only_configs, asked.recorded, asked.configs)
    grid = choose_shapes(asked.products, asked.bands, asked.shapes, asked.seed)
    place = folder(asked.out or options.PRODUCTS_FOLDER)
    how: dict[str, Any] = {"dry": asked.dry_run, "fresh": asked.fresh, "cache": asked.cache}
    how |= {"minutes": asked.minutes, "progress": 25, "say": note}
    dataset = sweep(grid, RunSettings(place, thorough, asked.gpus, **how))
    installed = asked.install and not dataset.modelled
    table = tuned_path(str(dataset.header.get("gpu"))) if installed else None
    paths = save_sweep(dataset, place, install=table, changed=asked.only_configs)
    done = sum(shape in dataset.entries for shape in grid)  # journals may hold those of other grids too
    modelled = " (modelled)" if dataset.modelled else ""
    print(f"{done} of {len(grid)} shapes, {len(dataset)} and {dataset.pairs} pairs in the data set{modelled}")
    for path in paths:
        note(f"wrote {path}")


def _calibrated(asked: Any) -> None:
    """Time the sample, write and install the corrected table, say what it is made of."""
    from sassafras.gemm.bench.calibration import calibrate_here

    place = folder(asked.out or options.CALIBRATION_FOLDER)
    how = {**_timing(asked), "fresh": asked.fresh, "say": note}
    table, found, written = calibrate_here(asked.source, place, asked.budget, **how)
    modelled = " (modelled)" if found.modelled else ""
    print(f"{len(found)} shapes and {found.pairs} pairs timed{modelled}")
    if table is not None:
        of, error = table.header, table.header["correction"]["error"]
        print(f"the table of {of['near']} is corrected for {of['gpu']}: off by {100 * error:.1f} % (RMS)")
    for path in written:
        note(f"wrote {path}")


def _timing(asked: Any) -> dict[str, Any]:
    """How products are timed."""
    return {"cache": asked.cache, "dry": asked.dry_run, "install": asked.install, "seed": asked.seed}


def _program(asked: Any) -> None:
    """Record a program, tune what it calls, print what changed."""
    from sassafras.api.tune_program import tune_program
    from sassafras.gemm.bench import program

    from .capture import run_program
    from .progress import Show

    def run(environment: dict[str, str]) -> None:
        if code := run_program(asked.target, environment, apart=asked.json):
            note(f"the program ended with {code}; what it called until then is tuned", "yellow")

    place = folder(asked.out or program.FOLDER)
    with Show(quiet=asked.quiet) as show:
        found = tune_program(
            asked.target,
            place,
            run,
            kernels={**_search(asked), "progress": show.progress},
            kernels_too=options.given(asked.context, "space"),
            products=_timing(asked),
            budget=asked.budget if options.given(asked.context, "budget") else program.BUDGET,
            fresh=asked.fresh,
            metric=asked.metric,
            rounds=_ROUNDS * bool(asked.metric) if asked.rounds is None else asked.rounds,
            progress=lambda text: show.update(lambda: text),
            stage=show.stage,
        )
    _program_shown(found, place / "program-report.json", asked.json, asked.quiet)
    if found.kernels is not None and found.kernels.interrupted:
        raise typer.Exit(INTERRUPTED)


def _program_shown(found: Any, written: Path, json: bool, quiet: bool) -> None:
    if _reported(found, written, json):
        return
    if found.products is not None:
        _products(found.products, quiet)
    if found.kernels is not None:
        _kernels(found.kernels, quiet)
    if quiet:
        if found.program:
            print(found.program)
        return
    if found.left:
        note(
            f"{found.left} Triton kernels were recorded and not tuned: --space compiler, or another", "yellow"
        )
    print(found.program or f"the program was not timed: {found.why}")
    note(f"wrote {written}")


def _captured(asked: Any) -> None:
    """Tune what a capture holds; print a table and the change that the program can expect."""
    from sassafras.api.optimize_captured import optimize_captured

    from .progress import Show

    out = folder(asked.out or Path("sassafras-out"))
    with Show(quiet=asked.quiet) as show:
        report = optimize_captured(
            Path(asked.target[0]),
            out=out,
            budget=asked.budget,
            fresh=asked.fresh,
            progress=show.progress,
            stage=show.stage,
            **_search(asked),
        )
    written = out / "captured-report.json"
    if not _reported(report, written, asked.json):
        _kernels(report, asked.quiet)
        if not asked.quiet:
            note(f"wrote {written}")
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


def _search(asked: Any) -> dict[str, Any]:
    """How each kernel is searched, and how many."""
    from sassafras.search import parse_settings

    chosen = {"device": asked.device, "space": asked.space, "seed": asked.seed, "store": asked.store}
    chosen |= {"most": asked.kernels, "runner_ups": asked.runner_ups}
    if asked.space != "compiler" or options.given(asked.context, "strategy"):  # which has one of its own
        chosen["strategy"] = asked.strategy
    return {**chosen, "settings": parse_settings(asked.settings or [])}


def _reported(report: Any, path: Path, json: bool) -> bool:
    """Whether a report is printed as JSON; it is written in any case."""
    from sassafras.core.errors import os_errors
    from sassafras.core.files import write_whole

    with os_errors("cannot write the report", path):
        write_whole(path, json_.dumps(report.to_json(), indent=2, sort_keys=True) + "\n")
    if json:
        print_json(report.to_json())
    return json


def _products(found: Any, quiet: bool) -> None:
    """A table of a program's products, and its result line."""
    if quiet:
        return print(found)
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


def _kernels(report: Any, quiet: bool) -> None:
    """A table of a program's Triton kernels, and its result line."""
    if quiet:
        return print(report.conclusion())
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
