"""`.nv.info` sections: the records (EIATTR) that tell the driver about a kernel.

A record is a format byte, an attribute byte and two bytes that are either the value itself or the
size of the payload that follows. Some payloads hold offsets of instructions; when instructions
move, these must follow (observed: EXIT 0x1c, cooperative groups 0x28, warp-wide integer 0x31, mbarrier
0x39, loads of which not all bytes are used 0x44, spill annotations 0x55, calls of the driver's functions
0x46, atomics of 16 bits made of wider ones 0x2e). A record whose attribute we do not
know may hold offsets too: such a kernel is pinned rather than guessed about (`Function.pinned_reason`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from sassafras.core.errors import CubinError

_NO_VALUE, _BYTE, _HALF, _SIZED = 1, 2, 3, 4

REGCOUNT = 0x2F
KPARAM_INFO = 0x17
INDIRECT_BRANCH_TARGETS = 0x34
#: three u32: threads of a block in x, y and z, at most and exactly
MAX_THREADS, REQNTID = 0x05, 0x10

#: u32 offset of a load, u32 mask of the bytes that are used (0xff0f: of four words not the second): what
#: PTX's pragma "used_bytes_mask" says. cuobjdump names it; seen from ptxas 12.8 and 13
UNUSED_LOAD_BYTES = 0x44
ANNOTATIONS = 0x55
#: u32 offset of a CALL of a function that the driver brings (__assertfail, vprintf, malloc, ...)
SYSTEM_CALLS = 0x46
#: u32 offset of a load or CAS that does the work of an atomic of 16 bits, u32 general register in which the
#: address of the 16 bits stands then. Seen from ptxas 12.8 and 13 for each CAS and the load before its loop
EMULATED_ATOMICS = 0x2E
#: the one kind of annotation seen: a spill or a refill, u32 kind and u32 instruction offset
_SPILL_REFILL = 1

#: attribute -> (name, bytes of one entry of the payload, where in it the u32 instruction offset stands)
OFFSET_ATTRIBUTES: dict[int, tuple[str, int, int]] = {
    0x1C: ("EXIT_INSTR_OFFSETS", 4, 0),
    0x1D: ("S2RCTAID_INSTR_OFFSETS", 4, 0),
    0x28: ("COOP_GROUP_INSTR_OFFSETS", 4, 0),
    0x31: ("INT_WARP_WIDE_INSTR_OFFSETS", 4, 0),
    0x39: ("MBARRIER_INSTR_OFFSETS", 16, 0),
    EMULATED_ATOMICS: ("ATOM16_EMUL_INSTR_REG_MAP", 8, 0),
    UNUSED_LOAD_BYTES: ("UNUSED_LOAD_BYTE_OFFSET", 8, 0),
    SYSTEM_CALLS: ("SYSCALL_OFFSETS", 4, 0),
    ANNOTATIONS: ("ANNOTATIONS", 8, 4),
}

#: attributes that hold no instruction offset, named as cuobjdump 13.5 prints each number. Not
#: listed, and so refused, are those whose payload may hold offsets in a form not seen yet: 0x03, 0x14-0x16,
#: 0x25, 0x27, 0x2D, 0x3A, 0x40, 0x4B, 0x4F, 0x57, 0x59, 0x65, 0x6A, 0x6C.
PLAIN_ATTRIBUTES: dict[int, str] = {
    0x01: "PAD", 0x02: "IMAGE_SLOT", 0x04: "CTAIDZ_USED", 0x05: "MAX_THREADS", 0x06: "IMAGE_OFFSET",
    0x07: "IMAGE_SIZE", 0x08: "TEXTURE_NORMALIZED", 0x09: "SAMPLER_INIT", 0x0A: "PARAM_CBANK",
    0x0B: "SMEM_PARAM_OFFSETS", 0x0C: "CBANK_PARAM_OFFSETS", 0x0D: "SYNC_STACK",
    0x0E: "TEXID_SAMPID_MAP", 0x0F: "EXTERNS", 0x10: "REQNTID", 0x11: "FRAME_SIZE",
    0x12: "MIN_STACK_SIZE", 0x13: "SAMPLER_FORCE_UNNORMALIZED", 0x17: "KPARAM_INFO",
    0x18: "SMEM_PARAM_SIZE", 0x19: "CBANK_PARAM_SIZE", 0x1A: "QUERY_NUMATTRIB", 0x1B: "MAXREG_COUNT",
    0x1E: "CRS_STACK_SIZE", 0x1F: "NEED_CNP_WRAPPER", 0x20: "NEED_CNP_PATCH", 0x21: "EXPLICIT_CACHING",
    0x22: "ISTYPEP_USED", 0x23: "MAX_STACK_SIZE", 0x24: "SUQ_USED", 0x26: "LOAD_CACHE_REQUEST",
    0x29: "COOP_GROUP_MASK_REGIDS", 0x2A: "SW1850030_WAR", 0x2B: "WMMA_USED", 0x2C: "HAS_PRE_V10_OBJECT",
    0x2F: "REGCOUNT", 0x30: "SW2393858_WAR", 0x32: "SHARED_SCRATCH", 0x33: "STATISTICS",
    0x34: "INDIRECT_BRANCH_TARGETS", 0x35: "SW2861232_WAR", 0x36: "SW_WAR", 0x37: "CUDA_API_VERSION",
    0x38: "NUM_MBARRIERS", 0x3B: "SAM_REGION_STACK_SIZE", 0x3C: "PER_REG_TARGET_PERF_STATS",
    0x3D: "CTA_PER_CLUSTER", 0x3E: "EXPLICIT_CLUSTER", 0x3F: "MAX_CLUSTER_RANK",
    0x41: "RESERVED_SMEM_USED", 0x42: "RESERVED_SMEM_0_SIZE", 0x43: "UCODE_SECTION_DATA",
    0x45: "KPARAM_INFO_V2", 0x48: "GRAPHICS_GLOBAL_CBANK", 0x49: "SHADER_TYPE",
    0x4A: "VRC_CTA_INIT_COUNT", 0x4C: "NUM_BARRIERS", 0x4D: "TEXMODE_INDEPENDENT",
    0x4E: "PERF_STATISTICS", 0x50: "SPARSE_MMA_MASK", 0x51: "TCGEN05_1CTA_USED",
    0x52: "TCGEN05_2CTA_USED", 0x53: "GEN_ERRBAR_AT_EXIT", 0x54: "REG_RECONFIG",
    0x58: "STUB_FUNCTION_KIND", 0x5B: "BLOCKS_ARE_CLUSTERS", 0x5C: "SANITIZE", 0x5D: "SYSCALLS_FALLBACK",
    0x5E: "CUDA_REQ", 0x5F: "(unnamed; a 2-byte value)", 0x62: "CLUSTER_LAUNCH_CONTROL_USED",
    0x64: "MIN_PER_CTA_MEMORY_SIZE", 0x66: "LANGUAGE", 0x68: "GRID_ATTRIBUTES", 0x6B: "NVSAL_SW_WAR",
    0x6D: "PREEXIT_USED",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """One EIATTR record.

    Attributes:
        attribute: the EIATTR number.
        offset: file offset of the payload (or of the 2-byte value).
        payload: its bytes.
    """

    attribute: int
    offset: int
    payload: bytes

    def words(self) -> tuple[int, ...]:
        """The payload as little-endian u32s (a trailing partial word is left out)."""
        return struct.unpack_from(f"<{len(self.payload) // 4}I", self.payload)


def parse_records(data: bytes, start: int, section: str) -> tuple[Record, ...]:
    """Read the records of one `.nv.info` section.

    Args:
        data: the section's bytes.
        start: the section's file offset, so that records know theirs.
        section: its name, for errors.

    Raises:
        CubinError: a record is truncated or of an unknown format.
    """
    records, at = [], 0
    while at < len(data):
        where = f"{section}+{at:#x}"
        if at + 4 > len(data):
            raise CubinError("truncated attribute record", where=where)
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        if form in (_NO_VALUE, _BYTE, _HALF):
            records.append(Record(attribute, start + at + 2, data[at + 2 : at + 4]))
            at += 4
        elif form == _SIZED:
            if at + 4 + value > len(data):
                raise CubinError(f"attribute {attribute:#x} runs past its section", where=where)
            records.append(Record(attribute, start + at + 4, data[at + 4 : at + 4 + value]))
            at += 4 + value
        else:
            raise CubinError(f"unknown attribute format {form:#x}", where=where)
    return tuple(records)


def offset_slots(records: tuple[Record, ...]) -> list[tuple[int, int]]:
    """File positions of u32 instruction offsets, with the offsets found there.

    The mbarrier record is 16 bytes of which the first u32 is the instruction offset (observed).
    """
    slots = []
    for record in records:
        if record.attribute in OFFSET_ATTRIBUTES:
            _, step, first = OFFSET_ATTRIBUTES[record.attribute]
            for at in range(first, len(record.payload) - 3, step):
                slots.append((record.offset + at, struct.unpack_from("<I", record.payload, at)[0]))
    return slots


def system_calls(records: tuple[Record, ...]) -> frozenset[int]:
    """Offsets of the calls of functions that the driver brings."""
    return frozenset(offset for r in records if r.attribute == SYSTEM_CALLS for offset in r.words())


def named_beside(records: tuple[Record, ...]) -> dict[int, tuple[int, ...]]:
    """General registers whose values matter at an instruction that need not name them, by its offset."""
    found: dict[int, tuple[int, ...]] = {}
    for record in records:
        if record.attribute == EMULATED_ATOMICS:
            words = record.words()
            for offset, register in zip(words[::2], words[1::2], strict=False):
                found[offset] = (*found.get(offset, ()), register)
    return found


def unknown_attributes(records: tuple[Record, ...]) -> tuple[int, ...]:
    """Attributes that are in neither table, or of which an entry is of no known form; sorted."""
    known = OFFSET_ATTRIBUTES.keys() | PLAIN_ATTRIBUTES.keys()
    strange = {r.attribute for r in records if r.attribute in _FORMS and not _FORMS[r.attribute](r)}
    return tuple(sorted({r.attribute for r in records} - known | strange))


def _pairs(first: Callable[[int], bool], second: Callable[[int], bool]) -> Callable[[Record], bool]:
    """Entries of two words, each of the form that is known."""
    return lambda record: (
        len(record.payload) % 8 == 0
        and all(map(first, record.words()[::2]))
        and all(map(second, record.words()[1::2]))
    )


def _aligned(offset: int) -> bool:
    return offset % 16 == 0


def _instructions(record: Record) -> bool:
    return len(record.payload) % 4 == 0 and all(map(_aligned, record.words()))


#: attributes whose entries are looked at
_FORMS: dict[int, Callable[[Record], bool]] = {
    SYSTEM_CALLS: _instructions,
    EMULATED_ATOMICS: _pairs(_aligned, lambda register: register < 255),
    ANNOTATIONS: _pairs(lambda kind: kind == _SPILL_REFILL, lambda offset: True),
    # a mask of some, not all, of a load's bytes
    UNUSED_LOAD_BYTES: _pairs(_aligned, lambda mask: 0 < mask < 0xFFFF),
}
