"""What a pool stands on: the connection to Ray, how workers fail, and being interrupted."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

from sassafras.core import DeviceError, SassafrasError, ToolMissing

#: what a worker tells the driver, and the driver's own news of it
EVENT, DONE, FAILED, LOST = "event", "done", "failed", "lost"
#: how a client of HTTP/2, which Ray's servers speak, begins: a preface and an empty frame of settings (type
#: 4), which is what the server begins with too
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_HINT = "HOST:PORT of the head node; start one with `ray start --head`, or forget one with `ray stop`"


class WorkerLost(DeviceError):
    """A worker is gone, with its process or its whole node."""


def connect(address: str) -> tuple[Any, bool]:
    """Ray, connected; and whether we connected it (and so end the connection).

    Args:
        address: ``auto`` or ``HOST:PORT``; see `Pool`.

    Raises:
        ToolMissing: Ray is not installed.
        DeviceError: no cluster answers there.
    """
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
        mine = str(ray.get_runtime_context().gcs_address)
        if ":" in address and not address.startswith("ray://") and _numbers(address) != _numbers(mine):
            hint = f"--cluster auto searches on that of {mine}"
            raise DeviceError("this process has joined another cluster", where=address, hint=hint)
        return ray, False
    if (named := _automatic() if address == "auto" else address) not in ("", "auto", "local"):
        _reach(named)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        try:
            ray.init(address=address, **quiet)
        except ConnectionError:
            if address != "auto":
                raise
            # a cluster of one machine stays on the loopback device
            ray.init(include_dashboard=False, _node_ip_address="127.0.0.2", **quiet)
    except Exception as error:  # (another Ray or Python there is a RuntimeError)
        raise DeviceError(f"no Ray cluster answers: {short(error)}", where=address, hint=_HINT) from error
    return ray, True


def _automatic() -> str:
    """The address that Ray takes ``auto`` for (RAY_ADDRESS, a server of this machine, or what `ray start`
    noted last); empty where there is none, or this Ray does not tell."""
    try:
        from ray._private.services import get_ray_address_from_environment

        return get_ray_address_from_environment("auto", None) or ""
    except (ImportError, TypeError, ConnectionError):
        return os.environ.get("RAY_ADDRESS", "")


def _reach(address: str) -> None:
    """Raises DeviceError unless a server of Ray's kind listens there: Ray itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) < 6) or int(port) > 65535:
        raise DeviceError(f"{address!r} is no address of a cluster", hint=f"auto, or {_HINT}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5.0) as server:
            if os.environ.get("RAY_USE_TLS", "0") in ("", "0"):
                server.sendall(_HELLO)
                if server.recv(9)[3:4] != b"\4":
                    raise OSError("what listens there is not Ray's")
    except (OSError, UnicodeError) as error:
        raise DeviceError(f"no Ray cluster answers: {error}", where=address, hint=_HINT) from error


def _numbers(address: str) -> str:
    """``HOST:PORT`` with the host's number, where it has one."""
    host, _, port = address.rpartition(":")
    try:
        return f"{socket.gethostbyname(host)}:{port}"
    except (OSError, UnicodeError):
        return address


def short(error: BaseException) -> str:
    """The first line of an error's text, 200 characters at most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def failure(error: Exception) -> SassafrasError:
    """What was raised on a worker, as an error that travels: of a class that every node has."""
    if not isinstance(error, SassafrasError):
        return DeviceError(f"{type(error).__name__}: {error}", hint="raised on a worker of the cluster")
    kind = next(each for each in type(error).__mro__ if each.__module__ == SassafrasError.__module__)
    more = {"sticky": error.sticky, "verdict": error.verdict} if isinstance(error, DeviceError) else {}
    return kind(error.what, where=error.where, hint=error.hint, **more)


@contextlib.contextmanager
def interruptible() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets meanwhile; a second one acts as it always did.

    Only the main thread can set handlers; elsewhere the event is set by nothing.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def interrupt(number: int, frame: object) -> None:
        asked.set()
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield asked
    finally:
        restore()
