"""Settings of a capture: from arguments, else from environment variables that `sassafras capture` sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: folder that a process writes its part of a capture to; set, it makes a Python record by itself
FOLDER = "SASSAFRAS_CAPTURE"
#: bytes of one integer tensor, and of all in a process, whose contents are kept
TENSOR_BYTES, ALL_BYTES = "SASSAFRAS_CAPTURE_TENSOR_BYTES", "SASSAFRAS_CAPTURE_ALL_BYTES"
#: different shapes of one compiled kernel that become cases; further ones are only counted
CASES = "SASSAFRAS_CAPTURE_CASES"
_TENSOR_BYTES, _ALL_BYTES, _CASES = 1 << 20, 64 << 20, 32


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """How a process records.

    Attributes:
        folder: where to write.
        tensor_bytes: an integer tensor up to this size is kept with its contents.
        all_bytes: contents kept in all.
        cases: different shapes kept of one compiled kernel.
    """

    folder: Path
    tensor_bytes: int = _TENSOR_BYTES
    all_bytes: int = _ALL_BYTES
    cases: int = _CASES

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> CaptureSettings | None:
        """From the environment; None where it does not ask for a capture."""
        given = os.environ if environment is None else environment
        if not (folder := given.get(FOLDER)):
            return None

        def number(name: str, default: int) -> int:
            text = given.get(name, "")
            return int(text) if text.isdigit() else default

        return cls(
            Path(folder),
            number(TENSOR_BYTES, _TENSOR_BYTES),
            number(ALL_BYTES, _ALL_BYTES),
            number(CASES, _CASES),
        )

    def environment(self) -> dict[str, str]:
        """The variables that `read` reads."""
        return {
            FOLDER: str(self.folder.expanduser().resolve()),
            TENSOR_BYTES: str(self.tensor_bytes),
            ALL_BYTES: str(self.all_bytes),
            CASES: str(self.cases),
        }
