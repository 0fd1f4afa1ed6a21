"""Zeroed words for launches, on a stand-in for the driver: whom they belong to, and when they come back."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sassafras.gemm.matmul import counters as module
from sassafras.gemm.matmul.counters import Counters
from sassafras.gemm.matmul.driver import Driver, DriverError
from tests.gemm import stand_in

STREAM = 0x1230


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    return stand_in.build_driver(tmp_path_factory.mktemp("driver"), shared)


@pytest.fixture
def driver(library: Path) -> Driver:
    return Driver(str(library))


@pytest.fixture
def state(library: Path) -> Iterator[Any]:
    found = stand_in.state_of(library)
    yield found
    found.capturing = found.fail_retaining = 0
    found.generation = 0


def taken(counters: Counters, driver: Driver, words: int, stream: int = STREAM, device: int = 0) -> int:
    with driver.current(driver.context(device)):
        return counters(words, device, stream)


def zero(address: int, words: int) -> bool:
    return not any((ctypes.c_uint32 * words).from_address(address))


def drop(library: Path, capture: int) -> None:
    """The graph of that capture is gone, and what it has launched."""
    function = ctypes.CDLL(str(library)).stand_in_drop_graph
    function.argtypes = [ctypes.c_ulonglong]
    function(capture)


def test_threads_never_share_words_of_captured_launches(driver: Driver, state: Any) -> None:
    counters, found, begin = Counters(driver), [[] for _ in range(6)], threading.Barrier(6)
    state.capturing, state.capture = 1, 100

    def work(mine: list[int]) -> None:
        begin.wait()
        for _ in range(4000):
            mine.append(taken(counters, driver, 33))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = sorted(address for mine in found for address in mine)
    assert len(every) == 24_000
    assert all(after - before >= 4 * 33 for before, after in itertools.pairwise(every))


def test_a_stream_has_its_own_and_keeps_them(driver: Driver, state: Any) -> None:
    counters = Counters(driver)
    first = taken(counters, driver, 100)
    assert zero(first, 100)
    assert taken(counters, driver, 50) == first == taken(counters, driver, 4096), "as they come"
    more = taken(counters, driver, 5000)
    assert more != first and zero(more, 5000) and taken(counters, driver, 100) == more
    others = {taken(counters, driver, 100, STREAM + 2), taken(counters, driver, 100, device=1), more}
    assert len(others) == 3


def test_a_handle_that_is_used_again_is_another_stream(driver: Driver, state: Any) -> None:
    """The old stream's launches may still wait: its words are freed with others, and that waits for them."""
    counters = Counters(driver)
    allocated, freed = state.allocated, state.freed
    found = set()
    for _ in range(module._MOST_LEFT):
        found.add(taken(counters, driver, 100))
        state.generation += 1
    assert len(found) == module._MOST_LEFT and state.freed == freed
    for _ in range(3 * module._MOST_LEFT):
        taken(counters, driver, 100)
        state.generation += 1
    assert state.allocated == allocated + 4 * module._MOST_LEFT
    assert state.freed == freed + 3 * module._MOST_LEFT
    assert len(counters._streams) == 1 and len(counters._left) < module._MOST_LEFT


def test_words_of_dropped_graphs_come_back(library: Path, driver: Driver, state: Any) -> None:
    counters = Counters(driver)
    state.capturing, state.capture = 1, 200
    mine = [taken(counters, driver, 1000) for _ in range(40)]
    assert len(set(mine)) == 40 and all(zero(address, 1000) for address in mine)
    allocated = state.allocated
    for capture in range(201, 260):  # of 200 and the one before are there
        state.capture = capture
        words = [taken(counters, driver, 1000) for _ in range(10)]
        assert not set(words) & set(mine) and len(set(words)) == 10
        assert all(zero(address, 1000) for address in words)
        ctypes.memset(words[0], 0xFF, 4000)  # a kernel that was cut off
        drop(library, capture)
    assert state.allocated <= allocated + 2
    drop(library, 200)
    state.capture = 300
    assert set(mine) & {taken(counters, driver, 1000) for _ in range(60)}


def test_a_graph_that_cannot_be_followed_is_refused(driver: Driver, state: Any) -> None:
    counters = Counters(driver)
    state.capturing, state.capture, state.fail_retaining = 1, 400, 700
    with pytest.raises(DriverError, match="cuGraphRetainUserObject: CUDA error 700"):
        taken(counters, driver, 10)
    state.fail_retaining = 0
    assert zero(taken(counters, driver, 10), 10)


def test_a_release_is_told_once(driver: Driver, library: Path, state: Any) -> None:
    release = driver.released_with(500)
    assert not release.happened()
    drop(library, 500)
    assert release.happened() and not release.happened()
