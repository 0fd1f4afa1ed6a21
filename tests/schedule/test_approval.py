"""Every schedule that the space offers is one that the independent validator approves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sassafras.core import Kernel
from sassafras.sass import Program
from sassafras.sass.latency import LatencyTable
from sassafras.schedule import ScheduleSpace, graph
from sassafras.schedule.distances import Distances
from sassafras.schedule.flow import blocks
from sassafras.suite import batched_gemm
from sassafras.validate import Validator
from tests import kernels

CUBINS = {
    "softmax": lambda: kernels.softmax_cubin(),
    "scalar softmax": lambda: kernels.softmax_cubin(block=4096, aligned=False),
    "wide softmax": lambda: kernels.softmax_cubin(block=8192, num_warps=8),
    "matmul": lambda: kernels.matmul_cubin(),
    "hmma": lambda: kernels.matmul_cubin(bm=32, bn=32),
    "large matmul": lambda: kernels.matmul_cubin(bm=128, bn=128, num_warps=8),
    "sm_80 matmul": lambda: kernels.matmul_cubin("sm_80"),
}


@pytest.mark.parametrize("moves", ["memory", "all"])
@pytest.mark.parametrize("name", CUBINS)
def test_random_walks_are_approved(name: str, moves: str) -> None:
    data = CUBINS[name]()
    program = Program.parse(data)
    function = program.function()
    kernel = Kernel(data, function.name, function.arch, 128)
    space = ScheduleSpace(kernel, program, arch_by_name=True, moves=moves)  # type: ignore[arg-type]
    validator = Validator(data, function.name)
    assert validator.check(data).ok
    checked = 0
    for seed in range(3):
        checked += approved(space, validator, seed, 250)
    assert checked == 150


def approved(space: ScheduleSpace, validator: Validator, seed: int, moves: int) -> int:
    """Walk; every fifth schedule is proved (what a move broke stays broken). How many were proved."""
    rng, state = np.random.default_rng(seed), space.start()
    for n in range(1, moves + 1):
        move = space.sample(state, rng)
        assert move is not None
        state = space.apply(state, move)
        if n % 5 == 0:
            report = validator.check(space.emit(state))
            assert report.ok, f"{move} at depth {state.depth}: {report.violations[0]}"
    return moves // 5


def test_what_pads_copies_keeps_its_distance_to_a_barrier() -> None:
    """Loads that are predicated off are fences all the same."""
    kernel = batched_gemm.workload.build(batched_gemm.workload.cases[0], "sm_90a")
    assert approved(ScheduleSpace(kernel), Validator(kernel.cubin, kernel.name), 0, 250) == 50


#: loads of one address under different guards; registers that live across a call of vprintf; stores under
#: different L2 policies, prefetches, and waits for an mbarrier
ALIKE = r"""
#include <cstdio>
extern "C" __global__ void guarded_twice(float* b, int n) {
  float p = b[7], q = n > 3 ? b[n] : 0, r = n > 5 ? b[n] : 1, t = n > 7 ? b[n] : 2;
  b[threadIdx.x + n] = p + q * r - t;
}
extern "C" __global__ void printing(float* a, const float* b, int n) {
  int i = threadIdx.x;
  float s = b[i], t = b[i + 32], u = b[i + 64], w = b[i + n];
  printf("%f\n", s * t);
  a[i] = b[i * 5 + n] * u + w;
  a[i * 9] = __sinf(b[i * 3]) * s + w;
}
extern "C" __global__ void hinted(float* a, const float* b, int n) {
  int i = threadIdx.x * n;
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  const float* p = b + i;
  if (i < n - 9) asm volatile("prefetch.global.L2 [%0];" ::"l"(p + 64));
  float s = p[0], t = p[7], u = p[9];
  if (i < n - 5) a[i] = s * t;
  if (i < n - 7)
    asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(a + i + 1), "f"(t * u), "l"(policy));
  if (i < n - 8) a[i + 2] = u + s;
}
extern "C" __global__ void waiting(float* a, int n, int m) {
  __shared__ unsigned long long bar;
  unsigned at = (unsigned)__cvta_generic_to_shared(&bar), done;
  float s = threadIdx.x * 3;
  if (n > 5) s = *(volatile float*)(a + threadIdx.x);
  float t = m * 7 + s, u = m * n;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
               : "=r"(done) : "r"(at), "r"(n));
  a[threadIdx.x + n] = done ? s * u : t;
}
"""


def sources() -> dict[str, str]:
    """CUDA C++ with calls and jump tables, divergent warp reductions, cooperative groups, and FP64."""
    folder = Path(__file__).parents[2] / "benchmarks" / "corpus" / "cuda"
    read = {n: (folder / f"{n}.cu").read_text() for n in ("reduce_block", "grid_sync", "double_math")}
    return {"two kernels": kernels.TWO_KERNELS, "alike": ALIKE, **read}


@pytest.mark.parametrize("name", sources())
def test_compiled_cuda_is_approved(name: str) -> None:
    data = kernels.nvcc_cubin(sources()[name])
    if data is None:
        pytest.skip("no nvcc")
    program = Program.parse(data)
    for entry, function in program.functions.items():
        space = ScheduleSpace(Kernel(data, entry, function.arch, 256), program)
        assert approved(space, Validator(data, entry), 1, 300) == 60


def test_what_a_wait_for_a_barrier_writes_it_may_read() -> None:
    """Nothing says which operands of SYNCS are read: a predicate that it writes keeps its distance."""
    data = kernels.nvcc_cubin(ALIKE)
    if data is None:
        pytest.skip("no nvcc")
    function = Program.parse(data).function("waiting")
    built = graph.build(function, Distances(function.instructions, LatencyTable.load()))
    sync = next(i for i in function.instructions if i.base == "SYNCS")
    compare = next(i for i in function.instructions if i.base == "ISETP" and i.writes & sync.writes)
    cycles = sum(i.control.stall for i in function.instructions[compare.index : sync.index])
    assert built.tail[compare.index] == cycles > 13  # the wait begins a block


def test_setters_behind_what_nothing_protects_stay_behind() -> None:
    """The validator knows more of what covers what: a setter of the block may be what protects it."""
    data = kernels.nvcc_cubin(sources()["grid_sync"])
    if data is None:
        pytest.skip("no nvcc")
    checked = 0
    for function in Program.parse(data).functions.values():
        built = graph.build(function, Distances(function.instructions, LatencyTable.load()))
        for a, b, _ in built.unprotected:
            end = next(block.end for block in built.blocks if block.start <= a < block.end)
            for i in function.instructions[a + 1 : b if a < b < end else end]:
                if i.control.write_barrier is not None or i.control.read_barrier is not None:
                    assert (a, i.index) in built.order
                    checked += 1
    assert checked > 2


def test_branches_that_are_conditional_without_a_guard_fall_through() -> None:
    data = kernels.nvcc_cubin(sources()["reduce_block"])
    if data is None:
        pytest.skip("no nvcc")
    found = 0
    for function in Program.parse(data).functions.values():
        made = blocks(function)
        for block in made:
            last = function.instructions[block.end - 1]
            if last.opcode == "BRA.DIV":
                assert block.index + 1 in block.successors and len(block.successors) == 2
                found += 1
            elif last.opcode.startswith("WARPSYNC.COLLECTIVE"):
                assert block.successors
        assert [b.start for b in made[1:]] == [b.end for b in made[:-1]]
    assert found
