"""Which planted weaker waits for products count as hazards in `benchmarks/audit.py`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from sassafras.sass import Program
from tests import kernels

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from audit import open_products


def test_a_wait_beside_an_equal_one_is_not_needed() -> None:
    function = Program.parse(kernels.matmul_cubin()).function()
    wait = next(i for i in reversed(function.instructions) if i.opcode == "WARPGROUP.DEPBAR.LE")
    assert wait.operands == ("gsb0", "0x0")
    assert open_products(function, wait.index) == "hazard"
    second = dataclasses.replace(wait, index=wait.index + 1, offset=wait.offset + 16)
    code = list(function.instructions)
    code[second.index] = second
    twice = dataclasses.replace(function, instructions=tuple(code))
    assert open_products(twice, wait.index) == open_products(twice, second.index) == "legal"
    code[second.index] = dataclasses.replace(second, operands=("gsb0", "0x1"))  # waits for less
    assert open_products(dataclasses.replace(function, instructions=tuple(code)), wait.index) == "hazard"
