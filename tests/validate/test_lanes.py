"""A branch changes which lanes run: what looks at other lanes does not move over one."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from triton.backends.nvidia.compiler import get_ptxas

from sassafras.core import Kernel
from sassafras.frontend._ptxas import assemble
from sassafras.sass import Program
from sassafras.sass.opcodes import KEEPS_TO_ITS_LANES, LANE_LOCAL
from sassafras.schedule import ScheduleSpace, blocks
from sassafras.schedule.spaces import space_of
from sassafras.schedule.webs import fixed_registers, values
from sassafras.validate import Validator, classes

_HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"
#: what the lanes of a warp that are still in a loop find out about one another, needed once behind the loop
_LOOP = """
.visible .entry loop(.param .u64 x, .param .u64 y)
{{
  .reg .pred %p<4>;
  .reg .b32 %r<16>;
  .reg .b64 %d<8>;
  ld.param.u64 %d1, [x];
  ld.param.u64 %d2, [y];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, 0;
  mov.u32 %r5, 0;
$AGAIN:
  add.s32 %r3, %r2, %r1;
  mul.wide.s32 %d3, %r3, 4;
  add.s64 %d4, %d1, %d3;
  ld.global.u32 %r4, [%d4];
  {what}
  add.s32 %r2, %r2, 32;
  setp.gt.s32 %p1, %r4, 0;
  @%p1 bra $AGAIN;
$OUT:
  and.b32 %r6, %r5, 255;
  mul.wide.s32 %d5, %r1, 4;
  add.s64 %d6, %d2, %d5;
  st.global.u32 [%d6], %r6;
  ret;
}}
"""
_BREAK = "mad.lo.s32 %r5, %r4, %r4, %r5; setp.lt.s32 %p2, %r4, 0; @%p2 bra $OUT;"
_VOTE = "activemask.b32 %r5;"
_SHUFFLE = "shfl.sync.bfly.b32 %r5, %r4, 1, 31, 0xffffffff;"


@lru_cache
def loop(what: str) -> Kernel:
    cubin = assemble(_HEAD + _LOOP.format(what=what), "sm_90a", str(get_ptxas(90).path))
    return Kernel(cubin=cubin, name="loop", arch="sm_90a", threads=32)


def sunk(kernel: Kernel, opcode: str) -> bytes:
    """The copy in which the loop's first instruction of this opcode stands behind the loop's branch."""
    program = Program.parse(kernel.cubin)
    function = program.function(kernel.name)
    rows = blocks.flow.blocks(function)
    lists = [list(range(b.start, b.end)) for b in rows]
    x = next(i.index for i in function.instructions if i.base == opcode)
    home = next(n for n, row in enumerate(lists) if x in row)
    assert function.instructions[lists[home][-1]].base == "BRA"
    lists[home].remove(x)
    lists[home + 1].insert(0, x)
    return blocks.emit(program, kernel.name, lists)


def test_a_vote_does_not_move_over_a_branch() -> None:
    kernel = loop(_VOTE)
    with pytest.raises(Exception, match="nothing in this kernel may move"):
        blocks.move(Program.parse(kernel.cubin), kernel.name)  # it was the one thing proposed
    report = Validator(kernel.cubin).via(sunk(kernel, "VOTE"))
    assert [v.kind for v in report.violations] == ["moves"]
    assert "each lane" in report.violations[0].message
    assert "moved over" not in space_of("blocks", Validator)(kernel).description


def test_what_is_not_known_to_be_of_one_lane_is_not_pure() -> None:
    across = {
        "VOTE",
        "VOTEU",
        "SHFL",
        "MATCH",
        "REDUX",
        "HMMA",
        "IMMA",
        "BMMA",
        "DMMA",
        "HGMMA",
        "LDSM",
        "STSM",
    }
    for names in (LANE_LOCAL, classes._LANE_ARITHMETIC):
        assert not names & (across | {"HGMMA", "MOVM", "FSWZADD", "R2UR", "WARPSYNC", "NEVERSEEN"})
        assert {"IADD3", "IMAD", "LOP3", "FFMA", "ISETP"} <= names
    for names in (KEEPS_TO_ITS_LANES, classes.KEEPS_TO_ITS_LANES):
        assert not names & {"VOTE", "SHFL", "MATCH", "REDUX", "FSWZADD", "R2UR", "NEVERSEEN"}


def test_registers_that_other_lanes_read_keep_their_names() -> None:
    kernel = loop(_SHUFFLE)
    function = Program.parse(kernel.cubin).function("loop")
    shuffle = next(i for i in function.instructions if i.base == "SHFL")
    assert shuffle.reads | shuffle.writes <= fixed_registers(function)
    assert not {w.register for w in values(function)} & (shuffle.reads | shuffle.writes)
    validator = Validator(kernel.cubin)
    report = validator.via(_renamed_source(kernel, shuffle.index))
    assert any("asynchronous or fixed" in v.message or "across lanes" in v.message for v in report.violations)


def _renamed_source(kernel: Kernel, at: int) -> bytes:
    """The copy whose shuffle and the load before it use another register, that nothing else names."""
    function = Program.parse(kernel.cubin).function(kernel.name)
    words = function.words.copy()
    old = next(r for r in function.instructions[at].reads if r < 255)
    free = next(r for r in range(255) if all(r not in i.reads | i.writes for i in function.instructions))
    for n in range(at + 1):
        i = function.instructions[n]
        if old in i.writes and i.base == "LDG":
            words[n, 0] = int(words[n, 0]) & ~(0xFF << 16) | free << 16
    for n in range(len(function)):
        i = function.instructions[n]
        if old in i.reads and i.base in ("SHFL", "ISETP"):
            words[n, 0] = int(words[n, 0]) & ~(0xFF << 24) | free << 24
    start = function.text_offset
    return kernel.cubin[:start] + words.tobytes() + kernel.cubin[start + 16 * len(function) :]


def test_a_space_only_proposes_what_is_approved() -> None:
    kernel = loop(_BREAK)
    space = space_of("blocks", Validator)(kernel)
    assert "moved over" in space.description
    # the same from a copy whose stall counts cannot be tightened: it is a copy all the same
    again = ScheduleSpace(kernel, control="regenerate", rename=space.via[0])
    for one in (space, again):
        validator = Validator(kernel.cubin)
        assert one.via[0] != kernel.cubin
        assert validator.via(one.via[0]).ok
        rng, state = np.random.default_rng(5), one.start()
        for _ in range(8):
            step = one.sample(state, rng)
            assert step is not None
            state = one.apply(state, step)
            assert validator.check(one.emit(state)).ok


def test_a_branch_to_a_block_whose_first_instruction_left_aims_at_the_block() -> None:
    kernel = loop("xor.b32 %r5, %r3, %r2;")
    function = Program.parse(kernel.cubin).function("loop")
    rows = blocks.flow.blocks(function)
    lists = [list(range(b.start, b.end)) for b in rows]
    back = next(i for i in function.instructions if i.base == "BRA" and i.guard)
    target = next(at // 16 for name, at in function.labels.items() if f"`({name})" in back.text)
    head = next(n for n, b in enumerate(rows) if b.start == target)
    x = lists[head].pop(0)
    lists[head + 1].insert(0, x)
    copy = Program.parse(blocks.emit(Program.parse(kernel.cubin), "loop", lists)).function("loop")
    aimed = next(i for i in copy.instructions if i.base == "BRA" and i.guard)
    lands = next(at // 16 for name, at in copy.labels.items() if f"`({name})" in aimed.text)
    assert lands == rows[head].start
