"""The example of the page on Hopper schedules is what the compiler makes; its explanation is true of it."""

from __future__ import annotations

import re

import pytest

from .pages import blocks

pytest.importorskip("triton")

PAGE = "docs/concepts/hopper-schedules.md"


def test_the_example_is_the_compilers() -> None:
    from sassafras import suite
    from sassafras.sass import Program

    workload = suite.load("softmax")
    kernel = workload.build(workload.case("512x2048"), "sm_90a")
    code = {i.offset: i for i in Program.parse(kernel.cubin).function().instructions}
    example = next(block for block in blocks(PAGE) if "/*0190*/" in block).splitlines()
    assert len(example) == 12
    for line in example:
        found = re.search(r"/\*([0-9a-f]+)\*/", line)
        assert found is not None
        assert line == str(code[int(found[1], 16)])
    loads = [i for i in code.values() if i.base == "LDG"]
    assert [i.control.read_barrier for i in loads] == [None, None, None, 1]  # the last one covers the others
    overwrites = next(i for i in code.values() if i.offset > loads[-1].offset and {20, 21} & i.writes)
    assert overwrites.control.wait_mask >> 1 & 1
