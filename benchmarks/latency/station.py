"""The worker process that runs kernels of probes, and the search for the probe that took it down."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from sassafras.core import DeviceError
from sassafras.cuda.worker_process import WorkerProcess

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 90.0


class Station:
    """Runs kernels in a worker process; one that hangs or faults is run in halves until its probe is known.

    Attributes:
        facts: of the GPU.
        restarts: processes lost so far.
    """

    def __init__(self, pretend: bool = False, say: Callable[[str], None] = print) -> None:
        self.pretend, self.say = pretend, say
        self.facts: dict[str, Any] = {}
        self.restarts = 0
        self._worker: WorkerProcess | None = None

    def start(self) -> None:
        """Start the process. Raises DeviceError where the GPU is no sm_90."""
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {"PYTHONPATH": path, "LATENCY_PRETEND": "1" if self.pretend else "0"}
        self._worker = WorkerProcess(environment=environment, module="benchmarks.latency.worker")
        self.facts = self._worker.ask("open", START_SECONDS)
        if self.facts["capability"] != [9, 0]:
            self.stop()
            raise DeviceError(f"{self.facts['name']} is no sm_90", hint="the kernels are for sm_90a")

    def stop(self, kill: bool = False) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.kill() if kill else self._worker.close()
            self._worker = None

    def run(
        self, what: str, cubin: bytes, count: int, seconds: float, out: Iterable[int] = (), **message: Any
    ) -> Iterator[tuple[int, int, Any]]:
        """(first probe, how many, counters by shape) of parts of a kernel; counters are None for one probe
        that hung or faulted.

        Args:
            what: names the kernel in messages.
            count: its probes.
            seconds: that an answer may take.
            out: probes that are not run.
            message: what the worker needs besides.
        """
        todo, start = [], 0
        for n in [*sorted(out), count]:
            if n > start:
                todo.append((start, n - start))
            start = n + 1
        while todo:
            first, many = todo.pop()
            assert self._worker is not None
            try:
                answer = self._worker.ask("run", seconds, [cubin], first=first, count=many, **message)
            except DeviceError as error:
                self.stop(kill=True)
                self.restarts += 1
                self.say(f"{what}, probes {first} to {first + many - 1}: {error}")
                self.start()
                if many == 1:
                    yield first, 1, None
                else:
                    todo += [(first, many // 2), (first + many // 2, many - many // 2)]
                continue
            yield first, many, answer["counters"]
