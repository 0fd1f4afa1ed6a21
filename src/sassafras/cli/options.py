"""Options that several commands share, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[
    str,
    typer.Argument(
        help="file.py[:attribute], file.toml, captured.json:KERNEL, or suite:NAME[/CASE].", show_default=False
    ),
]
Case = Annotated[str | None, typer.Option(help="The workload's case [default: its first].")]
Arch = Annotated[
    str | None, typer.Option(help="Architecture to compile for [default: the GPU's, or sm_90a].")
]
Device = Annotated[str, typer.Option(help="auto, cuda (measures), or model (the timing model).")]
Strategy = Annotated[str, typer.Option(help="guided, anneal, greedy, random_walk, list, ppo or sip.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of the search, NAME=VALUE; repeatable.")
]
Budget = Annotated[str, typer.Option(help="Seconds or evaluations: 60s, 5m, 3000e, or 60s,3000e.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
StorePath = Annotated[
    Path | None,
    typer.Option("--store", help="The store's file [default: $SASSAFRAS_STORE or the data folder]."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over instead of resuming.")]
Cluster = Annotated[str | None, typer.Option(help="Search on all GPUs of a Ray cluster: auto, or HOST:PORT.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Number of the cluster's workers to use [default: all].")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result line only.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Program = Annotated[
    list[str] | None, typer.Argument(help="The program and its arguments, after --.", show_default=False)
]

# of the commands that time matrix products
GRIDS = (
    "cuda-l2 (1,000 shapes), judge-1 to judge-7 (never tuned), learn-1 to learn-4, backward, or a list: "
    "64x64x64,128x64x512"
)
PRODUCTS_FOLDER = Path("sassafras-out/hgemm")
Bands = Annotated[str | None, typer.Option(help="Only these bands of FLOP, for example '<1e8,1e8-1e9'.")]
Sample = Annotated[int | None, typer.Option(help="Number of shapes in a sample, stratified by band.")]
Exclude = Annotated[
    str, typer.Option(help="Leave out our configurations whose name matches this regular expression.")
]
Apart = Annotated[bool, typer.Option(help="Flush the L2 and make one untimed call before each timed block.")]
Gpus = Annotated[int, typer.Option(help="Number of GPUs of this host to use.")]
Minutes = Annotated[
    float | None, typer.Option(help="Start no shape after this many minutes; the same command resumes.")
]
Cache = Annotated[Path | None, typer.Option(help="Folder of compiled kernels.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Rehearse on a modelled clock, without a GPU.")]
