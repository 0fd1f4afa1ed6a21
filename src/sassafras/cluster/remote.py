"""What a pool stands on: the connection to Ray, actors on CPUs, how workers fail, and being interrupted."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from sassafras.core import DeviceError, SassafrasError, ToolMissing

#: workers that one task may lose before it is taken for the cause
TRIES = 4
#: what a task's function tells the driver, and the driver's own news of it
EVENT, DONE, FAILED, LOST = "event", "done", "failed", "lost"


class WorkerLost(DeviceError):
    """A worker is gone, with its process or its whole node."""


class Helper:
    """An actor on a CPU; see `Pool.helper`. Its methods answer ``(DONE, value)`` or ``(FAILED, error)``."""

    def __init__(self, ray: Any, make: Callable[[], Any]) -> None:
        self._ray, self._make = ray, make
        self.actor = make()

    def ask(self, method: str, *arguments: Any) -> Any:
        """What the method gives; asked again elsewhere when the helper is lost.

        Raises:
            SassafrasError: what the method raised.
            WorkerLost: `TRIES` helpers were lost over it.
        """
        last = ""
        for _ in range(TRIES):
            try:
                kind, value = self._ray.get(getattr(self.actor, method).remote(*arguments))
            except self._ray.exceptions.RayError as error:
                last = short(error)
                self._ray.kill(self.actor, no_restart=True)
                self.actor = self._make()
                continue
            if kind == FAILED:
                raise value
            return value
        raise WorkerLost(f"{TRIES} helpers were lost running this; the last: {last}", where=method)


@contextlib.contextmanager
def connected(address: str = "auto") -> Iterator[None]:
    """One connection to a cluster for all pools made meanwhile: starting one takes seconds.

    Args:
        address: as for `Pool`; where there is no cluster, one of this machine is kept until the end.

    Raises:
        ToolMissing, DeviceError: as `Pool`.
    """
    ray, started = connect(address)
    try:
        yield
    finally:
        if started:
            ray.shutdown()


def connect(address: str) -> tuple[Any, bool]:
    """Ray, connected; and whether we connected it (and so end the connection)."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # a cluster that we start times what runs on it: its workers keep their priority (Ray's default is 15)
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray
    except ImportError as error:
        raise ToolMissing(
            "Ray is not installed", hint="in the checkout: pip install -e '.[cluster]'"
        ) from error
    if ray.is_initialized():
        return ray, False
    if address != "auto":
        _reach(address)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(address=address, **quiet)
    except ConnectionError as error:
        if address != "auto":
            raise DeviceError(
                f"no Ray cluster answers: {short(error)}",
                where=address,
                hint="HOST:PORT of the head node; start one with `ray start --head`",
            ) from error
        # a cluster of one machine stays on the loopback device
        ray.init(include_dashboard=False, _node_ip_address="127.0.0.2", **quiet)
    return ray, True


def _reach(address: str) -> None:
    """Raises DeviceError unless something listens there: Ray itself tries for minutes before it says so."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    hint = "HOST:PORT of the head node; start one with `ray start --head`"
    if not host or not port.isdigit() or int(port) > 65535:
        raise DeviceError(f"{address!r} is no address of a cluster", hint=f"auto, or {hint}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    except OSError as error:
        raise DeviceError(f"no Ray cluster answers: {error}", where=address, hint=hint) from error


def short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def answered(function: Callable[[Any], Any], item: Any) -> tuple[str, Any]:
    """A call on another machine, whose error travels as a value."""
    try:
        return DONE, function(item)
    except Exception as error:
        return FAILED, failure(error)


def failure(error: Exception) -> SassafrasError:
    """What a worker's function raised, as an error that travels and names the worker's host."""
    if isinstance(error, SassafrasError):
        made = type(error)(error.what, where=error.where, hint=error.hint)
    else:
        made = DeviceError(f"{type(error).__name__}: {error}", hint="raised on a worker of the cluster")
    return made


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM act as Ctrl-C does meanwhile, where handlers may be set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
