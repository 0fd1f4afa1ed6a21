"""HGEMM: our kernels (`kernels/*.cuh`), their configurations, the baselines, and the benchmark."""

from __future__ import annotations

from .families import Config
from .lean import LeanConfig, LeanInstance
from .shapes import BANDS, Shape, cuda_l2_grid
from .space import GemmSpace
from .staged import StagedConfig, StagedInstance

__all__ = [
    "BANDS", "Config", "GemmSpace", "LeanConfig", "LeanInstance", "Shape", "StagedConfig", "StagedInstance",
    "cuda_l2_grid",
]  # fmt: skip
