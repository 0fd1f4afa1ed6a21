"""Statistics of measurements (they live in `core`, so that devices can use them too)."""

from sassafras.core.statistics import (
    bootstrap_median,
    failure_bound,
    geometric_mean,
    hierarchical_bootstrap,
    hierarchical_median,
    paired_ratios,
    student_t,
)

__all__ = [
    "bootstrap_median",
    "failure_bound",
    "geometric_mean",
    "hierarchical_bootstrap",
    "hierarchical_median",
    "paired_ratios",
    "student_t",
]
