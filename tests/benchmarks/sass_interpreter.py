"""A warp of sm_90 on the CPU, for the few instructions that the latency kernels' frame and a part of their
probes use.

Time is counted by stall counts. What an instruction writes is seen by a later one only after the latency
that the test gives for the two, or, with a write barrier, once something has waited for it; before, the old
value is read. So a pair that is too close computes from stale registers here as it does on a GPU.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from sassafras.sass import Function, Instruction

Latency = Callable[[Instruction, Instruction, str], int]
LANES = 32
_SETTLED = 64
_PLACE = re.compile(r"^(-|~|!)?(\|)?(UR|UP|R|P)(\d+|Z|T)(\|)?(\.64)?(\.H[01]_H[01])?$")


class Warp:
    """One warp of one block.

    Args:
        function: what it runs.
        latency: (producer, consumer, register) -> cycles until the consumer may be issued.
        constants: 32-bit words of bank 0 by offset.
        thread, block: of its first lane.
        memory: global memory, shared by warps: address -> word.
    """

    def __init__(
        self, function: Function, latency: Latency, constants: dict[int, int], memory: dict[int, int],
        thread: int = 0, block: int = 0,
    ) -> None:  # fmt: skip
        self.code, self.labels, self.latency = function.instructions, function.labels, latency
        self.constants, self.memory, self.shared = constants, memory, dict[int, int]()
        self.local = [dict[int, int]() for _ in range(LANES)]
        self.thread, self.block, self.time = thread, block, 0
        self.values: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(LANES, np.uint32))
        self.pending: dict[str, list[tuple[int, Instruction, np.ndarray]]] = defaultdict(list)
        self.late: dict[int, list[Callable[[], None]]] = defaultdict(list)
        self.now: Instruction = self.code[0]
        self.executed = 0

    def run(self, most: int = 2_000_000) -> None:
        """Run to EXIT. Raises AssertionError for an instruction or operand that is not known here."""
        at = 0
        while True:
            self.now = i = self.code[at]
            for barrier in range(6):
                if i.control.wait_mask >> barrier & 1:
                    for finish in self.late.pop(barrier, []):
                        finish()
            self.executed += 1
            assert self.executed < most, "does not end"
            guard = self._guard(i.guard)
            name = i.base
            if name == "EXIT" and guard.all():
                return
            if name == "BRA":
                assert guard.all() or not guard.any(), f"a branch that diverges: {i.text}"
                if guard.any():
                    label = re.search(r"\((.*)\)", i.operands[-1])
                    assert label is not None
                    at = self.labels[label[1]] // 16
                    self.time += max(1, i.control.stall)
                    continue
            elif name not in ("NOP", "BAR"):
                self._execute(i, guard)
            self.time += max(1, i.control.stall)
            at += 1

    # -- registers ----------------------------------------------------------------------------------------

    def read(self, register: str) -> np.ndarray:
        """The value that the instruction being issued sees."""
        entries = self.pending[register]
        while entries and self.time - entries[0][0] > _SETTLED:
            self.values[register] = entries.pop(0)[2]
        value = self.values[register]
        for when, producer, result in entries:
            if self.time - when >= self.latency(producer, self.now, register):
                value = result
        return value

    def write(self, register: str, value: np.ndarray, guard: np.ndarray) -> None:
        """Give a register a value, seen when its time has come."""
        if register.endswith(("Z", "T")):
            return
        before = self.pending[register][-1][2] if self.pending[register] else self.values[register]
        result = np.where(guard, value, before).astype(np.uint32)
        barrier = self.now.control.write_barrier
        if barrier is not None:
            self.late[barrier].append(lambda: self._land(register, result))
        else:
            self.pending[register].append((self.time, self.now, result))

    def _land(self, register: str, result: np.ndarray) -> None:
        self.pending[register].clear()
        self.values[register] = result

    def _guard(self, text: str) -> np.ndarray:
        return self.flag(text) if text else np.ones(LANES, bool)

    def flag(self, text: str) -> np.ndarray:
        """A predicate operand."""
        name = text.lstrip("!")
        value = np.ones(LANES, bool) if name.endswith("T") else self.read(name).astype(bool)
        return ~value if text.startswith("!") else value

    def source(self, text: str, shift: int = 0) -> np.ndarray:
        """A 32-bit source operand; `shift` registers further on."""
        if re.match(r"^-?0x", text):
            return np.full(LANES, int(text, 16) & 0xFFFFFFFF, np.uint32)
        if found := re.match(r"^c\[0x0\]\[(0x[0-9a-f]+)\]$", text):
            return np.full(LANES, self.constants.get(int(found[1], 16) + 4 * shift, 0), np.uint32)
        found = _PLACE.match(text)
        assert found is not None, f"operand {text} of {self.now.text}"
        if found[4] == "Z":
            value = np.zeros(LANES, np.uint32)
        else:
            value = self.read(f"{found[3]}{int(found[4]) + shift}")
        assert found[1] != "~"
        return (0 - value.astype(np.int64)).astype(np.uint32) if found[1] == "-" else value

    def wide(self, text: str) -> np.ndarray:
        """A 64-bit source operand."""
        return self.source(text).astype(np.uint64) | self.source(text, 1).astype(np.uint64) << np.uint64(32)

    # -- instructions -------------------------------------------------------------------------------------

    def _execute(self, i: Instruction, guard: np.ndarray) -> None:
        o = list(i.operands)
        name, mods = i.base, i.opcode.split(".")[1:]
        s = self.source
        if name.lstrip("U") in ("ISETP", "FSETP"):
            self._compare(i, guard)
            return
        if name in ("LDS", "LDG", "LDL", "STS", "STG", "STL", "REDG"):
            self._access(i, guard)
            return
        carry: np.ndarray | None = None
        if name in ("MOV", "UMOV", "R2UR"):
            value = s(o[1])
            if name == "R2UR":
                value = np.full(LANES, value[0], np.uint32)
        elif name in ("CS2R", "S2R"):
            value = {
                "SR_CLOCKLO": np.full(LANES, self.time), "SR_TID.X": self.thread + np.arange(LANES),
                "SR_CTAID.X": np.full(LANES, self.block),
            }[o[1]]  # fmt: skip
        elif name in ("LDC", "ULDC"):
            value = s(o[1])
            if "64" in mods:
                self.write(_next(o[0]), s(o[1], 1), guard)
        elif name in ("IMAD", "UIMAD"):
            if "WIDE" in mods:
                product = s(o[1]).astype(np.uint64) * s(o[2]).astype(np.uint64) + self.wide(o[3])
                self.write(_next(o[0]), (product >> np.uint64(32)).astype(np.uint32), guard)
                value = product
            else:
                value = s(o[1]).astype(np.uint64) * s(o[2]).astype(np.uint64) + s(o[3]).astype(np.uint64)
                if "X" in mods:
                    value = value + self.flag(o[4])
        elif name == "UIADD3" and mods == ["64"]:
            both = self.wide(o[1]) + self.wide(o[2]) + self.wide(o[3])
            self.write(_next(o[0]), (both >> np.uint64(32)).astype(np.uint32), guard)
            value = both
        elif name in ("IADD3", "UIADD3"):
            outputs = [p for p in o[1:3] if re.match(r"^U?P(\d|T)$", p)]
            rest = o[1 + len(outputs) :]
            total = sum(s(r).astype(np.uint64) for r in rest[:3])
            if "X" in mods:
                total = total + self.flag(rest[3]) + self.flag(rest[4])
            if outputs:
                carry = np.asarray(total) >> np.uint64(32)
                self.write(outputs[0], carry >= 1, guard)
                for extra in outputs[1:]:
                    self.write(extra, carry >= 2, guard)
            value = np.asarray(total)
        elif name in ("LOP3", "ULOP3"):
            flags = [o.pop(0)] if o[0].lstrip("U").startswith("P") else []
            a, b, c = s(o[1]), s(o[2]), s(o[3])
            value = np.zeros(LANES, np.uint32)
            for bit in range(8):
                if int(o[4], 16) >> bit & 1:
                    value |= (a if bit & 4 else ~a) & (b if bit & 2 else ~b) & (c if bit & 1 else ~c)
            for result in flags:
                self.write(result, (value != 0) | self.flag(o[5]), guard)
        elif name in ("SHF", "USHF"):
            count = s(o[2]) & np.uint32(31)
            both = s(o[3]).astype(np.uint64) << np.uint64(32) | s(o[1]).astype(np.uint64)
            if "L" in mods:
                assert "HI" not in mods
                value = s(o[1]) << count
            else:
                assert "HI" in mods
                value = both >> np.uint64(32) >> count.astype(np.uint64)
        elif name in ("SEL", "USEL"):
            value = np.where(self.flag(o[3]), s(o[1]), s(o[2]))
        elif name == "VIMNMX":
            assert o[3] in ("PT", "!PT") and "U32" in mods
            value = (np.minimum if o[3] == "PT" else np.maximum)(s(o[1]), s(o[2]))
        elif name in ("FADD", "FMUL", "FFMA"):
            f = [s(x).view(np.float32) for x in o[1:]]
            value = (f[0] + f[1] if name == "FADD" else f[0] * f[1] + (f[2] if name == "FFMA" else 0)).view(
                np.uint32
            )
        elif name == "POPC":
            value = np.array([int(x).bit_count() for x in s(o[1])])
        elif name == "BREV":
            value = np.array([int(f"{int(x):032b}"[::-1], 2) for x in s(o[1])])
        elif name == "REDUX":
            how = {"SUM": np.sum, "MAX": np.max}[mods[0]]
            value = np.full(LANES, int(how(s(o[1]).astype(np.uint64))) & 0xFFFFFFFF)
        else:
            raise AssertionError(f"not known here: {i.text}")
        self.write(
            o[0], (np.asarray(value).astype(np.uint64) & np.uint64(0xFFFFFFFF)).astype(np.uint32), guard
        )

    def _compare(self, i: Instruction, guard: np.ndarray) -> None:
        o, mods = i.operands, i.opcode.split(".")
        assert "EX" not in mods and mods[2 if "U32" not in mods else 3] == "AND", i.text
        kind = np.float32 if i.base == "FSETP" else np.uint32 if "U32" in mods else np.int32
        a, b = self.source(o[2]).view(kind), self.source(o[3]).view(kind)
        result = {"NE": a != b, "NEU": a != b, "GE": a >= b, "GT": a > b, "LT": a < b, "EQ": a == b}[mods[1]]
        third = self.flag(o[4])
        self.write(o[0], result & third, guard)
        self.write(o[1], ~result & third, guard)

    def _access(self, i: Instruction, guard: np.ndarray) -> None:
        loads, mods = i.base.startswith("LD"), i.opcode.split(".")
        place, data = (i.operands[1], i.operands[0]) if loads else (i.operands[0], i.operands[1])
        inside = re.search(r"\[([^\[\]]*)\]$", place)
        assert inside is not None
        where = np.zeros(LANES, np.uint64)
        for part in re.sub(r"\+-", "+", inside[1]).split("+"):
            where = where + (
                self.wide(part[:-3]) if part.endswith(".64") else self.source(part).astype(np.uint64)
            )
        memories = (
            self.local if i.base[-1] == "L" else [self.memory if i.base[-1] == "G" else self.shared] * LANES
        )
        for n in range(4 if "128" in mods else 2 if "64" in mods else 1):
            register = re.sub(r"\d+", lambda m, n=n: str(int(m[0]) + n), data)
            addresses = [int(w) + 4 * n for w in where]
            if loads:
                found = [memory.get(a, 0) for memory, a in zip(memories, addresses, strict=True)]
                self.write(register, np.array(found, np.uint32), guard)
                continue
            value = self.source(register)
            for lane in np.flatnonzero(guard):
                memory = memories[lane]
                new, old = int(value[lane]), memory.get(addresses[lane], 0)
                if i.base == "REDG":
                    new = (old + new) & 0xFFFFFFFF if "ADD" in mods else min(old, new)
                memory[addresses[lane]] = new


def _next(register: str) -> str:
    return re.sub(r"\d+", lambda m: str(int(m[0]) + 1), register)
