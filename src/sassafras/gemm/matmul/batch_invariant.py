"""`sassafras.batch_invariant`: torch's products and row reductions, each row with bits of its own.

While any thread is within, the CUDA kernels of the operators in `_replaced` are ours, in the whole process:
torch's dispatcher has no kernels of one thread. Autograd, autocast, CUDA graphs and programs that
torch.compile made lie above or call these operators, so they have them too.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sassafras.core import SassafrasError

from . import api, invariant, plain_tensors, row_kernels

_WHERE = "sassafras.batch_invariant"
#: where torch's kernels are replaced
_KEY = "CUDA"
_lock = threading.Lock()
_within = 0
_library: Any = None


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Let a row's bits depend on that row and the weights alone, in torch's own operators.

    Replaced for CUDA tensors, in all threads, until the last one leaves: mm, addmm, bmm, baddbmm, mv and
    addmv with their forms that write to `out` (so linear, matmul and einsum too), log_softmax, mean over
    dimensions, rms_norm. FP16 and BF16 products on a Hopper GPU run `matmul(..., invariant=True)`, other
    products one of Triton, FP32 in IEEE arithmetic. Products of Sassafras that do not ask for `invariant`
    (`matmul`, `linear`, accelerated layers, compiled or not) run as torch's. Nests, and leaves all as it was.

    Attention, and reductions that torch.compile fuses itself, are not replaced.

    Raises:
        SassafrasError: within, by an operator for types that it has no invariant kernel for (FP64, complex).
    """
    global _within, _library
    with _lock:
        if _within == 0:
            _library = _installed()
            api.suspend(True)
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if _within == 0:
                api.suspend(False)
                _library._destroy()
                _library = None


def _installed() -> Any:
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced is the purpose
            for name, function in _replaced().items():
                if hasattr(torch.ops.aten, name.partition(".")[0]):  # earlier releases compose rms_norm
                    library.impl(name, function, _KEY)
    except BaseException:
        library._destroy()
        raise
    return library


# -- products ----------------------------------------------------------------------------------------------


def _ours(a: Any, b: Any) -> bool:
    """Whether our kernels multiply them."""
    if a.dtype not in plain_tensors.DTYPES or a.dtype != b.dtype or 0 in (*a.shape, *b.shape):
        return False
    return not invariant.why_not(a.device.index or 0)


def _shape(a: Any, b: Any) -> tuple[int, ...]:
    """The product's. Raises RuntimeError where there is none: a kernel would read past the operands' ends."""
    if a.dim() != b.dim() or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise RuntimeError(f"shapes cannot be multiplied ({tuple(a.shape)} and {tuple(b.shape)})")
    return (*a.shape[:-1], b.shape[-1])


def _product(a: Any, b: Any, out: Any = None) -> Any:
    """a @ b of two matrices, or of two batches of as many; `out` may or may not be what is returned."""
    _shape(a, b)
    if _ours(a, b):
        return invariant.rows_of(a, b, out=out)
    if 0 in (*a.shape, *b.shape):
        return a.new_zeros((*a.shape[:-1], b.shape[-1]))
    if a.dtype not in row_kernels.PUBLISHED or a.dtype != b.dtype:
        hint = "FP16, BF16 and FP32 have one; leave the context for this product"
        raise SassafrasError(f"no invariant product of {a.dtype} and {b.dtype}", where=_WHERE, hint=hint)
    if a.dim() == 2:
        return row_kernels.product(a, b)
    return torch.stack([row_kernels.product(x, y) for x, y in zip(a, b, strict=True)])


def _sum(addend: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * addend + alpha * a @ b: one kernel of ours if the factors are 1, else each operation rounds."""
    shape = _shape(a, b)
    row = addend = addend.expand(shape)
    if addend.dtype != a.dtype:
        raise RuntimeError(f"{addend.dtype} is added to a product of {a.dtype}: one type is expected")
    if beta == alpha == 1 and _ours(a, b):
        while row.dim() > 1 and (row.stride(0) == 0 or row.shape[0] == 1):
            row = row[0]
        if row.dim() == 1:
            return invariant.rows_of(a, b, bias=row)
        return invariant.rows_of(a, b, residual=row.expand(shape).contiguous())
    value = _product(a, b)
    value = value if alpha == 1 else alpha * value
    if beta == 0:  # what is not a number in the addend does not count
        return value
    return value + (addend if beta == 1 else beta * addend)


def _mv(a: Any, b: Any) -> Any:
    return _product(a, b.unsqueeze(1)).squeeze(1)


def _addmv(addend: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _sum(addend.unsqueeze(-1), a, b.unsqueeze(1), beta=beta, alpha=alpha).squeeze(1)


def _activated(bias: Any, a: Any, b: Any, *, use_gelu: bool = False, **factors: Any) -> Any:
    value, functional = _sum(bias, a, b, **factors), torch.nn.functional
    return functional.gelu(value, approximate="tanh") if use_gelu else functional.relu(value)


def _into(out: Any, value: Any) -> Any:
    if value is out:
        return out
    if out.dtype != value.dtype:
        raise RuntimeError(f"out is {out.dtype}, the result {value.dtype}")
    if out.shape != value.shape:
        out.resize_(value.shape)
    return out.copy_(value)


def _product_out(a: Any, b: Any, *, out: Any) -> Any:
    return _into(out, _product(a, b, out))


def _writing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The form of an operator that writes to `out`."""
    return lambda *given, out, **named: _into(out, function(*given, **named))


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """The form of an operator that writes to its first argument."""
    return lambda addend, *given, **named: addend.copy_(function(addend, *given, **named))


# -- rows --------------------------------------------------------------------------------------------------


def _real(x: Any, what: str) -> Any:
    if x.dtype not in row_kernels.PUBLISHED:
        raise SassafrasError(f"no invariant {what} of {x.dtype}", where=_WHERE, hint="FP16, BF16 or FP32")
    return x


def _log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    if x.numel() == 0 or x.dim() == 0:
        return torch.zeros_like(x, dtype=torch.float32 if half_to_float else x.dtype)
    dtype = torch.float32 if half_to_float else x.dtype
    return row_kernels.log_softmax(_real(x, "log_softmax").movedim(dim, -1), dtype).movedim(-1, dim)


def _dims(x: Any, dim: Any) -> list[int]:
    """These dimensions, or all, in order, counted from the first. Raises what torch raises."""
    rank = max(1, x.dim())
    for d in dim or ():
        if not -rank <= d < rank:
            raise IndexError(f"Dimension out of range (expected to be in [{-rank}, {rank - 1}], but got {d})")
    dims = sorted(d % rank for d in dim) if dim else list(range(x.dim()))
    if len({*dims}) != len(dims):
        raise RuntimeError(f"a dimension appears multiple times in {[*dim]}")
    return dims


def _mean(x: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    x = _real(x if dtype is None else x.to(dtype), "mean")
    dims = _dims(x, dim)
    if x.dim() == 0:
        return x.clone()
    kept = [d for d in range(x.dim()) if d not in dims]
    rows = x.permute(*kept, *dims).reshape(*(x.shape[d] for d in kept), -1)
    if rows.numel() == 0:
        found = x.new_full([x.shape[d] for d in kept], float("nan"))
    else:
        found = row_kernels.mean(rows)
    return (
        found.reshape([1 if d in dims else extent for d, extent in enumerate(x.shape)]) if keepdim else found
    )


def _mean_out(*given: Any, out: Any, **named: Any) -> Any:
    value = _mean(*given, **named)  # in a type of its own, if it goes into `out`'s
    return _into(out, value.to(out.dtype) if torch.can_cast(value.dtype, out.dtype) else value)


def _rms_norm(x: Any, normalized_shape: Any, weight: Any, eps: float | None) -> tuple[Any, Any]:
    kept = x.dim() - len(normalized_shape)
    rows = _real(x, "rms_norm").reshape(*x.shape[:kept], -1)
    least = torch.finfo(torch.float32 if x.dtype != torch.float64 else x.dtype).eps if eps is None else eps
    if x.numel() == 0:
        return torch.empty_like(x), x.new_empty(
            x.shape[:kept] + (1,) * len(normalized_shape), dtype=torch.float32
        )
    y, factors = row_kernels.rms_norm(rows, None if weight is None else weight.reshape(-1), least)
    return y.view(x.shape), factors.view(*x.shape[:kept], *(1,) * len(normalized_shape))


def _replaced() -> dict[str, Callable[..., Any]]:
    """Operator -> what runs in its place."""
    sums: dict[str, Callable[..., Any]] = {"addmm": _sum, "baddbmm": _sum, "addmv": _addmv}
    others: dict[str, Callable[..., Any]] = {
        "mv": _mv,
        "_addmm_activation": _activated,
        "_log_softmax": _log_softmax,
        "mean": _mean,
    }
    found: dict[str, Callable[..., Any]] = {f"{n}.out": _writing(f) for n, f in (sums | others).items()}
    found |= sums | others | {"mm": _product, "bmm": _product, "_fused_rms_norm": _rms_norm}
    found |= {"mm.out": _product_out, "bmm.out": _product_out, "mean.out": _mean_out}
    found |= {f"{name}_": _in_place(function) for name, function in sums.items()}
    found["mean.dim"] = found.pop("mean")
    return found
