"""Two cubins of one workload, measured in fresh processes."""

from __future__ import annotations

from pathlib import Path

from sassafras.core import Candidate, Evaluation, Kernel, Workload
from sassafras.core.errors import os_errors

from .comparison import Comparison

Cubin = Kernel | bytes | str | Path


def compare_cubins(
    a: Cubin,
    b: Cubin,
    workload: Workload | str,
    case: str | None,
    groups: int,
    rounds: int,
    cold_l2: bool,
    bitwise: bool,
) -> Comparison:
    """See `sassafras.api.compare.compare`."""
    from sassafras.evaluate.gpu import CudaDevice

    loaded = workload
    if isinstance(loaded, str):
        from sassafras.targets import load

        loaded = load(loaded)
    chosen = loaded.case(case)
    a, b = _contents(a), _contents(b)
    with CudaDevice(bitwise=bitwise) as device:
        own = None if isinstance(a, Kernel) and isinstance(b, Kernel) else loaded.build(chosen, device.arch)
        first, second = (_kernel(one, own) for one in (a, b))
        device.open(loaded, chosen, first)
        outcome = device.remeasure(
            Candidate(second, {"compare": True}), processes=groups, rounds=rounds, cold_l2=cold_l2
        )
        exact = bitwise and bool(device.facts.get("exact", True))  # some originals differ from themselves
    return from_evaluation(outcome, groups, rounds, exact)


def from_evaluation(outcome: Evaluation, groups: int, rounds: int, bitwise: bool = True) -> Comparison:
    """A `Comparison` from a re-measurement in fresh processes (baseline A, candidate B)."""
    equal = "bitwise" if bitwise else "within the tolerance"
    return Comparison(
        outcome.speedup,
        outcome.interval,
        outcome.null,
        outcome.null_interval,
        outcome.baseline_us,
        outcome.time_us,
        groups,
        rounds,
        "GPU time in CUDA graphs, fresh processes",
        cold_speedup=outcome.facts.get("cold_l2_speedup"),
        equal=equal if outcome.verdict.ok else "not compared",
        verdict=str(outcome.verdict),
        detail=outcome.detail,
        facts=dict(outcome.facts),
    )


def _kernel(given: Kernel | bytes, own: Kernel | None) -> Kernel:
    """What was given, with the launch facts of the workload's own kernel where it brings none."""
    if isinstance(given, Kernel):
        return given
    assert own is not None
    return own.with_cubin(bytes(given))


def _contents(given: Cubin) -> Kernel | bytes:
    """What was given, read if it is a file's name."""
    if not isinstance(given, str | Path):
        return given
    with os_errors("cannot read the cubin", given):
        return Path(given).read_bytes()
