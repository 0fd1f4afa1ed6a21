"""Options that several commands share, each defined once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

TARGET_FORMS = "file.py[:attribute], file.toml, captured.json[:KERNEL], suite:NAME[/CASE] or gemm:MxNxK."
Target = Annotated[str, typer.Argument(help=TARGET_FORMS, show_default=False)]
Case = Annotated[str | None, typer.Option(help="Case of the workload [default: the first].")]
Arch = Annotated[
    str | None, typer.Option(help="Architecture to compile for [default: the GPU's, or sm_90a].")
]
Device = Annotated[
    str, typer.Option(help="Where candidates run: cuda (a GPU), model (the timing model), or auto.")
]
Space = Annotated[
    str,
    typer.Option(
        help="Search space: swaps (order and stall counts), control, renaming, blocks, ptx or compiler."
    ),
]
Strategy = Annotated[
    str, typer.Option(help="Search strategy: guided, anneal, greedy, random_walk, list, ppo or sip.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting of the strategy, NAME=VALUE; repeatable.")
]
Budget = Annotated[
    str, typer.Option(help="Limit of the search in time or evaluations: 60s, 5m, 3000e, or 60s,3000e.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of all random choices.")]
StorePath = Annotated[
    Path | None,
    typer.Option("--store", help="Database of results [default: $SASSAFRAS_STORE or the data folder]."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over instead of resuming.")]
Cluster = Annotated[str | None, typer.Option(help="Search on all GPUs of a Ray cluster: auto, or HOST:PORT.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Number of workers to use [default: all].")]
PtxasControls = Annotated[
    list[str] | None,
    typer.Option(help="Also try this option of ptxas with a file of yours, --OPTION=FILE; repeatable."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result line only.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Program = Annotated[
    list[str] | None, typer.Argument(help="The program and its arguments, after --.", show_default=False)
]

# of the commands that time matrix products
GRIDS = (
    "cuda-l2 (1,000 shapes), judge-1 to judge-8 (never tuned), learn-1 to learn-6, backward, or shapes: "
    "64x64x64,128x64x512"
)
CALIBRATION_FOLDER = Path("sassafras-out/calibration")
PRODUCTS_FOLDER = Path("sassafras-out/hgemm")
Bands = Annotated[
    str | None, typer.Option(help="Take only shapes in these bands of FLOP, for example '<1e8,1e8-1e9'.")
]
Sample = Annotated[int | None, typer.Option(help="Take a sample of this many shapes, stratified by band.")]
Exclude = Annotated[
    str, typer.Option(help="Leave out configurations whose name matches this regular expression.")
]
Source = Annotated[str, typer.Option("--from", help="Take candidates from this GPU: NVIDIA H200.")]
Top = Annotated[
    int, typer.Option(min=1, help="With --from: number of its configurations to time, per shape and layout.")
]
Apart = Annotated[bool, typer.Option(help="Flush the L2 and make one warm-up call before each timed block.")]
Gpus = Annotated[int, typer.Option(help="Number of GPUs of this host to use.")]
Minutes = Annotated[
    float | None,
    typer.Option(min=0, help="Start no shape after this many minutes; the same command resumes."),
]
Cache = Annotated[Path | None, typer.Option(help="Folder of compiled kernels.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Try the command without a GPU, with modelled times.")]


def given(context: typer.Context, name: str) -> bool:
    """Whether the parameter's option was typed."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def check(context: typer.Context, works: Mapping[str, bool], why: str) -> None:
    """Refuse what was typed and would do nothing.

    Args:
        works: parameters -> whether they do something.
        why: the others do not.

    Raises:
        SassafrasError: one was typed.
    """
    from sassafras.core import SassafrasError

    for option in context.command.params:
        if not works.get(option.name or "", True) and given(context, option.name or ""):
            raise SassafrasError(f"{option.opts[0]} does nothing {why}", hint="leave it out")
