"""How well the model ranks schedules of a workload, as measured on a GPU once and published with the code."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from typing import Any

FILE = "correlation.json"


@lru_cache(maxsize=1)
def _published() -> dict[str, dict[str, Any]]:
    try:
        text = resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    loaded: dict[str, dict[str, Any]] = json.loads(text)
    return loaded


def correlation(workload_name: str, case: str | None = None) -> dict[str, Any] | None:
    """Kendall's tau-b between model and GPU for one kernel, or None where it was never measured.

    Args:
        workload_name: the workload.
        case: one of its cases; None for the case that was measured (a figure of one shape says nothing of
            another, which may select another kernel).

    Returns:
        A dict with kendall_tau, ceiling, schedules, pairs, date and gpu, as `benchmarks/timing_model.py`
        published it.
    """
    table = _published()
    if case is not None:
        return table.get(f"{workload_name}/{case}")
    for key, found in table.items():
        if key == workload_name or key.startswith(workload_name + "/"):
            return found
    return None
