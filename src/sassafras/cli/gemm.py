"""``sassafras gemm``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import print_json, print_table, stderr

app = typer.Typer(help="HGEMM: our kernels against cuBLAS and cuBLASLt.", no_args_is_help=True)


@app.command("bench")
def bench(
    grid: Annotated[
        str, typer.Option(help="cuda-l2 (1,000 shapes), or shapes: 64x64x64,128x64x512")
    ] = "cuda-l2",
    mode: Annotated[str, typer.Option(help="offline: calls back to back.")] = "offline",
    bands: Annotated[
        str | None, typer.Option(help="Only these bands of FLOP, for example '<1e8,1e8-1e9'.")
    ] = None,
    shapes: Annotated[
        int | None, typer.Option(help="A sample of so many shapes, stratified by band.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="GPU time of a shape's measurement.")] = 0.1,
    configs: Annotated[int, typer.Option(help="Our configurations screened a shape.")] = 256,
    processes: Annotated[int, typer.Option(help="Fresh processes that measure.")] = 1,
    seed: Annotated[int, typer.Option(help="Of inputs and samples.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of journals and of hgemm-offline.json.")] = Path(
        "sassafras-out/hgemm"
    ),
    cache: Annotated[Path | None, typer.Option(help="Folder of compiled kernels.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of resuming.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The summary as JSON on stdout.")] = False,
) -> None:
    """Time ours, torch.matmul, cuBLAS, cuBLASLt's heuristic and AutoTuning, interleaved, on a GPU.

    Selection runs in one process, the reported figures come from others. The same command resumes.
    """
    from sassafras.gemm.results import benchmark, choose_shapes
    from sassafras.gemm.select import Options
    from sassafras.gemm.summary import table

    console = stderr()
    options = Options(configs=configs, seconds=seconds, seed=seed)
    path, summary = benchmark(
        choose_shapes(grid, bands, shapes, seed), out, options, mode=mode, processes=processes, fresh=fresh,
        cache=cache, say=lambda text: console.print(text, style="dim", markup=False),
    )  # fmt: skip
    if json:
        print_json(summary)
        return
    columns, cells = table(summary)
    print_table("geometric means, baseline / ours", columns, cells)
    console.print(f"wrote {path}", style="dim", markup=False)


@app.command("configs")
def configs(
    shape: Annotated[str, typer.Argument(help="MxNxK")],
    rejected: Annotated[
        bool, typer.Option("--rejected", help="Those that cannot run, with the reason.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Lines.")] = 40,
) -> None:
    """List our configurations for a shape, best estimate first. Needs no GPU."""
    from sassafras.gemm import families
    from sassafras.gemm.estimate import estimate_us
    from sassafras.gemm.shapes import Shape

    problem = Shape.parse(shape)
    if rejected:
        rows = [
            [c.name, why]
            for c in families.configurations()
            if (why := c.reject(problem) or c.wasteful(problem))
        ]
        print_table("", ["configuration", "why not"], rows[:limit])
        return
    ranked = sorted(families.legal(problem), key=lambda c: (estimate_us(c, problem), c.name))
    rows = [
        [c.name, "x".join(map(str, c.tile)), str(c.slices), f"{estimate_us(c, problem):.2f}"] for c in ranked
    ]
    print_table(f"{len(rows)} legal", ["configuration", "tile", "k slices", "estimate (us)"], rows[:limit])
