"""What lies between a token's queries, keys and values and its attention, as launchers take it: a problem,
and addresses and strides. The twin of `launcher/turned.hpp`."""

from __future__ import annotations

from typing import Any, NamedTuple

from .attention_problem import span, strides_of
from .problem import DTYPES, Problem

#: `Problem.transposed` of it; m, n and k are sequences, heads of q and rows of a cache, `Problem.lda` and
#: ``ldb`` heads of k, and elements of a head
TURNED = 64
#: `TurnedCall`'s tensors -> launchers' names
NAMES = dict(
    zip(
        ("q", "k", "v", "cos", "sin", "keys", "values", "at", "q_norm", "k_norm", "c"),
        ("a", "b", "second", "third", "second_bias", "third_bias", "norm", "bias", "q_norm", "k_norm", "c"),
        strict=True,
    )
)


class TurnedCall(NamedTuple):
    """q with its halves turned by an angle for each of a half's elements, and k so and v in a cache's row.

    Attributes:
        q: (sequences, heads, 1, head).
        k, v: (sequences, heads or a divisor, 1, head).
        cos, sin: (sequences or 1, head), of the angles.
        keys, values: (sequences, heads of k, rows, head): row `at` is written.
        at: (1), int64.
        q_norm, k_norm: (head), both or neither: x is first x / sqrt(mean of x's squares + eps) * norm.
    """

    q: Any
    k: Any
    v: Any
    cos: Any
    sin: Any
    keys: Any
    values: Any
    at: Any
    q_norm: Any = None
    k_norm: Any = None
    eps: float = 0.0


def read_turned(
    call: TurnedCall, out: Any = None, device_type: str = "cuda"
) -> tuple[Problem, dict[str, int]] | None:
    """What a call of plain tensors (of stand-ins without memory, `out` None) asks for: problem, and addresses
    and strides by launchers' names; None for what no kernel takes.

    A kernel takes FP16 and BF16, no gaps within a head, strides of 31 bits that are multiples of 8 elements,
    addresses of 16 bytes; `out` has no gaps; what is written shares no memory with anything else.
    """
    import torch

    q, k, v, cos, sin, keys, values, at, *norms, _ = call
    norms = [norm for norm in norms if norm is not None]
    tensors = [*call[:7], *norms, *([] if out is None else [out])]
    if q.device.type != device_type or q.dtype not in (torch.float16, torch.bfloat16):
        return None
    if any((t.dtype, t.device) != (q.dtype, q.device) for t in tensors):
        return None
    if (at.dtype, at.device, (*at.shape,)) != (torch.int64, q.device, (1,)):
        return None
    if q.dim() != 4 or keys.dim() != 4 or len(norms) == 1:
        return None
    (batch, heads, one, head), (_, groups, rows, _) = q.shape, keys.shape
    if one != 1 or not batch * heads * groups * rows * head or heads % groups:
        return None
    if not (k.shape == v.shape == (batch, groups, 1, head)):
        return None
    if not (keys.shape == values.shape == (batch, groups, rows, head)):
        return None
    if any((*t.shape,) not in ((1, head), (batch, head)) for t in (cos, sin)):
        return None
    if any((*norm.shape,) != (head,) for norm in norms):
        return None
    if any(head > 1 and t.stride(-1) != 1 for t in (*call[:7], *norms)):
        return None
    turned = [s for t in (q, k, v) for s in strides_of(t)[:2]] + [strides_of(t)[0] for t in (cos, sin)]
    strides = turned + [s for t in (keys, values) for s in strides_of(t)[:3]]
    if any(stride % 8 for stride in strides) or max(strides) >= 1 << 31:
        return None
    if not all(_apart(cache) for cache in (keys, values)):
        return None
    found = {f"stride{i}": stride for i, stride in enumerate(strides)}
    if out is not None:
        if out.shape != q.shape or not out.is_contiguous():
            return None
        there = {n: t for n, t in zip(NAMES, (*call[:-1], out), strict=True) if t is not None}
        places = {name: t.data_ptr() for name, t in there.items()}
        if any(address % 16 for name, address in places.items() if name != "at"):
            return None
        sizes = {name: t.element_size() * span(t) for name, t in there.items()}
        for written in ("keys", "values", "c"):
            begin, end = places[written], places[written] + sizes[written]
            if any(places[n] < end and begin < places[n] + sizes[n] for n in there if n != written):
                return None
        found |= {NAMES[name]: places.get(name, 0) for name in NAMES}
    kinds = q.device.index or 0, int(q.dtype == torch.bfloat16), batch, heads, rows, TURNED
    return Problem(*kinds, groups, head, 0, 0, 0), found


def _apart(cache: Any) -> bool:
    """Whether rows of different sequences and heads share no elements."""
    end = cache.shape[3]
    for stride, count in sorted((cache.stride(d), cache.shape[d]) for d in (0, 1) if cache.shape[d] > 1):
        if stride < end:
            return False
        end += stride * (count - 1)
    return True


def asked_of(problem: Problem) -> tuple[Any, ...]:
    """What `configs.turned.chosen` is asked."""
    return DTYPES[problem.dtype], problem.m, problem.n, problem.lda, problem.ldb, problem.k
