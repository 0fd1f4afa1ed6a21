"""Workloads looked at without a GPU: sizes, roles, grids, references and tolerances."""

from __future__ import annotations

from .checker import Checker
from .finding import Checked, Finding

__all__ = ["Checked", "Checker", "Finding"]
