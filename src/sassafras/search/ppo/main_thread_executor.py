"""Runs the agent in a second thread; store and device calls execute on the caller's thread.

A search's evaluator belongs to the thread that the search runs in (SQLite insists on it). So the policy
thinks in a thread of its own, and hands evaluations over to be done in order.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class _Closed(BaseException):
    """The search is over; raised in the agent's thread only."""


class MainThreadExecutor:
    """Does, in the thread that calls `run`, what the thread started by it submits."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._closed = False

    def submit(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Ask for a call; calls are made one after the other, in the order in which they were asked for."""
        if self._closed:
            raise _Closed
        future: Future[Any] = Future()
        self._asked.put((future, lambda: work(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As an executor's; `run` ends by itself."""

    def run(self, think: Callable[[], None]) -> None:
        """Call `think` in another thread, and do what it submits in this one until it ends.

        Raises:
            BaseException: the first that a submitted call or `think` itself raised.
        """
        failed: list[BaseException] = []

        def body() -> None:
            try:
                think()
            except _Closed:
                pass
            except BaseException as error:
                failed.append(error)
            finally:
                self._asked.put(None)

        thread = threading.Thread(target=body, name="think", daemon=True)
        thread.start()
        try:
            while (asked := self._asked.get()) is not None:
                future, work = asked
                try:
                    future.set_result(work())
                except BaseException as error:
                    # it ends the search here; the agent's thread learns that it is over
                    future.set_exception(_Closed())
                    raise error from None
        finally:
            self._closed = True
            self._turn_away(thread)
        if failed:
            raise failed[0]

    def _turn_away(self, thread: threading.Thread) -> None:
        """Refuse whatever is still asked for until the thread has ended."""
        while thread.is_alive() or not self._asked.empty():
            try:
                asked = self._asked.get(timeout=0.05)
            except queue.Empty:
                continue
            if asked is not None:
                asked[0].set_exception(_Closed())
        thread.join()
