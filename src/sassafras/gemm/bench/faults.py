"""Which of a selection's candidates lost the context: found by launching them one by one, on record.

An illegal instruction or address is reported at a later synchronisation, after many kernels have run, and the
process can do nothing more. So the next worker is careful with that shape: it writes down each candidate
before it launches it alone. The last one written when that worker loses its context is at fault, and its
instance (every configuration of one cubin) is not tried again in this run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..configs.fields import from_fields, to_fields
from ..configs.registry import Config
from .timing import Enqueue


@dataclass(frozen=True, slots=True)
class FaultyConfig:
    """A configuration that lost the context (its fields), at which shape, and what was said."""

    faulty: dict[str, Any]
    at: str
    why: str


class FaultTracker:
    """What a worker knows of bad candidates while it selects for one shape.

    Args:
        faulty: found so far, at any shape.
        trying: holds the fields of the candidate that is launched alone; None: none is.
    """

    def __init__(self, faulty: Sequence[FaultyConfig] = (), trying: Path | None = None) -> None:
        self._faulty, self._trying = [(from_fields(f.faulty), f) for f in faulty], trying
        self._instances = {config.instance for config, _ in self._faulty}

    def allows(self, config: Config) -> bool:
        """Whether it may be launched."""
        return config.instance not in self._instances

    def wrong(self, shape: str) -> list[str]:
        """Lines about those that failed at this shape."""
        return [f"{config.name}: {f.why}" for config, f in self._faulty if f.at == shape]

    def alone(self, stage: Any, config: Config, enqueue: Enqueue) -> None:
        """Launch it with nothing else under way, if that is asked for. Raises CudaError."""
        if self._trying is not None:
            self._trying.write_text(json.dumps(to_fields(config)))
            enqueue()
            stage.gpu.sync()

    def done(self) -> None:
        """Those at hand have been launched: none of them is at fault for what happens now."""
        if self._trying is not None:
            self._trying.write_text("")
