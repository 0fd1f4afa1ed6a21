"""`Validator`: is this candidate the same program with legal timing?"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from sassafras.core.errors import SassafrasError
from sassafras.sass import ARCHS, Program
from sassafras.sass.control import STALL_SHIFT, WAIT_SHIFT
from sassafras.sass.latency import LatencyTable

from . import copies, memory, rules_jit
from . import reuse as reuse_windows
from .analysis import HORIZON, Analysis, Edges
from .classes import GROUPS, NEVER_WAIT
from .dependences import KIND_NAMES, MEMORY
from .operands import spell
from .pending_jit import AT_FENCE, MOST_RAISED, SETTER_TO_WAITER
from .report import Report, Violation
from .words import Words

#: how many violations of one rule are reported
_MOST = 16
#: why a copy stays behind the shuffles before it (`memory.padding`)
_PADDING = ": ptxas has three SHFL or @!PT LDS between shared memory and a copy"
#: violations of what is no schedule of the code: other words, or words in other blocks
_NO_SCHEDULE = ("instructions", "place")
#: opcodes that ptxas gives a stall and yield field of 0 (all of them are frozen)
_UNSTALLED = ("BRA", "NOP", "ERRBAR", "USETMAXREG")
#: other values of this 5-bit field that ptxas emits
_ENCODABLE = np.array([1 <= f <= 15 or 17 <= f <= 27 for f in range(32)])


def validate(
    original: bytes, candidate: bytes, kernel: str | None = None, table: LatencyTable | None = None
) -> Report:
    """Prove that `candidate` has the data flow of `original` and legal timing.

    Args:
        original: the compiler's cubin.
        candidate: its rescheduled copy.
        kernel: name of the rescheduled kernel; may be left out when there is only one.
        table: latency table; None for the one of the cubin's architecture.

    Raises:
        CubinError: the original is not a sound cubin, or has no such kernel.
        DisassemblyError: the original cannot be disassembled.
        LatencyTableError: there is no latency table for it.
    """
    return Validator(original, kernel, table).check(candidate)


class Validator:
    """Analyses the original once and then judges candidates in milliseconds.

    Args:
        original: the compiler's cubin.
        kernel_name: which of its kernels; None for the only one.
        table: another latency table than the architecture's own.
        program: the original as it was parsed, where the caller has it.

    Errors are those of `validate`.

    Attributes:
        unsupported: why nothing can be said of this kernel's candidates, or ``""``.
        pinned: (instruction, why) where the two readings of effects disagree: these may not move.
        copies: proved copies of the original, whose schedules are accepted as well.
        original, start, end: the cubin's bytes, and where in it the kernel's code begins and ends.
        elsewhere: the bytes outside the code, as `rest` gives them.
        slots: (file offset, instruction, bytes behind it) of the offset records.
        windows: what stands up to each cached operand's reader.
        latencies: the table in use.
    """

    def __init__(
        self,
        original: bytes,
        kernel_name: str | None = None,
        table: LatencyTable | None = None,
        _first: Validator | None = None,
        _place: list[int] | None = None,
        *,
        program: Program | None = None,
    ) -> None:
        self.copies: list[Validator] = []
        self.analysis: Analysis
        program = program or Program.parse(original)
        function = program.function(kernel_name)
        self.name = function.name
        self.function = function
        self.original = np.frombuffer(original, dtype=np.uint8)
        self.unsupported = function.pinned_reason
        self.pinned: list[tuple[int, str]] = []
        if not self.unsupported and program.arch not in ARCHS:
            self.unsupported = f"architecture {program.arch} is not known"
        if self.unsupported:
            return
        if table is None:
            table = LatencyTable.load(ARCHS[program.arch].table)
        self.latencies = table
        try:
            self.analysis = Analysis(function, table, _first.analysis if _first else None, _place)
        except SassafrasError as error:
            self.unsupported = str(error)
            return
        a = self.analysis
        self.pinned = [
            (n, a.effects[n].problem or a.code[n].unexplained) for n in range(a.count) if a.pinned[n]
        ]
        self.start = function.text_offset
        self.end = self.start + 16 * a.count
        self.elsewhere = self.rest(self.original)
        self.slots = [(at, offset // 16, offset % 16) for at, offset in function.offset_slots]
        self._words = Words(a.words)
        self._field = (a.original_high >> np.uint64(STALL_SHIFT)) & np.uint64(0x1F)
        self._reuse = (a.original_high >> np.uint64(58)) & np.uint64(0xF)
        ends = [b.end for b in a.blocks for _ in range(b.start, b.end)]
        self.windows = reuse_windows.windows(a.code, a.effects, ends)
        self._zero_field = np.array([i.base in _UNSTALLED for i in a.code]) & (self._field == 0)
        # control fields that this instruction can have: what it has, and what its kind is known to take
        controls = [i.control for i in a.code]
        late = np.array([k.variable and not k.fence for k in a.kinds])
        both = [(e.writes, e.reads) for e in a.effects]
        # nothing releases a store's write scoreboard: eleven random mutants with one hung on an H200
        writes, reads = (late & [bool(side) for side in sides] for sides in zip(*both, strict=True))
        self._may_write = writes | [c.write_barrier is not None for c in controls]
        self._may_read = reads | [c.read_barrier is not None for c in controls]
        never = [i.base in NEVER_WAIT or i.opcode in NEVER_WAIT for i in a.code]
        self._may_wait = ~np.array(never) | [c.wait_mask != 0 for c in controls]
        self._scoreboard_named = np.array([i.base == "DEPBAR" or i.base in GROUPS for i in a.code])

    def check(self, candidate: bytes, via: Callable[[Validator], None] | None = None) -> Report:
        """Judge one candidate cubin. Never raises for a candidate's fault.

        Args:
            via: called where the same opcodes are no schedule of the original; proves copies of it
                (`schedule.spaces.prove_copies`), of which the candidate may be a schedule.
        """

        def look() -> list[Violation]:
            found = self.violations(candidate)
            if via is None or not found or found[0].kind not in _NO_SCHEDULE:
                return found
            if self._opcodes(candidate) != self._opcodes(self.original.tobytes()):
                return found
            via(self)
            return self.violations(candidate)

        return self._report(look)

    def _opcodes(self, cubin: bytes) -> bytes:
        """Of the kernel's code, in no order."""
        words = np.frombuffer(cubin, dtype="<u8", count=2 * self.analysis.count, offset=self.start)
        return np.sort(words[::2] & np.uint64(0xFFF)).tobytes()

    def via(self, copy: bytes) -> Report:
        """Prove a copy of the original under other register names, or with instructions moved over branches,
        so that its schedules can be judged.

        The copy otherwise keeps the original's order; its control codes are its own. Once it is proved,
        `check` accepts schedules of it as well as schedules of the original.
        """
        return self._report(lambda: copies.prove(self, copy))

    def _report(self, look: Callable[[], list[Violation]]) -> Report:
        begin = time.perf_counter()
        found = [Violation("unsupported", self.name, self.unsupported)] if self.unsupported else look()
        return Report(not found, tuple(found), time.perf_counter() - begin)

    # -- rules, most basic first --------------------------------------------------------------------------

    def violations(self, candidate: bytes) -> list[Violation]:
        """What is wrong with a candidate of a supported kernel."""
        data = np.frombuffer(candidate, dtype=np.uint8)
        if len(data) != len(self.original):
            return [Violation("bytes", "cubin", f"{len(data)} bytes, the original has {len(self.original)}")]
        a = self.analysis
        code = np.frombuffer(candidate, dtype="<u8", count=2 * a.count, offset=self.start).reshape(-1, 2)
        order, failed = self._words.order(code)
        if failed >= 0:
            why = "this word is not in the original, or too often"
            found = [Violation("instructions", f"+{16 * failed:#x}", why)]
        else:
            found = self._same_places(order)
        if found:  # no schedule of this code; perhaps one of a copy, whose words may all be the same
            for other in self.copies:
                theirs = other.violations(candidate)
                if not theirs or theirs[0].kind not in _NO_SCHEDULE:
                    return theirs
            return found
        high = np.ascontiguousarray(code[:, 1])
        place = np.empty(a.count, dtype=np.int32)
        place[order] = np.arange(a.count, dtype=np.int32)
        found = self._same_bytes(data, candidate, place)
        found += self._control(order, high)
        found += self._timing(order, place, high)
        return found

    def rest(self, data: np.ndarray) -> np.ndarray:
        """Everything but the kernel's code and its offset records."""
        rest = data.copy()
        rest[self.start : self.end] = 0
        for at, _ in self.function.offset_slots:
            rest[at : at + 4] = 0
        return rest

    def _same_places(self, order: np.ndarray) -> list[Violation]:
        a = self.analysis
        wrong = np.flatnonzero(a.region[order] != a.region)
        out = []
        for position in wrong[:_MOST]:
            index = int(order[position])
            what = "moved" if a.fence[index] else "crossed a fence or the end of its block"
            out.append(Violation("place", self._where(position, order), what))
        return out

    def _same_bytes(self, data: np.ndarray, candidate: bytes, place: np.ndarray) -> list[Violation]:
        found = []
        differ = np.flatnonzero(self.rest(data) != self.elsewhere)
        if len(differ):
            found.append(
                Violation(
                    "bytes", f"file offset {int(differ[0]):#x}", "changed outside code and .nv.info offsets"
                )
            )
        for at, index, rest in self.slots:
            expected = (int(place[index]) if index < len(place) else index) * 16 + rest
            (actual,) = struct.unpack_from("<I", candidate, at)
            if actual != expected:
                found.append(
                    Violation(
                        "info",
                        f"file offset {at:#x}",
                        f".nv.info says {actual:#x}, the instruction is at {expected:#x}",
                    )
                )
        return found

    def _control(self, order: np.ndarray, high: np.ndarray) -> list[Violation]:
        """Fields that must be encodable, frozen ones, and reuse."""
        a = self.analysis
        found: list[Violation] = []

        def report(kind: str, wrong: np.ndarray, message: str) -> None:
            for position in np.flatnonzero(wrong)[:_MOST]:
                found.append(Violation(kind, self._where(int(position), order), message))

        field = ((high >> np.uint64(STALL_SHIFT)) & np.uint64(0x1F)).astype(np.int64)
        encodable = _ENCODABLE[field] | ((field == 0) & self._zero_field[order])
        report("encoding", ~encodable, "stall and yield are a combination that ptxas never emits")
        report("encoding", (high >> np.uint64(62)) != 0, "bits 126-127 must be zero")
        write = (high >> np.uint64(46)) & np.uint64(7)
        read = (high >> np.uint64(49)) & np.uint64(7)
        report("encoding", (write == 6) | (read == 6), "there is no scoreboard 6")
        waits = (high >> np.uint64(WAIT_SHIFT)) & np.uint64(0x3F) != 0
        unknown = ((write != 7) & ~self._may_write[order]) | ((read != 7) & ~self._may_read[order])
        unknown |= waits & ~self._may_wait[order]
        report("encoding", unknown, "a control field that this opcode never has")
        stall = field & 0xF
        frozen = a.fence[order] & (stall < (self._field[order].astype(np.int64) & 0xF))
        report("stall", frozen, "a control or fence instruction may not stall for less than in the original")
        report(
            "stall", (stall < a.own_stall[order]) & (field != 0), "stalls for less than this opcode ever does"
        )
        original = a.original_high[order]
        moved = self._scoreboard_named[order] & (((high ^ original) >> np.uint64(46)) & np.uint64(0x3F) != 0)
        report("scoreboard", moved, "names a scoreboard in its operands: its barriers are fixed")
        reuse = (high >> np.uint64(58)) & np.uint64(0xF)
        stays = reuse_windows.kept(order, *self.windows)
        kept = stays & ((reuse & ~self._reuse[order]) == 0) & (field >= 16)
        report(
            "reuse",
            (reuse != 0) & ~kept,
            "what stands up to the cached operand's reader changed: it may read a stale value",
        )
        return found

    def _timing(self, order: np.ndarray, place: np.ndarray, high: np.ndarray) -> list[Violation]:
        a = self.analysis
        stall = ((high >> np.uint64(STALL_SHIFT)) & np.uint64(0xF)).astype(np.uint8)
        times, lengths = a.issue_times(stall)
        found = self._inside(order, place, times)
        if any(v.kind in ("order", "memory") for v in found):
            return found
        across = a.across
        source, target = a.block_of[across.first], a.block_of[across.second]
        between = rules_jit.block_distances(lengths, a.flow, HORIZON)[source, target]
        cycles = lengths[source] - times[place[across.first]] + between + times[place[across.second]]
        for row in np.flatnonzero(cycles < across.need)[:_MOST].tolist():
            found.append(self._too_close(across, row, int(cycles[row]), order, place))
        found += self._pending(order, high, times, lengths)
        return found

    def _inside(self, order: np.ndarray, place: np.ndarray, times: np.ndarray) -> list[Violation]:
        """Pairs within blocks that are out of order or too close, then memory operations out of order."""
        a, inside = self.analysis, self.analysis.inside
        first, second = place[inside.first], place[inside.second]
        cycles = times[second] - times[first]
        found: list[Violation] = []
        for row in np.flatnonzero((first >= second) | (cycles < inside.need))[:_MOST].tolist():
            pair = inside.pairs[row]
            if first[row] < second[row]:
                found.append(self._too_close(inside, row, int(cycles[row]), order, place))
            elif pair.kind == MEMORY:
                found.append(self._behind(pair.first, pair.second, order, place, pair.slot and _PADDING))
            else:
                why = f" ({KIND_NAMES[pair.kind]} of {spell(pair.register)})"
                found.append(self._behind(pair.first, pair.second, order, place, why))
        rows = np.empty(_MOST, dtype=np.int32)
        rows = rows[: rules_jit.overtaken(a.memory, place, rows)]
        for before, behind in memory.pairs(a.memory, rows.tolist(), place):
            if not ((inside.first == before) & (inside.second == behind)).any():  # else it is named above
                found.append(self._behind(before, behind, order, place))
        return found[:_MOST]

    def _behind(
        self, first: int, second: int, order: np.ndarray, place: np.ndarray, why: str = ""
    ) -> Violation:
        text = f"must stay behind {self.analysis.code[first].text}{why}"
        kind = "memory" if why in ("", _PADDING) else "order"
        return Violation(kind, self._where(place[second], order), text)

    def _pending(
        self, order: np.ndarray, high: np.ndarray, times: np.ndarray, lengths: np.ndarray
    ) -> list[Violation]:
        a = self.analysis
        rows = np.empty((_MOST, 2), dtype=np.int32)
        count = a.scoreboards.pending(order, high, times, lengths, rows)
        return self.told(rows[:count].tolist(), order)

    def told(self, rows: Iterable[Sequence[int]], order: np.ndarray) -> list[Violation]:
        """What is wrong with scoreboards, in words.

        Args:
            rows: (position, code) as `pending_jit.scoreboards` gives them.
            order: the original's instruction by position.
        """
        a = self.analysis
        found = []
        for position, code in rows:
            kind = "scoreboard"
            if code < -10:
                kind = "count"
                message = f"raises scoreboard {-11 - code} more than {MOST_RAISED} times without a wait"
            elif code < 0:
                message = (
                    f"waits for scoreboard {-1 - code} less than {SETTER_TO_WAITER} cycles after its setter"
                )
            elif code >= AT_FENCE:
                producer = a.code[int(a.scoreboards.tracked[code - AT_FENCE])]
                message = (
                    f"{producer.text} ({producer.offset:#x}) may be pending here, in the original it is not"
                )
            else:
                producer = a.code[int(a.scoreboards.tracked[code >> 1])]
                what = "reads of" if code & 1 else "result of"
                message = f"{what} {producer.text} ({producer.offset:#x}) may be pending"
            found.append(Violation(kind, self._where(position, order), message))
        return found

    # -- words --------------------------------------------------------------------------------------------

    def _where(self, position: int, order: np.ndarray) -> str:
        return f"+{16 * int(position):#x}: {self.analysis.code[int(order[position])].text}"

    def _too_close(
        self, edges: Edges, row: int, cycles: int, order: np.ndarray, place: np.ndarray
    ) -> Violation:
        pair = edges.pairs[row]
        what = f"{cycles} cycles after {self.analysis.code[pair.first].text}, needs {edges.need[row]}"
        if pair.kind != MEMORY:
            what += f" ({KIND_NAMES[pair.kind]} of {spell(pair.register)}: {pair.slot} to {pair.other})"
        if not edges.known[row]:
            what += ", the original's, as no smaller one is known to be safe"
        name = "spacing" if pair.kind == MEMORY else KIND_NAMES[pair.kind]
        return Violation(name, self._where(int(place[pair.second]), order), what)
