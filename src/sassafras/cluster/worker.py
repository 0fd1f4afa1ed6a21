"""What runs on a cluster's node: one actor, one device."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sassafras import __version__
from sassafras.core import Device
from sassafras.evaluate.gpu import CudaDevice
from sassafras.timing_model import ModelDevice

from .payload import JobSubject
from .remote import DONE, EVENT, FAILED, failure

#: a task's function, called on a worker with a payload, the worker's device (used by no other task meanwhile)
#: and an event that is set when the task is to end soon; what it yields reaches the driver in order
Work = Callable[[Mapping[str, Any], Device, threading.Event], Iterator[Any]]


class ClusterWorker:
    """Runs tasks, one after another, beside a `device_call` now and then; Ray makes an actor of it.

    Args:
        device: ``"cuda"`` or ``"model"``.
    """

    def __init__(self, device: str) -> None:
        self._kind = device
        #: by `Pool.run`: set once its tasks are to end
        self._stops: dict[str, threading.Event] = {}
        self._device: Any = None
        self._subject: JobSubject | None = None

    def facts(self) -> dict[str, Any]:
        """Version, host, and what kind of device is here."""
        device = self._made()
        return {
            "sassafras": __version__,
            "host": socket.gethostname(),
            "name": device.name,
            "arch": device.arch,
            "environment": device.environment(),
        }

    def _made(self) -> Any:
        if self._device is None:
            self._device = CudaDevice() if self._kind == "cuda" else ModelDevice()
        return self._device

    def run(self, work: Work, payload: Mapping[str, Any], token: str) -> Iterator[tuple[str, Any]]:
        """Pass on what `work` yields; the last answer says how it ended."""
        try:
            for event in work(payload, self._made(), self._stops.setdefault(token, threading.Event())):
                yield EVENT, event
            yield DONE, None
        except Exception as error:
            yield FAILED, failure(error)

    def stop(self, token: str) -> None:
        """Ask the task of this `Pool.run` to end soon, also one that is still to come."""
        self._stops.setdefault(token, threading.Event()).set()

    def device_call(self, method: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[str, Any]:
        """Call a method of this worker's device; ``load`` opens a workload from its payload first."""
        try:
            device = self._made()
            if method == "load":
                self._load(JobSubject(*arguments))
                return DONE, None
            return DONE, getattr(device, method)(*arguments, **named)
        except Exception as error:
            return FAILED, failure(error)

    def _load(self, subject: JobSubject) -> None:
        """Open the device for `subject`, whose files must outlive the call: the device reads them again."""
        if self._subject is not None:
            self._subject.__exit__()
        self._subject = subject.__enter__()
        self._device.open(subject.workload, subject.case, subject.baseline)
