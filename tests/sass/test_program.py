"""Cubin in, Program out, cubin back: on real ptxas output of every architecture we name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sassafras.core import Kernel
from sassafras.core.errors import CubinError, UnsupportedArch
from sassafras.frontend._image import parameter_sizes
from sassafras.sass import Program, check_schedulable, disassembly, effects
from sassafras.sass.cubin import Cubin
from sassafras.sass.eiattr import ANNOTATIONS, UNUSED_LOAD_BYTES, Record, unknown_attributes
from sassafras.sass.registers import GPR, PRED, UGPR, UPRED
from sassafras.sass.tools import find_all
from sassafras.schedule import ScheduleSpace
from sassafras.validate import Validator
from tests import kernels


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_identity_rewrite_is_byte_identical(arch: str) -> None:
    data = kernels.softmax_cubin(arch)
    program = Program.parse(data)
    assert program.arch == arch
    function = program.function()
    assert len(function) > 50
    assert program.emit(function.name, np.arange(len(function))) == data


def test_words_and_control_codes_survive_decode_and_encode() -> None:
    function = Program.parse(kernels.matmul_cubin()).function()
    for i in function.instructions:
        assert i.control.encode(i.high) == i.high
    assert function.words.shape == (len(function), 2)


def test_emit_moves_words_and_exit_offsets() -> None:
    program = Program.parse(kernels.softmax_cubin())
    function = program.function()
    exits = [i.index for i in function.instructions if i.base == "EXIT"]
    recorded = [offset // 16 for _, offset in function.offset_slots]
    assert set(exits) <= set(recorded)
    order = np.arange(len(function))
    order[[exits[0] - 1, exits[0]]] = order[[exits[0], exits[0] - 1]]
    moved = Program.parse(program.emit(function.name, order)).function()
    assert moved.instructions[exits[0] - 1].base == "EXIT"
    assert exits[0] - 1 in [offset // 16 for _, offset in moved.offset_slots]
    assert sorted(i.text for i in moved.instructions) == sorted(i.text for i in function.instructions)


def test_emit_refuses_what_is_no_permutation() -> None:
    program = Program.parse(kernels.softmax_cubin())
    function = program.function()
    with pytest.raises(ValueError, match="entries"):
        program.emit(function.name, np.arange(3))
    with pytest.raises(ValueError, match="permutation"):
        program.emit(function.name, np.zeros(len(function), dtype=int))


def test_kept_listings_are_of_the_same_cubin_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`SASSAFRAS_LISTINGS`: what nvdisasm printed is read back; what is torn, or another cubin's, is not."""
    monkeypatch.setenv("SASSAFRAS_LISTINGS", str(tmp_path / "kept"))
    cubin = Cubin.parse(kernels.softmax_cubin(block=256))
    other = Cubin.parse(kernels.softmax_cubin(block=512))

    def read(one: Cubin) -> Any:
        disassembly.printed.cache_clear()
        return disassembly.disassemble(one).listings

    first, second = read(cubin), read(other)
    assert first != second and len(list((tmp_path / "kept").iterdir())) == 2
    with monkeypatch.context() as patch:
        patch.setattr(disassembly, "_print", None)  # not called again
        assert read(cubin) == first and read(other) == second
    for file in (tmp_path / "kept").iterdir():
        file.write_bytes(file.read_bytes()[:-20])
    assert read(cubin) == first and read(other) == second
    with monkeypatch.context() as patch:
        patch.setattr(disassembly, "_print", None)
        assert read(cubin) == first
        patch.setenv("SASSAFRAS_LISTINGS", str(tmp_path / "empty"))
        with pytest.raises(TypeError):
            read(cubin)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a"])
def test_cuda_13s_nvdisasm_reads_the_cubins_of_cuda_12(arch: str) -> None:
    """Triton 3.8 compiles with ptxas 12.9 and brings an nvdisasm of CUDA 13 alone."""
    tools = {tool.major: tool for tool in find_all("nvdisasm")}
    if not {12, 13} <= set(tools):
        pytest.skip("needs nvdisasm of CUDA 12 and of CUDA 13")
    for data in (kernels.matmul_cubin(arch), kernels.softmax_cubin(arch)):
        assert data[7] == 0x33, "CUDA 12's"
        old, new = (disassembly.parse(disassembly.printed(data, (tools[major],))[1]) for major in (12, 13))
        assert old.keys() == new.keys()
        for name, listing in old.items():
            assert [(x.offset, x.reads, x.writes) for x in new[name].lines] == [
                (x.offset, x.reads, x.writes) for x in listing.lines
            ]
            texts = [[re.sub(r"\.L_x_\d+", "label", x.text) for x in of[name].lines] for of in (old, new)]
            assert texts[0] == texts[1] and len(listing.lines) > 50
        program = Program.parse(data)
        assert program.arch == disassembly._target(
            disassembly.printed(data, (tools[13],))[1], Cubin.parse(data)
        )


def test_several_kernels_in_one_cubin() -> None:
    data = kernels.nvcc_cubin(kernels.TWO_KERNELS)
    if data is None:
        pytest.skip("no nvcc")
    program = Program.parse(data)
    assert set(program.functions) == {"reverse", "choose"}
    with pytest.raises(CubinError, match="several kernels"):
        program.function()
    for name, function in program.functions.items():
        assert program.emit(name, np.arange(len(function))) == data
    choose = program.function("choose")
    assert choose.indirect, "a switch compiles to an indirect branch with its targets in .nv.info"
    for branch, targets in choose.indirect.items():
        assert choose.instructions[branch // 16].base in ("BRX", "BRXU")
        leaders = {block.start for block in choose.blocks}
        assert all(t // 16 in leaders for t in targets)
    assert parameter_sizes(program.cubin.entries["reverse"]) == [8, 4]


def test_blocks_cover_the_function_and_loops_have_back_edges() -> None:
    function = Program.parse(kernels.matmul_cubin()).function()
    covered = [i for block in function.blocks for i in range(block.start, block.end)]
    assert covered == list(range(len(function)))
    assert any(s <= block.index for block in function.blocks for s in block.successors)


def test_effects_of_known_instructions() -> None:
    function = Program.parse(kernels.softmax_cubin(block=4096, aligned=False)).function()
    loads = [i for i in function.instructions if i.opcode == "LDG.E"]
    assert loads
    for i in loads:
        address = int(i.operands[1].partition("[R")[2].partition(".")[0])
        assert {GPR + address, GPR + address + 1} <= i.reads
        assert any(r >= UGPR for r in i.reads), "the descriptor pair"
        assert len([r for r in i.writes if r < PRED]) == 1
    saved = [i for i in function.instructions if i.base == "P2R"]
    assert saved, "this kernel runs out of predicates"
    for i in saved:
        mask = int(i.operands[-1], 16)
        assert {PRED + b for b in range(7) if mask >> b & 1} <= i.reads
    assert not [i for i in function.instructions if i.unexplained]


def test_saved_uniform_predicates_of_no_known_mask_pin_the_instruction() -> None:
    """As ptxas 12.8 writes them around a fence: neither says which predicates it means."""
    held = frozenset([UGPR + 62])
    saves = disassembly.Line(0, "UP2UR.B3 UR62, UPR, UR62, 0xff", held, held)
    reads, _, why = effects.complete(saves, "", "UP2UR.B3", ("UR62", "UPR", "UR62", "0xff"))
    assert why and {UPRED, UPRED + 6} < reads
    restores = disassembly.Line(0, "UR2UP UPR, UR62.B3", held, frozenset())
    _, writes, why = effects.complete(restores, "", "UR2UP", ("UPR", "UR62.B3"))
    assert why and {UPRED, UPRED + 6} < writes


def test_ldgsts_writes_no_predicate() -> None:
    function = Program.parse(kernels.matmul_cubin("sm_80")).function()
    copies = [i for i in function.instructions if i.base == "LDGSTS"]
    assert copies
    assert not any(PRED <= r < UGPR for i in copies for r in i.writes)


def test_architecture_policy() -> None:
    assert check_schedulable("sm_90a").measured
    with pytest.raises(UnsupportedArch, match="never been measured"):
        check_schedulable("sm_80")
    assert not check_schedulable("sm_80", asked_by_name=True).measured
    with pytest.raises(UnsupportedArch, match="capmerc"):
        check_schedulable("sm_120a", asked_by_name=True)
    with pytest.raises(UnsupportedArch, match="not known"):
        check_schedulable("sm_35")


def test_annotations_of_spills_follow_their_instructions() -> None:
    source = """
    extern "C" __global__ void k(float* a, int n) {
      float v[64];
      for (int i = 0; i < 64; ++i) v[i] = a[i * n + threadIdx.x];
      __syncthreads();
      for (int i = 0; i < 64; ++i) for (int j = 0; j < 64; j += 9) v[i] = v[i] * v[j] + v[(i * 7 + j) % 64];
      for (int i = 0; i < 64; ++i) a[i * n + threadIdx.x] = v[i];
    }
    """
    data = kernels.nvcc_cubin(source, flags=("-maxrregcount=32",))
    if data is None:
        pytest.skip("no nvcc")
    program = Program.parse(data)
    function = program.function()
    annotated = {
        word
        for r in program.cubin.entries["k"].info
        if r.attribute == ANNOTATIONS
        for word in r.words()[1::2]
    }
    assert annotated, "this kernel spills"
    assert annotated <= {offset for _, offset in function.offset_slots}
    assert {function.instructions[offset // 16].base for offset in annotated} <= {"LDL", "STL"}
    assert not function.pinned_reason


def unused(program: Program) -> list[int]:
    """Offsets of the loads that `.nv.info` says are not used whole."""
    info = program.cubin.entries[program.function().name].info
    return [o for r in info if r.attribute == UNUSED_LOAD_BYTES for o in r.words()[::2]]


def test_loads_with_unused_bytes_are_followed() -> None:
    """A prefix sum reads its warps' totals by four and needs three: `.nv.info` says of which load."""
    kernel = Kernel(kernels.cumsum_cubin(4, 1024, 4, "fp16"), "cumsum", "sm_90a", 128, 0)
    program = Program.parse(kernel.cubin)
    marked = unused(program)
    assert marked, "ptxas marks loads of this kernel"
    code = program.function().instructions
    assert {code[offset // 16].base for offset in marked} == {"LDS"}
    space, validator = ScheduleSpace(kernel, program), Validator(kernel.cubin)
    rng, state = np.random.default_rng(0), space.start()
    places = set()
    for _ in range(60):
        move = space.sample(state, rng)
        assert move is not None
        state = space.apply(state, move)
        changed = space.emit(state)
        assert validator.check(changed).ok
        moved = Program.parse(changed)
        where = unused(moved)
        places.add(tuple(where))
        now = moved.function().instructions
        assert [now[o // 16].text for o in where] == [code[o // 16].text for o in marked]
        if len(places) > 1:
            break
    assert places != {tuple(marked)}, "none of them has moved"
    left = bytearray(changed)
    for (at, offset), (_, old) in zip(
        moved.function().offset_slots, program.function().offset_slots, strict=True
    ):
        if offset != old:
            left[at : at + 4] = old.to_bytes(4, "little")
            break
    assert "info" in {v.kind for v in validator.check(bytes(left)).violations}


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ((0x110, 0xFFF), True), ((0x60, 0xFF0F, 0x70, 0xF), True), ((), True),
        ((0x118, 0xFFF), False), ((0x110, 0), False), ((0x110, 0xFFFF), False), ((0x110,), False),
        ((0xFFF, 0x110), False), ((0x110, 0x10FFF), False),
    ],
)  # fmt: skip
def test_unused_bytes_in_another_form_are_not_guessed_about(words: tuple[int, ...], known: bool) -> None:
    record = Record(UNUSED_LOAD_BYTES, 0, b"".join(w.to_bytes(4, "little") for w in words))
    assert unknown_attributes((record,)) == (() if known else (UNUSED_LOAD_BYTES,))
