"""GPU time of some of a program's launches, by CUDA events around them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

#: a shape's launches that are all timed, and the part of the later ones that is
ALWAYS, ONE_IN = 20, 64
#: launches that wait for their end before those that have ended are looked through
_PENDING = 512


@dataclass
class TimedShape:
    """One case of one compiled kernel: what it was launched with, how often, and how long that took.

    Attributes:
        facts: grid and arguments, JSON-able.
        count: launches.
        in_graph: launches that a CUDA graph captured instead.
        timed, gpu_us: launches timed, and the sum of their microseconds.
    """

    facts: dict[str, Any]
    count: int = 0
    in_graph: int = 0
    timed: int = 0
    gpu_us: float = 0.0

    def forget(self) -> None:
        """Begin to count at zero."""
        self.count = self.in_graph = self.timed = 0
        self.gpu_us = 0.0


class Timers:
    """Events before and after launches, read once the GPU has passed them; never waits for it."""

    def __init__(self) -> None:
        self._pending: list[tuple[TimedShape, Any, Any]] = []

    def begin(self, shape: TimedShape | None) -> Any:
        """An event just before some of the launches; the first of a shape loads code and is left out."""
        torch = sys.modules.get("torch")
        if shape is None or torch is None or not torch.cuda.is_initialized():
            return None
        if capturing():
            shape.in_graph += 1
            return None
        if shape.count > ALWAYS and shape.count % ONE_IN:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end(self, shape: TimedShape, begin: Any) -> None:
        """The launch that `begin` was recorded before is on its stream."""
        end = sys.modules["torch"].cuda.Event(enable_timing=True)
        end.record()
        self._pending.append((shape, begin, end))
        if len(self._pending) > _PENDING:
            self.collect()

    def collect(self) -> None:
        """Add the times of those launches that are done."""
        left = []
        for shape, begin, end in self._pending:
            if end.query():
                shape.timed += 1
                shape.gpu_us += 1e3 * begin.elapsed_time(end)
            else:
                left.append((shape, begin, end))
        self._pending = left


def capturing() -> bool:
    """True while torch captures a CUDA graph on the current stream."""
    torch = sys.modules.get("torch")
    return bool(
        torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    )


def gpu_name() -> str:
    """The GPU's name, or ``""`` where the program has not used one through torch."""
    torch = sys.modules.get("torch")
    try:
        return str(torch.cuda.get_device_name()) if torch is not None and torch.cuda.is_initialized() else ""
    except Exception:
        return ""
