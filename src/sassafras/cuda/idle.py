"""Is the GPU idle but for us? A kernel of ours looks at the clock, on every multiprocessor, without a pause.

Contexts of different processes share a GPU in slices of time: where another one has work, ours is switched
out, and the clock that it reads jumps by a slice, which is hundreds of microseconds at least. Alone, the
longest jump is the resolution of the clock, about a microsecond. A candidate's process that is stopped may
have left a kernel running: signals do not reach the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .driver import Gpu
from .params import ParameterBlock

#: how long one look takes: several slices of time
SPAN_NS = 12_000_000
#: a jump of the clock that only another context's work explains
JUMP_NS = 150_000


def busy(gaps_ns: Sequence[int]) -> bool:
    """Whether these longest jumps of the clock, one for each multiprocessor, say that others use the GPU.

    More than half must have jumped: a slice of time belongs to the whole GPU.
    """
    jumped = sum(gap > JUMP_NS for gap in gaps_ns)
    return 2 * jumped > len(gaps_ns) > 0


class Idle:
    """Looks whether others use this GPU.

    Args:
        gpu: the GPU.
        cubin: with the kernel ``sassafras_ticks``.
    """

    def __init__(self, gpu: Gpu, cubin: bytes) -> None:
        import torch

        self.gpu = gpu
        self._kernel = gpu.load(cubin, "sassafras_ticks")
        self._gaps = torch.zeros(gpu.multiprocessors, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        self._config = gpu.config((gpu.multiprocessors, 1, 1), 32)
        values: list[Any] = [("gaps", int(self._gaps.data_ptr()), "*"), ("span_ns", SPAN_NS, "u64")]
        self._block = ParameterBlock(values, self._kernel.sizes)

    def look(self) -> list[int]:
        """The longest jump of the clock on each multiprocessor, in nanoseconds. Raises CudaError."""
        self.gpu.launch(self._config, self._kernel, self._block.address)
        self.gpu.sync()
        return [int(gap) for gap in self._gaps.tolist()]
