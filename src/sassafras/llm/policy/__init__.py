"""Choosing configurations by a small policy trained with RL on a table of measurements, and its rivals."""

from .table import Problem, Table

__all__ = ["Problem", "Table"]
