"""What may go past torch's dispatcher: the one list that every path of sassafras.matmul asks.

It names what is known to be plain. A tensor is plain if its type is exactly `torch.Tensor` or `Parameter`
and its dispatch keys are those of a fresh dense tensor; a thread is quiet if nothing is active that torch's
operators would have to tell of the call. Whatever is not on the list (subclasses, sparse, nested, quantized,
functional, batched, negated, zero and named tensors; dispatch and function modes, functorch, tracing,
functionalization, forward-mode AD) is left to torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch.utils._device import DeviceContext

KINDS = (torch.Tensor, torch.nn.Parameter)
DTYPES = (torch.float16, torch.bfloat16)

_Key, _KeySet = torch._C.DispatchKey, torch._C.DispatchKeySet


def _keys(*names: str) -> int:
    found = _KeySet(getattr(_Key, names[0]))
    for name in names[1:]:
        found = found | _KeySet(getattr(_Key, name))
    return int(found.raw_repr())


#: dispatch keys of a plain tensor, by device type; then those of one that was made in inference mode
_PLAIN = {
    kind.lower(): (
        _keys(kind, "ADInplaceOrView", f"Autograd{kind}", f"Autocast{kind}"),
        _keys(kind, f"Autocast{kind}"),
    )
    for kind in ("CPU", "CUDA")
}
#: what a thread includes by itself, and in inference mode: nothing of it tells anything of a call
_QUIET = (_keys("BackendSelect", "ADInplaceOrView"), _keys("BackendSelect"))

#: what DLPack's table does not tell of a plain tensor's bytes: methods that answer False. (Names went away
#: with torch 2.13.) The compiled launcher asks these; whatever else is not plain has no memory to show it.
VIEWS: tuple[Callable[[Any], bool], ...] = tuple(
    getattr(torch.Tensor, name) for name in ("is_neg", "has_names") if hasattr(torch.Tensor, name)
)
#: answers None unless hooks see what autograd keeps: a checkpoint compares what its two runs keep, and a
#: kernel may be ready in between. The operators keep the same, whatever serves
kept_by_hooks = partial(torch._C._autograd._top_saved_tensors_default_hooks, False)
#: functions that answer 0 or None unless torch's own functions have to be called by their names
WATCHERS = (torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack, kept_by_hooks)

# under names of their own: `observed` runs at each call
_included = torch._C._dispatch_tls_local_include_set
_function_modes = torch._C._len_torch_function_stack
_autocast = torch._C._is_any_autocast_enabled


def plain(tensor: Any) -> bool:
    """Whether these are a dense tensor's own bytes and nothing else hangs on it but autograd's records."""
    if type(tensor) not in KINDS:
        return False
    allowed = _PLAIN.get(tensor.device.type, ())
    return torch._C._dispatch_keys(tensor).raw_repr() in allowed and not tangent(tensor)


def tangent(tensor: Any) -> bool:
    """Whether forward-mode AD carries a tangent on it."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


def observed() -> bool:
    """Whether anything is active that has to see the call, or changes what it means.

    A default device is a function mode that no product of matrices concerns.
    """
    if _included().raw_repr() not in _QUIET:
        return True
    if _function_modes() and function_modes():
        return True
    return forward_ad._current_level >= 0 or _autocast()


def function_modes(*, tracers: bool = True) -> bool:
    """Whether a mode sees torch's functions, but for a default device (and, if not, for make_fx's own)."""
    kinds = [type(torch._C._get_function_stack_at(i)) for i in range(_function_modes())]
    made_by = "" if tracers else "torch.fx.experimental.proxy_tensor"
    return any(kind is not DeviceContext and kind.__module__ != made_by for kind in kinds)


def quiet() -> bool:
    """Whether nothing but autocast, autograd and forward-mode AD would see an operator of torch."""
    return _included().raw_repr() in _QUIET and not function_modes()


def admit(out: Any) -> bool:
    """Whether a plain `out` may be written here and now; if so its version counter is raised.

    Torch raises it below autograd, where the key for it is not excluded; a tensor of inference mode has no
    counter and may be written there alone.
    """
    if out.is_inference():
        return bool(torch.is_inference_mode_enabled())
    if not torch._C._dispatch_tls_is_dispatch_key_excluded(_Key.ADInplaceOrView):
        torch._C._increment_version((out,))
    return True


#: what both launchers ask (`slow.Torch`)
ASKED: dict[str, Any] = {
    "modes": (observed,),
    "watchers": WATCHERS,
    "views": VIEWS,
    "plain": plain,
    "admit": admit,
}


def traced(*tensors: Any) -> bool:
    """Whether a graph is being made (make_fx, AOT autograd, export) in which these stand for plain ones."""
    if torch.compiler.is_compiling():
        return all(type(t) in (*KINDS, *_stand_ins()) for t in tensors)
    making = sys.modules.get("torch.fx.experimental.proxy_tensor")
    if making is None or making.get_proxy_mode() is None or function_modes(tracers=False):
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None or torch._C._get_tracing_state() is not None:
        return False
    return all(plain(t) or type(t) in _stand_ins() for t in tensors)


def _stand_ins() -> tuple[type, ...]:
    """What tracers put in the place of plain tensors."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return FakeTensor, FunctionalTensor
