"""One of our HGEMM kernels on one shape as a workload: ``gemm:MxNxK[/CONFIGURATION]`` for `optimize`.

A tuned configuration is the baseline, its schedules are searched: the launch is the harness's own (grid,
cluster, tensor maps, scalars, overlap), and every candidate has to leave the same bytes, workspace included.
Several shapes, ``gemm:MxNxK/CONFIG,MxNxK/CONFIG``, are cases of one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from sassafras.core import Buffer, Case, Kernel, SassafrasError, Tolerance, Workload, WorkloadError

from ..build.cubins import cubin
from ..configs import names, registry
from ..configs.fields import to_fields
from ..configs.registry import Config
from ..problem.shape import Shape
from .table import TunedTable, shipped_path

PREFIX = "gemm:"
#: arguments that a launch does without
_NONE = {"workspace": 0}


def winner(shape: Shape) -> Config:
    """The fastest configuration in the table that is shipped; the estimate's favourite of other shapes.

    Raises:
        SassafrasError: no configuration can run the shape.
    """
    table = _table()
    rows = [row for layout in ("nn", "tn") if (row := table.get(shape, layout)) is not None and row.ours]
    for config, _ in (pair for row in sorted(rows, key=lambda row: row.ours[0][1]) for pair in row.ours):
        if len(config.instances) == 1:  # a search rewrites one kernel
            return config
    return favourite(shape)


def favourite(shape: Shape) -> Config:
    """The configuration of one launch that the static estimate likes best.

    Raises:
        SassafrasError: no configuration can run the shape; it says why for the first ones.
    """
    legal = [c for c in registry.legal(shape) if len(c.instances) == 1]
    if not legal:
        reasons = {c.why_illegal(shape) for c in registry.configurations()} - {None}
        raise SassafrasError(
            "no configuration can run this shape",
            where=str(shape),
            hint="; ".join(sorted(map(str, reasons))[:3]),
        )
    return min(legal, key=lambda c: (c.estimate_us(shape), c.rank))


@lru_cache(maxsize=1)
def _table() -> TunedTable:
    return TunedTable.load(shipped_path("NVIDIA H200"))


def kernel(config: Config, shape: Shape, cubin: bytes) -> Kernel:
    """A configuration as a `Kernel`. Raises SassafrasError when it cannot run the shape, or is two."""
    launch = config.launch(shape)
    if launch.then is not None:
        raise SassafrasError(
            f"a second kernel ({launch.then.instance.name}) adds up what the first one leaves",
            where=config.name,
            hint="choose a configuration of one launch",
        )
    return Kernel(
        cubin,
        config.instance.name,
        "sm_90a",
        launch.threads,
        launch.shared_bytes,
        launch.cluster,
        parameters=config.instance.parameters,
        meta={
            "config": to_fields(config),
            "grid": launch.grid,
            "scalars": launch.scalars,
            "overlap": launch.overlap,
            "tensor_maps": {name: described.to_json() for name, described in launch.tensor_maps.items()},
        },
    )


def workload(shape: Shape, config: Config | None = None, cache: Path | None = None) -> Workload:
    """C = A x B by one configuration; buffers are named as its kernel names them.

    Args:
        shape: the problem.
        config: by default `winner`'s.
        cache: folder of compiled kernels, by default the package's.

    Raises:
        SassafrasError: the configuration cannot run the shape.
    """
    return of_shapes([(shape, config or winner(shape))], cache)


def of_shapes(problems: Sequence[tuple[Shape, Config]], cache: Path | None = None) -> Workload:
    """The same for several shapes, a case each, whose configurations are of one compiled kernel.

    Raises:
        SassafrasError: they are of several, or cannot run their shapes.
    """
    chosen = problems[0][1]
    if any(config.instance != chosen.instance for _, config in problems):
        raise SassafrasError("the configurations are of several kernels", where=chosen.name)
    of_case = {str(shape): (shape, config) for shape, config in problems}

    def build(case: Case | None, arch: str, **options: Any) -> Kernel:
        shape, config = of_case[case.name] if case else problems[0]
        if not arch.startswith("sm_90"):
            raise WorkloadError(f"these kernels are for sm_90a, not for {arch}", where=f"{PREFIX}{shape}")
        return kernel(config, shape, cubin(config.instance, cache))

    def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        first, second = (tensors[name] for name in (("b", "a") if chosen.swap_ab else ("a", "b")))
        first = first.t() if chosen.layout[1] == "t" else first
        second = second.t() if chosen.layout[0] == "t" else second
        return {"c": torch.matmul(first.float(), second.float())}

    return Workload(
        "hgemm",
        tuple(_case(config, shape) for shape, config in problems),
        build,
        reference,
        Tolerance(rtol=4e-3, atol=1e-3 * max(shape.k for shape, _ in problems) ** 0.5),
        source=PREFIX + ",".join(f"{shape}/{config.name}" for shape, config in problems),
        meta={"config": to_fields(chosen), "accumulate": "fp32"}
        | ({"launches": "by case"} if len(problems) > 1 else {}),
    )


def _case(chosen: Config, shape: Shape) -> Case:
    launch = chosen.launch(shape)
    parameters = dict(chosen.instance.parameters)
    args: dict[str, Any] = {}
    for name, dims in zip(("b", "a") if chosen.swap_ab else ("a", "b"), operands(chosen, shape), strict=True):
        args[name] = Buffer(chosen.dtype, dims)
    args["c"] = Buffer(chosen.dtype, (shape.m, shape.n), "out")
    if "workspace" in parameters and launch.workspace_bytes:
        args["workspace"] = Buffer("fp32", (launch.workspace_bytes // 4,), "out")
    args |= {name: value for name, value in _NONE.items() if name in parameters and name not in args}
    return Case(str(shape), launch.grid, args, loop_trips=max(1, shape.k // 64))


def operands(config: Config, shape: Shape) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shapes of A and B in memory, as the layout has them."""
    a = (shape.k, shape.m) if config.layout[1] == "t" else (shape.m, shape.k)
    b = (shape.n, shape.k) if config.layout[0] == "t" else (shape.k, shape.n)
    return a, b


def load(target: str) -> Workload:
    """``gemm:MxNxK[/CONFIG][,MxNxK/CONFIG...]``.

    Raises:
        WorkloadError: no shape, or no configuration that can run it; or configurations of several kernels.
    """
    problems = []
    try:
        for one in target.removeprefix(PREFIX).split(","):
            text, _, name = one.partition("/")
            shape = Shape.parse(text)
            problems.append((shape, names.parse(name) if name else winner(shape)))
        return of_shapes(problems)
    except WorkloadError:
        raise
    except SassafrasError as error:
        raise WorkloadError(error.what, where=error.where or target, hint=error.hint) from error
