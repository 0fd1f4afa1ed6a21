"""One GPU for many searches: a process that owns it, and a device that asks it through a pipe.

A search thinks between its evaluations, an agent for longer than an evaluation takes. So several searches
share a GPU: a queue hands it one candidate at a time, alone, whoever asked. Each search is told what the GPU
spent on it, so that its clock is its own.
"""

from __future__ import annotations

import json
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from common import use_gpu
from turns import Turns

#: seconds between two lines that say where the time went
SAY_S = 60.0


class Spent:
    """Where an owner's time goes: seconds and counts by part.

    Of the whole: ``idle`` (nobody asked), ``receive``, ``send``, ``turn`` (a network had the GPU), and
    ``run``, a candidate from question to outcome. Of a run: ``worker`` (the process that has the context) and
    ``around`` it; of the worker: its phases. ``same`` and ``other`` are runs of a candidate of the kernel
    before and of another kernel, whose process the GPU has to turn to.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.counts: dict[str, int] = defaultdict(int)
        self._said = time.monotonic()

    def add(self, part: str, seconds: float) -> None:
        """Count one."""
        self.seconds[part] += seconds
        self.counts[part] += 1

    def run(self, seconds: float, answer: dict[str, Any], same: bool) -> None:
        """Count a candidate; `answer` is its worker's, empty where there is none."""
        self.add("run", seconds)
        self.add("same" if same else "other", seconds)
        if "phases_ms" in answer:
            self.add("worker", answer["seconds_in_worker"])
            self.add("around", seconds - answer["seconds_in_worker"])
            for phase, took in answer["phases_ms"].items():
                self.add(phase, took / 1e3)

    def report(self) -> dict[str, Any]:
        """Seconds idle and running, candidates, and mean milliseconds of every part but ``idle``."""
        means = {part: 1e3 * of / self.counts[part] for part, of in self.seconds.items() if part != "idle"}
        return {
            "candidates": self.counts["run"], "run_s": round(self.seconds["run"], 2),
            "idle_s": round(self.seconds["idle"], 2), "changes_of_kernel": self.counts["other"],
            "mean_ms": {part: round(mean, 3) for part, mean in means.items()},
        }  # fmt: skip

    def say(self, index: int, *, now: bool = False) -> None:
        """Print it as one line of JSON, every `SAY_S` seconds or `now`."""
        if now or time.monotonic() - self._said > SAY_S:
            self._said = time.monotonic()
            print(f"GPU {index}: {json.dumps(self.report())}", flush=True)


def serve(
    index: int, kernels: Sequence[str], opener: Callable[..., Any], connections: list[Any],
    turns: Turns | None = None,
) -> None:  # fmt: skip
    """Own GPU `index` until every connection is closed.

    Args:
        kernels: what to open; each keeps a worker process of its own.
        opener: ``opener(kernel)`` returns (baseline, device, open): the third prepares the device.
        connections: pipes to the searches.
        turns: with the searches' networks, where these are on this GPU.

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
            "modelled": first is not None and first.modelled, "pairs": getattr(first, "pairs", None),
            "environment": {} if first is None else first.environment(),
        }  # fmt: skip
        for connection in connections:
            connection.send(hello)
        _answer(tables, connections, index, turns)
    finally:
        for _, device in tables.values():
            device.close()


def _answer(
    tables: dict[str, Any], connections: list[Connection], index: int = 0, turns: Turns | None = None
) -> None:
    """First come, first served; nobody twice before all who wait were served once.

    Of those who wait together, one kernel's come together: every kernel has a process of its own, and turning
    from one to another costs the GPU time.
    """
    alive = list(connections)
    spent = Spent()
    last = None
    while alive:
        begin = time.perf_counter()
        ready = wait(alive)
        spent.add("idle", time.perf_counter() - begin)
        asked = []
        for connection in ready:
            begin = time.perf_counter()
            try:
                asked.append((connection, *connection.recv()))  # type: ignore[union-attr]
            except (EOFError, OSError):
                alive.remove(connection)  # type: ignore[arg-type]
                continue
            spent.add("receive", time.perf_counter() - begin)
        for connection, kernel, candidate in in_turns(asked, last):
            try:
                device = tables[kernel][1]
                before = getattr(device, "last_answer", None)
                with turns.timing() if turns else nullcontext(0.0) as waited:
                    begin = time.perf_counter()
                    outcome = device.run(candidate)
                    took = time.perf_counter() - begin
                if turns:
                    spent.add("turn", waited)
                raw = getattr(device, "last_answer", None)
                spent.run(took, raw if raw and raw is not before else {}, kernel == last)
                answer: Any = (outcome, took)
            except Exception as error:  # one search's trouble; the others go on
                traceback.print_exc()
                answer = f"{type(error).__name__}: {error}"
            last = kernel
            begin = time.perf_counter()
            try:
                connection.send(answer)
            except OSError:
                alive.remove(connection)
            spent.add("send", time.perf_counter() - begin)
        spent.say(index)
    spent.say(index, now=True)


def in_turns(asked: Sequence[tuple[Any, str, Any]], last: str | None) -> list[tuple[Any, str, Any]]:
    """Questions (who, kernel, candidate) by kernel: the last one's first, then as they came."""
    order = list(dict.fromkeys([last, *(kernel for _, kernel, _ in asked)]))
    return sorted(asked, key=lambda question: order.index(question[1]))


class SharedDevice:
    """A kernel's table at a GPU that others use too. Judges as its owner's device does.

    Attributes:
        busy: seconds that the GPU spent on what was asked here.
        last: the same for the last candidate.
        pairs: most pairs of blocks that a candidate is timed by; None for the timing model.
        inside: seconds spent in `run`, waiting for others included.
    """

    def __init__(self, connection: Any, hello: dict[str, Any], kernel: str) -> None:
        from sassafras.core import DeviceError

        if kernel in hello["failed"]:
            raise DeviceError(f"the GPU's owner could not open this kernel: {hello['failed'][kernel]}")
        self._connection, self._kernel = connection, kernel
        self.baseline = hello["baselines"][kernel]
        self.arch, self.modelled, self.pairs = self.baseline.arch, hello["modelled"], hello.get("pairs")
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
