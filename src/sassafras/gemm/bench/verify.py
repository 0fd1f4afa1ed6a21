"""Every instance on the GPU against FP64: boundary shapes, splits, clusters; reproducible bit for bit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from sassafras.cuda.driver import CudaError

from ..configs.registry import INSTANCES, Config, configurations
from ..problem.shape import Shape
from .gpu_context import GpuContext
from .operands import Operands

#: extents that are no multiple of a tile, and the smallest that are allowed
BOUNDARY = (
    Shape(1, 8, 8),
    Shape(1, 64, 2048),
    Shape(7, 24, 40),
    Shape(16, 8, 64),
    Shape(17, 72, 136),
    Shape(100, 104, 1000),
    Shape(33, 520, 96),
    Shape(64, 64, 64),
    Shape(65, 200, 4104),
    Shape(300, 88, 512),
    Shape(7, 33, 61),
    Shape(101, 150, 1006),  # odd: rows of any length
)


def tries(shape: Shape, each: int) -> int:
    """How many configurations `verify` runs of a shape."""
    legal = Counter(config.instance for config in configurations() if config.why_illegal(shape) is None)
    return sum(min(each, count) for count in legal.values())


def verify(tools: GpuContext, *, each: int = 12, seed: int = 0) -> list[dict[str, Any]]:
    """Check `each` random legal configurations of every instance on every boundary shape.

    Returns:
        One record a shape: how many configurations were right, and the faults found in full.

    Raises:
        CudaError: the context is lost.
    """
    rng = np.random.default_rng(seed)
    by_instance: dict[Any, list[Config]] = {instance: [] for instance in INSTANCES}
    for config in configurations():
        by_instance[config.instance].append(config)
    records = []
    for shape in BOUNDARY:
        operands = Operands(shape, seed)
        operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
        right, faults, worst = 0, [], 0.0
        for members in by_instance.values():
            legal = [c for c in members if c.why_illegal(shape) is None]
            for index in rng.permutation(len(legal))[:each]:
                config = legal[index]
                try:
                    why, ratio = _twice(tools, config, operands)
                except CudaError as error:
                    if error.sticky:
                        raise
                    why, ratio = str(error), 0.0
                worst = max(worst, ratio)
                if why:
                    faults.append({"config": config.name, "why": why})
                else:
                    right += 1
        records.append({"shape": str(shape), "right": right, "worst_rms_ratio": worst, "faults": faults})
    return records


def _twice(tools: GpuContext, config: Config, operands: Operands) -> tuple[str, float]:
    """(what is wrong or "", error over cuBLAS's) of two launches that must agree bit for bit."""
    import torch

    enqueue = tools.ours(config, operands)
    check = operands.check(enqueue)
    if check.why:
        return check.why, check.rms_ratio
    first = operands.c.clone()
    operands.check(enqueue)
    if not torch.equal(first.view(torch.int16), operands.c.view(torch.int16)):
        return "two launches differ", check.rms_ratio
    return "", check.rms_ratio
