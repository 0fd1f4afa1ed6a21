"""Conversion of outcomes and kernels to rows of the store and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sassafras.core import Evaluation, Interval, Kernel, Modelled, Outcome, StoreError, Verdict

from .records import typed

#: columns of `evaluations` that hold an outcome, in the order of `outcome_row`
OUTCOME_COLUMNS = (
    "digest", "modelled", "verdict", "time_us", "baseline_us", "speedup", "low", "high",
    "null_speedup", "null_low", "null_high", "samples", "cycles", "baseline_cycles",
    "detail", "seconds", "facts",
)  # fmt: skip


def now() -> str:
    """UTC, ISO 8601, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def dumps(value: Any) -> str:
    """Canonical JSON: sorted keys, NumPy scalars and tuples made plain."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def outcome_row(outcome: Outcome) -> tuple[Any, ...]:
    """The outcome as values of `OUTCOME_COLUMNS`."""
    figures: tuple[float | None, ...] = (None,) * 8
    cycles: tuple[float | None, ...] = (None, None)
    samples = 0
    if isinstance(outcome, Evaluation):
        interval, null = _ends(outcome.interval), _ends(outcome.null_interval)
        figures = (outcome.time_us, outcome.baseline_us, outcome.speedup, *interval, outcome.null, *null)
        samples = int(outcome.samples)
    else:
        cycles = (outcome.cycles, outcome.baseline_cycles)
    return (
        outcome.digest,
        int(outcome.modelled),
        None if outcome.verdict is None else outcome.verdict.value,
        *map(_real, figures),
        samples,
        *map(_real, cycles),
        outcome.detail,
        float(outcome.seconds),
        dumps(outcome.facts),
    )


def row_outcome(row: tuple[Any, ...]) -> Outcome:
    """The inverse of `outcome_row`."""
    digest, modelled, verdict, time_us, baseline_us, speedup, low, high, *rest = row
    null, null_low, null_high, samples, cycles, baseline_cycles, detail, seconds, facts = rest
    told = (detail, seconds, json.loads(facts))
    if modelled:
        refused = None if verdict is None else Verdict(verdict)
        return typed(Modelled(digest, refused, cycles, baseline_cycles, *told))
    figures = (time_us, baseline_us, speedup, _interval(low, high), null, _interval(null_low, null_high))
    return typed(Evaluation(digest, Verdict(verdict), *figures, samples, *told))


def _real(value: float | None) -> float | None:
    return None if value is None else float(value)  # SQLite would take a NumPy scalar for a blob


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (float(interval.low), float(interval.high))


def _interval(low: float | None, high: float | None) -> Interval | None:
    return None if low is None or high is None else Interval(low, high)


#: what makes two stored kernels the same
KEY_COLUMNS = (
    *("cubin", "name", "arch", "launch"),
    *("source_hash", "signature", "constants", "ptxas", "options"),
)


def kernel_columns(kernel: Kernel) -> dict[str, str]:
    """The values of `KEY_COLUMNS` for a kernel; what its frontend left out of `Kernel.meta` stays empty."""
    meta = kernel.meta
    signature = meta.get("signature") or {}
    if hints := meta.get("aligned_or_divisible_by_16"):  # Triton compiles another variant for these
        signature = {"types": signature, "aligned_or_divisible_by_16": hints}
    return {
        "cubin": kernel.digest,
        "name": kernel.name,
        "arch": kernel.arch,
        "launch": dumps(kernel.launch_facts()),
        "source_hash": str(meta.get("source_hash", "")),
        "signature": dumps(signature),
        "constants": dumps(meta.get("constants") or {}),
        "ptxas": str(meta.get("ptxas") or meta.get("ptxas_version") or ""),
        "options": dumps(meta.get("options") or {}),
    }


def kernel_of(cubin: bytes, name: str, arch: str, launch: str, meta: str) -> Kernel:
    """A kernel from its stored launch facts and code.

    Raises:
        StoreError: the stored facts are damaged.
    """
    try:
        return typed(Kernel.launched_as(json.loads(launch), cubin, name, arch, json.loads(meta)))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"the store's launch facts of {name} are damaged") from error
