"""Mining real ptxas output, and the packaged tables against kernels they were not mined from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import triton
import triton.language as tl

from sassafras.core.errors import LatencyTableError
from sassafras.sass import Function, Program
from sassafras.sass.latency import LatencyTable, issue_cycles, mine, opcode_key
from sassafras.sass.latency.flow import Flow
from sassafras.sass.latency.mining import Miner
from tests import kernels

CUBINS: dict[str, Callable[[str], bytes]] = {
    "softmax": kernels.softmax_cubin,
    "matmul": kernels.matmul_cubin,
}


def below(function: Function, table: LatencyTable) -> list[tuple[str, str, str, int]]:
    """Pairs closer than the table allows: kind, the two instructions, cycles."""
    flow, found = Flow(function), []
    keys = [opcode_key(i.opcode) for i in function.instructions]

    def check(kind: str, first: int, slot: str, second: int, other: str, cycles: int) -> None:
        a, b = function.instructions[first], function.instructions[second]
        guarded = a.op.variable or a.control.write_barrier is not None
        if kind != "war" and guarded:
            return  # a scoreboard keeps them apart
        known = table.distance(kind, keys[first], slot, keys[second], other)
        if known is not None and cycles < known.cycles:
            found.append((kind, str(a), str(b), cycles))

    flow.walk(check)
    return found


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a"])
@pytest.mark.parametrize("name", list(CUBINS))
def test_kernels_outside_the_corpus_keep_every_known_distance(name: str, arch: str) -> None:
    table = LatencyTable.load("sm_90" if arch == "sm_90a" else arch)
    function = Program.parse(CUBINS[name](arch)).function()
    assert below(function, table) == []


def test_a_shortened_stall_is_seen() -> None:
    """Lower one stall count between dependent FP32 instructions: the pair falls below the table."""
    program = Program.parse(kernels.softmax_cubin())
    function = program.function()
    table = LatencyTable.load("sm_90")
    for i, j in zip(function.instructions, function.instructions[1:], strict=False):
        short = i.base == "FADD" and i.control.stall == 4 and j.base == "FADD" and bool(i.writes & j.reads)
        if short:
            high = function.words[:, 1].copy()
            high[i.index] = (i.high & ~(0xF << 41)) | 3 << 41
            break
    else:
        pytest.fail("no FADD feeds the next FADD: another kernel is needed")
    changed = Program.parse(program.emit(function.name, np.arange(len(function)), high)).function()
    assert below(function, table) == []
    assert ("raw", 3) in {(kind, cycles) for kind, *_, cycles in below(changed, table)}


@triton.jit
def collatz(n_ptr, steps_ptr):
    n = tl.load(n_ptr)
    steps = 0
    while n != 1:
        n = tl.where(n % 2 == 0, n // 2, 3 * n + 1)
        steps += 1
    tl.store(steps_ptr, steps)


def test_distances_go_round_loops() -> None:
    """A loop's counter is read again after the back-edge; the text order alone does not show it."""
    cubin = kernels._compile(collatz, {"n_ptr": "*i32", "steps_ptr": "*i32"}, {}, (), "sm_90a", num_warps=1)
    function = Program.parse(cubin).function()
    back = [b for b in function.blocks if any(s <= b.index for s in b.successors) and b.start < b.end - 1]
    assert back, "the kernel has a loop"
    found: dict[tuple[int, int], int] = {}

    def keep(kind: str, first: int, _: str, second: int, __: str, cycles: int) -> None:
        assert cycles >= 1
        if kind == "raw" and second <= first:
            found[first, second] = cycles

    Flow(function).walk(keep)
    assert found
    for (first, second), cycles in found.items():
        assert function.instructions[first].writes & function.instructions[second].reads
        assert cycles >= 4, "no fixed latency of this loop's arithmetic is shorter"


def test_distances_within_a_block_are_sums_of_stalls() -> None:
    function = Program.parse(kernels.softmax_cubin()).function()
    block = max(function.blocks, key=lambda b: b.end - b.start)
    times = {block.start: 0}
    for n in range(block.start, block.end):
        times[n + 1] = times[n] + issue_cycles(function.instructions[n].control)
    seen = 0

    def check(_: str, first: int, __: str, second: int, ___: str, cycles: int) -> None:
        nonlocal seen
        if block.start <= first < second < block.end:
            assert cycles == times[second] - times[first]
            seen += 1

    Flow(function).walk(check)
    assert seen > 20


def test_mine_takes_folders_files_and_programs(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "softmax.cubin").write_bytes(kernels.softmax_cubin())
    (tmp_path / "old.cubin").write_bytes(kernels.softmax_cubin("sm_80"))
    (tmp_path / "broken.cubin").write_bytes(b"\x7fELF and no more")
    table = mine(tmp_path, "sm_90a")
    assert table.arch == "sm_90"
    assert table.provenance["cubins"] == 1, "sm_80's cubin is for another table"
    assert table.provenance["skipped"] == 1
    same = mine([Program.parse(kernels.softmax_cubin())], "sm_90")
    assert {k: (d.cycles, d.samples) for k, d in same.rows.items()} == {
        k: (d.cycles, d.samples) for k, d in table.rows.items()
    }
    guard = [d.cycles for k, d in table.rows.items() if k[0] == "raw" and k[2] == "0p0" and k[4] == "G"]
    assert min(guard) == 13


def test_nothing_to_mine_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LatencyTableError, match="no cubin for sm_90"):
        mine(tmp_path, "sm_90")
    with pytest.raises(LatencyTableError, match="no such file"):
        mine(tmp_path / "absent", "sm_90")
    with pytest.raises(LatencyTableError, match="sm_100a"):
        mine(tmp_path, "sm_100a")
    (tmp_path / "broken.cubin").write_bytes(b"\x7fELF and no more")
    with pytest.raises(LatencyTableError, match="broken"):
        mine(tmp_path, "sm_90")


def test_a_row_counts_kernels_not_samples() -> None:
    """The same kernel twice supports a minimum no better than once."""
    program = Program.parse(kernels.softmax_cubin())
    once, twice = Miner("sm_90"), Miner("sm_90")
    once.add("a", program)
    twice.add("a", program)
    twice.add("b", program)
    first, second = once.table(), twice.table()
    for key, seen in first.rows.items():
        assert second.rows[key].samples == 2 * seen.samples
        assert second.rows[key].kernels == seen.kernels == 1
