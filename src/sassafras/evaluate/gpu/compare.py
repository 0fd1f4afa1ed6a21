"""The worker's own kernels, loaded: comparisons into counter slots, register scrubbing, L2 eviction."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any

from sassafras.cuda.compile import compile_cuda
from sassafras.cuda.driver import Gpu, KernelFunction
from sassafras.cuda.params import ParameterBlock

from .guarded_buffers import BufferLayout

_MASK = (1 << 64) - 1


def arch_of(capability: tuple[int, int]) -> str:
    """The arch that a GPU runs: ``sm_90a`` for 9.0, ``sm_100a`` for 10.0, ``sm_86`` for 8.6."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


#: arch -> the compiled kernels that this process was given
given_cubins: dict[str, bytes] = {}


@lru_cache(maxsize=1)
def checker_cubin(arch: str) -> bytes:
    """The worker's own kernels, compiled for `arch`; NVRTC takes a second or two."""
    if arch in given_cubins:
        return given_cubins[arch]
    source = files(__package__).joinpath("kernels.cu").read_text(encoding="utf-8")
    return compile_cuda(source, arch)


class Checker:
    """Comparisons write to slots on the GPU; `failures` reads them all back at once.

    Args:
        gpu: the GPU.
        slots: comparisons that may be pending at a time.
    """

    def __init__(self, gpu: Gpu, slots: int = 512) -> None:
        import torch

        self.gpu = gpu
        self.cubin = checker_cubin(arch_of(gpu.capability))
        self._compare = gpu.load(self.cubin, "sassafras_compare")
        self._scrub = gpu.load(self.cubin, "sassafras_scrub")
        self._read = gpu.load(self.cubin, "sassafras_read")
        self._wide = gpu.config((4 * gpu.multiprocessors, 1, 1), 256)
        self._one_each = gpu.config((gpu.multiprocessors, 1, 1), 256)
        self._limit = slots
        self._device = torch.zeros(2 * slots, dtype=torch.int64, device="cuda")
        self._sink = torch.zeros(4, dtype=torch.int64, device="cuda")
        self._host = gpu.pinned(2 * slots)
        self._labels: list[tuple[str, BufferLayout, int]] = []
        self._blocks: dict[tuple[int, ...], ParameterBlock] = {}
        self._scrub_params = ParameterBlock(
            [
                ("pattern", 0x7FC00000, "u32"),
                ("mask", 0x3FF, "u32"),
                ("rounds", 0, "u32"),
                ("sink", int(self._sink.data_ptr()), "*"),
            ],
            self._scrub.sizes,
        )
        self._flush: tuple[Any, ParameterBlock] | None = None
        torch.cuda.synchronize()

    def load(self, name: str) -> KernelFunction:
        """Another of the worker's kernels."""
        return self.gpu.load(self.cubin, name)

    def reset(self) -> None:
        """Forget pending comparisons."""
        self._labels.clear()
        self.gpu.clear(int(self._device.data_ptr()), 16 * self._limit)

    def compare(
        self, live: int, expected: int, nbytes: int, label: str, layout: BufferLayout, base: int
    ) -> None:
        """Enqueue a bitwise comparison of `nbytes` (a multiple of 16) at two device addresses.

        `base` is the offset of `live` in the layout, for the words of a failure.
        """
        slot = len(self._labels)
        if slot >= self._limit:
            raise RuntimeError("more comparisons pending than slots")
        self._labels.append((label, layout, base))
        key = (live, expected, nbytes, slot)
        block = self._blocks.get(key)
        if block is None:
            address = int(self._device.data_ptr()) + 16 * slot
            block = ParameterBlock(
                [
                    ("a", live, "*"),
                    ("b", expected, "*"),
                    ("words", nbytes // 16, "u64"),
                    ("slot", address, "*"),
                ],
                self._compare.sizes,
            )
            if len(self._blocks) > 4096:
                self._blocks.clear()
            self._blocks[key] = block
        self.gpu.launch(self._wide, self._compare, block.address)

    def scrub(self) -> None:
        """Enqueue: leave NaN patterns in the registers of every multiprocessor."""
        self.gpu.launch(self._one_each, self._scrub, self._scrub_params.address)

    def flush_l2(self) -> None:
        """Enqueue: read more than twice the L2, so that what follows starts cold."""
        if self._flush is None:
            import torch

            buffer = torch.zeros(5 * self.gpu.l2_bytes // 2 // 16 * 16, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            words = buffer.numel() // 16
            sink = int(self._sink.data_ptr())
            block = ParameterBlock(
                [("a", int(buffer.data_ptr()), "*"), ("words", words, "u64"), ("sink", sink, "*")],
                self._read.sizes,
            )
            self._flush = (buffer, block)
        self.gpu.launch(self._wide, self._read, self._flush[1].address)

    def failures(self) -> list[tuple[str, str]]:
        """Wait, read the slots back; (kind, words) of each comparison that found a difference.

        Kind is ``output``, ``input`` or ``guard``. Raises CudaError for what any kernel did.
        """
        count = len(self._labels)
        if count:
            self.gpu.read_back(_address(self._host), int(self._device.data_ptr()), 16 * count)
        self.gpu.sync()
        found = []
        for index, (label, layout, base) in enumerate(self._labels):
            words, first = int(self._host[2 * index]), int(self._host[2 * index + 1])
            if words:
                role, place = layout.where(base + (~first & _MASK))
                kind = {"in": "input", "guard": "guard"}.get(role, "output")
                verb = {"input": "input modified", "guard": "stray write"}.get(kind, "output differs")
                found.append((kind, f"{label}: {verb} at {place} ({words} words of 16 bytes)"))
        self._labels.clear()
        if count:
            self.gpu.clear(int(self._device.data_ptr()), 16 * count)
        return found


def _address(array: Any) -> int:
    import ctypes

    return ctypes.addressof(array)
