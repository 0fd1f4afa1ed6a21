"""The shared nouns: workloads, kernels, candidates, evaluations, verdicts, budgets and contracts."""

from .budget import Budget
from .errors import (
    CompileError,
    CubinError,
    DeviceError,
    DisassemblyError,
    LatencyTableError,
    SassafrasError,
    SearchError,
    StoreError,
    ToolMissing,
    UnsupportedArch,
    WorkloadError,
)
from .evaluation import Candidate, Evaluation, Interval, Modelled, Outcome, beats
from .identity import fingerprint, workload_digest
from .kernel import Kernel
from .protocols import (
    At,
    Builder,
    Constructive,
    Device,
    Evaluator,
    Layered,
    Playable,
    Redrawing,
    Space,
    Tracked,
)
from .verdict import VALIDATOR_RULES, Verdict
from .workload import Buffer, Case, Custom, Fill, Normal, Tolerance, Uniform, Workload

__all__ = [
    "VALIDATOR_RULES", "At", "Budget", "Buffer", "Builder", "Candidate", "Case", "CompileError",
    "Constructive", "CubinError", "Custom", "Device", "DeviceError", "DisassemblyError",
    "Evaluation", "Evaluator", "Fill", "Interval", "Kernel", "LatencyTableError", "Layered", "Modelled",
    "Normal", "Outcome", "Playable", "Redrawing", "SassafrasError", "SearchError", "Space", "StoreError",
    "Tolerance", "ToolMissing", "Tracked", "Uniform", "UnsupportedArch", "Verdict", "Workload",
    "WorkloadError", "beats", "fingerprint", "workload_digest",
]  # fmt: skip
