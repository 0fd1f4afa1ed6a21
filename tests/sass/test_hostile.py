"""Truncated, mangled and hostile cubins: a clear error that names the place, never a silent result."""

from __future__ import annotations

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sassafras.core.errors import CubinError, DisassemblyError, SassafrasError
from sassafras.sass import Cubin, Program, disassembly
from sassafras.sass.disassembly import parse
from sassafras.sass.eiattr import parse_records
from sassafras.sass.tools import find_all
from tests import kernels

_GOOD = kernels.softmax_cubin()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "too few"),
        (b"not an elf at all" * 10, "magic"),
        (_GOOD[:63], "too few"),
        (_GOOD[:1000], "runs past the end"),
        (_GOOD[:18] + b"\x3e\x00" + _GOOD[20:], "not CUDA"),
        (_GOOD[:7] + b"\x00" + _GOOD[8:], "layout"),
        (_GOOD[:58] + struct.pack("<HHH", 64, 0xFFFF, 1) + _GOOD[64:], "section table"),
    ],
)
def test_clear_errors(data: bytes, says: str) -> None:
    with pytest.raises(CubinError, match=says) as caught:
        Cubin.parse(data)
    assert caught.value.where


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_mutated_cubins_never_fail_unclearly(data: st.DataObject) -> None:
    mangled = bytearray(_GOOD)
    for _ in range(data.draw(st.integers(1, 8))):
        # headers and tables are where parsers die: aim there most of the time
        limit = data.draw(st.sampled_from([64, len(mangled) - 1, len(mangled) - 1]))
        at = data.draw(st.integers(0, limit))
        if data.draw(st.booleans()) and at > 64:
            at = len(mangled) - 1 - at % 1600  # the section header table stands last
        mangled[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([None, None, data.draw(st.integers(0, len(mangled)))]))
    try:
        cubin = Cubin.parse(bytes(mangled[:cut]))
    except SassafrasError as error:
        assert error.where
    else:
        assert cubin.entries


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_as_attribute_records(data: bytes) -> None:
    try:
        records = parse_records(data, 0, ".nv.info.fuzz")
    except CubinError as error:
        assert ".nv.info.fuzz+" in str(error)
    else:
        assert bool(records) == bool(data)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 4]), st.integers(0, 255), st.binary(max_size=40))))
def test_well_formed_attribute_records_are_all_read(wanted: list[tuple[int, int, bytes]]) -> None:
    data = b""
    for form, attribute, payload in wanted:
        tail = struct.pack("<H", len(payload)) + payload if form == 4 else (payload + b"\0\0")[:2]
        data += bytes([form, attribute]) + tail
    records = parse_records(data, 0, ".nv.info.fuzz")
    assert [r.attribute for r in records] == [attribute for _, attribute, _ in wanted]
    assert all(data[r.offset : r.offset + len(r.payload)] == r.payload for r in records)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 300), st.integers(0, 2**64 - 1))
def test_a_mangled_instruction_is_an_error_or_still_explained(index: int, word: int) -> None:
    entry = next(iter(Cubin.parse(_GOOD).entries.values()))
    index %= entry.text.size // 16
    data = bytearray(_GOOD)
    struct.pack_into("<Q", data, entry.text.offset + 16 * index, word)
    with pytest.MonkeyPatch.context() as patch:  # the oldest nvdisasm alone: each takes long to start
        patch.setattr(disassembly, "find_all", lambda name: sorted(find_all(name), key=lambda t: t.major)[:1])
        try:
            program = Program.parse(bytes(data))
        except SassafrasError as error:
            assert str(error)
        else:
            assert program.function().instructions[index].opcode


def test_an_unknown_opcode_names_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from sassafras.sass import opcodes

    monkeypatch.delitem(opcodes.OPCODES, "SHFL")
    with pytest.raises(DisassemblyError, match="unknown opcode") as caught:
        Program.parse(_GOOD)
    assert ".text.softmax+0x" in str(caught.value)
    assert "SHFL" in str(caught.value)


def test_an_empty_listing_is_an_error() -> None:
    with pytest.raises(DisassemblyError, match="no instructions"):
        parse("\t.target\tsm_90a\n")


def test_relocations_pin_the_kernel() -> None:
    source = """
    __device__ int table[4] = {1, 2, 3, 4};
    extern "C" __device__ int outside(int);
    extern "C" __global__ void k(int* a) { a[0] = table[a[1]] + (int)(size_t)&table; }
    """
    data = kernels.nvcc_cubin(
        source.replace('extern "C" __device__ int outside(int);', ""), flags=("-rdc=true",)
    )
    if data is None:
        pytest.skip("no nvcc")
    function = Program.parse(data).function("k")
    assert "relocations" in function.pinned_reason
