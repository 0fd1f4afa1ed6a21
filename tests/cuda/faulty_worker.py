"""A module to run: the GPU worker with further requests, to sleep, die, print and eat memory."""

from __future__ import annotations

import os
import signal
import sys
import time

from sassafras.cuda.worker_loop import Answer, serve
from sassafras.evaluate.gpu.worker import GpuWorker


def ping(message: Answer, blobs: list[bytes]) -> Answer:
    return {"pid": os.getpid()}


def sleep(message: Answer, blobs: list[bytes]) -> Answer:
    time.sleep(message["seconds"])
    return {}


def die(message: Answer, blobs: list[bytes]) -> Answer:
    print("last words of the worker", file=sys.stderr, flush=True)
    os.kill(os.getpid(), message.get("signal", signal.SIGKILL))
    return {}


def leave(message: Answer, blobs: list[bytes]) -> Answer:
    os._exit(message.get("status", 3))


def chatter(message: Answer, blobs: list[bytes]) -> Answer:
    print("noise on standard output" * 10, flush=True)
    return {"blob_bytes": [len(blob) for blob in blobs]}


def eat(message: Answer, blobs: list[bytes]) -> Answer:
    hoard = []
    for _ in range(message["mebibytes"] // 16):
        hoard.append(bytearray(b"\1" * (16 << 20)))
        time.sleep(0.01)
    time.sleep(message.get("seconds", 5))
    return {"kept": len(hoard)}


def fail(message: Answer, blobs: list[bytes]) -> Answer:
    raise ValueError("planted")


def preload() -> None:
    """Nothing that a worker needs: what a fork server runs first."""
    os.environ["PRELOADED_BY"] = str(os.getpid())


def preloaded(message: Answer, blobs: list[bytes]) -> Answer:
    return {"by": os.environ.get("PRELOADED_BY"), "parent": os.getppid()}


def main() -> int:
    own = {f.__name__: f for f in (ping, sleep, die, leave, chatter, eat, fail, preloaded)}
    return serve(GpuWorker().handlers | own)


if __name__ == "__main__":
    sys.exit(main())
