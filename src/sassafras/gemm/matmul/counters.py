"""Words that are zero before every launch, for kernels whose CTAs count arrivals and leave the words zero.

Launches that may run at the same time must not share words. Launches on one stream run one after the other,
so they share them; a captured launch may be replayed beside anything, so its words are its own. Owners are

- a stream, by the id that CUDA gives to no other stream in the life of the program: a handle is used again
  after its stream was destroyed, perhaps while the old stream's work is still running;
- a captured graph: its words come back when the graph and its instances are gone and have run.

``CU_STREAM_PER_THREAD`` means another stream in every thread, which torch's allocator does not know: where a
launch would need a workspace or counters, both launchers leave the call to torch.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field

from .driver import Driver, DriverError, Release

#: CU_STREAM_PER_THREAD
PER_THREAD = 2
#: words of the smallest block: a captured graph's, a stream's
_GRAPH, _STREAM = 1 << 14, 1 << 12
#: streams that are gone whose blocks are kept until they are freed together: to free them waits for the GPU
_MOST_LEFT = 64


@dataclass(slots=True)
class _Block:
    address: int
    words: int
    used: int = 0

    def take(self, words: int) -> int | None:
        """Address of so many words that are free; None where too few are left."""
        words = -(-words // 32) * 32  # sets do not share a cache line
        if self.words - self.used < words:
            return None
        self.used += words
        return self.address + 4 * (self.used - words)


@dataclass(slots=True)
class _Owner:
    device: int
    blocks: list[_Block] = field(default_factory=list)


class Counters:
    """Hands out zeroed words of GPU memory. Any thread may call it.

    Args:
        driver: the CUDA driver.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._streams: dict[tuple[int, int], _Owner] = {}  # (device, id)
        self._ids: dict[tuple[int, int], int] = {}  # (device, handle) -> the id of the stream that has it
        self._graphs: dict[tuple[int, int], tuple[_Owner, Release]] = {}  # (device, capture's id)
        self._free: dict[tuple[int, int], list[int]] = {}  # (device, words) -> addresses, of graphs
        self._left: list[_Owner] = []  # of streams that were destroyed

    def __call__(self, words: int, device: int, stream: int) -> int:
        """Address of `words` zeroed words for a launch on a stream whose context is current.

        Args:
            stream: its handle; not `PER_THREAD`.

        Raises:
            DriverError: the driver refuses, for example since the stream's capture is broken.
        """
        capture, graph = self._driver.capture(stream)
        number = 0 if graph else self._driver.stream_id(stream)
        with self._lock:
            if graph:
                return self._for_graph(words, device, capture, graph)
            before = self._ids.get((device, stream), number)
            self._ids[device, stream] = number
            if before != number:
                self._leave(device, before)  # that stream was destroyed
            owner = self._streams.setdefault((device, number), _Owner(device))
            if not owner.blocks or owner.blocks[-1].words < words:  # plans may still know the smaller ones
                owner.blocks.append(self._new(words, device, _STREAM))
            return owner.blocks[-1].address

    def _for_graph(self, words: int, device: int, capture: int, graph: int) -> int:
        known = self._graphs.get((device, capture))
        if known is None:
            self._collect()
            known = self._graphs[device, capture] = (_Owner(device), self._driver.released_with(graph))
        owner = known[0]
        address = owner.blocks[-1].take(words) if owner.blocks else None
        if address is None:
            owner.blocks.append(self._block(words, device))
            address = owner.blocks[-1].take(words)
        assert address is not None
        return address

    def _collect(self) -> None:
        """Take the blocks of graphs that are gone."""
        for key, (owner, release) in list(self._graphs.items()):
            if release.happened():
                del self._graphs[key]
                for block in owner.blocks:
                    self._free.setdefault((owner.device, block.words), []).append(block.address)

    def _block(self, words: int, device: int) -> _Block:
        """A zeroed block for a graph, used before or new."""
        size = _size(words, _GRAPH)
        if free := self._free.get((device, size)):
            block = _Block(free[-1], size)
            self._driver.zero(device, block.address, size)  # a kernel that was cut off leaves anything
            free.pop()
            return block
        return self._new(words, device, _GRAPH)

    def _new(self, words: int, device: int, least: int) -> _Block:
        size = _size(words, least)
        return _Block(self._driver.zeros(device, size), size)

    def _leave(self, device: int, number: int) -> None:
        """A stream is gone; its last launches may still run. To free memory is to wait for all of the GPU."""
        if (owner := self._streams.pop((device, number), None)) is not None:
            self._left.append(owner)
        if len(self._left) >= _MOST_LEFT:
            gone, self._left = self._left, []
            for owner in gone:
                for block in owner.blocks:
                    with suppress(DriverError):  # an earlier kernel's fault, which this launch will tell of
                        self._driver.free(owner.device, block.address)


def _size(words: int, least: int) -> int:
    """The next power of two, from `least` on: blocks that come back fit others."""
    return max(least, 1 << (words - 1).bit_length())
