"""Rotary embedding of a token's queries and keys, and its row of a cache (`kernels/sm90_turned.cuh`).

It is launched with programmatic stream serialization and lets the launch behind it start at once, as `rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ..problem.launch import GRID_LIMIT, Launch, ceil_div
from .source import KernelInstance, Parameters, all_of

#: sequences that were measured: 128 make a step of Llama-3.2-1B 1.034 times as fast on an H200, Qwen's 1.015
MOST_BATCH = 128


class Strides(NamedTuple):
    """Elements from one to the next; 0 where all share one. The elements of a head have no gaps."""

    q_batch: int
    q_head: int
    k_batch: int
    k_head: int
    v_batch: int
    v_head: int
    cos_batch: int
    sin_batch: int
    keys_batch: int
    keys_head: int
    keys_row: int
    values_batch: int
    values_head: int
    values_row: int


@dataclass(frozen=True, slots=True, order=True)
class TurnedInstance(KernelInstance):
    """One compiled kernel: C = turned(Q), keys[at] = turned(K), values[at] = V, each head with one row.

    C (batch, heads, 1, D) has no gaps. `at` is read on the device; outside of the cache the kernel traps.
    `q_norm` and `k_norm` are null where heads of Q and K are not RMS-normalised first; `eps` is given at each
    launch.

    Attributes:
        dtype: ``fp16`` or ``bf16``.
        head: elements of a head, D.
        threads: of a CTA; each has 16 elements of a head.
    """

    HEADER: ClassVar[str] = "sm90_turned.cuh"
    TEMPLATE: ClassVar[str] = "Turned"
    all_shared: ClassVar[bool] = True

    dtype: str = "fp16"
    head: int = 128
    threads: int = 128

    @property
    def name(self) -> str:
        """For example ``turned_bf16_d128``."""
        return f"turned{self._kind}_d{self.head}"

    @property
    def parameters(self) -> Parameters:
        """Names and types of the kernel's parameters."""
        pointers = all_of(
            f"*{self.dtype}", *("q", "k", "v", "cos", "sin", "keys", "values", "c", "q_norm", "k_norm")
        )
        numbers = all_of("i32", "heads", "groups", "rows")
        return (*pointers, ("at", "*i64"), *all_of("i64", *Strides._fields), *numbers, ("eps", "f32"))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        return self.head, self.threads, self.dtype == "bf16"

    def _units(self, heads: int, groups: int) -> int:
        return (heads + 2 * groups) * self.head // 16

    def launch(self, batch: int, heads: int, groups: int, rows: int, strides: Strides) -> Launch:
        """How to launch it.

        Args:
            batch: sequences.
            heads, groups: heads of Q; of K and V.
            rows: of the cache.
        """
        scalars = {**strides._asdict(), "heads": heads, "groups": groups, "rows": rows}
        grid = (ceil_div(self._units(heads, groups), self.threads), batch, 1)
        return Launch(grid, self.threads, 0, (1, 1, 1), scalars, overlap=True)

    def why_illegal(self, batch: int, heads: int, groups: int, rows: int, strides: Strides) -> str | None:
        """Why it cannot run this; None when it can."""
        if min(batch, heads, groups) < 1 or batch > GRID_LIMIT:
            return f"{batch} sequences of {heads} and {groups} heads: 1 to {GRID_LIMIT} of 1 or more"
        if batch * self._units(heads, groups) + self.threads > 1 << 31:
            return f"{batch} times {heads} and {groups} heads: counted with 32 bits"
        if not 1 <= rows < 1 << 31:
            return f"a cache of {rows} rows: 1 to 2^31 - 1 are possible"
        if min(strides) < 0 or any(stride % 8 for stride in strides):
            return f"{tuple(strides)} elements from one to the next: no multiples of 8"
        if max(strides) >= 1 << 31:
            return f"{max(strides)} elements from one to the next: 32 bits"
        return None


INSTANCES: tuple[TurnedInstance, ...] = tuple(
    TurnedInstance(dtype, head) for dtype in ("fp16", "bf16") for head in (64, 128)
)


def chosen(
    dtype: str, batch: int, heads: int, groups: int, head: int, rows: int
) -> tuple[TurnedInstance, Launch] | None:
    """The kernel and its launch, whose strides are 0 and given at each launch; None where none can run it.

    Args:
        batch: sequences, up to `MOST_BATCH`.
        heads, groups: heads of Q; of K and V.
        head: elements of a head.
        rows: of the cache.
    """
    instance = TurnedInstance(dtype, head)
    asked = batch, heads, groups, rows, Strides(*[0] * len(Strides._fields))
    if batch > MOST_BATCH or instance not in INSTANCES or instance.why_illegal(*asked) is not None:
        return None
    return instance, instance.launch(*asked)
