"""Words that are zero before every launch, for kernels whose CTAs count arrivals and leave the words zero."""

from __future__ import annotations

from .driver import Driver

#: words reserved at once
_CHUNK = 1 << 18
#: the stream of a launch that is captured into a graph
CAPTURED = (1 << 64) - 1


class Counters:
    """Hands out zeroed words of GPU memory: a set for every (device, stream), and one for each captured
    launch.

    Launches on one stream follow each other, so they share a set; a captured launch may be replayed beside
    anything, so its set is never given out again.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._chunks: dict[int, tuple[int, int]] = {}  # device -> next address, words left
        self._sets: dict[tuple[int, int], tuple[int, int]] = {}  # (device, stream) -> words, address

    def __call__(self, words: int, device: int, stream: int) -> int:
        """Address of `words` zeroed words; `stream` is `CAPTURED` while its launch is captured."""
        if stream == CAPTURED:
            return self._take(words, device)
        size, address = self._sets.get((device, stream), (0, 0))
        if size < words:
            address = self._take(words, device)
            self._sets[device, stream] = (words, address)
        return address

    def _take(self, words: int, device: int) -> int:
        words = -(-words // 32) * 32  # sets do not share a cache line
        address, left = self._chunks.get(device, (0, 0))
        if left < words:
            left = max(words, _CHUNK)
            address = self._driver.zeros(max(0, device), left)
        self._chunks[device] = (address + 4 * words, left - words)
        return address
