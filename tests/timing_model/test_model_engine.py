"""The timing model's machine: known facts of the hardware, on real code that ptxas makes of small PTX."""

from __future__ import annotations

import dataclasses
import itertools
from functools import lru_cache

import numpy as np
import pytest

from sassafras.core import Buffer, Candidate, Case, DisassemblyError, Kernel, Modelled, Workload
from sassafras.frontend._ptxas import assemble
from sassafras.sass import Program, tools
from sassafras.timing_model import H200, Constants, ModelDevice, Trace, kernel_model
from sassafras.timing_model.path import predict

_FRAME = """
.version 8.3
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out, .param .u32 n)
{{
  .reg .f32 %f<2000>; .reg .u64 %d<20>; .reg .u32 %r<200>; .reg .pred %p<4>;
  {shared}
  ld.param.u64 %d1, [in]; ld.param.u64 %d2, [out]; ld.param.u32 %r9, [n];
  mov.u32 %r1, %tid.x; mul.wide.u32 %d3, %r1, 4; add.u64 %d4, %d1, %d3; add.u64 %d5, %d2, %d3;
  {body}
  st.global.f32 [%d5], %f0;
  ret;
}}
"""


@lru_cache(maxsize=32)
def built(body: str, shared: str = "") -> bytes:
    return assemble(_FRAME.format(body=body, shared=shared), "sm_90a", str(tools.find("ptxas").path))


def opened(
    cubin: bytes,
    threads: int = 32,
    ctas: int = 1,
    trips: int | None = None,
    constants: Constants | None = None,
    nbytes: int = 1 << 20,
) -> tuple[ModelDevice, Kernel]:
    kernel = Kernel(cubin, "k", "sm_90a", threads)
    case = Case("case", (ctas, 1, 1), {"in": Buffer("u8", (nbytes,))}, loop_trips=trips)
    device = ModelDevice(constants=constants)
    device.open(Workload("small", (case,), build=lambda *_: kernel), case, kernel)
    return device, kernel


def cycles(device: ModelDevice, kernel: Kernel, cubin: bytes | None = None) -> float:
    outcome = device.run(Candidate(kernel if cubin is None else kernel.with_cubin(cubin)))
    assert isinstance(outcome, Modelled) and outcome.verdict is None, outcome.detail
    assert outcome.cycles is not None
    return outcome.cycles


def edited(cubin: bytes, *positions: int, **changes: int | None) -> bytes:
    """The cubin with some fields of these instructions' control codes changed."""
    program = Program.parse(cubin)
    function = program.function("k")
    high = function.words[:, 1].copy()
    for position in positions:
        control = dataclasses.replace(function.instructions[position].control, **changes)
        high[position] = control.encode(int(high[position]))
    return program.emit("k", np.arange(len(function)), high)


def positions(cubin: bytes, base: str) -> list[int]:
    return [i.index for i in Program.parse(cubin).function("k").instructions if i.base == base]


def traced(device: ModelDevice, kernel: Kernel, warp: int = 0) -> tuple[Trace, dict[int, int]]:
    trace = device.trace(kernel, warp)
    return trace, dict(zip(trace.positions.tolist(), trace.issue.tolist(), strict=True))


def chain(n: int) -> str:
    return "mov.f32 %f0, 0f3f800000; cvt.rn.f32.u32 %f1, %r1;\n" + "fma.rn.f32 %f0, %f0, %f1, %f1;\n" * n


def test_a_dependent_chain_costs_four_cycles_each() -> None:
    short, long = opened(built(chain(120))), opened(built(chain(220)))
    assert cycles(*long) - cycles(*short) == 4 * 100
    _, at = traced(*long)
    ffma = positions(long[1].cubin, "FFMA")
    assert len(ffma) == 220
    gaps = [at[b] - at[a] for a, b in itertools.pairwise(ffma)]
    # ptxas puts some address arithmetic between two or three of them
    assert min(gaps) == 4 and gaps.count(4) >= len(gaps) - 3


@pytest.mark.parametrize("more", [1, 3, 7])
def test_a_longer_stall_on_the_chain_costs_exactly_that(more: int) -> None:
    cubin = built(chain(20))
    device, kernel = opened(cubin)
    middle = positions(cubin, "FFMA")[10]
    stalled = edited(cubin, middle, stall=4 + more)
    assert cycles(device, kernel, stalled) - cycles(device, kernel) == more


def test_independent_warps_overlap() -> None:
    cubin = built(chain(200))
    # two warps on one sub-core fit into each other's stalls; eight need more than the four cycles
    one, two, eight = (cycles(*opened(cubin, threads=t)) for t in (128, 256, 1024))
    assert two < 1.1 * one
    assert eight - one > 200 * 3


def test_special_functions_are_bound_by_their_unit() -> None:
    body = "cvt.rn.f32.u32 %f1, %r1; mov.f32 %f0, 0f00000000;\n"
    for n in range(32):
        body += (
            f"add.f32 %f{10 + n}, %f1, 0f{0x3F800000 + n:08x}; ex2.approx.ftz.f32 %f{50 + n}, %f{10 + n};\n"
        )
    for n in range(32):
        body += f"add.f32 %f0, %f0, %f{50 + n};\n"
    cubin = built(body)
    mufu = len(positions(cubin, "MUFU"))
    assert mufu == 32
    # eight warps on each sub-core share one unit of four lanes
    many = cycles(*opened(cubin, threads=1024)) - H200.launch
    assert many >= 8 * mufu * H200.xu_busy
    slower = cycles(*opened(cubin, threads=1024, constants=H200.replace(xu_busy=16))) - H200.launch
    assert slower >= 1.8 * many


def test_waiting_for_a_load_costs_the_memory_latency() -> None:
    cubin = built("ld.global.f32 %f1, [%d4]; add.f32 %f0, %f1, %f1;")
    device, kernel = opened(cubin)
    load, use = positions(cubin, "LDG")[0], positions(cubin, "FADD")[0]
    trace, at = traced(device, kernel)
    assert H200.l2_latency <= at[use] - at[load] <= H200.l2_latency + 12
    step = trace.positions.tolist().index(use)
    board = Program.parse(cubin).function("k").instructions[load].control.write_barrier
    assert trace.reasons[step] == f"scoreboard {board}"
    # one more cycle of latency is one more cycle of run time
    farther = opened(cubin, constants=H200.replace(l2_latency=H200.l2_latency + 100))
    assert cycles(*farther) - cycles(device, kernel) == 100
    # data that do not fit the L2 come from DRAM
    big, _ = traced(*opened(cubin, nbytes=1 << 30))
    assert big.cycles - trace.cycles >= H200.dram_latency - H200.l2_latency


def test_dropping_a_wait_makes_it_faster() -> None:
    """The model trusts control codes as the hardware does; the validator is who refuses this one."""
    cubin = built("ld.global.f32 %f1, [%d4]; add.f32 %f0, %f1, %f1;")
    device, kernel = opened(cubin)
    free = edited(cubin, positions(cubin, "FADD")[0], wait_mask=0)
    assert cycles(device, kernel) - cycles(device, kernel, free) > 0.8 * H200.l2_latency


def _loads(n: int, stride: int, kind: str = "") -> str:
    body = "".join(f"ld.global{kind}.f32 %f{10 + k}, [%d4+{stride * k}];\n" for k in range(n))
    return body + "mov.f32 %f0, 0f00000000;\n" + "".join(f"add.f32 %f0, %f0, %f{10 + k};\n" for k in range(n))


def test_independent_loads_share_the_latency() -> None:
    one, many = cycles(*opened(built(_loads(1, 4096)))), cycles(*opened(built(_loads(8, 4096))))
    assert many - one < 0.5 * H200.l2_latency


def test_streaming_is_bound_by_bandwidth() -> None:
    cubin = built(_loads(16, 1 << 20))
    # every SM full of warps: 132 x 2 CTAs of 1,024 threads
    device, kernel = opened(cubin, threads=1024, ctas=2 * 132, nbytes=1 << 30)
    moved = 17 * 4 * 1024 * 2
    bandwidth = device.model.bandwidth
    assert bandwidth == pytest.approx(H200.chip_dram_bytes / 132)
    busy = cycles(device, kernel) - H200.launch
    assert moved / bandwidth <= busy <= 1.5 * moved / bandwidth
    # (what comes from DRAM passes the L2 too)
    faster = {"chip_dram_bytes": 2 * H200.chip_dram_bytes, "chip_l2_bytes": 2 * H200.chip_l2_bytes}
    twice = opened(cubin, threads=1024, ctas=2 * 132, nbytes=1 << 30, constants=H200.replace(**faster))
    assert cycles(*twice) - H200.launch < 0.7 * busy


def test_a_full_memory_queue_stalls_the_sub_core() -> None:
    body = "".join(f"st.global.f32 [%d5+{4096 * k}], %f1;\n" for k in range(24))
    cubin = built("cvt.rn.f32.u32 %f1, %r1; mov.f32 %f0, %f1;\n" + body)
    stores = positions(cubin, "STG")
    cubin = edited(cubin, *stores, stall=1)
    trace, at = traced(*opened(cubin))
    gaps = [at[b] - at[a] for a, b in itertools.pairwise(stores)]
    assert "memory queue full" in trace.reasons
    # in the long run one memory instruction every agu_interval cycles
    assert np.mean(gaps[10:]) == pytest.approx(H200.agu_interval, abs=0.5)


_LOOP = """
  cvt.rn.f32.u32 %f1, %r1; mov.f32 %f0, 0f00000000; mov.u32 %r2, 0;
LOOP:
  .pragma "nounroll";
  {body}
  add.u32 %r2, %r2, 1;
  setp.lt.u32 %p1, %r2, %r9;
  @%p1 bra LOOP;
"""


def test_a_branch_to_an_unknown_place_is_not_modelled() -> None:
    """What lies behind it would be left out, and the ratio one of the first few instructions."""
    cases = "L0: add.u32 %r3, %r1, 5; bra.uni END;\n" + "".join(
        f"L{n}: st.global.u32 [%d4+{8 * n}], %r3; mul.lo.u32 %r3, %r1, {n}; bra.uni END;\n"
        for n in range(1, 5)
    )
    jump = "rem.u32 %r2, %r9, 5; ts: .branchtargets L0, L1, L2, L3, L4; brx.idx %r2, ts;\n"
    function = Program.parse(built(f"{jump}{cases}END: cvt.rn.f32.u32 %f0, %r3;")).function("k")
    assert function.instructions[predict(function).positions[-1]].base == "EXIT"
    with pytest.raises(DisassemblyError, match=r"target of a branch is unknown"):
        predict(dataclasses.replace(function, indirect={}))


def test_loop_trips_scale_linearly() -> None:
    body = "fma.rn.f32 %f0, %f0, %f1, %f1;\n" * 30
    cubin = built(_LOOP.format(body=body))
    found = {t: cycles(*opened(cubin, trips=t)) for t in (1, 2, 4, 16, 32, 64, 1000)}
    assert found[1] < found[2] < found[4] < found[16]
    assert found[64] - found[32] == pytest.approx(2 * (found[32] - found[16]))
    an_iteration = (found[1000] - found[64]) / 936
    assert 120 <= an_iteration <= 120 + 40


@pytest.mark.parametrize("threads", [128, 512])
def test_extrapolated_iterations_agree_with_simulated_ones(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "ld.global.f32 %f2, [%d4]; fma.rn.f32 %f0, %f0, %f1, %f2; add.u64 %d4, %d4, 4096;"
    cubin = built(_LOOP.format(body=body))
    extrapolated = opened(cubin, threads=threads, ctas=132, trips=40)
    loop = extrapolated[0].model.path.loops[0]
    assert loop.simulated < loop.trips == 40
    few = cycles(*extrapolated)
    monkeypatch.setattr(kernel_model, "MAX_ITERATIONS", 40)
    whole = opened(cubin, threads=threads, ctas=132, trips=40)
    assert whole[0].model.path.loops[0].simulated == 40
    assert few == pytest.approx(cycles(*whole), rel=0.03)


def test_a_barrier_waits_for_the_slowest_warp() -> None:
    body = (
        "cvt.rn.f32.u32 %f1, %r1; mov.u32 %r5, s; shl.b32 %r6, %r1, 2; add.u32 %r5, %r5, %r6;\n"
        "st.shared.f32 [%r5], %f1; bar.sync 0; xor.b32 %r7, %r6, 124; ld.shared.f32 %f0, [%r7];"
    )
    device, kernel = opened(built(body, ".shared .align 4 .b8 s[4096];"), threads=256)
    barrier = positions(kernel.cubin, "BAR")[0]
    arrivals, departures = [], []
    for warp in range(8):
        trace, at = traced(device, kernel, warp)
        arrivals.append(at[barrier])
        departures.append(trace.issue[trace.positions.tolist().index(barrier) + 1])
    assert min(departures) >= max(arrivals) + H200.bar_latency


def test_reading_three_registers_of_one_bank_costs_issue_slots() -> None:
    """Reads along the path are counted by bank, less what the reuse cache keeps."""
    from sassafras.timing_model.records import BANK0, BANK1, source_registers

    cubin = built(chain(20))
    device, _ = opened(cubin)
    model = device.model
    steps = model.steps(model.words, np.arange(len(model.words)))
    for step, position in enumerate(model.path.positions.tolist()):
        i = model.function.instructions[position]
        if i.base == "FFMA" and ".reuse" not in model.function.instructions[position - 1].text:
            named = [r for r in source_registers(i) if r >= 0]
            assert steps[step, BANK0] + steps[step, BANK1] == len(named)
            assert steps[step, BANK1] == sum(r % 2 for r in named)


def test_more_ctas_than_fit_take_more_waves() -> None:
    cubin = built(chain(300))
    fits = opened(cubin, threads=1024, ctas=132 * 2)
    assert fits[0].model.occupancy.slots == 2
    four = opened(cubin, threads=1024, ctas=132 * 8)
    assert four[0].model.occupancy.waves == 4
    ratio = (cycles(*four) - H200.launch) / (cycles(*fits) - H200.launch)
    assert 3.5 < ratio < 4.7


def test_the_model_is_deterministic() -> None:
    cubin = built(_loads(16, 4096))
    assert len({cycles(*opened(cubin, threads=512, ctas=300)) for _ in range(3)}) == 1


def test_with_many_warps_the_mean_of_several_starts_counts() -> None:
    cubin = built(chain(100))
    assert len(opened(cubin, threads=128)[0].model.starts) == 1
    device, kernel = opened(cubin, threads=1024)
    starts = device.model.starts
    assert starts.shape == (8, 32) and len({tuple(s) for s in starts.tolist()}) == 8
    assert (starts - starts[0] >= 0).all() and (starts - starts[0]).max() <= H200.start_jitter
    words = device.model.code(kernel.cubin)
    mean = device.cycles(words)
    each = []
    for replica in starts:
        device.model.starts = replica[None, :]
        each.append(device.cycles(words))
    assert len(set(each)) > 1 and mean == pytest.approx(np.mean(each))


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "expected", "bound"),
    [
        (256, 64, 0, 4, "registers"),  # 65,536 / (64 x 256)
        (1024, 32, 0, 2, "warps"),  # 64 warps
        (128, 255, 0, 2, "registers"),
        (128, 32, 100 * 1024, 2, "shared memory"),  # 228 / (100 + 1)
        (32, 24, 0, 32, "CTA slots"),
    ],
)
def test_occupancy_follows_the_cuda_rules(
    threads: int, registers: int, shared: int, expected: int, bound: str
) -> None:
    _, found, by = kernel_model.occupancy(H200, threads, registers, shared, (1, 1, 1))
    assert (found, by) == (expected, bound)
