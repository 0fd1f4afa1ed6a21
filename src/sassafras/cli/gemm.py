"""``sassafras gemm``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import files, options
from .console import note, print_json, print_table

app = typer.Typer(
    help="HGEMM: our kernels against cuBLAS and cuBLASLt.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("bench")
def bench(
    grid: Annotated[str, typer.Option(help=f"{options.GRIDS}.")] = "cuda-l2",
    mode: Annotated[
        str, typer.Option(help="offline: calls back to back; server: isolated calls at random times.")
    ] = "offline",
    bands: options.Bands = None,
    shapes: options.Sample = None,
    seconds: Annotated[float, typer.Option(help="Seconds of GPU time to measure a shape with.")] = 0.1,
    configs: Annotated[
        int, typer.Option(help="Number of our configurations to screen, per shape and layout.")
    ] = 128,
    exclude: options.Exclude = "",
    processes: Annotated[int, typer.Option(help="Number of fresh processes that measure.")] = 1,
    rate: Annotated[float, typer.Option(help="Server mode: calls per second.")] = 1000.0,
    calls: Annotated[int, typer.Option(help="Server mode: number of calls of each contestant.")] = 30,
    cold: Annotated[bool, typer.Option(help="Time with an empty L2 as well.")] = True,
    apart: options.Apart = True,
    gpus: options.Gpus = 1,
    minutes: options.Minutes = None,
    seed: options.Seed = 0,
    out: Annotated[Path, typer.Option(help="Folder of journals and results.")] = options.PRODUCTS_FOLDER,
    cache: options.Cache = None,
    fresh: options.Fresh = False,
    dry_run: options.Dry = False,
    json: options.Json = False,
) -> None:
    """Time our kernels, sassafras.matmul, torch.matmul, cuBLAS, cuBLASLt's heuristic and AutoTuning on a GPU.

    Selection and reported measurements run in separate processes. The same command resumes.
    Shapes off the grid are never tuned: there sassafras.matmul uses the shipped table.
    """
    from sassafras.gemm.bench.grids import choose_shapes, file_name, judges
    from sassafras.gemm.bench.options import Options
    from sassafras.gemm.bench.report import table
    from sassafras.gemm.bench.runs import RunSettings, benchmark

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
    )
    chosen = choose_shapes(grid, bands, shapes, seed)
    files.folder(out)
    settings = RunSettings(
        out, thorough, gpus, minutes=minutes, dry=dry_run, fresh=fresh, cache=cache, say=note
    )
    name = file_name(grid, mode)
    path, summary = benchmark(chosen, settings, mode=mode, processes=processes, name=name)
    if json:
        print_json(summary)
        return
    columns, cells = table(summary)
    title = "modelled, nothing was measured" if dry_run else "geometric means, baseline / ours"
    print_table(title, columns, cells)
    if summary["pending"]:
        note(f"{summary['pending']} shapes are left: run the same command again")
    note(f"wrote {path}")


@app.command("configs")
def configs(
    shape: Annotated[str, typer.Argument(help="MxNxK")],
    rejected: Annotated[
        bool, typer.Option("--rejected", help="List those that cannot run, with the reason.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Number of lines to print.")] = 40,
) -> None:
    """List our configurations for a shape, best estimate first. Needs no GPU."""
    from sassafras.gemm.configs import registry
    from sassafras.gemm.problem.shape import Shape
    from sassafras.gemm.select.cost_model import estimate_us

    problem = Shape.parse(shape)
    if rejected:
        rows = [
            [c.name, why]
            for c in registry.configurations()
            if (why := c.why_illegal(problem) or c.dominated(problem))
        ]
        print_table("", ["configuration", "why not"], rows[:limit])
        return
    ranked = sorted(registry.legal(problem), key=lambda c: (estimate_us(c, problem), c.name))
    rows = [
        [c.name, "x".join(map(str, c.tile)), _ranges(c), f"{estimate_us(c, problem):.2f}"] for c in ranked
    ]
    print_table(f"{len(rows)} legal", ["configuration", "tile", "ranges of k", "estimate (us)"], rows[:limit])


def _ranges(config: Any) -> str:
    """How many ranges k is cut into: slices (of warps and of a cluster) or parts."""
    return str(getattr(config, "ranges", config.slices))


@app.command("build")
def build(
    out: Annotated[
        Path | None,
        typer.Option(help="Folder, for $SASSAFRAS_GEMM_CACHE of the deployment [default: the cache]."),
    ] = None,
    only: Annotated[str, typer.Option(help="Build only kernels that this regular expression finds.")] = "",
    workers: Annotated[int | None, typer.Option(help="Number of processes [default: one per core].")] = None,
    launcher: Annotated[bool, typer.Option(help="Build the compiled launcher of this Python, too.")] = True,
    check: Annotated[
        bool, typer.Option("--check", help="Build nothing; status 1 when something is missing.")
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
    shapes: Annotated[list[str] | None, typer.Argument(help="MxNxK ...")] = None,
    layout: Annotated[str, typer.Option(help="nn, tn or both.")] = "both",
    gpu: Annotated[str, typer.Option(help="Name of the GPU whose table is used.")] = "NVIDIA H200",
) -> None:
    """Show which implementation serves a product (ours, cuBLASLt or torch), and why. Needs no GPU."""
    from sassafras.core import SassafrasError
    from sassafras.gemm.configs.backward import PART
    from sassafras.gemm.matmul.planner import load_table
    from sassafras.gemm.problem.shape import Shape
    from sassafras.gemm.select import predictor
    from sassafras.gemm.select.selector import Selector

    if layout not in ("nn", "tn", "both"):
        raise SassafrasError(f"no layout {layout}", hint="nn, tn or both")
    table = load_table(gpu)
    if table is None:
        raise SassafrasError("nothing was tuned for this GPU", where=gpu, hint="sassafras tune --products")
    if not shapes:
        raise SassafrasError("a shape is missing", hint="sassafras gemm choose 64x64x64")
    chooser = Selector(
        table,
        lt_version=table.header.get("cublaslt"),
        model=predictor.shipped(gpu),
        backward=predictor.shipped(gpu, PART),
    )
    rows = []
    for text in shapes:
        shape = Shape.parse(text)
        for one in ("nn", "tn") if layout == "both" else (layout,):

            def legal(config: Any, shape: Shape = shape, layout: str = one) -> bool:
                return config.layout == layout and not config.why_illegal(shape)

            choice = chooser.choose(shape, one, legal)
            rows.append([text, one, choice.config or choice.member, f"{choice.speedup:.3f}", choice.why])
    print_table("", ["shape", "layout", "served by", "over torch", "why"], rows)
