"""``sassafras gemm``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import files
from .console import print_json, print_table, stderr

app = typer.Typer(
    help="HGEMM: our kernels against cuBLAS and cuBLASLt.", no_args_is_help=True, rich_markup_mode=None
)

_GRID = (
    "cuda-l2 (1,000 shapes), judge-1 to judge-7 (never tuned), learn-1 to learn-4, backward, or a list: "
    "64x64x64,128x64x512."
)
Grid = Annotated[str, typer.Option(help=_GRID)]
Bands = Annotated[str | None, typer.Option(help="Only these bands of FLOP, for example '<1e8,1e8-1e9'.")]
Sample = Annotated[int | None, typer.Option(help="Number of shapes in a sample, stratified by band.")]
Configs = Annotated[int, typer.Option(help="Number of our configurations to screen, per shape and layout.")]
Exclude = Annotated[
    str, typer.Option(help="Leave out configurations of ours whose name this regular expression finds.")
]
Only = Annotated[
    str,
    typer.Option(
        help="Re-tune only configurations that this regular expression finds, beside the recorded best."
    ),
]
Recorded = Annotated[
    int, typer.Option(help="With --only-configs: recorded configurations to time again, per layout.")
]
Apart = Annotated[
    bool,
    typer.Option(help="Empty the L2 and make one untimed call before each timed block."),
]
Gpus = Annotated[int, typer.Option(help="Number of GPUs of this host to use.")]
Minutes = Annotated[
    float | None, typer.Option(help="Start no shape after this many minutes; the same command resumes.")
]
Seed = Annotated[int, typer.Option(help="Seed of inputs and samples.")]
Cache = Annotated[Path | None, typer.Option(help="Folder of compiled kernels.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over instead of resuming.")]
Cluster = Annotated[str | None, typer.Option(help="Use the GPUs of a Ray cluster: auto, or HOST:PORT.")]
Workers = Annotated[int | None, typer.Option(help="Number of workers on the cluster [default: all].")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Rehearse on a modelled clock, without a GPU.")]


def quietly(text: str) -> None:
    """Print a note of how it goes."""
    stderr().print(text, style="dim", markup=False)


@app.command("bench")
def bench(
    grid: Grid = "cuda-l2",
    mode: Annotated[
        str, typer.Option(help="offline: calls back to back; server: isolated calls at random times.")
    ] = "offline",
    bands: Bands = None,
    shapes: Sample = None,
    seconds: Annotated[float, typer.Option(help="Seconds of GPU time to measure a shape with.")] = 0.1,
    configs: Configs = 128,
    exclude: Exclude = "",
    processes: Annotated[int, typer.Option(help="Number of fresh processes that measure.")] = 1,
    rate: Annotated[float, typer.Option(help="Server mode: calls a second.")] = 1000.0,
    calls: Annotated[int, typer.Option(help="Server mode: number of calls of each contestant.")] = 30,
    cold: Annotated[bool, typer.Option(help="Time with an empty L2 as well.")] = True,
    apart: Apart = True,
    gpus: Gpus = 1,
    cluster: Cluster = None,
    workers: Workers = None,
    minutes: Minutes = None,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Folder of journals and results.")] = Path("sassafras-out/hgemm"),
    cache: Cache = None,
    fresh: Fresh = False,
    dry_run: Dry = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on stdout.")] = False,
) -> None:
    """Time ours, sassafras.matmul, torch.matmul, cuBLAS, cuBLASLt's heuristic and AutoTuning on a GPU.

    Selection runs in processes of its own, the reported figures come from others. The same command resumes.
    Shapes off the grid are never tuned: there sassafras.matmul works from the table that is shipped.
    """
    from sassafras.cluster.gemm import crew
    from sassafras.gemm.bench.grids import choose_shapes, file_name, judges
    from sassafras.gemm.bench.options import Options
    from sassafras.gemm.bench.report import table
    from sassafras.gemm.bench.runs import RunSettings, benchmark

    console = stderr()
    options = Options(
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
    with crew(cluster, workers, gpus, dry_run) as hands:
        settings = RunSettings(out, options, gpus, hands, minutes, dry_run, fresh, cache, say=quietly)
        name = file_name(grid, mode)
        path, summary = benchmark(chosen, settings, mode=mode, processes=processes, name=name)
    if json:
        print_json(summary)
        return
    columns, cells = table(summary)
    title = "modelled, nothing was measured" if dry_run else "geometric means, baseline / ours"
    print_table(title, columns, cells)
    if summary["pending"]:
        console.print(f"{summary['pending']} shapes are left: run the same command again", style="dim")
    console.print(f"wrote {path}", style="dim", markup=False)


@app.command("tune")
def tune(
    grid: Grid = "cuda-l2",
    bands: Bands = None,
    shapes: Sample = None,
    configs: Annotated[
        int | None,
        typer.Option(
            help="Number of our configurations to screen, per shape and layout (128; re-tuning: 24)."
        ),
    ] = None,
    exclude: Exclude = "",
    only_configs: Only = "",
    recorded: Recorded = 4,
    layouts: Annotated[
        str, typer.Option(help="Layouts to sweep: nn,tn, or those of weights' gradients: nt,tt.")
    ] = "nn,tn",
    apart: Apart = True,
    gpus: Gpus = 1,
    cluster: Cluster = None,
    workers: Workers = None,
    minutes: Minutes = None,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Folder of journals, dataset and table.")] = Path(
        "sassafras-out/hgemm"
    ),
    cache: Cache = None,
    fresh: Fresh = False,
    dry_run: Dry = False,
    install: Annotated[
        bool, typer.Option(help="Let sassafras.matmul on this machine use what was measured.")
    ] = True,
) -> None:
    """Sweep our configurations over shapes by successive halving; write the dataset, and the table of
    winners.

    It shares journals with `bench` in the same folder and resumes. sassafras.matmul uses the table from
    then on.
    """
    from sassafras.cluster.gemm import crew
    from sassafras.gemm.bench.grids import choose_shapes
    from sassafras.gemm.bench.options import Options, retuning
    from sassafras.gemm.bench.runs import RunSettings, save_sweep, sweep
    from sassafras.gemm.matmul.planner import tuned_path

    console = stderr()
    options = Options(
        configs=configs or 128, seed=seed, exclude=exclude, layouts=tuple(layouts.split(",")), apart=apart
    )
    if only_configs:
        options = retuning(options, only_configs, recorded, configs)
    chosen = choose_shapes(grid, bands, shapes, seed)
    files.folder(out)
    with crew(cluster, workers, gpus, dry_run) as hands:
        settings = RunSettings(out, options, gpus, hands, minutes, dry_run, fresh, cache, 25, quietly)
        dataset = sweep(chosen, settings)
    target = tuned_path(str(dataset.header.get("gpu"))) if install and not dataset.modelled else None
    paths = save_sweep(dataset, out, install=target, changed=only_configs)
    print(f"{len(dataset)} shapes, {dataset.pairs} pairs" + (" (modelled)" if dataset.modelled else ""))
    for path in paths:
        console.print(f"wrote {path}", style="dim", markup=False)


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
    """Compile ahead every kernel that sassafras.matmul may ask for. Needs no GPU; what is there is kept."""
    from sassafras.gemm.build import ahead_of_time
    from sassafras.gemm.build.cubins import default_cache

    console, folder = stderr(), out or default_cache()
    instances = ahead_of_time.kernels(only)
    if not check:
        files.folder(folder)
        console.print(f"{len(ahead_of_time.missing(folder, instances, launcher))} to build", style="dim")
        for note in ahead_of_time.build(folder, instances, workers, launcher):
            console.print(note, style="dim", markup=False)
    left = ahead_of_time.missing(folder, instances, launcher)
    for name in left[:10]:
        console.print(f"missing: {name}", markup=False)
    print(f"{len(instances)} kernels, {len(left)} files missing in {folder}")
    if left:
        raise typer.Exit(1)


@app.command("choose")
def choose(
    shapes: Annotated[list[str] | None, typer.Argument(help="MxNxK ...")] = None,
    layout: Annotated[str, typer.Option(help="nn, tn or both.")] = "both",
    gpu: Annotated[str, typer.Option(help="Name of the GPU whose table is used.")] = "NVIDIA H200",
) -> None:
    """Say which member would serve a product (ours, cuBLASLt or torch), and why. Needs no GPU."""
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
        raise SassafrasError("nothing was tuned for this GPU", where=gpu, hint="sassafras gemm tune")
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
