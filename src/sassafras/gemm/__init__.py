"""HGEMM: our kernels (`kernels/*.cuh`), their configurations, the baselines, and the benchmark."""

from __future__ import annotations

from .configs.fallback import FallbackConfig, FallbackInstance
from .configs.registry import Config
from .configs.small import SmallConfig, SmallInstance
from .problem.shape import BANDS, Shape, cuda_l2_grid
from .select.space import GemmSpace

__all__ = [
    "BANDS",
    "Config",
    "FallbackConfig",
    "FallbackInstance",
    "GemmSpace",
    "Shape",
    "SmallConfig",
    "SmallInstance",
    "cuda_l2_grid",
]
