"""The second dependence model accepts what compilers emit, and sees faults planted in it."""

from __future__ import annotations

import sys
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sassafras.sass import Emitter, Program
from sassafras.sass.opcodes import BRANCHES
from sassafras.validate import Validator
from tests.kernels import matmul_cubin, nvcc_cubin, softmax_cubin

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from candidates_gpu import sources
from mutants.edits import Editor
from planted import SOURCES, Subject
from second_model import DIFFERENT, EQUAL, IDLE, SecondModel

CUBINS = {"softmax": softmax_cubin, "matmul": matmul_cubin}
#: classes that only the validator's rules on encodings or on files know, or that the hardware was seen to
#: forgive
NOT_SEEN = ("places", "structure")


@lru_cache(maxsize=4)
def opened(name: str) -> tuple[bytes, Program, str, SecondModel]:
    data = CUBINS[name]()
    program = Program.parse(data)
    kernel = next(iter(program.functions))
    return data, program, kernel, SecondModel(data, kernel)


@pytest.mark.parametrize("name", CUBINS)
def test_the_compilers_own_code_is_accepted(name: str) -> None:
    data, _, _, second = opened(name)
    assert second.sound, second.trouble
    assert second.judge(data).verdict == IDLE


@pytest.mark.parametrize("name", CUBINS)
def test_more_time_and_more_waiting_change_nothing(name: str) -> None:
    _, program, kernel, second = opened(name)
    subject = Subject(program, kernel)
    for start, end in subject.stretches[:6]:
        assert second.judge(subject.emit(subject.identity(), subject.generous(start, end))).verdict == EQUAL


def edited(name: str, edit: dict[int, int]) -> bytes:
    """The kernel with other upper words at some positions."""
    _, program, kernel, _ = opened(name)
    function = program.function(kernel)
    high = function.words[:, 1].copy()
    for at, word in edit.items():
        high[at] = word
    return program.emit(kernel, np.arange(len(function)), high)


def test_a_wait_that_is_missing_is_seen() -> None:
    _, program, kernel, second = opened("softmax")
    code = program.function(kernel).instructions
    waiting = [i for i in code if i.control.wait_mask and i.base not in BRANCHES and i.base != "BAR"]
    verdicts = [second.judge(edited("softmax", {i.index: i.high & ~(0x3F << 52)})).verdict for i in waiting]
    assert len(waiting) > 5
    assert verdicts.count(DIFFERENT) > 0.8 * len(verdicts)


def test_a_result_read_a_cycle_early_is_seen() -> None:
    _, program, kernel, second = opened("softmax")
    code = program.function(kernel).instructions
    pairs = [
        (a, b) for a, b in pairwise(code)
        if a.base in ("FADD", "FMNMX", "FMUL") and a.writes & b.reads and a.control.stall == 4
    ]  # fmt: skip
    assert pairs
    for a, _ in pairs:
        assert second.judge(edited("softmax", {a.index: a.high - (1 << 41)})).verdict == DIFFERENT


def test_a_scoreboard_that_is_not_the_one_waited_for_is_seen() -> None:
    _, program, kernel, second = opened("softmax")
    loads = [i for i in program.function(kernel).instructions if i.base == "LDG"]
    assert loads
    for i in loads:
        other = i.high & ~(7 << 46)  # scoreboard 0, or 1 where it was 0
        other |= (1 << 46) if i.control.write_barrier == 0 else 0
        assert second.judge(edited("softmax", {i.index: other})).verdict == DIFFERENT


def test_stale_operands_are_seen() -> None:
    """A flag keeps the old value of a register that is written before the slot is used again."""
    _, program, kernel, second = opened("matmul")
    code = program.function(kernel).instructions
    found = 0
    for a, b, c in zip(code, code[1:], code[2:], strict=False):
        first, last = (i.low >> 24 & 255 for i in (a, c))
        plain = all(i.base in ("IADD3", "FADD", "FMUL", "LOP3", "IMAD", "LEA") for i in (a, c))
        if (
            plain
            and first == last
            and first in a.reads & c.reads & b.writes
            and b.low >> 24 & 255 not in b.reads
        ):
            found += 1
            assert second.judge(edited("matmul", {a.index: a.high | 1 << 58})).verdict == DIFFERENT
    # (nothing is claimed where the compiler left no such place)


@pytest.mark.parametrize("name", CUBINS)
def test_what_is_planted_is_seen(name: str) -> None:
    """Of the classes that change what is computed or when, nearly all; what is not seen is named."""
    _, program, kernel, second = opened(name)
    subject, rng = Subject(program, kernel), np.random.default_rng(4)
    seen: dict[str, list[bool]] = {}
    for source in SOURCES:
        if source.__name__ in NOT_SEEN:
            continue
        for mutant in source(subject, rng, 2):
            seen.setdefault(mutant.kind, []).append(second.judge(mutant.cubin).verdict == DIFFERENT)
    total = [found for row in seen.values() for found in row]
    assert len(seen) > 8
    assert sum(total) >= 0.75 * len(total), {kind: row for kind, row in seen.items() if not all(row)}


def test_a_mutant_can_be_made_again_from_its_number() -> None:
    data, program, kernel, _ = opened("softmax")
    function, emitter = program.function(kernel), Emitter(program, kernel)
    one, two = Editor(function, 5), Editor(function, 5)
    made = [one.make(n) for n in range(60)]
    assert sum(m is not None for m in made) > 50
    for n in (59, 3, 17):
        first, second = made[n], two.make(n)
        assert (first is None) == (second is None)
        if first is not None and second is not None:
            assert emitter.write(first[0], first[1]) == emitter.write(second[0], second[1]) != data
            assert first[2] == second[2]


def test_a_fence_of_a_copy_may_stall_as_little_as_in_the_original() -> None:
    """A copy that stalls for longer at a fence proves nothing against the compiler's own stall there."""
    from sassafras.core import Kernel
    from sassafras.schedule import spaces

    data, _, kernel, _ = opened("softmax")
    (renamed,) = spaces.space_of("renaming", Validator)(Kernel(data, kernel, "sm_90a", 128)).via
    program, second = Program.parse(renamed), SecondModel(data, kernel)
    function = program.function(kernel)
    high = function.words[:, 1].copy()
    fences = [
        i for i in function.instructions if i.base in ("BAR", "EXIT", "BRA") and 2 < i.control.stall < 11
    ]
    assert fences
    for i in fences:
        high[i.index] += np.uint64(1 << 41)
    longer = program.emit(kernel, np.arange(len(function)), high)
    assert second.via(longer).verdict == EQUAL
    assert second.judge(renamed).verdict == EQUAL
    for i in fences:
        high[i.index] -= np.uint64(2 << 41)
    shorter = program.emit(kernel, np.arange(len(function)), high)
    assert second.judge(shorter).why == "a fence or branch stalls for less"


def test_renamed_schedules_are_followed_and_votes_do_not_pass_branches() -> None:
    """A copy under other names is equal; one whose vote moved over the branch that splits a warp is not."""
    from sassafras.core import Kernel
    from sassafras.schedule import blocks, spaces

    cubin = nvcc_cubin(sources()["mask_once"])
    if cubin is None:
        pytest.skip("no nvcc")
    program = Program.parse(cubin)
    (renamed,) = spaces.space_of("renaming", Validator)(Kernel(cubin, "mask_once", "sm_90a", 128)).via
    second = SecondModel(cubin, "mask_once")
    assert second.via(renamed).verdict == EQUAL
    assert second.judge(renamed).verdict == IDLE
    function = program.function("mask_once")
    lists = [list(range(b.start, b.end)) for b in function.blocks]
    vote = next(i.index for i in function.instructions if i.base == "VOTE")
    home = next(n for n, row in enumerate(lists) if vote in row)
    lists[home].remove(vote)
    lists[home - 1].insert(len(lists[home - 1]) - 1, vote)
    assert second.via(blocks.emit(program, "mask_once", lists)).verdict == DIFFERENT
