"""CUDA graphs captured by torch that may fail, without harm to what the process does afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def captured(graph: Any, *, stream: Any = None) -> Iterator[None]:
    """`torch.cuda.graph`, after which torch is as before, too, if the capture fails.

    Where the driver refuses to end a capture, torch 2.11 and 2.13 leave two states as they are while it
    lasts. The allocator counts it as under way: `empty_cache` raises, and the process is ended when a memory
    pool is freed. The generator refuses every draw ("Offset increment outside graph capture").

    Args:
        graph: a `torch.cuda.CUDAGraph`; what other threads do with the GPU does not end its capture.
        stream: to capture on; torch's own by default.

    Raises:
        RuntimeError: as torch raises it; and what the block raises.
    """
    import torch

    device, pool = torch.cuda.current_device(), torch.cuda.graph_pool_handle()
    how = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
    try:
        with torch.cuda.graph(graph, **how):
            yield
    except BaseException:
        # (refused where the capture itself has ended, whose graph then frees the pool)
        with contextlib.suppress(AttributeError, RuntimeError):
            torch._C._cuda_endAllocateToPool(device, pool)
            torch._C._cuda_releasePool(device, pool)
        _release_generator()
        raise


def _release_generator() -> None:
    """A small capture that ends well sets it right.

    Where there can be none the context is lost, and draws are not what fails first.
    """
    import torch

    with contextlib.suppress(RuntimeError):
        held = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
            held.add_(1)
