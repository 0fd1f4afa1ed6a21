"""Python candidates: functions of tensors that may run anything on the host. Nothing they say is believed.

```python
with HostEvaluator(workload, case, HostSource(baseline_text)) as judge:
    outcome = judge.evaluate(HostSource(candidate_text))
```

A candidate runs in a confined process (see `sandbox`); this process, the judge, owns the clock, the inputs
and the expected outputs. They meet in shared memory: the judge writes fresh random inputs while the process
is stopped, asks for a call, takes the wall time until it is stopped again, and compares what lies in the
place for outputs. What a candidate does to its own interpreter (patched timers, `torch` functions, threads,
lazy tensors) cannot reach any of that, and outside its turn it does nothing at all.

The figure is wall time, inputs and outputs copied included, the same for baseline and candidate,
interleaved. That is conservative: it pulls every ratio towards 1. For the GPU time of a kernel use `Source`,
whose candidates have no host side at all.

| module | what it is |
|---|---|
| `process` | a confined process, the memory shared with it, and the questions that it is asked |
| `child` | what runs inside that process |
| `session` | one candidate beside the baseline: checks, timing, what gives a cheat away |
| `evaluator` | `HostEvaluator`, which ties them together |
"""

from __future__ import annotations

from .evaluator import HostEvaluator
from .process import HostSource

__all__ = ["HostEvaluator", "HostSource"]
