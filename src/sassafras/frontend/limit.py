"""A limit on compilation, also where a compiler hangs that Python cannot interrupt."""

from __future__ import annotations

import contextlib
import contextvars
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from sassafras.core import CompileError

T = TypeVar("T")
#: seconds that a compilation may take where the user names no limit
COMPILE_SECONDS = 300.0
#: how long a wait for a compiler may keep an interruption from being seen
_LOOK_S = 0.5


def within(seconds: float, compile: Callable[[], T], where: str, hint: str | None = None) -> T:
    """What `compile` returns or raises, in a thread of its own.

    Past the limit the compilers that it started are killed. LLVM inside this process cannot be: its thread is
    left behind, and ends with the process.

    Args:
        seconds: the limit.
        where, hint: what is compiled, and how more time is given, for the error.

    Raises:
        CompileError: it did not end within the limit.
    """
    ended: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            ended.put((context.run(compile), None))
        except BaseException as error:
            ended.put((None, error))

    thread = threading.Thread(target=work, daemon=True, name="compilation")
    thread.start()
    deadline = time.monotonic() + seconds
    try:
        while True:  # an interruption just before a wait in C would be seen after it
            try:
                value, error = ended.get(timeout=max(0.0, min(_LOOK_S, deadline - time.monotonic())))
                break
            except queue.Empty:
                if time.monotonic() >= deadline:
                    raise
    except BaseException as early:
        _kill_children(thread.native_id)
        if not isinstance(early, queue.Empty):
            raise  # Ctrl-C
        raise CompileError(f"compilation did not end within {seconds:g} s", where=where, hint=hint) from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def _kill_children(thread: int | None) -> None:
    for child in list(_children(f"/proc/self/task/{thread}")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _children(task: str) -> Iterator[int]:
    """Processes that a thread started, and those that they started, the latter first."""
    try:
        started = Path(task, "children").read_text().split()
    except OSError:  # ended meanwhile, or a kernel without these lists
        return
    for child in started:
        for other in Path(f"/proc/{child}/task").glob("*"):
            yield from _children(str(other))
        yield int(child)
