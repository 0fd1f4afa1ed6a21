"""torch's own samples (`OpInfo`) of mm, addmm, bmm and matmul, run by sassafras.matmul and by torch.

`compare` checks one sample: values, type, shape, strides, `out=` with its version counter and warnings,
gradients of first and second order, tangents, and functorch's transformations.
"""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

NAMES = ("mm", "addmm", "bmm", "matmul")
#: by what the last two extents grow in wide samples: their rows are a multiple of 16 bytes
WIDER = 8
#: extents beyond this are not widened
_LARGE = 32


def module() -> Any:
    """torch's table of samples. It imports `expecttest` for tests of its own, which may be missing."""
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401
        except ImportError:
            sys.modules["expecttest"] = absent = types.ModuleType("expecttest")
            absent.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    import torch.backends
    from torch.testing._internal import common_methods_invocations

    # the import forbids whatever else runs in this process to set a backend's flags
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    return common_methods_invocations


@dataclass(frozen=True)
class Sample:
    """One call: `ours` and `torchs` take the same tensors.

    Attributes:
        name: of the operator and its variant.
        tensors: the operands; an epilogue's bias is the third.
        ours, torchs: (tensors, **out) -> result.
        product: the two operands' indices.
    """

    name: str
    tensors: tuple[Any, ...]
    ours: Callable[..., Any]
    torchs: Callable[..., Any]


def samples(room: Any, device: str, dtype: Any, wide: bool) -> Iterator[Sample]:
    """Every sample of the four operators, in the forms in which sassafras.matmul expresses it.

    Args:
        wide: `WIDER` times wider, but for those that are large already. Samples of equal extents and factors
            come once.
    """
    seen = set()
    for info in module().op_db:
        if info.name not in NAMES:
            continue
        name = f"{info.name} {info.variant_test_name}".strip()
        for given in info.reference_inputs(device, dtype, requires_grad=False):
            tensors = [given.input, *given.args]
            key = (info.name, tuple(t.shape for t in tensors), tuple(sorted(given.kwargs.items())))
            if key in seen or (wide and max(x for t in tensors for x in (0, *t.shape)) > _LARGE):
                continue
            seen.add(key)
            if wide:
                tensors = [_wider(t) for t in tensors]
            if info.name == "addmm":
                yield from _addmm(room, name, *tensors, **given.kwargs)
            else:
                # (gradients of torch.bmm may lie otherwise than those of torch.matmul, which is ours)
                operator = torch.mm if info.name == "mm" else torch.matmul
                yield Sample(name, tuple(tensors), room.matmul, operator)


def _wider(tensor: Any) -> Any:
    from torch.testing import make_tensor

    extents = [x if x == 1 else WIDER * x for x in tensor.shape[-2:]]
    return make_tensor(
        (*tensor.shape[:-2], *extents), dtype=tensor.dtype, device=tensor.device, low=-2, high=2
    )


def _addmm(
    room: Any, name: str, added: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1
) -> Iterator[Sample]:
    """What is added is our bias where it is one row, else what `out` holds; and plain, added by torch."""
    rows, columns = a.shape[0], b.shape[1]

    def into(a: Any, b: Any, added: Any) -> Any:
        held = added.expand(rows, columns).clone(memory_format=torch.contiguous_format)
        return room.matmul(a, b, out=held, alpha=alpha, beta=beta)

    def plain(a: Any, b: Any, added: Any, out: Any = None) -> Any:
        product = room.matmul(a, b, alpha=alpha)
        return torch.add(product, beta * added) if out is None else torch.add(product, beta * added, out=out)

    yield Sample(f"{name} out", (a, b, added), into, lambda a, b, added: torch.addmm(
        added, a, b, beta=beta, alpha=alpha))  # fmt: skip
    yield Sample(f"{name} plain", (a, b, added), plain, lambda a, b, added, **out: torch.add(
        torch.addmm(torch.zeros_like(added), a, b, alpha=alpha), beta * added, **out))  # fmt: skip
    if added.dim() < 2:
        bias = (beta * added).expand(columns).contiguous()
        for activation in (None, "relu"):
            act = torch.relu if activation else lambda value: value
            yield Sample(
                f"{name} bias {activation or ''}".strip(),
                (a, b, bias),
                lambda a, b, bias, activation=activation: room.matmul(
                    a, b, bias=bias, alpha=alpha, activation=activation
                ),
                lambda a, b, bias, act=act: act(torch.addmm(bias, a, b, alpha=alpha)),
            )


def eligible(sample: Sample) -> bool:
    """Two matrices, or batches of them, none empty."""
    a, b = sample.tensors[:2]
    return a.dim() >= 1 and b.dim() >= 2 and 0 not in (*a.shape, *b.shape)


def near(ours: Any, torchs: Any, what: str, *, strides: bool = True) -> None:
    """Equal but for the last rounding; type, shape and strides are equal. Raises AssertionError."""
    assert (type(ours), ours.dtype, ours.shape) == (type(torchs), torchs.dtype, torchs.shape), what
    assert not strides or ours.stride() == torchs.stride(), (what, ours.stride(), torchs.stride())
    assert (ours.device, ours.layout) == (torchs.device, torchs.layout), what
    unit = 2.0**-6 if torchs.dtype == torch.bfloat16 else 2.0**-9
    most = float(torchs.detach().abs().max()) if torchs.numel() else 0.0
    torch.testing.assert_close(
        ours, torchs, rtol=unit, atol=unit * most, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )


def raised(call: Callable[[], Any]) -> tuple[type | None, str]:
    """The type of what a call raises and the warnings that it gives, without ours."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            call()
            kind = None
        except Exception as error:
            kind = type(error)
    return kind, " ".join(sorted({w.category.__name__ for w in seen if "sassafras" not in str(w.message)}))


def compare(sample: Sample) -> None:
    """Everything about one sample. Raises AssertionError."""
    tensors, name = sample.tensors, f"{sample.name} {[tuple(t.shape) for t in sample.tensors]}"
    wanted = sample.torchs(*tensors)
    near(sample.ours(*tensors), wanted, name)
    if len(tensors) == 2:
        outs(sample, wanted, name)
    writes = sample.name.endswith(" out")
    gradients(sample, wanted, name, writes)
    if not writes:
        tangents(sample, wanted, name)


def outs(sample: Sample, wanted: Any, name: str) -> None:
    """`out` as it should be, in columns, too small, of another type, one that wants a gradient."""
    makers: dict[str, Callable[[], Any]] = {
        "right": lambda: torch.empty_like(wanted),
        "zeros": lambda: torch.zeros_like(wanted),
        "columns": lambda: (
            torch.empty_like(wanted).mT.contiguous().mT if wanted.dim() > 1 else wanted.clone()
        ),
        "gaps": lambda: (
            wanted.new_empty((*wanted.shape[:-1], 2 * wanted.shape[-1]))[..., ::2]
            if wanted.dim()
            else wanted.clone()
        ),
        "empty": lambda: wanted.new_empty(0),
        "small": lambda: wanted.new_empty(1),
        "other type": lambda: wanted.new_empty(wanted.shape, dtype=torch.float32),
        "integers": lambda: wanted.new_empty(wanted.shape, dtype=torch.int32),
        "wants a gradient": lambda: torch.empty_like(wanted).requires_grad_(),
        "one element": lambda: wanted.new_empty(1).expand(wanted.shape) if wanted.dim() else wanted.clone(),
    }
    if wanted.dtype == torch.bfloat16:  # a stride of 0 ends the process in torch on CPUs with AMX (SIGFPE)
        del makers["one element"]
    for kind, make in makers.items():
        mine, theirs = make(), make()
        saw = raised(lambda mine=mine: sample.ours(*sample.tensors, out=mine))
        assert saw == raised(lambda theirs=theirs: sample.torchs(*sample.tensors, out=theirs)), (
            name,
            kind,
            saw,
        )
        assert mine._version == theirs._version, (name, kind, mine._version, theirs._version)
        assert mine.requires_grad == theirs.requires_grad, (name, kind)
        if saw[0] is None and kind != "one element":  # (whose value is whichever was written last)
            near(mine, theirs, f"{name} out {kind}")
            assert sample.ours(*sample.tensors, out=mine) is mine


def _leaves(sample: Sample, writes: bool) -> tuple[Any, ...]:
    return tuple(t.detach().clone().requires_grad_(not writes) for t in sample.tensors)


def gradients(sample: Sample, wanted: Any, name: str, writes: bool) -> None:
    """Of first and second order; where `out` is written with gradients wanted, the same error."""
    if writes:
        leaves = [t.detach().clone().requires_grad_() for t in sample.tensors[:2]]
        assert raised(lambda: sample.ours(*leaves, *sample.tensors[2:]))[0] is RuntimeError, name
        return
    weights = torch.linspace(-1, 1, max(1, wanted.numel())).to(wanted)[: wanted.numel()].view(wanted.shape)
    found = []
    for function in (sample.ours, sample.torchs):
        leaves = _leaves(sample, False)
        result = function(*leaves)
        assert result.requires_grad, name
        first = torch.autograd.grad(result, leaves, weights, create_graph=True)
        total = sum((g.float().square().sum() for g in first), torch.zeros((), device=wanted.device))
        second = torch.autograd.grad(total, leaves, allow_unused=True) if total.requires_grad else ()
        found.append((result.detach(), *first, *second))
    for index, (mine, theirs) in enumerate(zip(*found, strict=True)):
        assert (mine is None) == (theirs is None), (name, index)
        if mine is not None:
            # a gradient of an epilogue lies as that of the composition that serves it, which may be another
            strides = len(sample.tensors) == 2
            near(mine.detach(), theirs.detach(), f"{name} gradient {index}", strides=strides)
    for only in range(len(sample.tensors)):  # each alone; the other operand may change before backward
        pair = []
        for function in (sample.ours, sample.torchs):
            given = [t.detach().clone() for t in sample.tensors]
            given[only].requires_grad_()
            result = function(*given)
            given[only].data.mul_(1)
            with torch.no_grad():
                given[only].mul_(2)
            pair.append(
                raised(lambda result=result, at=given[only]: torch.autograd.grad(result, at, weights))
            )
        assert pair[0] == pair[1], (name, only, pair)


def tangents(sample: Sample, wanted: Any, name: str) -> None:
    """Forward mode alone and through functorch; vjp, vmap, functionalize."""
    given = tuple(t.detach() for t in sample.tensors)
    seeds = tuple(torch.linspace(1, 2, max(1, t.numel())).to(t)[: t.numel()].view(t.shape) for t in given)
    found = []
    for function in (sample.ours, sample.torchs):
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(t, s) for t, s in zip(given, seeds, strict=True)]
            plain = [t.clone() for t in given]
            both = [forward_ad.unpack_dual(function(*duals))]
            both.append(forward_ad.unpack_dual(function(duals[0], *plain[1:])))
            untouched = forward_ad.unpack_dual(function(*plain)).tangent is None
        assert untouched, name
        results = [part for pair in both for part in pair]
        results += torch.func.jvp(function, given, seeds)
        value, pull = torch.func.vjp(function, *given)
        results += [value, *pull(torch.ones_like(value))]
        results.append(torch.func.functionalize(function)(*given))
        batched = torch.func.vmap(function, in_dims=(0, *(None for _ in given[1:])))
        results.append(batched(torch.stack([given[0], 2 * given[0]]), *given[1:]))
        found.append(results)
    for index, (mine, theirs) in enumerate(zip(*found, strict=True)):
        near(mine, theirs, f"{name} transformation {index}")
    if len(given) == 2:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(given[0], seeds[0])
            kinds = [raised(lambda f=f: f(dual, given[1], out=torch.empty_like(wanted)))[0] for f in (
                sample.ours, sample.torchs)]  # fmt: skip
        assert kinds[0] is kinds[1], (name, kinds)


def wrong(device: str, dtype: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Operands that torch refuses: extents, types, devices, kinds."""

    def make(*shape: int, kind: Any = dtype) -> Any:
        return torch.ones(shape, dtype=kind, device=device)

    yield "extents", (make(8, 16), make(8, 16))
    yield "batches", (make(2, 8, 16), make(3, 16, 8))
    yield "vector", (make(8), make(16))
    yield "scalar", (make(), make(8, 8))
    yield "both scalars", (make(), make())
    yield "types", (make(8, 16), make(16, 8, kind=torch.float32))
    yield "our types", (make(8, 16, kind=torch.float16), make(16, 8, kind=torch.bfloat16))
    yield "no tensor", (make(8, 16), 3)
    yield "nothing", (None, make(8, 8))
    yield "list", (make(8, 16), [[1.0]])
    yield "meta", (make(8, 16), torch.empty(16, 8, dtype=dtype, device="meta"))
    yield "sparse with a batch", (make(8, 16).to_sparse(), make(2, 16, 8))
    if device != "cpu":
        yield "devices", (make(8, 16), torch.ones(16, 8, dtype=dtype))
