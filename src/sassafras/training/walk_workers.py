"""Processes that walk: each opens the kernels that fall to it, and keeps them open.

What an iteration evaluates is a function of (seed, iteration, kernels an iteration): not of how many
processes there are, nor of which of them is faster. Walks do not depend on the network, so the next
iterations' are made while it learns from this one's.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import Any

import numpy as np

from sassafras.core import SassafrasError, SearchError
from sassafras.jobs.opening import DEFAULT_ARCH
from sassafras.timing_model import ModelDevice

from .corpus import CorpusSample, open_sample
from .environment import lonely, table
from .random_walks import TrainingKernel, TrainingSettings, Walk, walk

#: makers of kernels by family; with more than one worker they must travel between processes (be picklable)
Makers = Mapping[str, Sequence[Callable[[], TrainingKernel]]]
#: a kernel: family, and its number there
Place = tuple[str, int]

#: kernels drawn for a walk: the first of them that can be used is walked on
_TRIES = 12
#: iterations begun before they are needed
_AHEAD = 3


@dataclass(frozen=True, slots=True)
class KernelMaker:
    """Makes a `TrainingKernel` of a sample of the corpus, on the timing model; travels between processes."""

    sample: CorpusSample

    def __call__(self) -> TrainingKernel:
        """The kernel. Raises SassafrasError where it cannot be scheduled or modelled."""
        workload, case = open_sample(self.sample)
        space, evaluate = table(workload, lonely(case), ModelDevice(DEFAULT_ARCH), DEFAULT_ARCH)
        return TrainingKernel(self.sample.name, self.sample.family, space, evaluate)


@dataclass(frozen=True)
class Walked:
    """An iteration's walks, and kernels that turned out to be unusable: place -> why."""

    walks: list[Walk]
    unusable: dict[Place, str]


class WalkTable:
    """The kernels of one process: opened when first needed; the unusable ones are remembered."""

    def __init__(self, makers: Makers) -> None:
        self.makers = makers
        self.opened: dict[Place, TrainingKernel] = {}
        self.unusable: dict[Place, str] = {}

    def kernel(self, place: Place) -> TrainingKernel | None:
        """The kernel, ready to be played; None where the model cannot evaluate it or nothing can be moved."""
        if place in self.unusable:
            return None
        if place not in self.opened:
            try:
                made = self.makers[place[0]][place[1]]()
                start = made.space.start()
                if not made.space.legal(start).any():
                    raise SearchError("no legal move")
                if made.evaluate(start).cost is None:
                    raise SearchError("the timing model cannot evaluate it")
            except SassafrasError as error:
                self.unusable[place] = str(error)
                return None
            self.opened[place] = made
        return self.opened[place]

    def first(self, places: Sequence[Place]) -> tuple[TrainingKernel, dict[Place, str]]:
        """The first of these kernels that can be used, and those before it that cannot.

        Raises:
            SearchError: none of them can be used.
        """
        failed: dict[Place, str] = {}
        for place in places:
            if (kernel := self.kernel(place)) is not None:
                return kernel, failed
            failed[place] = self.unusable[place]
        raise SearchError(f"of {len(places)} kernels drawn none can be used: {failed}")


def draw(makers: Makers, rng: np.random.Generator, count: int = _TRIES) -> list[Place]:
    """Kernels drawn: every family as likely as another, and within it every kernel."""
    families = sorted(makers)
    places = []
    for _ in range(count):
        family = families[int(rng.integers(len(families)))]
        places.append((family, int(rng.integers(len(makers[family])))))
    return places


_table: WalkTable | None = None


def _begin(makers: Makers) -> None:
    """In a worker: interrupts are its owner's business, and it ends when its owner does, however that is."""
    global _table
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    owner = parent_process()
    assert owner is not None

    def outlive() -> None:
        owner.join()
        os._exit(1)

    threading.Thread(target=outlive, daemon=True).start()
    _table = WalkTable(makers)


def _walk(
    places: Sequence[Place], settings: TrainingSettings, seeds: Sequence[int], table: WalkTable | None = None
) -> tuple[Walk, dict[Place, str]]:
    """A walk on the first of these kernels that can be used; `table`: None for this worker's own."""
    table = table or _table
    assert table is not None
    kernel, failed = table.first(places)
    return walk(kernel, settings, seeds), failed


@contextmanager
def _alive() -> Iterator[None]:
    """Raise SearchError where a process died."""
    try:
        yield
    except BrokenProcessPool as error:
        raise SearchError(
            "a process that evaluates kernels died", hint="too little memory? give fewer --workers"
        ) from error


class WalkWorkers:
    """So many processes that walk; with one worker it is this process itself.

    Args:
        makers: the kernels.
        workers: processes.
        table: this process's own kernels, for one worker.
    """

    def __init__(self, makers: Makers, workers: int = 1, table: WalkTable | None = None) -> None:
        self.makers = makers
        self.table = table or WalkTable(makers)
        # a pool of one each, so that a kernel is always walked on by the process that has it open
        self._pools = [
            ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin, initargs=(makers,))
            for _ in range(workers if workers > 1 else 0)
        ]
        self._begun: dict[tuple[int, ...], list[Future[Any]]] = {}
        homes = [(family, n) for family in sorted(makers) for n in range(len(makers[family]))]
        self._home = {place: n for n, place in enumerate(homes)}

    def walks(
        self, settings: TrainingSettings, seeds: Sequence[int], ahead: Sequence[Sequence[int]] = ()
    ) -> Walked:
        """`settings.kernels` walks on kernels drawn by `seeds`.

        Args:
            settings: what a walk is.
            seeds: of this iteration.
            ahead: seeds of the iterations that will be asked for next.

        Raises:
            SearchError: nothing that was drawn can be used, or a process died.
        """
        for one in (seeds, *(list(ahead)[:_AHEAD] if self._pools else ())):
            if tuple(one) not in self._begun:
                self._begun[tuple(one)] = [self._drawn([*one, n], settings) for n in range(settings.kernels)]
        with _alive():
            found = [future.result() for future in self._begun.pop(tuple(seeds))]
        unusable: dict[Place, str] = {}
        for _, failed in found:
            unusable |= failed
        return Walked([walked for walked, _ in found], unusable)

    def _drawn(self, seeds: Sequence[int], settings: TrainingSettings) -> Future[Any]:
        """Begin a walk on a kernel drawn by `seeds`, in the process that has it open."""
        places = draw(self.makers, np.random.default_rng([*seeds, 0]))
        return self._submit(self._home[places[0]], places, settings, [*seeds, 1])

    def _submit(
        self, number: int, places: Sequence[Place], settings: TrainingSettings, seeds: Sequence[int]
    ) -> Future[Any]:
        if self._pools:
            return self._pools[number % len(self._pools)].submit(_walk, places, settings, seeds)
        done: Future[Any] = Future()
        try:
            done.set_result(_walk(places, settings, seeds, self.table))
        except SassafrasError as error:
            done.set_exception(error)
        return done

    def tour(self, places: Sequence[Place], settings: TrainingSettings, seed: int) -> Walked:
        """One walk on each of these kernels; those that cannot be used are left out.

        Raises:
            SearchError: a process died.
        """
        unusable: dict[Place, str] = {}
        walks: list[Walk] = []
        begun = [self._submit(n, [place], settings, [seed, n]) for n, place in enumerate(places)]
        with _alive():
            for place, future in zip(places, begun, strict=True):
                try:
                    walks.append(future.result()[0])
                except SassafrasError as error:
                    unusable[place] = str(error)
        return Walked(walks, unusable)

    def close(self) -> None:
        """End the processes; what they have begun is dropped."""
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in self._pools:
            pool.shutdown(wait=True)
        self._pools, self._begun = [], {}
