"""Files of benchmarks/results/, read once."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Row = dict[str, Any]


@lru_cache
def result(name: str) -> dict[str, Any]:
    """A file of benchmarks/results/."""
    data: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text("utf-8"))
    return data
