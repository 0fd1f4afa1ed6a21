"""The validator's control-flow graph, against hand-read facts and against sass.cfg."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sassafras.core.errors import DisassemblyError
from sassafras.sass import Program
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
