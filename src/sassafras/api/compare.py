"""Which of two is faster, measured so that the answer can be trusted: `compare`. For your own kernels too.

```python
from sassafras import compare

print(compare(mine, theirs, args=(x, w)).summary())  # two functions, on the GPU or on the CPU
print(compare(old_kernel, new_kernel, workload="suite:softmax").summary())  # two cubins of a workload
```

A and B are timed interleaved, beside the null experiment: A against A again, prepared again as if
it were another contestant. A difference counts only when its interval lies wholly outside the null's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from sassafras.comparison.comparison import Comparison
from sassafras.comparison.cubins import compare_cubins
from sassafras.comparison.functions import compare_functions
from sassafras.comparison.timers import Call, Function
from sassafras.core import DeviceError, Kernel, SassafrasError, Workload

__all__ = ["Comparison", "compare"]

#: groups where none are asked for: captures are cheap, and the places in memory that they draw vary
FUNCTION_GROUPS, PROCESSES = 12, 5


def compare(
    a: Kernel | bytes | str | Path | Function,
    b: Kernel | bytes | str | Path | Function,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    workload: Workload | str | None = None,
    case: str | None = None,
    device: Literal["auto", "cuda", "cpu"] = "auto",
    groups: int | None = None,
    rounds: int = 60,
    block_us: float = 500.0,
    cold_l2: bool = True,
    bitwise: bool = True,
    seed: int = 0,
) -> Comparison:
    """Compare two kernels of one workload, or two functions.

    Args:
        a, b: two functions, called with `args` and `kwargs`; or two cubins (`Kernel`, bytes, or a file) of
            `workload`. A is the baseline.
        args, kwargs: arguments of the functions. On the GPU they are captured: every call has the same.
        workload: for cubins: a `Workload` with a source, or a target that `sassafras.load` reads.
        case: its case, by default the first.
        device: for functions: ``cuda`` (captured in CUDA graphs), ``cpu`` (wall time); ``auto``: ``cuda``
            when an argument or a result lies there.
        groups: for cubins, fresh processes (5 by default); for functions, fresh captures (or warm-ups) in
            this process (12), each in another order and with its results elsewhere in memory. The interval
            covers what varies between them. For functions a multiple of 6 gives each contestant each place
            in the order equally often.
        rounds: interleaved rounds a group.
        block_us: microseconds that a timed block should last; short calls are repeated to fill it.
        cold_l2: on the GPU, also time single calls on an evicted L2.
        bitwise: for cubins: B must leave A's bytes; False: results within the workload's tolerance.
        seed: for functions: of the places in memory.

    Raises:
        DeviceError: no such device; no GPU where one is needed; a function of which nothing is captured.
        SassafrasError: a and b are not of one kind, or cubins without a workload.
    """
    functions = callable(a) and callable(b)
    if groups is None:
        groups = FUNCTION_GROUPS if functions else PROCESSES
    if groups < 2:
        raise SassafrasError(f"an interval needs at least 2 groups, got {groups}")
    if rounds < 4:
        raise SassafrasError(f"at least 4 rounds are needed, got {rounds}")
    if device not in ("auto", "cuda", "cpu"):
        raise DeviceError(f"there is no device {device!r}", hint="auto, cuda or cpu")
    if not 0 < block_us < math.inf:
        raise SassafrasError(f"a block of {block_us} us cannot be timed")
    if callable(a) and callable(b):  # (again, for the type checker)
        first, second = (Call(function, tuple(args), dict(kwargs or {})) for function in (a, b))
        return compare_functions(first, second, device, groups, rounds, block_us, cold_l2, seed)
    if callable(a) or callable(b):
        raise SassafrasError("a function cannot be compared with a cubin", hint="give two of one kind")
    if workload is None:
        raise SassafrasError(
            "two cubins need a workload to run on", hint='workload="suite:softmax", or a file of your own'
        )
    return compare_cubins(a, b, workload, case, groups, rounds, cold_l2, bitwise)
