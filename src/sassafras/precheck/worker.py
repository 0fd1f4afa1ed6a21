"""The process that runs Triton's interpreter and references on the CPU; started with TRITON_INTERPRET=1."""

from __future__ import annotations

import sys
from typing import Any

from sassafras.core import Workload
from sassafras.cuda.worker_loop import serve
from sassafras.targets import load

from .examine import examine

_loaded: dict[str, Workload] = {}


def _examine(message: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
    """Answer a request of `Checker`."""
    target = str(message["target"])
    if target not in _loaded:
        _loaded.clear()
        _loaded[target] = load(target)
    workload = _loaded[target]
    case = workload.case(str(message["case"]))
    return examine(workload, case, float(message["seconds"]), bool(message["ordered"]))


if __name__ == "__main__":
    sys.exit(serve({"examine": _examine}))
