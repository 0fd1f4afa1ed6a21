"""What runs on a cluster's node: one actor, one GPU."""

from __future__ import annotations

import importlib
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sassafras import __version__
from sassafras.core import Device
from sassafras.evaluate.gpu import CudaDevice
from sassafras.llm.program_model import ProgramModel
from sassafras.timing_model import ModelDevice

from .payload import JobSubject
from .remote import DONE, EVENT, FAILED, failure


@dataclass(frozen=True, slots=True)
class Context:
    """What a task's function is given besides its payload.

    Attributes:
        device: this worker's device, used by no other task meanwhile.
        stop: set when the task is asked to end soon.
    """

    device: Device
    stop: threading.Event


class ClusterWorker:
    """Runs tasks, one after another, beside a `device_call` now and then; Ray makes an actor of it.

    Args:
        device: ``"cuda"`` or ``"model"``.
        programs: candidates are other programs, not schedules: compared with the reference instead of bit by
            bit, or modelled each on its own.
    """

    def __init__(self, device: str, programs: bool = False) -> None:
        self._kind, self._programs = device, programs
        self._stop = threading.Event()
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
            if self._kind == "cuda":
                self._device = CudaDevice(bitwise=not self._programs)
            else:
                self._device = ProgramModel() if self._programs else ModelDevice()
        return self._device

    def run(self, function: str, payload: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Call ``module:function`` and pass on what it yields; the last answer says how it ended."""
        self._stop.clear()
        try:
            context = Context(self._made(), self._stop)
            module, _, name = function.partition(":")
            for event in getattr(importlib.import_module(module), name)(payload, context):
                yield EVENT, event
            yield DONE, None
        except Exception as error:
            yield FAILED, failure(error)

    def stop(self) -> None:
        """Ask the running task to end soon."""
        self._stop.set()

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
