"""What torch needs after a CUDA graph capture that failed."""

from __future__ import annotations

import contextlib


def release_generator() -> None:
    """Let torch draw random numbers on this device again.

    Its generator counts as capturing until a capture ends well, and refuses every draw of the process
    ("Offset increment outside graph capture", torch 2.11). A small capture that ends well sets it right;
    where there can be none the context is lost, and draws are not what fails first.
    """
    import torch

    with contextlib.suppress(RuntimeError):
        held = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
            held.add_(1)
