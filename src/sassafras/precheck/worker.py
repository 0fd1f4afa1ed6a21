"""The process that runs Triton's interpreter and references on the CPU; started with TRITON_INTERPRET=1."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

from sassafras.cuda.worker_loop import serve
from sassafras.targets import load

from .examine import examine

_load = lru_cache(maxsize=1)(load)


def _examine(message: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
    """Answer a request of `Checker`."""
    workload = _load(message["target"])
    case = workload.case(message["case"])
    return examine(workload, case, float(message["seconds"]), bool(message["ordered"]))


if __name__ == "__main__":
    sys.exit(serve({"examine": _examine}))
