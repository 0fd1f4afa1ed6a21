"""A worker that `CudaDevice` may run where there is no GPU: answers with times that are its process id's.

``PRETEND_OPEN_S`` is how long it takes to open, ``PRETEND_FREE`` the memory left then. What it is
asked is appended to ``PRETEND_LOG``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from sassafras.cuda.worker_loop import Answer, serve


def _log(do: str, **facts: object) -> None:
    with Path(os.environ["PRETEND_LOG"]).open("a") as log:
        parent = os.getppid()
        log.write(json.dumps({"do": do, "pid": os.getpid(), "parent": parent, **facts}) + "\n")


def preload() -> None:
    """Noted, so that a test can count how often it was imported."""
    _log("preload")
    if os.environ.get("PRETEND_PRELOAD") == "fails":
        raise ValueError("planted")


def load(message: Answer, blobs: list[bytes]) -> Answer:
    _log("load", source=message["source"])
    if os.environ.get("PRETEND_LOAD") == "fails":
        raise ValueError("planted")
    return {}


def opened(message: Answer, blobs: list[bytes]) -> Answer:
    _log("open", cold=bool(message["cold"]), seed=message["settings"]["base_seed"])
    time.sleep(float(os.environ.get("PRETEND_OPEN_S", "0")))
    memory = {"bytes_free": int(os.environ.get("PRETEND_FREE", 100 << 30)), "bytes_taken": 1 << 30}
    return {"cases": [message["case"]], "notes": [], "baseline": message["baseline"]["name"], **memory}


def run(message: Answer, blobs: list[bytes]) -> Answer:
    if blobs[0] == b"crash":
        os.abort()
    times = {"baseline_us": [10.0] * 4, "candidate_us": [9.5] * 4}
    return {"verdict": "correct", "samples": 3, "pid": os.getpid(), **times}


def measure(message: Answer, blobs: list[bytes]) -> Answer:
    _log("measure")
    mine = 9.5 + os.getpid() % 7 / 1000
    return {
        "verdict": "correct",
        "samples": 5,
        "baseline_us": [10.0, 10.001] * 20,
        "candidate_us": [mine, mine] * 20,
        "null_us": [10.0, 10.002] * 20,
    }


def main() -> int:
    return serve({"load": load, "open": opened, "run": run, "measure": measure})


if __name__ == "__main__":
    sys.exit(main())
