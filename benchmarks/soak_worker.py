"""The soak's worker: the evaluator's own, with faults planted by a candidate's digest (see soak.py).

Without a GPU its answers are a stand-in's. Process, pipe and protocol are real, so that everything on the
parent's side (limits, kills, replacement, retries) runs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import time

from sassafras.cuda.environment import available
from sassafras.cuda.worker_loop import Answer, Handler, serve
from sassafras.evaluate.gpu import worker

#: share of each fault among 1,000 digests
SHARES = {"crash": 4, "exit": 3, "hang": 2, "leak": 2, "wrong": 100}


def fault_of(cubin: bytes) -> str:
    """``correct``, or the fault that these bytes stand for; ``SOAK_FAULTS`` names those that are planted."""
    planted = os.environ.get("SOAK_FAULTS", ",".join(SHARES)).split(",")
    at = int(hashlib.sha256(b"soak" + cubin).hexdigest()[:8], 16) % 1000
    for fault, share in SHARES.items():
        if at < share:
            return fault if fault in planted else "correct"
        at -= share
    return "correct"


def fail(fault: str) -> None:
    """End, hang or leak as a candidate may."""
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "exit":
        os._exit(7)
    if fault == "hang":
        time.sleep(3600)
    hoard = list[bytearray]()
    while fault == "leak":  # fast: at the limit of time it would count as a hang
        hoard.append(bytearray(b"1") * (64 << 20))


class SoakWorker:
    """See the module."""

    def __init__(self) -> None:
        gpu = worker.GpuWorker().handlers if available()[0] else {}
        self._real, self._baseline = gpu, b""
        self.handlers: dict[str, Handler] = {**gpu, "open": self._open, "run": self._run}

    def _open(self, message: Answer, blobs: list[bytes]) -> Answer:
        self._baseline = blobs[0]
        return self._real["open"](message, blobs) if self._real else {"cases": [message["case"]]}

    def _run(self, message: Answer, blobs: list[bytes]) -> Answer:
        fault = "correct" if blobs[0] == self._baseline else fault_of(blobs[0])
        fail(fault)
        if fault == "wrong":
            return {"verdict": "wrong_result", "detail": "planted"}
        if self._real:
            return self._real["run"](message, blobs)
        return {"verdict": "correct", "samples": 1, "baseline_us": [1.0] * 4, "candidate_us": [1.0] * 4}


def preload() -> None:
    """See `sassafras.evaluate.gpu.worker.preload`."""
    if available()[0]:
        worker.preload()


def main() -> int:
    """Serve the descriptors in ``sys.argv``; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("descriptors", nargs="+", help="to read and to write, and the parent's process id")
    return serve(SoakWorker().handlers, parser.parse_args().descriptors)


if __name__ == "__main__":
    sys.exit(main())
