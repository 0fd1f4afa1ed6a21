"""``sassafras gemm``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import files, options
from .console import note, print_json, print_table

app = typer.Typer(
    help="List, build and measure the GEMM kernels of sassafras.matmul.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("bench")
def bench(
    context: typer.Context,
    grid: Annotated[str, typer.Option(help=f"Shapes to measure: {options.GRIDS}.")] = "cuda-l2",
    mode: Annotated[
        str,
        typer.Option(
            help="Protocol: offline (calls back to back) or server (isolated calls at random times)."
        ),
    ] = "offline",
    bands: options.Bands = None,
    shapes: options.Sample = None,
    seconds: Annotated[
        float, typer.Option(min=1e-3, help="GPU time to measure each shape for, in seconds.")
    ] = 0.1,
    configs: Annotated[
        int,
        typer.Option(min=1, help="Number of configurations to time when selecting, per shape and layout."),
    ] = 128,
    exclude: options.Exclude = "",
    processes: Annotated[int, typer.Option(help="Number of fresh processes to measure in.")] = 1,
    rate: Annotated[float, typer.Option(min=1e-3, help="With --mode server: calls per second.")] = 1000.0,
    calls: Annotated[
        int, typer.Option(min=5, help="With --mode server: number of calls of each contestant.")
    ] = 30,
    cold: Annotated[bool, typer.Option(help="Time with an empty L2 as well.")] = True,
    apart: options.Apart = True,
    known: Annotated[
        bool, typer.Option(help="Choose among the recorded configurations of a shape, by isolated calls.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="Type of the operands: fp16 or bf16.")] = "fp16",
    source: options.Source = "",
    top: options.Top = 6,
    gpus: options.Gpus = 1,
    minutes: options.Minutes = None,
    seed: options.Seed = 0,
    name: Annotated[
        str, typer.Option(help="Name of the result file [default: by grid and mode, hgemm-offline].")
    ] = "",
    out: Annotated[Path, typer.Option(help="Folder of journals and results.")] = options.PRODUCTS_FOLDER,
    cache: options.Cache = None,
    fresh: options.Fresh = False,
    dry_run: options.Dry = False,
    json: options.Json = False,
) -> None:
    """Time Sassafras kernels, sassafras.matmul, torch, cuBLAS, cuBLASLt's heuristic and AutoTuning on a GPU.

    Selection and reported measurements run in separate processes. The same command resumes.
    The exit status is 1 when a result was wrong or a shape failed.
    The judge grids are never tuned: sassafras.matmul predicts there, from the shipped table.
    """
    from sassafras.gemm.bench.grids import choose_shapes, file_name, judges
    from sassafras.gemm.bench.options import Options, carried_over, of_known
    from sassafras.gemm.bench.report import table
    from sassafras.gemm.bench.runs import RunSettings, benchmark

    options.check(context, {"top": bool(source)}, "without --from")
    options.check(context, {"known": not source}, "with --from")
    thorough = Options(
        configs=configs,
        seconds=seconds,
        seed=seed,
        rate=rate,
        calls=calls,
        cold=cold,
        apart=apart,
        tuned=not judges(grid),
        exclude=exclude,
        dtype=dtype,
    )
    if source:
        thorough = carried_over(thorough, source, top)
    elif known:
        thorough = of_known(thorough)
    chosen = choose_shapes(grid, bands, shapes, seed)
    files.folder(out)
    settings = RunSettings(
        out, thorough, gpus, minutes=minutes, dry=dry_run, fresh=fresh, cache=cache, say=note
    )
    name = name or file_name(grid, mode, rate)
    path, summary = benchmark(chosen, settings, mode=mode, processes=processes, name=name)
    if json:
        print_json(summary)
    else:
        columns, cells = table(summary)
        title = "modelled, nothing was measured" if dry_run else "geometric means, baseline / ours"
        print_table(title, columns, cells)
        if summary["pending"]:
            note(f"{summary['pending']} shapes are left: run the same command again")
        note(f"wrote {path}")
    if summary["failed"] or summary["wrong_in_selection"]:
        note(f"{summary['failed']} shapes failed, {summary['wrong_in_selection']} configurations were wrong")
        raise typer.Exit(1)


@app.command("configs")
def configs(
    shape: Annotated[str, typer.Argument(help="Extents of the product: MxNxK.")],
    rejected: Annotated[
        bool, typer.Option("--rejected", help="List the configurations that cannot run, with the reason.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="Number of lines to print.")] = 40,
) -> None:
    """List the configurations of a shape, best estimate first. Needs no GPU."""
    from sassafras.gemm.configs import registry
    from sassafras.gemm.problem.shape import Shape

    problem = Shape.parse(shape)
    if rejected:
        rows = [
            [c.name, why]
            for c in registry.configurations()
            if (why := c.why_illegal(problem) or c.dominated(problem))
        ]
        print_table("", ["configuration", "why not"], rows[:limit])
        return
    ranked = sorted(registry.legal(problem), key=lambda c: (c.estimate_us(problem), c.name))
    rows = [
        [c.name, "x".join(map(str, c.tile)), str(c.ranges), f"{c.estimate_us(problem):.2f}"] for c in ranked
    ]
    print_table(f"{len(rows)} legal", ["configuration", "tile", "ranges of k", "estimate (us)"], rows[:limit])


@app.command("build")
def build(
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write to; deploy it as $SASSAFRAS_GEMM_CACHE [default: the cache]."),
    ] = None,
    only: Annotated[
        str, typer.Option(help="Build only kernels whose name matches this regular expression.")
    ] = "",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of compiling processes [default: one per core].")
    ] = None,
    launcher: Annotated[bool, typer.Option(help="Build the C++ launcher for this Python, too.")] = True,
    check: Annotated[
        bool, typer.Option("--check", help="Build nothing; exit code 1 if a file is missing.")
    ] = False,
) -> None:
    """Compile all kernels of sassafras.matmul ahead of time. Needs no GPU; keeps existing files."""
    from sassafras.gemm.build import ahead_of_time
    from sassafras.gemm.build.cubins import default_cache

    folder = out or default_cache()
    instances = ahead_of_time.kernels(only)
    if not check:
        files.folder(folder)
        note(f"{len(ahead_of_time.missing(folder, instances, launcher))} to build")
        for text in ahead_of_time.build(folder, instances, workers, launcher):
            note(text)
    left = ahead_of_time.missing(folder, instances, launcher)
    for name in left[:10]:
        note(f"missing: {name}")
    print(f"{len(instances)} kernels, {len(left)} files missing in {folder}")
    if left:
        raise typer.Exit(1)


@app.command("choose")
def choose(
    shapes: Annotated[list[str] | None, typer.Argument(help="Extents of the products: MxNxK ...")] = None,
    layout: Annotated[str, typer.Option(help="Layout of the operands: nn, tn or both.")] = "both",
    gpu: Annotated[str, typer.Option(help="GPU whose table to use.")] = "NVIDIA H200",
) -> None:
    """Show which implementation serves a product (Sassafras, cuBLASLt or torch), and why. Needs no GPU."""
    from sassafras.core import SassafrasError
    from sassafras.gemm.matmul.choice import chooser_of
    from sassafras.gemm.matmul.loading import load_table
    from sassafras.gemm.problem.shape import Shape
    from sassafras.gemm.select.gpus import tables_of

    if layout not in ("nn", "tn", "both"):
        raise SassafrasError(f"no layout {layout}", hint="nn, tn or both")
    table, near = load_table(gpu), tables_of(gpu)
    if table is None:
        raise SassafrasError("nothing was tuned for this GPU", where=gpu, hint="sassafras tune --products")
    if near != gpu:
        print(f"{gpu} was not tuned: the tables of {near} serve a Hopper GPU of this name.")
    if not shapes:
        raise SassafrasError("a shape is missing", hint="sassafras gemm choose 64x64x64")
    chooser = chooser_of(gpu, table, table.header.get("cublaslt"))
    rows = []
    for text in shapes:
        shape = Shape.parse(text)
        for one in ("nn", "tn") if layout == "both" else (layout,):

            def legal(config: Any, shape: Shape = shape, layout: str = one) -> bool:
                return config.layout == layout and not config.why_illegal(shape)

            choice = chooser.choose(shape, one, legal)
            rows.append(
                [
                    text,
                    one,
                    choice.config.name if choice.config else choice.member,
                    f"{choice.speedup:.3f}",
                    choice.why,
                ]
            )
    print_table("", ["shape", "layout", "served by", "over torch", "why"], rows)
