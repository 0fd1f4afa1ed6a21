"""Sassafras: faster GPU kernels after the compiler has finished, proved correct and measured honestly.

Everything here is loaded on first use, so that ``import sassafras`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: public name -> the module that has it
_HOME = {
    "optimize": "api.optimize", "compare": "api.compare", "Comparison": "comparison.comparison",
    "evolve": "api.evolve", "judge": "api.judge", "Judge": "api.judge",
    "check": "api.check", "workload_of": "api.live", "workloads_of": "api.live",
    "optimize_all": "api.optimize_all", "Results": "api.optimize_all",
    "Checked": "precheck",
    "Result": "jobs.result", "explain": "report.explain",
    "Budget": "core", "Candidate": "core", "Case": "core", "Buffer": "core", "Device": "core",
    "Evaluation": "core", "Evaluator": "core", "Interval": "core", "Kernel": "core", "Modelled": "core",
    "Custom": "core", "Normal": "core", "Uniform": "core",
    "SassafrasError": "core", "Space": "core", "Tolerance": "core", "Verdict": "core", "Workload": "core",
    "Strategy": "search", "Store": "store", "load": "targets",
    "autotune": "on_call", "install": "on_call", "uninstall": "deploy", "status": "deploy",
    "matmul": "gemm.matmul.api", "linear": "gemm.matmul.linear",
    "accelerate": "gemm.matmul.layers", "restore": "gemm.matmul.layers", "layers": "gemm.matmul.layers",
    "batch_invariant": "gemm.matmul.batch_invariant",
    "external_matmul": "gemm.matmul.inductor", "record": "gemm.bench.program", "tune": "gemm.bench.program",
}  # fmt: skip

if TYPE_CHECKING:
    from sassafras.api.check import check
    from sassafras.api.compare import Comparison, compare
    from sassafras.api.evolve import evolve
    from sassafras.api.judge import Judge, judge
    from sassafras.api.live import workload_of, workloads_of
    from sassafras.api.optimize import optimize
    from sassafras.api.optimize_all import Results, optimize_all
    from sassafras.core import (
        Budget,
        Buffer,
        Candidate,
        Case,
        Custom,
        Device,
        Evaluation,
        Evaluator,
        Interval,
        Kernel,
        Modelled,
        Normal,
        SassafrasError,
        Space,
        Tolerance,
        Uniform,
        Verdict,
        Workload,
    )
    from sassafras.deploy import status, uninstall
    from sassafras.gemm.bench.program import record, tune
    from sassafras.gemm.matmul.api import matmul
    from sassafras.gemm.matmul.batch_invariant import batch_invariant
    from sassafras.gemm.matmul.inductor import external_matmul
    from sassafras.gemm.matmul.layers import accelerate, layers, restore
    from sassafras.gemm.matmul.linear import linear
    from sassafras.jobs.result import Result
    from sassafras.on_call import autotune, install
    from sassafras.precheck import Checked
    from sassafras.report.explain import explain
    from sassafras.search import Strategy
    from sassafras.store import Store
    from sassafras.targets.load import load

__all__ = [
    "Budget", "Buffer", "Candidate", "Case", "Checked", "Comparison", "Custom", "Device", "Evaluation",
    "Evaluator", "Interval", "Judge", "Kernel", "Modelled", "Normal", "Result", "Results", "SassafrasError",
    "Space", "Store", "Strategy", "Tolerance", "Uniform", "Verdict", "Workload", "__version__", "accelerate",
    "autotune", "batch_invariant", "check", "compare", "evolve", "explain", "external_matmul", "install",
    "judge", "layers", "linear", "load", "matmul", "optimize", "optimize_all", "record", "restore", "status",
    "tune", "uninstall", "workload_of", "workloads_of",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
