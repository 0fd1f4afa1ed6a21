"""`ModelDevice` on kernels as Triton compiles them: candidates, refusals, paths, and what it reports."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from sassafras.core import (
    Buffer,
    Candidate,
    Case,
    DeviceError,
    Kernel,
    Modelled,
    UnsupportedArch,
    Verdict,
    Workload,
)
from sassafras.sass import Program
from sassafras.sass import control as codes
from sassafras.timing_model import H200, ModelDevice, correlation
from sassafras.timing_model.kernel_model import KernelModel, UnknownWords
from sassafras.timing_model.path import DEFAULT_TRIPS, find_loops, predict
from tests.kernels import TWO_KERNELS, matmul_cubin, nvcc_cubin, softmax_cubin


def opened(
    cubin: bytes, name: str = "softmax", grid: int = 512, threads: int = 128, shared: int = 64,
    trips: int | None = None,
) -> tuple[ModelDevice, Kernel]:  # fmt: skip
    kernel = Kernel(cubin, name, "sm_90a", threads, shared)
    case = Case("case", (grid, 1, 1), {"x_ptr": Buffer("fp32", (1 << 20,))}, loop_trips=trips)
    device = ModelDevice()
    device.open(Workload("small", (case,), build=lambda *_: kernel), case, kernel)
    return device, kernel


def _never(*_: object) -> Kernel:
    raise AssertionError("the device is handed the kernel; it builds none")


def shuffled(program: Program, name: str, seed: int) -> tuple[np.ndarray, bytes]:
    """A random order of the instructions within each block, legal or not: the model must not care."""
    function = program.function(name)
    rng = np.random.default_rng(seed)
    order = np.arange(len(function))
    for block in function.blocks:
        inside = np.arange(block.start, block.end - 1)
        order[inside] = rng.permutation(inside)
    return order, program.emit(name, order)


def test_the_baseline_models_as_itself() -> None:
    device, kernel = opened(softmax_cubin())
    outcome = device.run(Candidate(kernel))
    assert isinstance(outcome, Modelled)
    assert outcome.modelled_ratio == 1.0 and outcome.cost == 1.0 and outcome.verdict is None
    assert outcome.digest == kernel.digest
    assert outcome.cycles is not None and 1_500 < outcome.cycles < 50_000
    # assumptions travel with every figure
    assert outcome.facts["modelled"] is True
    assert outcome.facts["ctas_per_sm"] == 4 and outcome.facts["ctas_on_busiest_sm"] == 4
    assert outcome.facts["loop_trips"] == []
    json.dumps(outcome.facts)


@pytest.mark.parametrize("name", ["softmax", "matmul"])
def test_the_order_is_recovered_from_the_words(name: str) -> None:
    cubin = softmax_cubin() if name == "softmax" else matmul_cubin()
    program = Program.parse(cubin)
    device, kernel = opened(cubin, name, shared=1 << 15)
    model = device.model
    for seed in range(5):
        order, changed = shuffled(program, name, seed)
        found = model.order(model.code(changed))
        mine = [program.function(name).instructions[k] for k in order.tolist()]
        theirs = [model.function.instructions[k] for k in found.tolist()]
        assert [i.text for i in mine] == [i.text for i in theirs]
        assert device.run(Candidate(kernel.with_cubin(changed))).facts["modelled"]


def test_control_codes_are_the_candidates_own() -> None:
    cubin = softmax_cubin()
    program = Program.parse(cubin)
    device, kernel = opened(cubin)
    function = program.function("softmax")
    high = function.words[:, 1].copy()
    slow = [i for i in function.instructions if i.base in ("FADD", "FMUL", "MUFU", "FMNMX")]
    for i in slow:
        high[i.index] = dataclasses.replace(i.control, stall=11).encode(int(high[i.index]))
    changed = program.emit("softmax", np.arange(len(function)), high)
    steps = device.model.steps(device.model.code(changed), np.arange(len(function)))
    from sassafras.timing_model.records import READ_BARRIER, STALL, WAIT, WRITE_BARRIER

    for step, position in zip(steps, device.model.path.positions.tolist(), strict=True):
        control = codes.Control.decode(int(high[position]))
        assert step[STALL] == control.stall and step[WAIT] == control.wait_mask
        assert step[WRITE_BARRIER] == (7 if control.write_barrier is None else control.write_barrier)
        assert step[READ_BARRIER] == (7 if control.read_barrier is None else control.read_barrier)
    outcome = device.run(Candidate(kernel.with_cubin(changed)))
    assert outcome.modelled_ratio is not None and outcome.modelled_ratio < 0.95


def test_renamed_registers_are_read_the_slow_way() -> None:
    """Words that the baseline does not hold: the candidate is disassembled."""
    cubin = softmax_cubin()
    program = Program.parse(cubin)
    device, kernel = opened(cubin)
    function = program.function("softmax")
    fadd = next(i for i in function.instructions if i.base == "FADD")
    at = function.text_offset + fadd.offset + 2  # the destination register's byte
    changed = bytearray(cubin)
    changed[at] ^= 1
    with pytest.raises(UnknownWords):
        device.model.order(device.model.code(bytes(changed)))
    outcome = device.run(Candidate(kernel.with_cubin(bytes(changed))))
    assert outcome.verdict is None and outcome.cycles == device.run(Candidate(kernel)).cycles


def test_what_is_no_schedule_of_the_kernel_is_unsupported() -> None:
    device, kernel = opened(softmax_cubin())
    other = Kernel(matmul_cubin(), "matmul", "sm_90a", 128)
    outcome = device.run(Candidate(other))
    assert outcome.verdict is Verdict.UNSUPPORTED and outcome.cycles is None and outcome.cost is None
    assert "matmul" in outcome.detail
    broken = device.run(Candidate(kernel.with_cubin(kernel.cubin[:1000])))
    assert broken.verdict is Verdict.UNSUPPORTED and broken.detail
    # another variant of the same kernel is no schedule either
    wider = device.run(Candidate(kernel.with_cubin(softmax_cubin(block=2048))))
    assert wider.verdict is Verdict.UNSUPPORTED
    # nor is code whose branch has moved
    cubin = matmul_cubin()
    program = Program.parse(cubin)
    device, kernel = opened(cubin, "matmul", shared=1 << 15)
    order = np.arange(len(program.function("matmul")))
    branch = next(i.index for i in program.function("matmul").instructions if i.base == "BRA")
    order[[branch - 1, branch]] = order[[branch, branch - 1]]
    moved = device.run(Candidate(kernel.with_cubin(program.emit("matmul", order))))
    assert moved.verdict is Verdict.UNSUPPORTED and "control flow" in moved.detail


def test_other_architectures_are_refused() -> None:
    with pytest.raises(UnsupportedArch, match="sm_80"):
        ModelDevice("sm_80")
    for arch in ("sm_80", "sm_120a"):
        kernel = Kernel(softmax_cubin(arch), "softmax", arch, 128)
        case = Case("case", (1, 1, 1), {})
        with pytest.raises(UnsupportedArch, match=arch):
            ModelDevice().open(Workload("small", (case,), build=_never), case, kernel)
        # a kernel that only claims to be for Hopper
        false = dataclasses.replace(kernel, arch="sm_90a")
        with pytest.raises(UnsupportedArch, match=arch):
            ModelDevice().open(Workload("small", (case,), build=_never), case, false)


def test_a_closed_or_impossible_device_says_so() -> None:
    device, kernel = opened(softmax_cubin())
    with pytest.raises(DeviceError, match="no warp"):
        device.trace(kernel, warp=64)
    device.close()
    device.close()
    with pytest.raises(DeviceError, match="no kernel is open"):
        device.run(Candidate(kernel))
    with pytest.raises(DeviceError, match="no CTA fits"):
        opened(softmax_cubin(), shared=1 << 20)


def test_environment_says_that_it_is_a_model() -> None:
    device = ModelDevice(constants=H200.replace(l2_latency=300))
    found = device.environment()
    assert found["modelled"] is True and "model" in found["device"]
    assert found["constants"]["l2_latency"] == 300
    json.dumps(found)
    assert all(H200.sources().values())


def test_a_trace_accounts_for_every_cycle_of_the_warp() -> None:
    device, kernel = opened(matmul_cubin(), "matmul", grid=64, shared=1 << 15, trips=32)
    trace = device.trace(kernel)
    assert (np.diff(trace.issue) >= 1).all()
    assert len(trace.reasons) == len(trace.positions) == len(trace.stalled)
    assert int(trace.stalled.sum()) + len(trace.issue) == int(trace.issue[-1] - trace.issue[0]) + 1
    # a pipelined matrix product waits for its copies and its tensor cores
    assert {"copy group", "barrier"} <= set(trace.reasons)


def test_tensor_cores_bound_a_matrix_product() -> None:
    device, _ = opened(matmul_cubin(bm=128, bn=128), "matmul", grid=132, shared=1 << 16, trips=64)
    steps = device.model
    from sassafras.timing_model.records import BUSY, HGMMA, KIND

    rows = steps.rows[steps.path.positions]
    tensor = int(rows[rows[:, KIND] == HGMMA, BUSY].sum())
    loop = steps.path.loops[0]
    whole = tensor * loop.trips / loop.simulated
    assert device.cycles(steps.words) >= whole + H200.launch


def test_the_main_loop_takes_the_case_s_trips() -> None:
    function = Program.parse(matmul_cubin()).function("matmul")
    (given,) = [loop for loop in find_loops(function, 32, cap=6) if loop.main]
    assert (given.trips, given.simulated) == (32, 6)
    (assumed,) = [loop for loop in find_loops(function, None, cap=100) if loop.main]
    assert assumed.trips == assumed.simulated == DEFAULT_TRIPS
    path = predict(function, 32, cap=6)
    assert (path.positions == given.end).sum() == 6
    assert (path.positions == given.start).sum() == 6
    assert path.entries[0][0] == given and len(path.entries[0][1]) == 6
    # the path begins at the top, ends at the only EXIT, and leaves no block half way
    assert path.positions[0] == 0 and function.instructions[path.positions[-1]].base == "EXIT"
    jumps = np.flatnonzero(np.diff(path.positions) != 1)
    assert all(path.taken[j] for j in jumps)


def test_slow_paths_are_not_taken() -> None:
    cubin = nvcc_cubin(TWO_KERNELS)
    if cubin is None:
        pytest.skip("no nvcc")
    for function in Program.parse(cubin).functions.values():
        path = predict(function, None, cap=6)
        assert function.instructions[path.positions[-1]].base in ("EXIT", "RET")
        assert not path.cut
    division = nvcc_cubin('extern "C" __global__ void d(float* a, float b) { a[threadIdx.x] /= b; }')
    assert division is not None
    function = Program.parse(division).function("d")
    run = [function.instructions[p] for p in predict(function).positions.tolist()]
    assert any(i.base == "CALL" for i in function.instructions)
    assert (
        not any(i.base == "CALL" for i in run)
        and run[-1].base == "EXIT"
        and any(i.base == "STG" for i in run)
    )


def test_polling_loops_run_once() -> None:
    cubin = nvcc_cubin(
        'extern "C" __global__ void lock(int* l, float* x) {'
        " while (atomicCAS(l, 0, 1) != 0) { } x[0] += 1; atomicExch(l, 0); }"
    )
    if cubin is None:
        pytest.skip("no nvcc")
    function = Program.parse(cubin).function("lock")
    assert [loop.trips for loop in find_loops(function, 50, cap=6) if loop.start != loop.end] == [1]


def test_equal_instructions_share_their_row() -> None:
    cubin = softmax_cubin(aligned=False)
    program = Program.parse(cubin)
    kernel = Kernel(cubin, "softmax", "sm_90a", 128, 64)
    model = KernelModel(program, kernel, Case("c", (132, 1, 1), {}), H200)
    found = model.order(model.words)
    assert (model.rows[found] == model.rows).all() and (model.sources[found] == model.sources).all()


def test_correlations_are_published_by_kernel() -> None:
    assert correlation("no such workload") is None
    assert correlation("no such workload", "case") is None
