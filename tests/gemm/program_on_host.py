"""A program whose products are recorded: on the driver's stand-in, with tensors in host memory.

    python -m tests.gemm.program_on_host DRIVER CACHE RUNS

It adds a line to the file RUNS, so that a test sees how often it ran.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from sassafras.gemm.matmul import api, linear
from sassafras.gemm.matmul.driver import Driver
from sassafras.gemm.matmul.planner import Planner
from sassafras.gemm.matmul.torch_side import strict
from sassafras.gemm.select.table import TunedTable
from tests.gemm import stand_in


def main(driver: str, cache: str, runs: str) -> None:
    """Calls of three products, seven times in all."""
    with Path(runs).open("a") as file:
        file.write("run\n")
    stand_in.describe(Path(driver))
    side = stand_in.torch_side(strict=strict)
    table = TunedTable({"gpu": "NVIDIA H200"}, ())
    engine = Planner(Driver(driver), side, cache=Path(cache), background=False, table=table)
    api.use(engine, device="cpu")
    x, weight = torch.randn(4, 512).half(), torch.randn(1024, 512).half()
    for _ in range(4):
        linear.linear(x, weight)
    for _ in range(2):
        linear.linear(x, weight, torch.randn(1024).half(), residual=torch.randn(4, 1024).half())
    api.matmul(torch.randn(64, 256).bfloat16(), torch.randn(256, 128).bfloat16())


if __name__ == "__main__":
    main(*sys.argv[1:])
