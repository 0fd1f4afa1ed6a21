"""What the programs share: options, packages of a folder, timed blocks of steps, a checksum; loads torch.

A program prints a line `step 123.4 us` for each block, then `rms` and `checksum` of the last step's outputs.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

#: blocks printed, and blocks before them; a block is the mean of its steps between two events
BLOCKS, WARM = 12, 3


def options(description: str | None, steps: int, sources: str = "") -> argparse.ArgumentParser:
    """The options of a program.

    Args:
        steps: of a block, where --steps names no others; aim at 20 to 50 ms.
        sources: the package that --sources holds.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=steps, help="steps of a block")
    if sources:
        parser.add_argument("--sources", type=Path, required=True, help=f"folder that holds {sources}/")
    return parser


def enter(sources: Path, name: str) -> None:
    """Make the package `sources`/`name` importable without running its __init__, which imports more.

    Pure wheels in `sources`/../whl serve what is not installed. Raises SystemExit where there is no package.
    """
    folder = sources / name.replace(".", "/")
    if not folder.is_dir():
        raise SystemExit(f"error: {folder} is no folder (--sources)")
    sys.path += [str(path) for path in (sources, *sources.resolve().parent.glob("whl/*.whl"))]
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def run(step: Callable[[], Sequence[Tensor]], steps: int, device: str = "cuda") -> None:
    """Time blocks of `steps` steps and print them with the checksum of the last step's outputs."""
    for block in range(-WARM, BLOCKS):
        microseconds, outputs = timed(step, steps, device)
        if block >= 0:
            print(f"step {microseconds:.1f} us", flush=True)
    digest = hashlib.sha256()
    sizes = []
    for output in outputs:
        sizes.append(float(output.detach().float().square().mean().sqrt()))
        digest.update(output.detach().contiguous().flatten().view(torch.uint8).cpu().numpy())
    print("rms", *(f"{size:.6g}" for size in sizes))
    print(f"checksum {digest.hexdigest()}", flush=True)


def graphed(step: Callable[[], Sequence[Tensor]]) -> Callable[[], Sequence[Tensor]]:
    """The step as the replay of one CUDA graph; it has run at least once before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    for output in outputs:
        output.detach().fill_(float("nan"))  # what is replayed writes them

    def replay() -> Sequence[Tensor]:
        graph.replay()
        return outputs

    return replay


def timed(step: Callable[[], Sequence[Tensor]], steps: int, device: str) -> tuple[float, Sequence[Tensor]]:
    """Microseconds a step, the mean of `steps`, and the outputs of the last one."""
    if device == "cpu":
        begun = time.perf_counter()
        for _ in range(steps):
            outputs = step()
        return 1e6 * (time.perf_counter() - begun) / steps, outputs
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(steps):
        outputs = step()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / steps, outputs
