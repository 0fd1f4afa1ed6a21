"""The validator's control-flow graph, against hand-read facts and against sass.cfg."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from sassafras.core.errors import DisassemblyError
from sassafras.sass import Program
from sassafras.sass.instruction import split_text
from sassafras.validate import graph
from tests import kernels

DIVIDE = r"""
__device__ __noinline__ float slow(float x, float y) { return x / y + 1.0f / (x * x + y); }
extern "C" __global__ void divide(float* a, const float* b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float v = slow(a[i], b[i]);
    if (v > 2.0f) v = slow(v, b[i] + 3.0f);
    a[i] = v;
  }
}
"""


def test_blocks_partition_the_kernel_and_cover_every_edge_of_the_other_graph() -> None:
    function = Program.parse(kernels.matmul_cubin()).function()
    blocks = graph.build(function.instructions, function.labels, function.indirect)
    assert blocks[0].start == 0 and blocks[-1].end == len(function)
    assert all(a.end == b.start for a, b in pairwise(blocks))
    mine = {(b.end - 1, blocks[m].start) for b in blocks for m in b.follow}
    inside = {(n, n + 1) for b in blocks for n in range(b.start, b.end - 1)}
    theirs = {(b.end - 1, function.blocks[m].start) for b in function.blocks for m in b.successors}
    assert theirs <= mine | inside


def test_a_loop_has_its_back_edge() -> None:
    function = Program.parse(kernels.matmul_cubin()).function()
    blocks = graph.build(function.instructions, function.labels, function.indirect)
    assert any(m <= n and blocks[n].end - blocks[n].start > 4 for n, b in enumerate(blocks) for m in b.follow)


def test_a_call_returns_behind_its_own_call_only() -> None:
    data = kernels.nvcc_cubin(DIVIDE)
    if data is None:
        pytest.skip("no nvcc")
    function = Program.parse(data).function()
    code = function.instructions
    blocks = graph.build(code, function.labels, function.indirect)
    calls = [n for n, b in enumerate(blocks) if code[b.end - 1].base == "CALL"]
    returns = [n for n, b in enumerate(blocks) if code[b.end - 1].base == "RET"]
    assert calls and returns
    behind = {blocks[n].end for n in calls}
    for n in returns:
        back = {blocks[m].start for m in blocks[n].follow}
        assert back and back <= behind


def test_an_indirect_branch_without_targets_is_refused() -> None:
    data = kernels.nvcc_cubin(kernels.TWO_KERNELS)
    if data is None:
        pytest.skip("no nvcc")
    function = Program.parse(data).function("choose")
    if not any(i.base == "BRX" for i in function.instructions):
        pytest.skip("this nvcc makes no jump table here")
    with pytest.raises(DisassemblyError, match="targets"):
        graph.build(function.instructions, function.labels, {})


class Machine:
    """A random program of branches, calls and convergence barriers, and a walk through it as a warp goes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.texts = self._function(0, 24, True) + self._function(24, 8, False) + self._function(32, 8, False)

    def _function(self, first: int, count: int, main: bool) -> list[str]:
        rng, out = self.rng, list[str]()
        for _ in range(count - 1):
            guard = rng.choice(("", "", "@P0 ", "@!P1 "))
            aim = f"`(.L_{rng.randrange(first, first + count)})"
            kinds = ["IADD3 R1, R1, R2, R3"] * 3 + [
                f"{guard}BRA {aim}",
                f"BRA P0, {aim}",
                f"BRA.DIV UR4, {aim}",
            ]
            kinds += [f"{guard}EXIT" if main else f"{guard}RET.REL.NODEC R20 `(k)"]
            if main:
                kinds += [f"BSSY B{rng.randrange(2)}, {aim}", f"{guard}BSYNC B{rng.randrange(2)}"] * 2
                kinds += ["BMOV.32 B1, R7", "BMOV.32.CLEAR R7, B0"]
                kinds += [f"{guard}CALL.REL.NOINC `({rng.choice(('f', 'g'))})", "CALL.ABS R4"]
            kinds += [f"{guard}CALL.REL.NOINC `(g)"] if first == 24 else [f"{guard}JMP R6"] if main else []
            out.append(rng.choice(kinds))
        return [*out, "EXIT" if main else "RET.REL.NODEC R20 `(k)"]

    def code(self) -> tuple[list[Any], dict[str, int]]:
        made = []
        for n, text in enumerate(self.texts):
            guard, opcode, operands = split_text(text)
            made.append(
                SimpleNamespace(
                    index=n, offset=16 * n, text=text, guard=guard, opcode=opcode,
                    base=opcode.split(".")[0], operands=operands,
                )
            )  # fmt: skip
        labels = {f".L_{n}": 16 * n for n in range(len(made))}
        return made, labels | {"k": 0, "f": 16 * 24, "g": 16 * 32}

    def walk(self, code: list[Any], labels: dict[str, int], steps: int) -> Iterator[tuple[int, int]]:
        """(instruction, the next one) for one warp that may take any branch; BMOV brings back what the
        barrier, or another one, has held."""
        rng, at, stack = self.rng, 0, list[int]()
        held: dict[str, int] = {}
        for _ in range(steps):
            i = code[at]
            aim = [labels[x] // 16 for x in re.findall(r"`\(([^)]+)\)", i.text)]
            taken = not i.guard or rng.random() < 0.5
            to = at + 1
            if i.base == "BSSY":
                held[i.operands[0]] = aim[0]
            elif i.base == "BMOV" and i.operands[0] == "B1" and held:
                held["B1"] = rng.choice([*held.values()])
            elif i.base == "BRA":  # without a guard it may be conditional all the same
                to = aim[0] if taken and (i.text.startswith("BRA `") or rng.random() < 0.5) else to
            elif i.base == "JMP" and taken:
                to = rng.choice([*labels.values()][:24]) // 16
            elif i.base == "BSYNC" and taken:
                if i.operands[0] not in held:
                    return
                to = held[i.operands[0]]
            elif i.base == "CALL" and taken:
                stack.append(at + 1)
                to = aim[0] if aim else labels[rng.choice("fg")] // 16
            elif i.base == "RET" and taken:
                to = stack.pop()
            elif i.base == "EXIT" and taken:
                return
            yield at, to
            at = to


def test_wherever_a_warp_goes_there_is_an_edge() -> None:
    rng, taken = random.Random(4), Counter[str]()
    for _ in range(120):
        machine = Machine(rng)
        code, labels = machine.code()
        blocks = graph.build(code, labels, {})
        edges = {(b.end - 1, blocks[m].start) for b in blocks for m in b.follow}
        edges |= {(n, n + 1) for b in blocks for n in range(b.start, b.end - 1)}
        for _ in range(20):
            for n, m in machine.walk(code, labels, 60):
                assert (n, m) in edges, (n, m, machine.texts)
                taken[code[n].base] += 1
    assert all(taken[base] > 50 for base in ("BRA", "BSYNC", "BSSY", "CALL", "RET", "BMOV")), taken
