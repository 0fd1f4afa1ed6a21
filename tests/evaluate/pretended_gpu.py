"""A worker that `CudaDevice` may run where there is no GPU: answers with times that are its process id's.

``PRETEND_OPEN_S`` is how long it takes to open, ``PRETEND_FREE`` the memory left then. What it is
asked is appended to ``PRETEND_LOG``. Samples: those of the baseline are equal; of other code the file
``PRETEND_SAMPLES`` has the first one that differs by digest, or ``"passes"``, ``"crashes"``, ``"hangs"``,
``"strays"`` or ``"spoils"``: what comes after it in this process differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

from sassafras.cuda.worker_loop import Answer, serve

_baseline: list[bytes] = []
_spoilt: list[bytes] = []


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
    _baseline[:] = blobs[:1]
    facts = {"cases": [message["case"]], "notes": [], "baseline": message["baseline"]["name"]}
    return {**facts, "exact": True, **memory}


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


def sample(message: Answer, blobs: list[bytes]) -> Answer:
    digest = hashlib.sha256(blobs[0]).hexdigest()
    known = json.loads(Path(os.environ["PRETEND_SAMPLES"]).read_text())
    what = "passes" if blobs[:1] == _baseline else known.get(digest, 0)
    _log("sample", what=what, most=message["most"], seed=message["seed"])
    if what == "crashes":
        os.abort()
    if what == "hangs":
        time.sleep(600)
    answer = {"samples": -(-message["most"] // 100) * 100, "mismatches": 0, "seconds": 0.01}
    answer |= {"pair_us": 5.0, "fixed": []}
    if what == "strays":
        return {**answer, "spoilt": "inputs were modified"}
    if what == "spoils":
        _spoilt[:] = blobs[:1]
    first = 0 if what == "spoils" or (_spoilt and what == "passes") else what
    if first == "passes" or first >= message["most"]:
        return answer
    return {**answer, "mismatches": 1, "first": first, "where": "somewhere"}


def main() -> int:
    return serve({"load": load, "open": opened, "run": run, "measure": measure, "sample": sample})


if __name__ == "__main__":
    sys.exit(main())
