"""`audit`: hazards of a kernel as it is, with no original to compare with.

The validator's rules are of two kinds. Most follow from the instructions alone: dependences, the table's
distances, scoreboards. These judge the kernel as its own original (`Validator.violations`). The others ask
for no less than the original had; here an absolute rule takes their place: distances that no compiled code
goes below, registers of asynchronous products (`products`), shared memory (`shared_memory`), registers that
nothing writes (`sass.undefined`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sassafras.sass import Program
from sassafras.sass.control import SCOREBOARDS, WAIT_SHIFT
from sassafras.sass.latency import LatencyTable
from sassafras.sass.undefined import undefined

from . import products, relied
from .dependences import KIND_NAMES, MEMORY
from .operands import spell
from .report import Violation
from .rules_jit import block_distances
from .shared_memory import Walk
from .validator import Validator

#: rule by kind of finding, for a reader who sees the finding alone
RULES: dict[str, str] = {
    "raw": "a fixed-latency result is there only so many cycles after its issue; no interlock waits for it",
    "waw": "the earlier of two results must be written before the later one",
    "war": "an operand must have been read before its register is overwritten",
    "spacing": "these two instructions need a distance in cycles that no register shows",
    "stall": "this opcode never stalls for less in compiled code",
    "scoreboard": "a result of variable latency is there, and an operand read late has been read, only after "
    "a wait for a scoreboard that covers it",
    "encoding": "compiled code never has such a control field on this opcode",
    "reuse": "a cached operand is read again only where its register still holds the value",
    "wgmma": "a product's registers are at work until WARPGROUP.DEPBAR has waited for its group",
    "copy": "shared memory that a copy writes holds the data only after DEPBAR has waited for its group",
    "barrier": "shared memory passes from one warp to another only over a barrier",
    "slot": "a slot of shared memory is free for the next copy only when every product that reads it is done",
    "undefined": "what an instruction reads, another one has written",
    "surplus": "nothing that follows needs this wait",
}
#: fences of memory with a scoreboard -> what compiled code always waits for them before
COMPLETED = {"MEMBAR": ("FENCE", "BAR"), "FENCE": ("BAR", "WARPGROUP")}


@dataclass(frozen=True, slots=True)
class KernelAudit:
    """What an audit says of one kernel.

    Attributes:
        kernel, arch: its name, and its architecture.
        instructions: how many it has.
        hazards: what is wrong; at most 16 of one rule.
        surplus: waits that protect nothing: all of them can go at once.
        unsupported: why nothing can be said of it, or ``""``.
    """

    kernel: str
    arch: str
    instructions: int
    hazards: tuple[Violation, ...]
    surplus: tuple[Violation, ...]
    unsupported: str = ""


def audit(cubin: bytes, kernel: str | None = None, table: LatencyTable | None = None) -> KernelAudit:
    """Find the hazards of one kernel from its code alone.

    Args:
        cubin: the file.
        kernel: name of the kernel; may be left out when there is only one.
        table: latency table; None for the one of the cubin's architecture.

    Raises:
        CubinError, DisassemblyError: the file cannot be read, or has no such kernel.
        LatencyTableError: there is no latency table for it.
    """
    program = Program.parse(cubin)
    name = program.function(kernel).name
    return Auditor(Validator(cubin, name, table, program=program)).report()


class Auditor:
    """Audits one kernel.

    Args:
        validator: of the kernel as it is.
    """

    def __init__(self, validator: Validator) -> None:
        self._validator = validator

    def report(self) -> KernelAudit:
        """Hazards, and waits that protect nothing where there is no hazard."""
        v = self._validator
        if v.unsupported:
            return KernelAudit(v.name, v.function.arch, len(v.function), (), (), v.unsupported)
        hazards = tuple(self.hazards())
        surplus = () if hazards else tuple(self.surplus())
        return KernelAudit(v.name, v.function.arch, len(v.function), hazards, surplus)

    def hazards(self) -> Iterator[Violation]:
        """What is wrong with the kernel."""
        v = self._validator
        a = v.analysis
        for i, register in undefined(v.function):
            yield Violation.at("undefined", i, f"reads {spell(register)}, which nothing writes")
        # more raises of a scoreboard than were measured: no compiled code was ever seen to fail by that
        found = v.violations(v.original.tobytes())
        yield from (one for one in found if one.kind not in ("count", "scoreboard"))
        if any(one.kind == "scoreboard" for one in found):
            yield from (one for one in relied.pending(v) if one.kind != "count")
        yield from self._closer_than_seen()
        yield from self._fields()
        yield from self._fences()
        yield from products.touched(a.code, a.effects, a.blocks)
        yield from Walk(a.code, a.operands, a.effects, a.blocks, v.function.block).findings()

    # -- distances ----------------------------------------------------------------------------------------

    def _closer_than_seen(self) -> Iterator[Violation]:
        """Pairs whose least distance is not known, closer than any of their class in compiled code."""
        a = self._validator.analysis
        times, lengths = a.original_times
        between = block_distances(lengths, a.flow, 64)
        for edges, inside in ((a.inside, True), (a.across, False)):
            for row, pair in enumerate(edges.pairs):
                if edges.known[row] or pair.kind == MEMORY or a.pinned[pair.first] or a.pinned[pair.second]:
                    continue
                kind = KIND_NAMES[pair.kind]
                first, second = a.keys[pair.first], a.keys[pair.second]
                least = relied.floor(a.table, kind, first, pair.slot, second, pair.other)
                cycles = int(times[pair.second] - times[pair.first])
                if not inside:
                    source, target = a.block_of[pair.first], a.block_of[pair.second]
                    cycles += int(lengths[source] + between[source, target])
                if least is not None and cycles < least:
                    text = (
                        f"{cycles} cycles after {a.code[pair.first].text} ({kind} of {spell(pair.register)}: "
                        f"{pair.slot} to {pair.other}); compiled code never goes below {least}"
                    )
                    yield Violation.at(kind, a.code[pair.second], text)

    def _fields(self) -> Iterator[Violation]:
        """Control fields that compiled code never has."""
        a = self._validator.analysis
        for i, kind in zip(a.code, a.kinds, strict=True):
            if kind.stores and not kind.loads and i.control.write_barrier is not None:
                yield Violation.at("encoding", i, "a store has no result to lower its write scoreboard")

    def _fences(self) -> Iterator[Violation]:
        """Fences of memory that may not have taken effect where others rely on it."""
        a = self._validator.analysis
        for n, setter in a.scoreboards.left():
            if a.code[n].base in COMPLETED.get(a.code[setter].base, ()):
                text = f"{a.code[setter].text} ({a.code[setter].offset:#x}) may not have taken effect here"
                yield Violation.at("scoreboard", a.code[n], text)

    # -- waits that protect nothing -----------------------------------------------------------------------

    def surplus(self) -> Iterator[Violation]:
        """Waits without which the kernel is still proved right, all of them together."""
        v = self._validator
        a = v.analysis
        data = bytearray(v.original.tobytes())
        for i in a.code:
            for scoreboard in range(SCOREBOARDS):
                if not i.control.wait_mask >> scoreboard & 1:
                    continue
                at = v.start + 16 * i.index + 8
                was = bytes(data[at : at + 8])
                bit = 1 << WAIT_SHIFT + scoreboard
                data[at : at + 8] = (int.from_bytes(was, "little") & ~bit).to_bytes(8, "little")
                if v.check(bytes(data)).ok:
                    yield Violation.at("surplus", i, f"waits for scoreboard {scoreboard}")
                else:
                    data[at : at + 8] = was
