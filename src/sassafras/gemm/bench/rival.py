"""cuBLASLt's best algorithm of both layouts beside one of our configurations, in a process that may die."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sassafras.core import DeviceError
from sassafras.core.statistics import bootstrap_median

from ..configs.fields import to_fields
from ..configs.registry import Config
from ..problem.shape import Shape
from .options import Options
from .worker_client import WorkerClient

#: seconds after which a configuration hangs
STALL = 30.0


def rival(
    shape: Shape, config: Config, *, seed: int = 0, dry: bool = False, cache: Path | None = None
) -> dict[str, Any]:
    """``ratio``, ``low``, ``high``: cuBLASLt's time relative to the configuration's, whose C is checked.

    Args:
        shape: the problem.
        config: of our kernels.
        seed: of the operands.
        dry: on the modelled clock, without a GPU.
        cache: folder of compiled kernels.

    Raises:
        DeviceError: the process cannot start or was lost, or the configuration is not correct.
    """
    plan = {"options": asdict(Options(seed=seed)), "cache": str(cache) if cache else None, "dry": dry}
    child = WorkerClient({**plan, "mode": "judge"}, stall=STALL)
    try:
        found = child.ask({"shape": str(shape), "config": to_fields(config)})
    finally:
        child.close()
    if why := found.get("error") or found["detail"]:
        raise DeviceError(f"cuBLASLt could not be timed beside {config.name}: {why}", where=str(shape))
    interval = bootstrap_median(found["ratios"])
    return {"ratio": statistics.median(found["ratios"]), "low": interval.low, "high": interval.high}
