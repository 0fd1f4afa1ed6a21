"""``torch.ops.sassafras.joined``: linear layers that read the same rows, side by side, in one launch.

It is `JoinedCall`'s result. `inductor_graph` puts it into the graphs of compiled models.
"""

from __future__ import annotations

from typing import Any

import torch

from . import api, served, torch_op
from .composed import composed
from .joined_problem import JoinedCall, apart, read_joined

#: the letter of each optional tensor in what a program of Inductor's calls
_LETTERS = {"t": "third", "b": "bias", "s": "second_bias", "h": "third_bias", "n": "norm"}


def serves(call: JoinedCall) -> bool:
    """Whether a kernel serves a call of what stands for these in a graph; that is compiled, then."""
    engine = api._engine
    if engine is None or (found := read_joined(call, None, engine.torch.device_type)) is None:
        return False
    return served.compiled_for(found[0])


def _by_torch(*given: Any) -> Any:
    call = JoinedCall(*given)
    norm, x = call.norm, call.a
    if norm is not None:
        x = torch.nn.functional.rms_norm(x, norm.shape, norm, call.eps)
    pairs = zip(call.weights, call.biases, strict=True)
    return torch.cat([composed(x, weight, None, bias) for weight, bias in pairs], -1)


def _launched(call: JoinedCall, out: Any) -> bool:
    """Whether a kernel was launched that writes `out`."""
    if api.suspended() or (engine := api.engine_for(out)) is None:
        return False
    if api._recorder is not None and (found := read_joined(call, out, engine.torch.device_type)):
        api._recorder.count(apart(found[0])[0])  # what the chooser is asked for
    return served.launched(out, "joined", *call[:8], out, *call[8:])


def _run(*given: Any) -> Any:
    call = JoinedCall(*given)
    width = sum(weight.shape[1] for weight in call.weights)
    c = torch.empty((*call.a.shape[:-1], width), dtype=call.a.dtype, device=call.a.device)
    return c if _launched(call, c) else _by_torch(*given).contiguous()


def _fake(*given: Any) -> Any:
    call = JoinedCall(*given)
    return call.a.new_empty((*call.a.shape[:-1], sum(weight.shape[1] for weight in call.weights)))


def _into(a: Any, b: Any, second: Any, *rest: Any, out: Any) -> None:
    """out = the result, in a program of Inductor's, which gives the optional tensors that are there."""
    *tensors, letters, eps, constant = rest
    given = dict(zip((_LETTERS[letter] for letter in letters), tensors, strict=True))
    call = JoinedCall(a, b, second, eps=eps, constant=constant, **given)
    if not _launched(call, out):
        api.fell_back("joined")
        out.copy_(_by_torch(*call))


def _told_of(lines: Any, *given: Any) -> torch_op.Told | None:
    """See `torch_op.register`."""
    if not lines.is_contiguous():
        return None
    call = JoinedCall(*given)
    letters = "".join(x for x, name in _LETTERS.items() if getattr(call, name) is not None)
    more = [getattr(call, _LETTERS[letter]) for letter in letters]
    return [call.a, call.b, call.second, *more], (letters, *call[8:])


joined = torch_op.register("joined", _run, _by_torch, _into, _fake, _told_of)
