"""Checks that a tuned cubin may replace the original: all facts that a launch relies on are equal.

A schedule of the original's code has all its attributes. Another output of ptxas has its own layout of the
file, registers and stack, which the driver reads from the file that it loads; names, parameters, threads,
clusters and data are what a launch relies on.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sassafras.core.errors import SassafrasError

if TYPE_CHECKING:
    from sassafras.core import Kernel
    from sassafras.sass import Cubin
    from sassafras.sass.cubin import Section
    from sassafras.store import Winner

#: registers of an SM, and the most a block may have, on sm_80 to sm_120 (CUDA C++ Programming Guide)
SM_REGISTERS = 65_536
#: registers are given to a warp in portions of this many, and warps to the SM's partitions
_PORTION, _PARTITIONS = 256, 4
#: warps that an SM holds; sm_86, sm_89 and sm_120 hold 48, where this refuses a little more than it must
_SM_WARPS = 64
#: (ABI version, OS ABI) of files by ptxas 12 and 13: the driver takes both
_LAYOUTS = {(7, 0x33), (8, 0x41)}
#: what each compilation may have of its own: sizes of stacks, the cap on registers, the API's version,
#: barriers that the code names, and what ptxas 13 adds
_OWN = {0x11, 0x12, 0x23, 0x1B, 0x37, 0x4C, 0x5F}
#: its payload begins with the number of a symbol
_PARAM_CBANK = 0x0A
#: sections that hold data which the code reads by position
_DATA = re.compile(r"\.nv\.(constant|shared|global|local)")


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """How a program launches a kernel, as far as it is known (None: unknown, not compared).

    Attributes:
        name: entry name.
        sm: compute capability times ten.
        threads: threads a block.
        shared_bytes: dynamic shared memory a block.
        ctas: blocks a cluster.
        scratch_bytes: Triton's global scratch a block.
        registers: registers that an SM has.
    """

    name: str | None = None
    sm: int | None = None
    threads: int | None = None
    shared_bytes: int | None = None
    ctas: int | None = None
    scratch_bytes: int | None = None
    registers: int = SM_REGISTERS


def refusal(winner: Winner, original: bytes, launch: LaunchFacts) -> str | None:
    """Why the winner must not be used for this launch of `original`, or None where it may."""
    if winner.interval.low <= max(winner.null_interval.high, 1.0):
        return "the stored figures show no speed-up beyond the null experiment"
    if winner.samples < 1:
        return "no launch of the tuned cubin was ever compared"
    schedule = winner.facts.get("validator", "legal") == "legal"
    polls = schedule or winner.facts.get("polls", True) is not False
    return _other_launch(winner.kernel, launch) or other_code(
        winner.kernel, original, launch, schedule, polls
    )


def _other_launch(kernel: Kernel, launch: LaunchFacts) -> str | None:
    found = re.match(r"sm_(\d+)", kernel.arch)
    cluster = kernel.cluster[0] * kernel.cluster[1] * kernel.cluster[2]
    facts = {
        "name": (kernel.name, launch.name),
        "architecture": (int(found[1]) if found else kernel.arch, launch.sm),
        "threads a block": (kernel.threads, launch.threads),
        "dynamic shared memory": (kernel.shared_bytes, launch.shared_bytes),
        "cluster size": (cluster, launch.ctas),
        "global scratch": (kernel.scratch_bytes, launch.scratch_bytes),
    }
    for what, (stored, here) in facts.items():
        if here is not None and stored != here:
            return f"other launch facts: {what} is {here} here, {stored} in the store"
    return None


def other_code(
    kernel: Kernel, original: bytes, launch: LaunchFacts, schedule: bool = False, polls: bool = True
) -> str | None:
    """Why this kernel's cubin cannot stand in for `original`, as far as the code's own facts go; or None.

    Args:
        schedule: it is said to be a schedule of the original's code, so that every attribute has to be equal.
        polls: blocks of the original may wait for one another (`sass.polling`), so that as many must fit.
    """
    from sassafras.sass import Cubin

    try:
        before, after = Cubin.parse(original), Cubin.parse(kernel.cubin)
        return _difference(before, after, kernel, launch, schedule, polls)
    except SassafrasError as error:
        return f"the cubin cannot be read: {error}"


def _difference(
    before: Cubin, after: Cubin, kernel: Kernel, launch: LaunchFacts, schedule: bool, polls: bool
) -> str | None:
    layouts = {(cubin.abi_version, cubin.data[7]) for cubin in (before, after)}
    if before.sm != after.sm or (len(layouts) > 1 and (schedule or not layouts <= _LAYOUTS)):
        return "the tuned cubin is for another architecture or of another layout"
    if set(before.entries) != set(after.entries) or kernel.name not in after.entries:
        return "the tuned cubin holds other kernels"
    if _data(before) != _data(after):
        return "constant, shared, global or local data differ"
    for name in before.entries:
        mine, its = (_facts(cubin.entries[name].info, schedule) for cubin in (after, before))
        if mine != its:
            return f"parameters or attributes of {name} differ"
    if _shared_facts(before, schedule) != _shared_facts(after, schedule):
        return "stack sizes or other attributes differ"
    needs, needed = after.entries[kernel.name].registers, before.entries[kernel.name].registers
    if needs > 255:
        return f"the tuned cubin needs {needs} registers"
    fits, fitted = (resident_blocks(n, kernel.threads, launch.registers) for n in (needs, needed))
    if fits < 1:
        return f"{needs} registers a thread do not fit {kernel.threads} threads a block"
    if fits < fitted and polls:
        return f"{needs} registers a thread leave {fits} blocks an SM, the original's {needed} leave {fitted}"
    return None


def resident_blocks(registers: int, threads: int, sm_registers: int = SM_REGISTERS) -> int:
    """Blocks that an SM can hold as far as its registers and its places for warps go."""
    warps = -(-threads // 32)
    a_warp = max(_PORTION, -(-registers * 32 // _PORTION) * _PORTION)
    return min(sm_registers // _PARTITIONS // a_warp * _PARTITIONS, _SM_WARPS) // warps


def _data(cubin: Cubin) -> dict[str, tuple[str, int, bytes]]:
    kept: dict[str, tuple[str, int, bytes]] = {}
    for section in cubin.sections:
        if _DATA.match(section.name):
            kept[section.name] = (section.type, section.size, section.data)
    return kept


def _facts(records: tuple[object, ...], schedule: bool) -> Counter[tuple[int, bytes]]:
    """Attribute records, less those that say where instructions stand; of what is no schedule also less what
    each compilation has of its own."""
    from sassafras.sass.eiattr import OFFSET_ATTRIBUTES, REGCOUNT, Record

    found = Counter[tuple[int, bytes]]()
    left_out = {*OFFSET_ATTRIBUTES, REGCOUNT, *(() if schedule else _OWN)}
    for record in records:
        if isinstance(record, Record) and record.attribute not in left_out:
            numbered = record.attribute == _PARAM_CBANK and not schedule
            found[record.attribute, record.payload[4:] if numbered else record.payload] += 1
    return found


def _shared_facts(cubin: Cubin, schedule: bool) -> Counter[tuple[int, bytes]]:
    from sassafras.sass.eiattr import parse_records

    total: Counter[tuple[int, bytes]] = Counter()
    section: Section
    for section in cubin.sections:
        if section.name == ".nv.info":
            total += _facts(parse_records(section.data, section.offset, section.name), schedule)
    return total


def outdated(winner: Winner) -> bool:
    """Whether earlier rules of the validator approved its schedule."""
    from sassafras.core import VALIDATOR_RULES

    scheduled = winner.facts.get("validator") == "legal" or "rules" in winner.facts
    return scheduled and winner.facts.get("rules") != VALIDATOR_RULES


def revalidate(winner: Winner, original: bytes) -> str | None:
    """Why the validator refuses the tuned cubin, or None where it proves it legal."""
    if winner.facts.get("validator", "legal") != "legal":
        return "it is no schedule of this code, and only that could be proved again here"
    try:
        from sassafras.schedule.spaces import prove_copies
        from sassafras.validate import Validator

        kernel = winner.kernel.with_cubin(original)
        report = Validator(original, kernel.name).check(
            winner.kernel.cubin, via=partial(prove_copies, kernel)
        )
        if report.ok:
            return None
        return "the validator refuses it: " + "; ".join(str(v) for v in list(report.violations)[:2])
    except ImportError as error:
        return f"it cannot be validated again here: {error}"
    except Exception as error:
        return f"validating it again failed: {type(error).__name__}: {error}"
