"""The fastest that is known of a product beside one of our configurations, in processes that may die."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sassafras.core import DeviceError
from sassafras.core.statistics import bootstrap_median

from ..build.cubins import build
from ..configs.fields import from_fields, to_fields
from ..configs.registry import INSTANCES, Config
from ..problem.shape import Shape
from .options import Options
from .worker_client import WorkerClient

#: seconds after which a configuration hangs
STALL = 30.0
#: names of launches that may overlap with the one before: a source is launched plainly
_OVERLAPPING = r"\+"


def rival(
    shape: Shape, config: Config, *, seed: int = 0, dry: bool = False, cache: Path | None = None
) -> dict[str, Any]:
    """The faster of cuBLASLt's best algorithm and our best configuration, of both layouts, launched plainly.

    Ours are selected as a sweep selects them: of a shape that is in no table, `config` is but a guess.

    Args:
        shape: the problem.
        config: of our kernels.
        seed: of the operands.
        dry: on the modelled clock, without a GPU.
        cache: folder of compiled kernels.

    Returns: ``name``; ``ratio``, ``low``, ``high``: its time relative to the configuration's, whose C is
        checked.

    Raises:
        DeviceError: a process cannot start or was lost, or a configuration is not correct.
    """
    if not dry:
        build(INSTANCES, cache)
    options = asdict(Options(seed=seed, exclude=_OVERLAPPING))
    plan = {"options": options, "cache": str(cache) if cache else None, "dry": dry}
    select = WorkerClient({**plan, "mode": "select"})
    judge = WorkerClient({**plan, "mode": "judge"}, stall=STALL)
    try:
        ratios = _ratios(judge, shape, config)
        found = select.ask({"shape": str(shape)})
        if why := found.get("error"):
            raise DeviceError(f"no configuration of ours could be selected: {why}", where=str(shape))
        best = from_fields(found["ours"]) if found["ours"] else config
        name = "cuBLASLt's best algorithm"
        if found["ours"] and found["ours_us"] < found["baseline_us"] and best != config:
            theirs = statistics.median(_ratios(judge, shape, best))
            name, ratios = f"our configuration {best.name}", [ratio / theirs for ratio in ratios]
    finally:
        select.close()
        judge.close()
    interval = bootstrap_median(ratios)
    return {"name": name, "ratio": statistics.median(ratios), "low": interval.low, "high": interval.high}


def _ratios(judge: WorkerClient, shape: Shape, config: Config) -> list[float]:
    """cuBLASLt's best times relative to a configuration's."""
    found = judge.ask({"shape": str(shape), "config": to_fields(config)})
    if why := found.get("error") or found["detail"]:
        raise DeviceError(f"cuBLASLt could not be timed beside {config.name}: {why}", where=str(shape))
    return list(found["ratios"])
