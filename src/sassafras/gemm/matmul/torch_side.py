"""What the launchers ask of torch, for its CUDA devices."""

from __future__ import annotations

from typing import Any

import torch

from . import plain_tensors
from .launcher_python import Torch


def torch_side(**changes: Any) -> Torch:
    """Torch's functions as both launchers call them; `changes` are fields of `Torch`."""
    settings: dict[str, Any] = {
        "matmul": torch.matmul,
        "linear": torch._C._nn.linear,
        "empty_bytes": _empty_bytes,
        "stream": torch._C._cuda_getCurrentRawStream,
        "grad_enabled": torch.is_grad_enabled,
        "strict": strict,
        **plain_tensors.ASKED,
    }
    return Torch(**{**settings, **changes})


def strict() -> bool:
    """Is a cuBLASLt algorithm that may reduce in FP16, or in any order, forbidden?"""
    allowed = torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    allowed = allowed[0] if isinstance(allowed, tuple) else allowed
    return not allowed or torch.are_deterministic_algorithms_enabled()


def _empty_bytes(count: int, device: int) -> Any:
    return torch.empty(count, dtype=torch.uint8, device=f"cuda:{device}")
