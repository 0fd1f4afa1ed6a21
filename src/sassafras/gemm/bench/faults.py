"""Which of a selection's candidates lost the context: found by launching them one by one, on record.

An illegal instruction or address is reported at a later synchronisation, by when many kernels have run, and
the process can do nothing more. So the worker that comes next is careful with the shape it happened at: it
notes each candidate before it launches it alone. Whoever is noted last when that worker dies is guilty, and
the instance (every configuration of one cubin) is not tried again in this run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..configs.registry import Config
from .journal import Journal
from .timing import Enqueue


@dataclass(frozen=True, slots=True)
class FaultyConfig:
    """A configuration that lost the context, at which shape, and what was said."""

    config: str
    shape: str
    why: str


class FaultTracker:
    """What a worker knows of bad candidates while it chooses for one shape.

    Args:
        guilty: found so far, at any shape.
        note: told a candidate's name before it is launched alone, and "" when those at hand are done; None:
            nothing is launched alone.
    """

    def __init__(
        self, guilty: Sequence[FaultyConfig] = (), note: Callable[[str], None] | None = None
    ) -> None:
        self.guilty = guilty
        self._instances = {g.config.split("/")[0] for g in guilty}
        self._note = note

    def allows(self, config: Config) -> bool:
        """Whether it may be launched."""
        return config.instance.name not in self._instances

    def wrong(self, shape: str) -> list[str]:
        """Lines about those that failed at this shape."""
        return [f"{g.config}: {g.why}" for g in self.guilty if g.shape == shape]

    def alone(self, stage: Any, config: Config, enqueue: Enqueue) -> None:
        """Launch it with nothing else under way, if that is asked for. Raises CudaError."""
        if self._note is not None:
            self._note(config.name)
            enqueue()
            stage.gpu.sync()

    def done(self) -> None:
        """Those at hand have been launched: what happens from here on is nobody's of them."""
        if self._note is not None:
            self._note("")


def of_plan(plan: Mapping[str, Any], shape: str, journal: Journal) -> FaultTracker:
    """What `pool` told the worker (``guilty``, ``careful``), for one shape."""
    careful = shape in plan.get("careful", ())
    return FaultTracker(
        [FaultyConfig(**entry) for entry in plan.get("guilty", ())],
        (lambda name: journal.note(shape, trying=name)) if careful else None,
    )
