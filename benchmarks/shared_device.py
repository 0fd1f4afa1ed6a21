"""One GPU for many searches: a process that owns it, and a device that asks it through a pipe.

A search thinks between its evaluations, an agent for longer than an evaluation takes. So several searches
share a GPU: a queue hands it one candidate at a time, alone, whoever asked. Each search is told what the GPU
spent on it, so that its clock is its own.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from common import use_gpu


def serve(index: int, kernels: Sequence[str], opener: Callable[..., Any], connections: list[Any]) -> None:
    """Own GPU `index` until every connection is closed.

    Args:
        kernels: what to open; each keeps a worker process of its own.
        opener: ``opener(kernel)`` returns (baseline, device, open): the third prepares the device.
        connections: pipes to the searches.

    A message is (kernel, candidate); the answer (outcome, seconds of the GPU), or an error's words. Before
    any, each search is sent what there is: arch, baselines by kernel, environment, and what failed to open.
    """
    use_gpu(index)
    tables: dict[str, Any] = {}
    failed: dict[str, str] = {}

    def attempt(kernel: str, do: Callable[[], Any]) -> Any:
        try:
            return do()
        except Exception as error:
            traceback.print_exc()
            failed[kernel] = f"{type(error).__name__}: {error}"
            return None

    try:
        made = {kernel: attempt(kernel, partial(opener, kernel)) for kernel in kernels}
        # processes start, import and compile side by side; then each opens again, alone: how long a launch
        # takes is estimated there
        with ThreadPoolExecutor(max(1, len(kernels))) as pool:
            for kernel, one in made.items():
                if one is not None:
                    pool.submit(attempt, kernel, one[2])
        for kernel, one in made.items():
            if one is None:
                continue
            baseline, device, ready = one
            tables[kernel] = (baseline, device)
            if kernel not in failed and not device.modelled:
                attempt(kernel, ready)
        first = next((device for kernel, (_, device) in tables.items() if kernel not in failed), None)
        hello = {
            "baselines": {kernel: baseline for kernel, (baseline, _) in tables.items()}, "failed": failed,
            "modelled": first is not None and first.modelled,
            "environment": {} if first is None else first.environment(),
        }  # fmt: skip
        for connection in connections:
            connection.send(hello)
        _answer(tables, connections)
    finally:
        for _, device in tables.values():
            device.close()


def _answer(tables: dict[str, Any], connections: list[Connection]) -> None:
    """First come, first served; nobody twice before all who wait were served once."""
    alive = list(connections)
    while alive:
        for connection in wait(alive):
            try:
                kernel, candidate = connection.recv()  # type: ignore[union-attr]
            except (EOFError, OSError):
                alive.remove(connection)  # type: ignore[arg-type]
                continue
            begin = time.perf_counter()
            try:
                answer: Any = (tables[kernel][1].run(candidate), time.perf_counter() - begin)
            except Exception as error:  # one search's trouble; the others go on
                traceback.print_exc()
                answer = f"{type(error).__name__}: {error}"
            try:
                connection.send(answer)  # type: ignore[union-attr]
            except OSError:
                alive.remove(connection)  # type: ignore[arg-type]


class SharedDevice:
    """A kernel's table at a GPU that others use too. Judges as its owner's device does.

    Attributes:
        busy: seconds that the GPU spent on what was asked here.
        last: the same for the last candidate.
        inside: seconds spent in `run`, waiting for others included.
    """

    def __init__(self, connection: Any, hello: dict[str, Any], kernel: str) -> None:
        from sassafras.core import DeviceError

        if kernel in hello["failed"]:
            raise DeviceError(f"the GPU's owner could not open this kernel: {hello['failed'][kernel]}")
        self._connection, self._kernel = connection, kernel
        self.baseline = hello["baselines"][kernel]
        self.arch, self.modelled = self.baseline.arch, hello["modelled"]
        self._environment = hello["environment"]
        self.busy = self.last = self.inside = 0.0

    def run(self, candidate: Any) -> Any:
        """Judge one candidate.

        Raises:
            DeviceError: the device itself failed.
            EOFError: its owner is gone.
        """
        from sassafras.core import Candidate, DeviceError

        begin = time.monotonic()
        self._connection.send((self._kernel, Candidate(candidate.kernel)))
        answer = self._connection.recv()
        self.inside += time.monotonic() - begin
        if isinstance(answer, str):
            raise DeviceError(answer)
        outcome, self.last = answer
        self.busy += self.last
        return outcome

    def environment(self) -> dict[str, Any]:
        """What the owner's device says."""
        return dict(self._environment)
