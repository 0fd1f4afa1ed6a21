"""HGEMM: our kernels (`kernels/*.cuh`), their configurations, the baselines, and the benchmark."""

from __future__ import annotations

from .configs.fallback import StagedConfig, StagedInstance
from .configs.registry import Config
from .configs.small import LeanConfig, LeanInstance
from .problem.shape import BANDS, Shape, cuda_l2_grid
from .select.space import GemmSpace

__all__ = [
    "BANDS", "Config", "GemmSpace", "LeanConfig", "LeanInstance", "Shape", "StagedConfig", "StagedInstance",
    "cuda_l2_grid",
]  # fmt: skip
