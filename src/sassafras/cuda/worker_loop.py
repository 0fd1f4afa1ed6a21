"""The worker's side of `worker_process`: answers requests until its parent closes the pipe, or is gone."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sassafras.core import DeviceError, SassafrasError

from .frames import ASK_WHERE, read_frame, write_frame

Answer = dict[str, Any]
#: of a request: its fields and blobs -> the answer's fields
Handler = Callable[[Answer, list[bytes]], Answer]


def follow_parent(parent: int) -> None:
    """End with the parent, also while a kernel hangs and the pipe is not read."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="parent watch").start()


def serve(handlers: Mapping[str, Handler], arguments: Sequence[str] | None = None) -> int:
    """Answer requests by the handler that ``do`` names; the process's exit status.

    A handler's exception is the answer: `WorkerProcess.receive` raises it as a DeviceError. Those that are no
    SassafrasError count as sticky: the process is in an unknown state.

    Args:
        arguments: descriptors to read and to write, and the parent's process id; by default ``sys.argv``.
    """
    read_fd, write_fd, *parent = map(int, arguments if arguments is not None else sys.argv[1:4])
    os.dup2(2, 1)  # standard output is not ours to use
    faulthandler.register(ASK_WHERE, file=2)  # also while a call into the driver hangs
    # Ctrl-C and `timeout` reach the whole process group. They are the parent's business: a worker that they
    # end would count as a candidate's crash.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # named by the parent: asking for it here would find another one where it has ended meanwhile
    follow_parent(parent[0] if parent else os.getppid())
    while (frame := read_frame(read_fd)) is not None:
        message, blobs = frame
        begin = time.perf_counter()
        handler = handlers.get(message.get("do", ""))
        try:
            if handler is None:
                raise DeviceError(f"the worker does not know the request {message.get('do')!r}")
            answer = handler(message, blobs)
        except BaseException as error:
            answer = _failure(error)
        answer["id"] = message.get("id")
        answer["seconds_in_worker"] = time.perf_counter() - begin
        try:
            write_frame(write_fd, answer)
        except BrokenPipeError:
            return 0
    return 0


def tell(**news: Any) -> None:
    """News of the request that is being answered, for `WorkerProcess.receive`. Raises OSError."""
    write_frame(int(sys.argv[2]), {"news": news})


def _failure(error: BaseException) -> Answer:
    """What `WorkerProcess.receive` makes a DeviceError of."""
    sticky, verdict = False, None
    if isinstance(error, SassafrasError):
        what, where, hint = error.what, error.where, error.hint
        if isinstance(error, DeviceError):
            sticky, verdict = error.sticky, error.verdict
    else:
        traceback.print_exc()
        what, where, hint, sticky = f"{type(error).__name__}: {error}", _place(error), None, True
    return {"error": what, "what": what, "where": where, "hint": hint, "sticky": sticky, "verdict": verdict}


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].name}, line {frames[-1].lineno}" if frames else "worker"
