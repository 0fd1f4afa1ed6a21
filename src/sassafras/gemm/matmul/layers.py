"""`sassafras.accelerate`: every plain torch.nn.Linear of a model calls `sassafras.linear`.

An accelerated layer changes its class and nothing else: parameters, names, hooks and attributes stay, and
`restore` sets the class back. A subclass of torch.nn.Linear may compute anything, so it is left alone.
Parametrisations and FSDP derive a class of an accelerated layer's, which is accelerated too.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sassafras.core import SassafrasError

from . import api, plain_tensors
from .api import torch
from .joined_problem import JOINED, apart
from .linear import linear
from .problem import BETA, BIAS, Problem

#: rows of inputs whose kernels are waited for unless they are given
_TOKENS = tuple(2**i for i in range(13))
_NO_WEIGHT = "without a weight"


class Linear(torch.nn.Linear):
    """An accelerated torch.nn.Linear; pickled as a plain one, so that a file needs no sassafras."""

    def forward(self, input: Any) -> Any:
        """As torch.nn.Linear; parameters are read at each call."""
        return linear(input, self.weight, self.bias)

    def __reduce_ex__(self, protocol: Any) -> Any:
        made = super().__reduce_ex__(protocol)
        if type(self) is not Linear:
            return made
        return torch.nn.Linear, (1, 1, True, "meta"), made[2]  # parameters are in the state

    def __prepare_scriptable__(self) -> Any:
        raise SassafrasError(
            "torch.jit.script compiles no accelerated layer",
            where="sassafras.accelerate",
            hint="sassafras.restore(model) first, or torch.jit.trace",
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        memo[id(self)] = copied = type(self).__new__(type(self))
        copied.__setstate__(copy.deepcopy(self.__dict__, memo))
        return copied


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer of a model.

    Attributes:
        name: as in `named_modules`.
        n, k: outputs and inputs.
        accelerated: whether it calls `sassafras.linear`.
        why_not: why torch serves it always; empty if it is accelerated.
        served: rows of an input -> ``ours``, ``lt`` (a tuned cuBLASLt algorithm) or ``torch``, for forward
            products of this process that have the layer's extents, type, device and bias, in compiled models
            with what surrounds them, too; ``ours or torch`` where calls differ.
    """

    name: str
    n: int
    k: int
    accelerated: bool
    why_not: str = ""
    served: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = ", ".join(f"{m}: {who}" for m, who in sorted(self.served.items())) or "no call yet"
        return f"{self.name} {self.n}x{self.k}: {rows if self.accelerated else 'torch, ' + self.why_not}"


def accelerate(model: Any, *, wait: bool = False, tokens: Sequence[int] = ()) -> Any:
    """Let every plain `torch.nn.Linear` of a model call `sassafras.linear`, in place; `restore` undoes it.

    Left to torch, and counted in one warning: subclasses of nn.Linear (quantised layers), layers with a
    replaced forward, weights that are tensor subclasses, on the CPU or meta device, of other types than FP16
    and BF16, or on a GPU without kernels. Whether a kernel of ours runs is decided at each call, as in
    `matmul`. state_dict, hooks, training, torch.compile, DDP, FSDP and copies work as before; DTensors are
    multiplied by torch. A second call takes in layers that have become eligible.

    Args:
        model: a torch.nn.Module.
        wait: return when the launcher and the kernels asked for are built. Without `tokens`, these are the
            kernels for inputs of 1, 2, 4, ..., 4096 rows.
        tokens: rows of inputs (batch size times sequence length) for which kernels are asked for now; others
            are built in the background by the first calls that need them, while torch serves.

    Returns:
        The model.

    Raises:
        SassafrasError: not a torch.nn.Module, or `tokens` are no positive integers.
    """
    if not isinstance(model, torch.nn.Module):
        raise SassafrasError(
            f"a torch.nn.Module is expected, not {type(model).__name__}", where="sassafras.accelerate"
        )
    rows = tuple(tokens) if isinstance(tokens, Iterable) else None
    if rows is None or not all(isinstance(m, int) and m > 0 for m in rows):
        told = f"tokens are positive integers, not {tokens if rows is None else rows!r}"
        raise SassafrasError(told, where="sassafras.accelerate")
    found = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    reasons = [_why_not(layer) for layer in found]  # all, before any layer is changed
    left = Counter(filter(None, reasons))
    ours = [layer for layer, why in zip(found, reasons, strict=True) if not why]
    for layer in ours:
        if type(layer) is torch.nn.Linear:
            layer.__class__ = Linear
    if left or not found:
        _say(len(found), left)
    if wait and api._engine is not None:
        api.settle()  # plans of the launcher that serves until then are dropped
    keys = {key for layer in ours for key in _keys(layer, rows or (_TOKENS if wait else ()))}
    for turn in range(2 if wait else 1):  # a second time with the kernels that have been compiled
        for key in keys:
            api._engine.serve(key)  # type: ignore[union-attr]
        if wait and turn == 0:
            api.settle()
    return model


def restore(model: Any) -> Any:
    """Make the layers that `accelerate` changed plain `torch.nn.Linear` layers again; returns the model."""
    for layer in model.modules():
        if isinstance(layer, Linear):
            layer.__class__ = _restored(type(layer))
    return model


def _restored(kind: type) -> type:
    """A class with torch.nn.Linear among its bases in the place of ours."""
    if not issubclass(kind, Linear):
        return kind
    if kind is Linear:
        return torch.nn.Linear
    own = {name: value for name, value in kind.__dict__.items() if name not in ("__dict__", "__weakref__")}
    return type(kind.__name__, tuple(map(_restored, kind.__bases__)), own)


def layers(model: Any) -> list[Layer]:
    """The linear layers of a model, with what serves them in this process."""
    found = []
    for name, layer in model.named_modules():
        if not isinstance(layer, torch.nn.Linear):
            continue
        n, k = layer.out_features, layer.in_features
        why = _why_not(layer)
        if type(layer).forward is not Linear.forward or why == _NO_WEIGHT:
            found.append(Layer(name, n, k, False, why or "not accelerated"))
            continue
        found.append(Layer(name, n, k, True, "", _served(layer)))
    return found


def _served(layer: Any) -> dict[int, str]:
    """`Layer.served` of an accelerated layer."""
    found: dict[int, set[str]] = defaultdict(set)
    weight, bias = layer.weight, BIAS * (layer.bias is not None)
    wanted = weight.device.index or 0, weight.dtype, layer.out_features, layer.in_features, bias
    for problem, n, member in _products():
        kind = problem.device, plain_tensors.DTYPES[problem.dtype], n, problem.k, problem.extra & BIAS
        if kind == wanted:
            found[problem.m].add(member)
    return {m: " or ".join(sorted(members)) for m, members in found.items()}


def _products() -> Iterator[tuple[Problem, int, str]]:
    """Products with a weight of a layer's, its outputs, and what serves them. Of those that take in what
    surrounds them, which a graph may have asked for in vain, the ones of ours."""
    if (engine := api._engine) is None:
        return
    for problem, choice in [*engine.served.items()]:
        if problem.layout == "tn" and (problem.extra in (0, BIAS) or choice.member == "ours"):
            two = problem.pair and problem.extra & BETA  # gate and up have a weight each
            yield problem, problem.n // 2 if two else problem.n, choice.member
    for problem, kernel in [*engine.around.items()]:
        if problem.transposed == JOINED and kernel is not None:
            ends = 0, *apart(problem)[1], problem.n
            for width in {end - begin for begin, end in pairwise(ends)}:
                yield problem, width, "ours"


def _why_not(layer: Any) -> str:
    """Why a linear layer is left to torch; empty if it is or can be accelerated."""
    if type(layer) is not torch.nn.Linear and type(layer).forward is not Linear.forward:
        return f"of class {type(layer).__name__}"
    if "forward" in layer.__dict__:
        return "with a replaced forward"
    if not isinstance(weight := getattr(layer, "weight", None), torch.Tensor):
        return _NO_WEIGHT
    distributed = sys.modules.get("torch.distributed.tensor")
    # FSDP's are plain in forward; others are torch's there
    sharded = distributed is not None and isinstance(weight, distributed.DTensor)
    if type(weight) not in plain_tensors.KINDS and not sharded:
        return f"with a weight of class {type(weight).__name__}"
    if weight.device.type != api._device:
        return f"on the {weight.device.type} device"
    if weight.dtype not in plain_tensors.DTYPES:
        return f"of type {str(weight.dtype).removeprefix('torch.')}"
    if (engine := api.engine_for(weight)) is None:
        return "without a CUDA driver that serves"
    return engine.gpu(weight.device.index or 0).why_not


def _keys(layer: Any, tokens: Sequence[int]) -> list[Problem]:
    """The problems of a layer's forward for inputs of so many rows."""
    weight, engine = layer.weight, api._engine
    if not tokens or engine is None or not plain_tensors.plain(weight):
        return []
    bias = None if layer.bias is None else layer.bias.detach()
    key = engine.launcher.key(weight.new_empty((2, weight.shape[1])), weight.detach().t(), None, bias)
    return [] if key is None else [Problem(*key)._replace(m=rows) for rows in tokens]


_said: set[str] = set()


def _say(count: int, left: Counter[str]) -> None:
    """What is left to torch, once a process in these words."""
    reasons = ", ".join(f"{number} {why}" for why, number in sorted(left.items()))
    text = f"{left.total()} of {count} linear layers are left to torch: {reasons}"
    text = text if count else "the model has no torch.nn.Linear"
    if text not in _said:
        _said.add(text)
        warnings.warn(f"sassafras.accelerate: {text}", RuntimeWarning, stacklevel=3)
