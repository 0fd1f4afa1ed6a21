"""Attention of one query row, as launchers take it: a problem, and addresses and strides. The twin of
`launcher/attention.hpp`."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..configs.attention import Strides
from .problem import BIAS, DTYPES, Problem

#: `Problem.transposed` of it; m, n and k are sequences, heads of q and keys, `Problem.lda` and ``ldb`` heads
#: of k, and elements of a head; `Problem.extra` is `MASKED` or 0
ATTENTION, MASKED = 32, BIAS


class AttentionCall(NamedTuple):
    """softmax(scale * q k^T + mask) v of one query row a head, a sequence.

    Attributes:
        q: (sequences, heads, 1, head).
        k, v: (sequences, heads or a divisor, keys, head): a head of theirs serves as many of q's in a row.
        mask: (sequences or 1, heads or 1, 1, keys), of q's type; None: all keys count alike.
        scale: None: one over the root of a head's elements.
    """

    q: Any
    k: Any
    v: Any
    mask: Any = None
    scale: float | None = None

    @property
    def factor(self) -> float:
        """The scale."""
        return float(self.q.shape[-1] ** -0.5 if self.scale is None else self.scale)


def read_attention(
    call: AttentionCall, out: Any = None, device_type: str = "cuda"
) -> tuple[Problem, dict[str, int]] | None:
    """What a call of plain tensors (of stand-ins without memory, `out` None) asks for: problem, and addresses
    and strides by parameter; None for what no kernel takes.

    A kernel takes FP16 and BF16, four extents each, no gaps within a head, strides of 31 bits, those of q, k
    and v multiples of 8 elements, their addresses of 16 bytes; `out` has no gaps and shares no memory.
    """
    import torch

    q, k, v, mask = call[:4]
    tensors = [t for t in (q, k, v, mask, out) if t is not None]
    if q.device.type != device_type or q.dtype not in (torch.float16, torch.bfloat16):
        return None
    if any((t.dtype, t.device) != (q.dtype, q.device) or t.dim() != 4 for t in tensors):
        return None
    (batch, heads, rows, head), (_, groups, keys, _) = q.shape, k.shape
    if rows != 1 or not batch * heads * groups * keys * head or heads % groups:
        return None
    if not (k.shape == v.shape == (batch, groups, keys, head)):
        return None
    if any(head > 1 and t.stride(3) != 1 for t in (q, k, v)):
        return None
    strides = Strides(*strides_of(q)[:2], *strides_of(k)[:3], *strides_of(v)[:3])
    if mask is not None:
        shape = batch if mask.shape[0] > 1 else 1, heads if mask.shape[1] > 1 else 1, 1, keys
        if mask.shape != shape or (keys > 1 and mask.stride(3) != 1):
            return None
        strides = Strides(*strides[:8], *strides_of(mask)[:2])
    if any(stride % 8 for stride in strides[:8]) or max(strides) >= 1 << 31:
        return None
    at = {f"stride{i}": stride for i, stride in enumerate(strides)}
    if out is not None:
        if out.shape != q.shape or not out.is_contiguous():
            return None
        places = dict(zip(("a", "b", "second", "c"), (t.data_ptr() for t in (q, k, v, out)), strict=True))
        if any(address % 16 for address in places.values()):
            return None
        end = places["c"] + 2 * out.numel()
        read = (t for t in (q, k, v, mask) if t is not None)
        if any(t.data_ptr() < end and places["c"] < t.data_ptr() + 2 * span(t) for t in read):
            return None
        at |= places | {"third": 0 if mask is None else mask.data_ptr()}
    kinds = q.device.index or 0, int(q.dtype == torch.bfloat16), batch, heads, keys, ATTENTION
    return Problem(*kinds, groups, head, 0, 0, 0, extra=MASKED * (mask is not None)), at


def asked_of(problem: Problem) -> tuple[Any, ...]:
    """What `configs.attention.chosen` is asked; strides, which `read_attention` has seen, are given at each
    launch."""
    groups, strides = problem.lda, Strides(*[0] * len(Strides._fields))
    sizes = problem.m, groups, problem.n // groups, problem.k, problem.ldb
    return DTYPES[problem.dtype], *sizes, strides, problem.extra == MASKED


def strides_of(tensor: Any) -> tuple[int, ...]:
    """A tensor's, 0 where an extent is one."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(0 if extent == 1 else stride for extent, stride in pairs)


def span(tensor: Any) -> int:
    """Elements from the first to the last."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((extent - 1) * stride for extent, stride in pairs)
