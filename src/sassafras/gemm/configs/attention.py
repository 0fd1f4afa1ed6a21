"""Attention of one query row over cached keys and values (`kernels/sm90_decode_attention.cuh`).

It is launched with programmatic stream serialization and lets the launch behind it start at once, as `rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ..problem.launch import AT_ONCE, GRID_LIMIT, MULTIPROCESSORS, SHARED_LIMIT, Launch
from .source import KernelInstance, Parameters, all_of

#: heads of a CTA, which share keys and values: the columns of a matrix instruction; CTAs of a larger group
MOST_GROUP, MOST_PARTS = 8, 4
#: CTAs of a cluster
MOST_SPLITS = 8
#: sequences that were measured: 128 make a step of Llama-3.2-1B 1.034 times as fast on an H200, Qwen's 1.015
MOST_BATCH = 128
#: CTAs of parts of groups: more read their keys so often that torch's kernel is faster (64 sequences of
#: StarCoder2-7B: 46 us beside 24, with what is ahead of either)
MOST_APART = 2 * MULTIPROCESSORS
#: bytes of keys and values: of more, torch's kernel reads faster than the launch behind can make up for
MOST_BYTES = 160e6
#: keys of a warp's turn
TILE = 16


class Strides(NamedTuple):
    """Elements from one to the next; 0 where all share one. Rows have no gaps, keys of a mask neither."""

    q_batch: int
    q_head: int
    k_batch: int
    k_head: int
    k_row: int
    v_batch: int
    v_head: int
    v_row: int
    mask_batch: int = 0
    mask_head: int = 0


@dataclass(frozen=True, slots=True, order=True)
class AttentionInstance(KernelInstance):
    """One compiled kernel: C = softmax(scale * Q K^T + mask) V, each head with one row of Q.

    A cluster has a batch's group of heads, or a part of a large one; its CTAs share the keys. `mask` is null
    where there is none, and C (batch, heads, 1, D) has no gaps. `scale` is given at each launch, as `eps` of
    an RMS norm.

    Attributes:
        dtype: ``fp16`` or ``bf16``.
        head: elements of a head, D.
        warps: of a CTA.
        masked: a number of `dtype` is added to each product.
    """

    HEADER: ClassVar[str] = "sm90_decode_attention.cuh"
    TEMPLATE: ClassVar[str] = "DecodeAttention"
    all_shared: ClassVar[bool] = True

    dtype: str = "fp16"
    head: int = 128
    warps: int = 4
    masked: bool = False

    @property
    def name(self) -> str:
        """For example ``attention_bf16_d128w4m``."""
        return f"attention{self._kind}_d{self.head}w{self.warps}{'m' * self.masked}"

    @property
    def parameters(self) -> Parameters:
        """Names and types of the kernel's parameters."""
        pointers = all_of(f"*{self.dtype}", "q", "k", "v", "mask", "c")
        numbers = all_of("i32", "keys", "group", "parts", "log2_splits")
        return (*pointers, *all_of("i64", *Strides._fields), *numbers, ("scale", "f32"))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        return self.head, self.warps, self.masked, self.dtype == "bf16"

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return 32 * self.warps

    @property
    def bounds(self) -> str:
        """``__launch_bounds__``: at most 128 registers, or 168 where masks of wide heads need them."""
        return f"{self.threads}, {self.resident}"

    @property
    def resident(self) -> int:
        """CTAs on a multiprocessor."""
        return (12 if self.masked and self.head == 128 else 16) // self.warps

    @property
    def shared_bytes(self) -> int:
        """A barrier; a maximum and a sum of each head, of all warps and of all CTAs; sums of both."""
        each = 8 * self.warps + 16 * MOST_SPLITS + 4 * self.head * (self.warps + 1)
        return 16 + MOST_GROUP * each

    def launch(
        self,
        batch: int,
        groups: int,
        group: int,
        keys: int,
        strides: Strides,
        splits: int = 1,
        together: int | None = None,
    ) -> Launch:
        """How to launch it.

        Args:
            batch, groups: sequences; groups of `group` heads that share keys and values.
            keys: of a group.
            splits: CTAs that share them, a power of two.
            together: CTAs that find room on a multiprocessor; None: as many as do.
        """
        parts = parts_of(group) or 1
        scalars = {**strides._asdict(), "keys": keys, "group": group // parts, "parts": parts}
        scalars["log2_splits"] = splits.bit_length() - 1
        grid, cluster = (splits * parts, groups, batch), (splits, 1, 1)
        shared = self.shared_bytes if together is None else max(self.shared_bytes, shared_of(together))
        return Launch(grid, self.threads, shared, cluster, scalars, overlap=True)

    def why_illegal(
        self, batch: int, groups: int, group: int, keys: int, strides: Strides, splits: int = 1
    ) -> str | None:
        """Why it cannot run this; None when it can."""
        if parts_of(group) is None:
            return f"{group} heads share keys and values: up to {MOST_GROUP}, or {MOST_PARTS} equal parts"
        if splits not in (1, 2, 4, MOST_SPLITS):
            return f"{splits} CTAs of a cluster: 1, 2, 4 and {MOST_SPLITS} are possible"
        if max(batch, groups) > GRID_LIMIT:
            return f"{batch} times {groups} groups of heads, a grid takes {GRID_LIMIT} of each"
        if not 1 <= keys < 1 << 30:
            return f"{keys} keys: 1 to 2^30 are possible"
        if min(strides) < 0 or any(stride % 8 for stride in strides[:8]):
            return f"{tuple(strides)} elements from one to the next: no multiples of 8"
        if max(strides) >= 1 << 31:
            return f"{max(strides)} elements from one to the next: 32 bits"
        if any(strides[8:]) and not self.masked:
            return "it reads no mask"
        return None


INSTANCES: tuple[AttentionInstance, ...] = tuple(
    AttentionInstance(dtype, head, warps, masked)
    for dtype in ("fp16", "bf16")
    for head in (64, 128)
    for warps in (4, 8)
    for masked in (False, True)
)


def parts_of(group: int) -> int | None:
    """CTAs that share a group's heads evenly; None where none of up to `MOST_PARTS` have few enough."""
    able = (p for p in range(1, MOST_PARTS + 1) if group >= 1 and group % p == 0 and group // p <= MOST_GROUP)
    return next(able, None)


def shared_of(together: int) -> int:
    """Bytes of shared memory of a CTA if so many, up to 14, are to find room on a multiprocessor: the driver
    takes a kilobyte more for each, another one is left to static variables."""
    return (SHARED_LIMIT + 1024) // together // 128 * 128 - 2048


def chosen(
    dtype: str, batch: int, groups: int, group: int, keys: int, head: int, strides: Strides, masked: bool
) -> tuple[AttentionInstance, Launch] | None:
    """The kernel for one query row and its launch; None where torch's is faster or none can run it.

    What was fastest in models' graphs on an H200: the CTAs of a cluster share keys, of which each warp has a
    tile, up to half of the multiprocessors (the launch behind starts on the others), and on to all of them
    where each warp has two tiles. A CTA has eight warps where each has a tile and a multiprocessor one CTA.

    Args:
        groups, group: groups of heads, heads of each; they share keys and values.
        keys: of a group.
        head: elements of a row.
        masked: a mask is added.
    """
    if batch > MOST_BATCH or (not masked and 4 * batch * groups * keys * head > MOST_BYTES):
        return None
    parts = parts_of(group) or 1
    pairs, tiles, splits = batch * groups * parts, -(-keys // TILE), 1
    if parts > 1 and pairs > MOST_APART:
        return None
    while (twice := 2 * splits) <= MOST_SPLITS and twice * pairs <= AT_ONCE[twice - 1]:
        if tiles < (4 if twice * pairs <= MULTIPROCESSORS // 2 else 16) * twice:
            break
        splits = twice
    ctas = splits * pairs
    warps = 8 if tiles >= 8 * splits and ctas <= MULTIPROCESSORS else 4
    instance = AttentionInstance(dtype, head, warps, masked)
    asked = batch, groups, group, keys, strides, splits
    if instance not in INSTANCES or instance.why_illegal(*asked) is not None:
        return None
    return instance, instance.launch(*asked, min(-(-ctas // AT_ONCE[splits - 1]), instance.resident))
