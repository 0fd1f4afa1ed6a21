"""Running candidates of the divergent kernels on a GPU: every module's first launch, on scrubbed registers.

Before each launch one kernel writes a pattern into all registers of all multiprocessors (a block takes a
whole register file), another one fills all shared memory, the outputs are poisoned, and the inputs restored.
Two patterns: NaNs that differ by register and thread, and one small number. What is compared, bitwise, is the
whole arena: outputs, inputs, and a guard band behind each.

`Cold` serves many candidates in a process, each from a module of its own that is loaded a moment before: the
first launch is the module's first. `fresh` runs one candidate in a process forked for it: its launches are
that process's first but for those that scrub.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from .pool import Say

#: patterns: NaNs that differ by register and thread, and one small number
NAN, NAN_MASK, SMALL = 0x7FC00000, 0x3FF, 0x0ABC
SHARED = r"""
extern "C" __global__ void fill_shared(unsigned words, unsigned pattern, unsigned mask, unsigned* sink) {
  extern __shared__ volatile unsigned s[];
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) s[i] = pattern | (i & mask);
  __syncthreads();
  if (s[threadIdx.x] == 1u) *sink = 1u;
}
"""
SHARED_BYTES = 224 * 1024
#: input sets: words of input that count, and (bits kept of a random word, poison of the outputs, pattern)
SETS = ((4096, 0xFFFFFFFF, 0xFF, 0), (4000, 0x00000FFF, 0xA5, 1), (3333, 0x0F0F0F0F, 0x3C, 0))
BLOCKS, THREADS, WORDS, GUARD = 32, 128, 4096, 1024
_OUT = 4 * WORDS
ARENA = _OUT + GUARD + WORDS + GUARD


def image(kernel: str, which: int) -> np.ndarray:
    """The arena before a launch (uint32): poisoned outputs, inputs, guards between."""
    rng = np.random.default_rng([which, sum(kernel.encode())])
    _, mask, poison, _ = SETS[which]
    arena = np.full(ARENA, poison * 0x01010101, np.uint32)
    arena[_OUT + GUARD : _OUT + GUARD + WORDS] = rng.integers(0, 1 << 32, WORDS, np.uint32) & np.uint32(mask)
    return arena


def tools(folder: Path) -> None:
    """Compile what scrubs into a folder, once; needs no GPU."""
    from importlib.resources import files

    from sassafras.cuda.compile import compile_cuda

    source = files("sassafras.evaluate.gpu").joinpath("kernels.cu").read_text(encoding="utf-8")
    (folder / "checker.cubin").write_bytes(compile_cuda(source, "sm_90a"))
    (folder / "shared.cubin").write_bytes(compile_cuda(SHARED, "sm_90a"))


class Cold:
    """A context with the tools loaded; runs candidates of one kernel after another."""

    def __init__(self, folder: Path) -> None:
        from sassafras.cuda.driver import Gpu, call
        from sassafras.cuda.params import ParameterBlock

        self.folder = folder
        gpu = self.gpu = Gpu()
        self._scrub = gpu.load((folder / "checker.cubin").read_bytes(), "sassafras_scrub")
        self._fill = gpu.load((folder / "shared.cubin").read_bytes(), "fill_shared", SHARED_BYTES)
        self._live = int(call(gpu.driver.cuMemAlloc, 4 * ARENA))
        sink = int(call(gpu.driver.cuMemAlloc, 64))
        self._host = np.zeros(ARENA, np.uint32)
        self._each = gpu.config((gpu.multiprocessors, 1, 1), 256)
        self._smem = gpu.config((gpu.multiprocessors, 1, 1), 256, SHARED_BYTES)
        self._config = gpu.config((BLOCKS, 1, 1), THREADS)
        self._patterns = [
            (
                ParameterBlock([("p", p, "u32"), ("m", m, "u32"), ("r", 0, "u32"), ("s", sink, "*")],
                               self._scrub.sizes),
                ParameterBlock(
                    [("w", SHARED_BYTES // 4, "u32"), ("p", p, "u32"), ("m", m, "u32"), ("s", sink, "*")],
                    self._fill.sizes,
                ),
            )
            for p, m in ((NAN, NAN_MASK), (SMALL, 0))
        ]  # fmt: skip

    def open(self, kernel: str) -> None:
        """Prepare the inputs of a kernel, and what the original leaves if that is known."""
        self.kernel = kernel
        self._images = [image(kernel, which) for which in range(len(SETS))]
        path = self.folder / f"{kernel}.npy"
        self._expected = np.load(path) if path.exists() else None

    def outputs(self, cubin: bytes, swap: bool = False) -> list[np.ndarray]:
        """What a module leaves of each input set, its first launch first; `swap` exchanges the two patterns.

        Raises:
            CudaError: the driver refuses it, or a launch faults.
        """
        from sassafras.cuda.driver import call
        from sassafras.cuda.params import ParameterBlock

        gpu, found = self.gpu, []
        function = gpu.load(cubin, self.kernel)
        for which, (n, _, _, pattern) in enumerate(SETS):
            registers, memory = self._patterns[pattern ^ int(swap)]
            call(gpu.driver.cuMemcpyHtoD, self._live, self._images[which].ctypes.data, 4 * ARENA)
            call(gpu.driver.cuCtxSynchronize)  # the copy may be under way still, and our stream does not wait
            block = ParameterBlock(
                [("out", self._live, "*"), ("in", self._live + 4 * (_OUT + GUARD), "*"), ("n", n, "i32")],
                function.sizes,
            )
            gpu.launch(self._smem, self._fill, memory.address)
            gpu.launch(self._each, self._scrub, registers.address)
            gpu.launch(self._config, function, block.address)
            gpu.sync()
            call(gpu.driver.cuMemcpyDtoH, self._host.ctypes.data, self._live, 4 * ARENA)
            found.append(self._host.copy())
        gpu.unload(function)
        return found

    def prepare(self, kernel: str, cubin: bytes) -> str:
        """Keep what the original leaves; ``""``, or why this kernel cannot be judged."""
        self.open(kernel)
        first = np.stack(self.outputs(cubin))
        for round_ in range(6):
            if (np.stack(self.outputs(cubin, bool(round_ & 1))) != first).any():
                return "the original differs from itself"
        if (first == np.stack(self._images)).all():
            return "the original writes nothing"
        np.save(self.folder / f"{kernel}.npy", first)
        return ""

    def right(self, cubin: bytes) -> bool:
        """Whether a candidate leaves what the original left, bit for bit, of every input set."""
        return all((a == b).all() for a, b in zip(self.outputs(cubin), self._expected, strict=True))


def fresh(say: Say, folder: Path, jobs: list[tuple[str, Path]], until: float) -> None:
    """Run each (kernel, cubin) in a process forked for it; this process never touches CUDA.

    Says (cubin's path, ``right``, ``wrong``, ``crashed`` or ``hung``) for each, until the time is over.
    """
    from sassafras.cuda import driver, params  # noqa: F401 (imported once, for all children)

    driver.bindings()
    for kernel, path in jobs:
        if time.monotonic() > until:
            break
        child = os.fork()
        if child == 0:
            try:
                cold = Cold(folder)
                cold.open(kernel)
                os._exit(0 if cold.right(path.read_bytes()) else 3)
            except BaseException:
                os._exit(4)
        begin, status = time.monotonic(), None
        while status is None and time.monotonic() - begin < 30:
            done, code = os.waitpid(child, os.WNOHANG)
            status = code if done else None
            time.sleep(0.005)
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            say((str(path), "hung"))
            continue
        code = os.waitstatus_to_exitcode(status)
        say((str(path), {0: "right", 3: "wrong"}.get(code, "crashed")))
