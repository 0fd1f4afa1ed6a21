"""``torch.ops.sassafras.turned``: rotary embedding of queries and keys, and a row of a cache, in one launch.

It is `TurnedCall`'s result, and writes row `at` of its caches. `turned_patterns` puts it into the graphs of
compiled models, ahead of attention of ours, which starts while it runs.
"""

from __future__ import annotations

from typing import Any

import torch

from . import api, served
from .turned_problem import TurnedCall, read_turned

_SCHEMA = (
    "turned(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor(a!) keys, Tensor(b!) values,"
    " Tensor at, Tensor? q_norm=None, Tensor? k_norm=None, float eps=0.0) -> Tensor"
)


def serves(call: TurnedCall) -> bool:
    """See `served.in_graph`."""
    return served.in_graph(call, read_turned)


def _run(*given: Any) -> Any:
    out, call = fake(*given), TurnedCall(*given)
    if not served.launched(out, "turned", *call[:-1], out, call.eps):
        api.fell_back("turned")
        _by_torch(call, out)
    return out


def _by_torch(call: TurnedCall, out: Any) -> None:
    cos, sin = (angle[:, None, None] for angle in (call.cos, call.sin))

    def turned(x: Any, norm: Any) -> Any:
        x = x if norm is None else torch.nn.functional.rms_norm(x, norm.shape, norm, call.eps)
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    out.copy_(turned(call.q, call.q_norm))
    call.keys[:, :, call.at] = turned(call.k, call.k_norm)  # unlike index_copy_, from the end, too
    call.values[:, :, call.at] = call.v


def fake(*given: Any) -> Any:
    """What stands for the result."""
    q = given[0]
    return q.new_empty(q.shape)


_LIBRARY = torch.library.Library("sassafras", "FRAGMENT")
_TAGS = "pt2_compliant_tag", "needs_exact_strides"
_LIBRARY.define(_SCHEMA, tags=tuple(getattr(torch.Tag, tag) for tag in _TAGS if hasattr(torch.Tag, tag)))
_LIBRARY.impl("turned", _run, "CompositeExplicitAutograd")
torch.library.register_fake("sassafras::turned", fake, lib=_LIBRARY)
turned = torch.ops.sassafras.turned.default
