"""A process of its own that looks whether others use the GPU, replaced where they cost it its context."""

from __future__ import annotations

import time

from sassafras.core import DeviceError, Verdict

from .ahead import GPU_WORKER
from .idle import busy
from .worker_process import WorkerProcess

#: failures in a row that others explain
_LOST = 2


class Watcher:
    """Looks whether others use the GPU (`idle`).

    A failure elsewhere on a shared GPU can take the look's context, too (CUDA_ERROR_LAUNCH_FAILED, met once
    among 16 programs, though the kernel reads nothing but the clock). That is a use by others, so a fresh
    process looks next; where it fails again, something else is wrong.

    Args:
        module: the worker that answers ``idle``.
    """

    def __init__(self, module: str = GPU_WORKER) -> None:
        self._module, self._failed = module, 0
        self._process: WorkerProcess | None = None

    def busy(self) -> bool:
        """Whether others use the GPU now. Raises DeviceError."""
        if self._process is None or not self._process.alive:
            self._process = WorkerProcess(self._module)
        try:
            gaps = self._process.ask("idle", 120.0)["gaps_ns"]
        except DeviceError as error:
            self.close()
            self._failed += 1
            if not error.sticky or error.verdict is not Verdict.CRASHED or self._failed >= _LOST:
                raise
            return True
        self._failed = 0
        return busy(gaps)

    def idle(self, looks: int, apart_s: float) -> bool:
        """Whether the GPU is idle at one of several looks, so far apart and further: another program's work
        may pass. Raises DeviceError."""
        for attempt in range(looks):
            if not self.busy():
                return True
            time.sleep(apart_s * (1 + attempt))
        return False

    def close(self) -> None:
        """End its process; safe to call twice."""
        if self._process is not None:
            self._process.kill()
        self._process = None
