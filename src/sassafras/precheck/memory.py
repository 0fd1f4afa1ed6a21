"""Buffers far apart in one mapping, and what a kernel reads and writes there."""

from __future__ import annotations

import math
import mmap
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from sassafras.core import Buffer, Case
from sassafras.core.workload import DTYPE_BYTES
from sassafras.evaluate.gpu.guarded_buffers import Segment, fill, view

#: bytes between two buffers at least; untouched pages cost nothing
GAP = 1 << 20
_PAGE = 4096
_POISON = 0xFF


@dataclass
class Traffic:
    """What happened to one buffer.

    Attributes:
        written: by element, whether it was stored to.
        read, atomic: whether it was loaded from, or changed atomically, at all.
        early: element of an ``out`` buffer that was read before it was written; None: none was.
        strays: by ``read`` or ``written``, how many accesses outside of it, the first one's element counted
            from its beginning, and the program.
    """

    written: np.ndarray
    read: bool = False
    atomic: bool = False
    early: int | None = None
    strays: dict[str, tuple[int, int, tuple[int, int, int]]] = field(default_factory=dict)


class Memory:
    """The memory of one case, on the CPU: filled inputs, poisoned outputs, and room around each.

    Args:
        case: its buffers; they lie in the order of the arguments.

    Attributes:
        segments: buffers and their places.
        tensors: the buffers as torch tensors, by name.
        traffic: by buffer name.
        program: the program that runs; set by the caller.
        busy: programs that have touched memory.
    """

    def __init__(self, case: Case) -> None:
        import torch

        at, self.segments = GAP, list[Segment]()
        for name, argument in case.args.items():
            if isinstance(argument, Buffer):
                self.segments.append(Segment(name, at, argument))
                at += -(-argument.nbytes // _PAGE) * _PAGE + GAP
        arena = torch.frombuffer(mmap.mmap(-1, at), dtype=torch.uint8)
        base = int(arena.data_ptr())
        self._begins = [base + s.offset for s in self.segments]
        self._ends = [base + s.end for s in self.segments]
        self.tensors = {s.name: view(arena, s) for s in self.segments}
        self.traffic = {s.name: Traffic(np.zeros(math.prod(s.buffer.shape), bool)) for s in self.segments}
        self.program = (0, 0, 0)
        self.busy, self._busy_program = 0, (-1, -1, -1)
        for index, segment in enumerate(self.segments):
            if segment.buffer.role == "out":
                arena[segment.offset : segment.end] = _POISON
                continue
            generator = torch.Generator()
            generator.manual_seed(7919 * index + 1)
            self.tensors[segment.name].copy_(fill(segment, generator, "cpu").view(segment.buffer.shape))

    def look(self, pointers: Any, mask: Any, width: int, kind: Literal["load", "store", "atomic"]) -> Any:
        """Note an access of `width` bytes a lane; the mask without lanes that lie outside of every buffer."""
        pointers = np.asarray(pointers)
        mask = np.ascontiguousarray(np.broadcast_to(np.asarray(mask, bool), pointers.shape))
        lanes = pointers[mask]
        if lanes.size == 0:
            return mask
        if self._busy_program != self.program:
            self._busy_program, self.busy = self.program, self.busy + 1
        place = bisect_right(self._begins, int(lanes.min())) - 1
        if place >= 0 and int(lanes.max()) + width <= self._ends[place]:
            self._note(place, lanes, width, kind)
            return mask
        begins, ends = np.array(self._begins, np.uint64), np.array(self._ends, np.uint64)
        places = np.searchsorted(begins, lanes, side="right") - 1
        inside = (places >= 0) & (lanes + np.uint64(width) <= ends[places])
        for place in np.unique(places[inside]):
            self._note(int(place), lanes[inside & (places == place)], width, kind)
        self._stray(lanes[~inside], places[inside], "read" if kind == "load" else "written")
        kept = mask.copy()
        kept[mask] = inside
        return kept

    def _note(self, place: int, lanes: Any, width: int, kind: str) -> None:
        segment = self.segments[place]
        size = DTYPE_BYTES[segment.buffer.dtype]
        traffic = self.traffic[segment.name]
        first = (lanes - np.uint64(self._begins[place])).astype(np.int64) // size
        if kind != "store":
            traffic.read = True
            if traffic.early is None and segment.buffer.role == "out" and not traffic.written[first].all():
                traffic.early = int(first[~traffic.written[first]][0])
        if kind != "load":
            traffic.atomic |= kind == "atomic"
            for more in range(max(1, width // size)):
                traffic.written[first + more] = True

    def _stray(self, lanes: Any, neighbours: Any, word: str) -> None:
        """Lanes outside: of the buffer that the access's other lanes are in, else of the nearest one."""
        lane = int(lanes[0])
        away = [max(b - lane, lane - e, 0) for b, e in zip(self._begins, self._ends, strict=True)]
        place = int(np.bincount(neighbours).argmax()) if len(neighbours) else int(np.argmin(away))
        segment = self.segments[place]
        element = (lane - self._begins[place]) // DTYPE_BYTES[segment.buffer.dtype]
        strays = self.traffic[segment.name].strays
        count, first, program = strays.get(word, (0, element, self.program))
        strays[word] = (count + len(lanes), first, program)
