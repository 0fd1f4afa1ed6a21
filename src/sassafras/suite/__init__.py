"""The suite: our own Triton kernels for what LLM training and serving runs, as workloads.

One file a kernel; each exports ``workload``. Nothing is imported until it is asked for.

A workload's first case is its headline. ``workload.meta["tails"]`` names the cases whose sizes are no
multiple of the block but which select the headline's variant; ``workload.meta["odd"]`` those that select a
variant with scalar accesses or the like (sizes that are no multiple of 16). All others are calls that a user
would make.
"""

from __future__ import annotations

import importlib

from sassafras.core import ToolMissing, Workload, WorkloadError

__all__ = ["load", "names", "paper_six"]

#: CuAsmRL's six (arXiv 2501.08071, section 5)
_PAPER_SIX = ("gemm_leakyrelu", "batched_gemm", "feed_forward", "attention", "softmax", "rmsnorm")
_SERVING = (
    "attention_causal",
    "layernorm",
    "rotary",
    "swiglu",
    "cross_entropy",
    "gemv_int8",
    "gemv_int4",
    "topk_gating",
    "kv_append",
    "paged_decode",
    "quantise_fp8",
)
#: name -> file and variable of the workloads that are not their file's only one
_PLACES = {"attention_causal": ("attention", "causal"), "attention_long": ("attention", "long")}


def names() -> tuple[str, ...]:
    """Every kernel of the suite; the paper's six first."""
    return _PAPER_SIX + _SERVING


def paper_six() -> tuple[str, ...]:
    """The kernels of CuAsmRL's evaluation."""
    return _PAPER_SIX


def load(name: str) -> Workload:
    """The workload of this name: one of `names()`, or ``attention_long``, SIP's own case (arXiv 2403.16863).

    Raises:
        WorkloadError: no such kernel in the suite.
        ToolMissing: triton is not installed.
    """
    if name not in names() and name not in _PLACES:
        raise WorkloadError(f"the suite has no kernel {name!r}", hint="one of " + ", ".join(names()))
    try:
        file, variable = _PLACES.get(name, (name, "workload"))
        module = importlib.import_module(f".{file}", __package__)
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ToolMissing("the suite needs triton", hint="pip install triton") from error
    workload = getattr(module, variable)
    assert isinstance(workload, Workload)
    return workload
