"""A kernel made ready to be modelled: rows, path, occupancy and footprint of the baseline, and the fast way
from a candidate's bytes to its row order and control codes."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from sassafras.core import Buffer, Case, DeviceError, Kernel
from sassafras.sass import Function, Program
from sassafras.sass import control as codes
from sassafras.sass.opcodes import IMMOVABLE

from . import path as paths
from . import records as rec
from .constants import Constants

#: warp instructions that one run may simulate (decides how many loop iterations and CTAs) ...
ISSUE_BUDGET = 32_000
#: ... and that all replicas of an evaluation may, if there are several
REPLICA_BUDGET = 40_000
#: most start-time replicas of one evaluation
MAX_REPLICAS = 8
#: at least this many iterations before extrapolating: a pipelined loop needs a few to settle
MIN_ITERATIONS, MAX_ITERATIONS = 4, 8

_CONTROL = np.uint64(codes.CONTROL_MASK)
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """CTAs on one SM.

    Attributes:
        warps: warps a CTA.
        limit: CTAs that fit on an SM at once, and `bound` by what.
        ctas: CTAs that the busiest SM runs in all.
        slots: CTAs that it holds at once, ``min(limit, ctas)``.
        simulated: CTAs that are simulated.
        active_sms: SMs that have work.
    """

    warps: int
    limit: int
    bound: str
    ctas: int
    slots: int
    simulated: int
    active_sms: int

    @property
    def waves(self) -> float:
        """CTAs of the busiest SM over those that it holds at once."""
        return self.ctas / self.slots


def occupancy(
    c: Constants, threads: int, registers: int, shared: int, grid: tuple[int, int, int]
) -> tuple[int, int, str]:
    """(warps a CTA, CTAs that fit on an SM, what bounds that).

    Registers are allocated by 256 a warp, shared memory with 1 KiB reserved a CTA (CUDA occupancy rules).

    Raises:
        DeviceError: not even one CTA fits.
    """
    warps = -(-threads // 32)
    a_warp = -(-max(registers, 24) * 32 // 256) * 256
    limits = {
        "warps": c.max_warps // warps,
        "registers": c.registers // (a_warp * warps),
        "shared memory": c.shared_bytes // (shared + c.shared_reserved),
        "CTA slots": c.max_ctas,
    }
    bound = min(limits, key=lambda k: limits[k])
    if limits[bound] < 1:
        raise DeviceError(
            f"no CTA fits on an SM: {threads} threads, {registers} registers a thread, {shared} bytes shared",
            where="timing model",
            hint=f"bounded by {bound}",
        )
    return warps, limits[bound], bound


def footprint(case: Case) -> int:
    """Bytes of all buffer arguments."""
    return sum(a.nbytes for a in case.args.values() if isinstance(a, Buffer))


class UnknownWords(Exception):
    """The candidate holds instructions that the baseline does not (renamed registers)."""


class KernelModel:
    """The baseline of one workload case, ready for many candidates.

    Args:
        program: the parsed cubin.
        kernel: launch facts.
        case: grid, buffers and loop trips.
        c: constants.

    Raises:
        DeviceError, DisassemblyError, UnsupportedArch: it cannot be modelled.
    """

    def __init__(self, program: Program, kernel: Kernel, case: Case, c: Constants) -> None:
        self.constants, self.kernel, self.case = c, kernel, case
        self.function: Function = program.function(kernel.name)
        static = sum(s.size for s in program.cubin.sections if s.name == f".nv.shared.{kernel.name}")
        shared = kernel.shared_bytes + static
        self.bytes = footprint(case)
        self.in_l2 = self.bytes <= 0.8 * c.l2_bytes
        latency = c.l2_latency if self.in_l2 else c.dram_latency
        warps, limit, bound = occupancy(c, kernel.threads, self.function.registers, shared, case.grid)
        ctas = math.prod(case.grid)
        a_sm = -(-ctas // c.sms)
        slots = min(limit, a_sm)
        active = min(c.sms, ctas)
        self.rows, self.sources = rec.records(self.function.instructions, c, latency, warps)
        self.path = self._path(case.loop_trips, warps * slots)
        #: bytes that come from DRAM, over those that the instructions ask for: what is asked for again
        #: comes from the L2
        self.dram_share = 0.0 if self.in_l2 else min(1.0, self.bytes / max(1.0, self._asked() * warps * ctas))
        self.bandwidth = min(c.sm_l2_bytes, c.chip_l2_bytes / active)
        if self.dram_share:
            self.bandwidth = min(self.bandwidth, c.chip_dram_bytes / active / self.dram_share)
        if 0.0 < self.dram_share < 1.0:
            latency = round(self.dram_share * c.dram_latency + (1 - self.dram_share) * c.l2_latency)
            self.rows, self.sources = rec.records(self.function.instructions, c, latency, warps)
        simulated = slots
        if a_sm > slots:
            room = ISSUE_BUDGET // max(1, len(self.path) * warps)
            simulated = min(a_sm, max(slots, min(2 * slots, room)))
        #: cycles of a global load, for rows of other instructions
        self.latency = latency
        self.occupancy = Occupancy(warps, limit, bound, a_sm, slots, simulated, active)
        self.starts = self._starts()
        self._index()

    def copy(self, function: Function) -> KernelModel:
        """The same kernel under other register names, or with instructions moved over branches.

        Raises:
            UnknownWords: its control flow differs from this one's.
        """
        mine, theirs = self.function.instructions, function.instructions
        known = Counter(i.opcode for i in mine)
        if len(mine) != len(theirs) or known != Counter(i.opcode for i in theirs):
            raise UnknownWords("it holds other instructions than the baseline")
        steered = [
            [
                (i.opcode, i.guard, paths.target(i, dict(f.labels)))
                for i in f.instructions
                if i.base in IMMOVABLE
            ]
            for f in (self.function, function)
        ]
        path = paths.predict(function, self.case.loop_trips, self._cap)
        if (
            steered[0] != steered[1]
            or len(path) != len(self.path)
            or path.taken.sum() != self.path.taken.sum()
            or [(x.trips, x.simulated, n) for x, n in path.entries]
            != [(x.trips, x.simulated, n) for x, n in self.path.entries]
        ):
            raise UnknownWords("its control flow differs from the baseline's")
        made = copy.copy(self)
        made.function, made.path = function, path
        made.rows, made.sources = rec.records(theirs, self.constants, self.latency, self.occupancy.warps)
        made._index()
        return made

    def _path(self, loop_trips: int | None, warps: int) -> paths.Path:
        cap = MAX_ITERATIONS
        while True:
            path = paths.predict(self.function, loop_trips, cap)
            if cap <= MIN_ITERATIONS or len(path) * warps <= ISSUE_BUDGET:
                self._cap = cap
                return path
            cap -= 1

    def _asked(self) -> float:
        """Bytes that one warp asks global memory for, with the iterations that are not simulated."""
        asked = self.rows[self.path.positions, rec.BYTES].astype(float)
        total = float(asked.sum())
        for loop, marks in self.path.entries:
            entries = sum(other is loop for other, _ in self.path.entries)
            inside = (self.path.positions >= loop.start) & (self.path.positions <= loop.end)
            one = float(asked[inside].sum()) / max(1, len(marks) * entries)
            total += one * (loop.trips - loop.simulated)
        return total

    def _starts(self) -> np.ndarray:
        """Start cycles of the resident warps in each replica: int64 (replicas, warps)."""
        o = self.occupancy
        issues = len(self.path) * o.warps * o.simulated
        warps = o.slots * o.warps
        count = 1 if warps <= 4 else max(1, min(MAX_REPLICAS, REPLICA_BUDGET // issues))
        found = self.jittered(np.random.default_rng(0), count)
        found[0] = self._regular()
        return found

    def _regular(self) -> np.ndarray:
        c, o = self.constants, self.occupancy
        slot, warp = np.divmod(np.arange(o.slots * o.warps), o.warps)
        return (slot * c.cta_stagger + warp * c.warp_stagger).astype(np.int64)

    def jittered(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Start cycles of the resident warps in `count` draws: int64 (count, warps)."""
        regular = self._regular()
        jitter = rng.integers(0, self.constants.start_jitter + 1, (count, len(regular)))
        return (regular + jitter).astype(np.int64)

    def _keys(self, words: np.ndarray) -> np.ndarray:
        return words[:, 0] * _MIX ^ (words[:, 1] & ~_CONTROL)

    def _index(self) -> None:
        self.words = self.function.words
        self.fixed = np.flatnonzero([i.base in IMMOVABLE for i in self.function.instructions])
        keys = self._keys(self.words)
        self._sorting = np.argsort(keys, kind="stable")
        self._sorted = keys[self._sorting]
        start = self.function.text_offset
        self._text = slice(start, start + 16 * len(self.words))

    def code(self, cubin: bytes) -> np.ndarray:
        """The candidate's words, uint64 (instructions, 2), from where the baseline's code stands.

        Raises:
            UnknownWords: the file is not laid out as the baseline's.
        """
        if len(cubin) != len(self.kernel.cubin):
            raise UnknownWords("the file has another size")
        return np.frombuffer(cubin[self._text], dtype="<u8").reshape(-1, 2)

    def order(self, words: np.ndarray) -> np.ndarray:
        """For each position, a baseline instruction of the same encoding (control code apart).

        Equal instructions are interchangeable here: they have equal rows.

        Raises:
            UnknownWords: an instruction is not one of the baseline's.
        """
        keys = self._keys(words)
        at = np.searchsorted(self._sorted, keys)
        found = self._sorting[np.minimum(at, len(keys) - 1)]
        same = (self.words[found, 0] == words[:, 0]) & ((self.words[found, 1] ^ words[:, 1]) & ~_CONTROL == 0)
        if not same.all():
            raise UnknownWords(f"position {int(np.argmin(same))} holds an instruction of its own")
        return found

    def steps(self, words: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Rows along the path with the candidate's control codes: int32 (path, COLUMNS), C order.

        Args:
            words: the candidate's encodings by position.
            order: baseline instruction (a row of `rows`) at each position.

        Raises:
            UnknownWords: a branch has moved, so that the path does not hold.
        """
        if not np.array_equal(
            words[self.fixed, 0] ^ words[self.fixed, 1] & ~_CONTROL,
            self.words[self.fixed, 0] ^ self.words[self.fixed, 1] & ~_CONTROL,
        ):
            raise UnknownWords("a branch has moved")
        high = words[:, 1]
        out = self.rows[order]
        out[:, rec.STALL] = (high >> np.uint64(codes.STALL_SHIFT)) & np.uint64(15)
        out[:, rec.KEEP] = (high >> np.uint64(codes.YIELD_SHIFT)) & np.uint64(1)
        out[:, rec.WRITE_BARRIER] = (high >> np.uint64(codes.WRITE_BARRIER_SHIFT)) & np.uint64(7)
        out[:, rec.READ_BARRIER] = (high >> np.uint64(codes.READ_BARRIER_SHIFT)) & np.uint64(7)
        out[:, rec.WAIT] = (high >> np.uint64(codes.WAIT_SHIFT)) & np.uint64(63)
        reuse = ((high >> np.uint64(codes.REUSE_SHIFT)) & np.uint64(15)).astype(np.int64)
        self._banks(out, self.sources[order], reuse)
        steps = out[self.path.positions]
        branches = steps[:, rec.KIND] == rec.BRANCH
        steps[branches, rec.ARG] = self.path.taken[branches]
        steps[:, rec.MARK] = self.path.marks
        return np.ascontiguousarray(steps, dtype=np.int32)

    @staticmethod
    def _banks(out: np.ndarray, sources: np.ndarray, reuse: np.ndarray) -> None:
        """Register reads in each of the two banks, less those that the reuse cache serves."""
        cached = np.zeros(sources.shape, dtype=bool)
        for slot in range(3):
            kept = (reuse[:-1] >> slot & 1).astype(bool)
            cached[1:, slot] = kept & (sources[:-1, slot] == sources[1:, slot])
        reads = (sources >= 0) & ~cached
        odd = (sources & 1).astype(bool)
        out[:, rec.BANK0] = (reads & ~odd).sum(axis=1)
        out[:, rec.BANK1] = (reads & odd).sum(axis=1)

    def facts(self) -> dict[str, Any]:
        """The assumptions behind every modelled figure, JSON-able."""
        o = self.occupancy
        return {
            "modelled": True,
            "loop_trips": [
                {
                    "start": 16 * loop.start,
                    "end": 16 * loop.end,
                    "trips": loop.trips,
                    "simulated": loop.simulated,
                    "from": "case" if loop.main and self.case.loop_trips is not None else "assumed",
                }
                for loop in self.path.loops
            ],
            "ctas_per_sm": o.slots,
            "ctas_per_sm_limit": o.limit,
            "occupancy_bound_by": o.bound,
            "ctas_on_busiest_sm": o.ctas,
            "waves": o.waves,
            "active_sms": o.active_sms,
            "replicas": len(self.starts),
            "path_instructions": len(self.path),
            "path_cut": self.path.cut,
            "data": "L2" if self.in_l2 else "DRAM",
            "dram_share": round(self.dram_share, 3),
            "footprint_bytes": self.bytes,
            "bytes_per_cycle_per_sm": self.bandwidth,
            "branches": "forward conditional branches not taken unless they skip a CALL; all lanes active",
        }
