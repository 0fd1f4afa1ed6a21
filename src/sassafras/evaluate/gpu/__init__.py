"""`CudaDevice`: a GPU in a worker process that may die. The parent process never initialises CUDA."""

from __future__ import annotations

from .device import CudaDevice, Limits

__all__ = ["CudaDevice", "Limits"]
