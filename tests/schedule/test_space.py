"""ScheduleSpace on real kernels: what it promises of states, moves and candidates."""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np
import pytest

from sassafras.core import Kernel, Playable, SassafrasError, Space, UnsupportedArch
from sassafras.sass import Program, Queue
from sassafras.schedule import REORDER, RESTALL, Move, ScheduleSpace, ScheduleState
from tests import kernels

NAMES = ("softmax", "scalar softmax", "matmul", "hmma")


@lru_cache
def cubin(name: str) -> bytes:
    return {
        "softmax": lambda: kernels.softmax_cubin(),
        "scalar softmax": lambda: kernels.softmax_cubin(block=2048, aligned=False),
        "matmul": lambda: kernels.matmul_cubin(),
        "hmma": lambda: kernels.matmul_cubin(bm=32, bn=32),
        "sm_80": lambda: kernels.softmax_cubin("sm_80"),
        "sm_100a": lambda: kernels.softmax_cubin("sm_100a"),
    }[name]()


def kernel(name: str) -> Kernel:
    data = cubin(name)
    function = Program.parse(data).function()
    return Kernel(data, function.name, function.arch, 128)


@lru_cache
def space(name: str, **options: object) -> ScheduleSpace:
    return ScheduleSpace(kernel(name), **options)  # type: ignore[arg-type]


def walk(s: ScheduleSpace, moves: int, seed: int = 0) -> list[ScheduleState]:
    rng = np.random.default_rng(seed)
    states = [s.start()]
    while len(states) <= moves:
        move = s.sample(states[-1], rng)
        assert move is not None
        states.append(s.apply(states[-1], move))
    return states


@pytest.mark.parametrize("name", NAMES)
def test_start_is_the_baseline_byte_for_byte(name: str) -> None:
    s = space(name)
    assert isinstance(s, Space) and isinstance(s, Playable)
    candidate = s.candidate(s.start())
    assert candidate.kernel.cubin == cubin(name)
    assert s.violation(s.start()) == ""
    assert not s.graph.unprotected


def test_same_seed_same_walk() -> None:
    s = space("softmax")
    first, second = walk(s, 60, seed=3), walk(s, 60, seed=3)
    assert [a.digest for a in first] == [b.digest for b in second]
    assert first[-1] == second[-1] and hash(first[-1]) == hash(second[-1])
    assert walk(s, 60, seed=4)[-1] != first[-1]
    # a fresh space gives the same walk too
    assert walk(ScheduleSpace(kernel("softmax")), 60, seed=3)[-1] == first[-1]


def test_states_are_immutable_values() -> None:
    s = space("softmax")
    states = walk(s, 30)
    kept = [(state.order.tobytes(), state.stall.tobytes()) for state in states]
    walk(s, 30, seed=9)
    assert [(x.order.tobytes(), x.stall.tobytes()) for x in states] == kept
    with pytest.raises(ValueError, match="read-only"):
        states[3].order[0] = 1
    # applying the recorded moves again, without the memory of `sample`, gives the same states
    for before, after in itertools.pairwise(states):
        assert after.last is not None
        fresh = ScheduleSpace.apply(s, ScheduleState(before.order, before.stall), after.last)
        assert fresh == after


@pytest.mark.parametrize("name", NAMES)
def test_candidates_hold_the_same_instructions_and_encodable_control_codes(name: str) -> None:
    s = space(name)
    original = s.function
    for state in walk(s, 300, seed=2)[300:]:  # the last is of all moves
        candidate = s.candidate(state)
        moved = Program.parse(candidate.kernel.cubin).function(original.name)
        assert sorted(i.text.replace(".reuse", "") for i in moved.instructions) == sorted(
            i.text.replace(".reuse", "") for i in original.instructions
        )
        for position, i in enumerate(moved.instructions):
            old = original.instructions[state.order[position]]
            # stall and yield as one field of five bits: combinations that ptxas emits
            assert (field := i.high >> 41 & 0x1F) <= 15 or 17 <= field <= 27
            assert i.control.stall == state.stall[position]
            assert (i.control.wait_mask, i.control.write_barrier, i.control.read_barrier) == (
                old.control.wait_mask, old.control.write_barrier, old.control.read_barrier,
            )  # fmt: skip
            assert i.control.yield_hint == (old.control.yield_hint and i.control.stall < 12)
            if i.control.reuse:
                assert moved.instructions[position + 1].low == original.instructions[old.index + 1].low
        assert candidate.recipe["depth"] == state.depth
        assert candidate.recipe["schedule"] == state.digest


@pytest.mark.parametrize("name", NAMES)
def test_fences_branches_and_blocks_stay(name: str) -> None:
    s = space(name)
    end = walk(s, 400, seed=6)[-1]
    for n, i in enumerate(s.function.instructions):
        if s.graph.fence[n]:
            assert end.order[n] == n, str(i)
    for block in s.function.blocks:
        assert sorted(end.order[block.start : block.end]) == list(range(block.start, block.end))
    fenced = {i.base for n, i in enumerate(s.function.instructions) if s.graph.fence[n]}
    assert {"EXIT", "BRA", "NOP", "BAR"} <= fenced


def test_workaround_triples_and_warpgroup_products_keep_their_places() -> None:
    s = space("matmul")
    code = s.function.instructions
    triples = [i.index for i in code if i.base == "LDS" and i.guard == "!PT"]
    products = [i.index for i in code if i.base == "HGMMA"]
    assert len(triples) >= 3 and len(products) >= 4
    end = walk(s, 600, seed=7)[-1]
    where = np.argsort(end.order)
    assert all(where[t] == t for t in triples)
    assert (np.diff(where[products]) > 0).all()


def test_saved_predicates_stay_behind_their_compare() -> None:
    """The false win of the first prototype: P2R moved above the ISETP that it saves."""
    s = space("scalar softmax")
    code = s.function.instructions
    pairs, last = [], {}
    for i in code:
        if i.base == "P2R":
            pairs += [(last[r], i.index) for r in i.reads if r in last]
        last |= dict.fromkeys(i.writes, i.index)
    assert len(pairs) > 5
    for state in walk(s, 1500, seed=8)[::100]:
        where = np.argsort(state.order)
        assert all(where[a] < where[b] for a, b in pairs)


def test_who_tries_every_action_makes_the_moves_that_are_legal_and_no_others() -> None:
    s = space("softmax", moves="memory")
    state = s.start()
    tried = [
        [s.act(state, row, action) is not None for action in range(len(s.actions))]
        for row in range(len(s.function))
    ]
    assert np.array_equal(np.array(tried), s.legal(state))
    assert 0 < s.legal(state).sum() < s.legal(state).size / 4


def test_memory_moves_are_those_of_the_papers() -> None:
    s = space("softmax", moves="memory")
    memory = {i.index for i in s.function.instructions if i.base in ("LDG", "STG", "LDS", "STS")}
    state = s.start()
    moves = s.moves(state)
    assert moves and set(s.memory.tolist()) <= memory
    for move in moves:
        assert move.kind == REORDER and abs(move.i - move.j) == 1
        assert int(state.order[move.i]) in memory
        assert s.violation(s.apply(state, move)) == ""
    rng = np.random.default_rng(0)
    drawn = {s.sample(state, rng) for _ in range(400)}
    assert drawn == set(moves)


def test_listed_moves_can_all_be_made_and_no_other() -> None:
    s = space("hmma")
    state = walk(s, 40, seed=1)[-1]
    moves = s.moves(state)
    assert len(moves) > 500
    for move in moves[::50]:
        assert s.violation(s.apply(state, move)) == ""
    listed = set(moves)
    where = int(np.flatnonzero(state.order == s.movable[len(s.movable) // 2])[0])
    for j in range(len(state.order)):
        move = Move(REORDER, where, j)
        if move not in listed:
            with pytest.raises(SassafrasError, match="not legal"):
                s.apply(state, move)


def test_stall_counts_are_moves_too() -> None:
    s = space("softmax")
    state = s.start()
    p = next(
        p for p in range(len(state.order))
        if s.tables.movable[state.order[p]] and state.stall[p] == 1 and p + 1 < len(state.order)
    )  # fmt: skip
    longer = s.apply(state, Move(RESTALL, p, 7))
    assert longer.stall[p] == 7 and (longer.order == state.order).all()
    with pytest.raises(SassafrasError, match="not legal"):
        s.apply(state, Move(RESTALL, p, 16))
    with pytest.raises(SassafrasError, match="not legal"):
        s.apply(state, Move(REORDER, -1, 3))


def test_violation_sees_what_a_move_could_not_make() -> None:
    s = space("softmax")
    start = s.start()
    first, second = next((a, b) for a, b in sorted(s.graph.order) if b == a + 1 and not s.graph.fence[b])
    order = start.order.copy()
    order[[first, second]] = order[[second, first]]
    assert "must stay behind" in s.violation(ScheduleState(order, start.stall.copy()))
    (_, b), cycles = max(
        s.graph.least.items(), key=lambda item: item[1] if item[0][1] == item[0][0] + 1 else 0
    )
    assert cycles > 2
    stall = start.stall.copy()
    stall[b - 1] = 1
    assert "too few cycles" in s.violation(ScheduleState(start.order.copy(), stall))


def test_architectures_are_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedArch, match="never been measured"):
        ScheduleSpace(kernel("sm_80"))
    by_name = ScheduleSpace(kernel("sm_80"), arch_by_name=True)
    assert by_name.candidate(by_name.start()).kernel.cubin == cubin("sm_80")
    assert by_name.violation(walk(by_name, 100)[-1]) == ""
    with pytest.raises(UnsupportedArch, match="parsed but not scheduled"):
        ScheduleSpace(kernel("sm_100a"), arch_by_name=True)


def test_a_kernel_in_which_nothing_moves_is_refused() -> None:
    source = 'extern "C" __global__ void empty() {}'
    data = kernels.nvcc_cubin(source)
    if data is None:
        pytest.skip("no nvcc")
    with pytest.raises(SassafrasError, match="nothing in this kernel can move"):
        ScheduleSpace(Kernel(data, "empty", "sm_90a", 32), moves="memory")


def test_options_are_checked() -> None:
    with pytest.raises(SassafrasError, match="memory or all"):
        ScheduleSpace(kernel("softmax"), moves="some")  # type: ignore[arg-type]


def test_memory_operations_keep_their_spacing() -> None:
    def closest(s: ScheduleSpace) -> int:
        memory = {i.index for i in s.function.instructions if i.op.reads_memory or i.op.writes_memory}
        memory -= {
            i.index for i in s.function.instructions if i.base in ("LDC", "ULDC") or s.graph.fence[i.index]
        }
        least = 99
        for state in walk(s, 600, seed=11)[::60]:
            for block in s.function.blocks:
                last, now = None, 0
                for p in range(block.start, block.end):
                    if int(state.order[p]) in memory:
                        least = least if last is None else min(least, now - last)
                        last = now
                    now += max(1, int(state.stall[p]))
        return least

    assert closest(space("scalar softmax")) == 4


def test_a_product_keeps_its_distance_to_its_wait() -> None:
    """The validator refuses fewer cycles: the wait may not count the product."""
    s = space("matmul")
    code, t = s.function.instructions, s.tables
    products = {int(t.kind[i.index]) for i in code if i.op.queue is Queue.WGMMA}
    waits = {int(t.kind[i.index]) for i in code if i.opcode.startswith("WARPGROUP.DEPBAR")}
    assert {int(t.spacing[a, b]) for a in products for b in waits} == {3}


def test_features_have_one_finite_row_a_position() -> None:
    from sassafras.schedule.features import NAMES as COLUMNS

    s = space("hmma")
    start, end = s.start(), walk(s, 200)[-1]
    first, last = s.features(start), s.features(end)
    assert first.shape == last.shape == (len(s.function), len(COLUMNS))
    assert first.dtype == np.float32 and np.isfinite(first).all() and np.isfinite(last).all()
    at = COLUMNS.index
    assert (first[:, at("moved_by")] == 0).all() and (last[:, at("moved_by")] != 0).any()
    np.testing.assert_allclose(last[:, at("stall")] * 15, end.stall, rtol=1e-6)
    queues = [n for n, name in enumerate(COLUMNS) if name.startswith("queue_")]
    assert (first[:, queues].sum(axis=1) == 1).all()
    # what does not depend on the schedule travels with its instruction
    fixed = [at(c) for c in ("wait0", "write_barrier", "variable", "destination", "source0")]
    np.testing.assert_array_equal(last[:, fixed], first[end.order][:, fixed])
