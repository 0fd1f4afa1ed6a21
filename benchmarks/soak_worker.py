"""A worker that holds no GPU: what a candidate does to it is decided by the candidate's digest.

It is the real worker's process, pipe and protocol with other handlers, so that everything on the parent's
side (limits, kills, replacement, retries) is what runs on a GPU.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from typing import Any

from sassafras.device.cuda import worker

Answer = dict[str, Any]
#: share of each fault among 1,000 digests, in the order of `fault_of`
SHARES = (("crash", 25), ("exit", 15), ("hang", 15), ("leak", 15), ("wrong", 100))


def fault_of(cubin: bytes) -> str:
    """``correct``, or the fault that these bytes stand for."""
    wanted = os.environ.get("SASSAFRAS_SOAK_FAULTS")
    at = int(hashlib.sha256(b"soak" + cubin).hexdigest()[:8], 16) % 1000
    for fault, share in SHARES:
        if at < share:
            return fault if wanted is None or fault in wanted.split(",") else "correct"
        at -= share
    return "correct"


class SoakWorker(worker.Worker):
    """Real processes that crash, hang and leak for real."""

    def __init__(self) -> None:
        super().__init__()
        self._baseline = b""
        self.handlers |= {"open": self._soak_open, "run": self._soak_run}

    def _soak_open(self, message: Answer, blobs: list[bytes]) -> Answer:
        self._baseline = blobs[0]
        return {"cases": [message["case"]]}

    def _soak_run(self, message: Answer, blobs: list[bytes]) -> Answer:
        fault = "correct" if blobs[0] == self._baseline else fault_of(blobs[0])
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "exit":
            os._exit(7)
        if fault == "hang":
            time.sleep(3600)
        if fault == "leak":
            hoard = []
            while True:
                hoard.append(bytearray(b"1" * (8 << 20)))
                time.sleep(0.005)
        if fault == "wrong":
            return {"verdict": "wrong_result", "detail": "planted", "sticky": False}
        return {
            "verdict": "correct", "detail": "", "sticky": False, "samples": 1,
            "baseline_us": [1.0] * 4, "candidate_us": [1.0] * 4,
        }  # fmt: skip


if __name__ == "__main__":
    worker.Worker = SoakWorker  # type: ignore[misc]
    sys.exit(worker.main())
