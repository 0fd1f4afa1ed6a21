"""`sassafras.matmul`: torch.matmul with our kernels where they are faster, and torch's everywhere else."""

from __future__ import annotations

import threading
import warnings
from typing import Any

from sassafras.core import SassafrasError, ToolMissing

try:  # this module is loaded by the first use of sassafras.matmul; dynamo needs torch as its global
    import torch
except ImportError as error:
    raise ToolMissing("sassafras.matmul needs torch", hint="pip install torch") from error

from . import eligible
from .planner import Planner
from .problem import folded, lies
from .torch_op import register

#: under a name of its own: a plain call has a microsecond, and finding it takes a thirtieth of that
_is_compiling = torch.compiler.is_compiling

_engine: Planner | None = None
_device = "cuda"
_warned: set[str] = set()
_once = threading.RLock()  # what is made, or said, once


def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    bias: Any = None,
    activation: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """The matrix product, as `torch.matmul(a, b, out=out)`: same shapes, same errors, FP32 accumulation.

    And more than that: activation(alpha * (a @ b) + beta * out + bias), in one kernel where one of ours
    serves, with everything in FP32 until the one rounding at the end. Where torch serves, it is torch.addmm,
    torch.baddbmm or torch.matmul, then the rest in operations of their own, each rounding to the type.

    For FP16 (and, where a kernel exists, BF16) tensors on a GPU with tuned kernels, each product runs the
    fastest member of a portfolio: our kernels, a tuned cuBLASLt algorithm, torch. Everything else is torch's:
    other types and devices (said once, in a warning), batches of both operands, empty tensors.

    Views are read as they lie (row-major or transposed, with gaps between lines); nothing is ever copied to
    change a layout. Works under torch.compile, autograd, autocast, CUDA graphs, on any stream and device;
    whatever is more than a plain tensor, or called where a mode or a transformation has to see it, is torch's
    (`dispatch.eligible`). All our kernels accumulate in FP32 in a fixed order, whatever torch's flags allow;
    where a flag asks for more (reduced precision forbidden, deterministic algorithms), cuBLASLt is only
    called through torch, which obeys.

    Args:
        a: (..., m, k), or (k).
        b: (k, n), or anything that torch.matmul takes.
        out: written if given, and returned.
        bias: (n), of a's type; added to each row. This and the others: by keyword.
        activation: ``relu``, ``gelu`` (exact), ``gelu_tanh`` or ``silu``.
        alpha: factor of the product.
        beta: factor of what `out` holds; where it is 0, `out` is not read.

    Raises:
        RuntimeError: what torch.matmul raises.
        SassafrasError: an unknown activation, a bias of another shape, beta without out.
    """
    # (parameters by keyword only would cost every plain call some forty nanoseconds)
    if bias is not None or activation is not None or alpha != 1.0 or beta != 0.0:
        return epilogue_api.call(a, b, out, bias, activation, alpha, beta)
    if _is_compiling():
        return _traced(a, b, out)
    result = _launch(a, b, out)
    return _general(a, b, out) if result is NotImplemented else result


def _first(a: Any, b: Any, out: Any) -> Any:
    """Stands in for the launcher until the first call on the device."""
    if _engine is None and isinstance(a, torch.Tensor) and a.device.type == "cuda":
        _set_up()
        return _launch(a, b, out)
    return NotImplemented


#: the launcher's call: (a, b, out) -> C or NotImplemented
_launch: Any = _first


def _ready(a: Any) -> None:
    """Set up before the first call on the device."""
    if _engine is None and _launch is _first and a.device.type == "cuda":
        _set_up()


def _set_up() -> None:
    """The engine for torch's CUDA devices, made once. Without a driver that serves, every call is torch's."""
    with _once:
        if _engine is None:
            _make_engine()


def _make_engine() -> None:
    from .counters import Counters
    from .cublaslt import LtMember
    from .driver import Driver
    from .launcher_python import Torch

    driver: Driver
    try:
        driver = Driver()
    except SassafrasError as error:
        _warn("driver", f"the CUDA driver does not serve ({error})")
        use(None, launch=lambda a, b, out: NotImplemented)
        return
    side = Torch(
        matmul=torch.matmul,
        empty_bytes=_empty_bytes,
        counters=Counters(driver),
        stream=torch._C._cuda_getCurrentRawStream,
        grad_enabled=torch.is_grad_enabled,
        strict=_strict,
        **eligible.ASKED,
    )
    use(Planner(driver, side, lt=lambda: LtMember(driver)))


def use(engine: Planner | None, *, device: str = "cuda", launch: Any = None) -> None:
    """Install an engine (tests and the benchmark do); None and no launch: as if never called."""
    global _engine, _device, _launch
    _engine, _device, _launch = engine, device, launch or _first
    if engine is not None and launch is None:
        engine.attach(lambda launcher: _take(engine, launcher))


def _take(engine: Planner, launcher: Any) -> None:
    global _launch
    if _engine is engine:
        _launch = launcher


def status() -> dict[str, Any]:
    """What `matmul` has done in this process: launcher, devices, problems with who serves each."""
    return _engine.status() if _engine else {"launcher": None, "problems": [], "notes": sorted(_warned)}


def settle(timeout: float = 300.0) -> None:
    """Wait until the launcher and the kernels that calls have asked for are built."""
    if _engine:
        _engine.settle(timeout)


# -- the paths that are not fast ----------------------------------------------------------------------


def _general(a: Any, b: Any, out: Any) -> Any:
    """Any eager call that the launcher did not take."""
    tensors = (a, b) if out is None else (a, b, out)
    if not all(isinstance(t, torch.Tensor) for t in tensors):
        return _torch(a, b, out)
    if not eligible.quiet():
        traced = out is None and b.dim() == 2 and a.dim() >= 2 and _in_graph(a, b)
        return _through_operator(a, b) if traced else _torch(a, b, out)
    if not all(map(eligible.plain, tensors)):
        return _plainly_not_ours(a, b, out)
    if torch.is_autocast_enabled(a.device.type):
        dtype = torch.get_autocast_dtype(a.device.type)
        if out is not None or b.device != a.device or not {a.dtype, b.dtype} <= _CAST:
            return _torch(a, b, out)
        with torch.autocast(a.device.type, enabled=False):
            return matmul(a.to(dtype), b.to(dtype))
    if not _ours(a, b, say=True):
        return _torch(a, b, out)
    if a.dim() == 1 and b.dim() == 2 and out is None:
        return matmul(a.unsqueeze(0), b).squeeze(0)
    if b.dim() > 2 and a.dim() >= 2 and _engine is not None and epilogue_api.fits(a, b):
        return _batched(a, b, out)
    if b.dim() != 2 or a.dim() < 2 or a.shape[-1] != b.shape[0] or 0 in (*a.shape, *b.shape):
        return _torch(a, b, out)
    if _engine is None:
        return _torch(a, b, out)
    if _wants_grad(*tensors):
        return _through_operator(a, b) if out is None else _torch(a, b, out)
    result = _served(a, b, out)
    if result is NotImplemented:
        if not _lie_well(a, b, out):
            _warn("layout", "strides that are neither rows nor columns (or overlap) are torch's", 4)
        return _torch(a, b, out)
    return result


def _plainly_not_ours(a: Any, b: Any, out: Any) -> Any:
    """Tensors that are not plain: torch's. A warning says so where they are merely on another device."""
    if all(type(t) in eligible.KINDS for t in (a, b)) and a.device.type == b.device.type != _device:
        _ours(a, b, say=True)
    return _torch(a, b, out)


#: types that autocast casts, and that our kernels' types are cast from
_CAST = {torch.float16, torch.bfloat16, torch.float32}


def _served(a: Any, b: Any, out: Any = None) -> Any:
    """A call below autograd and modes, with a plan made for it if it has none yet."""
    engine = _engine
    if engine is None:
        return NotImplemented
    launcher = engine.launcher
    result = launcher.raw(a, b, out)
    if result is NotImplemented and (key := launcher.key(a, b, out)) is not None:
        engine.serve(key)
        if gone := engine.gpu(key[0]).why_not:
            _warn("gpu", gone)
        result = engine.launcher.raw(a, b, out)  # once more NotImplemented if a kernel has just been compiled
    return result


def _batched(a: Any, b: Any, out: Any) -> Any:
    """Batches of both operands, where neither a gradient nor a mode is wanted."""
    assert _engine is not None
    result = _engine.launcher.fused(a, b, out, None, 0, 1.0, 0.0)
    if result is NotImplemented:
        tensors = (a, b) if out is None else (a, b, out)
        if not _wants_grad(*tensors):
            result = epilogue_api.served(a, b, out)
    return _torch(a, b, out) if result is None or result is NotImplemented else result


def _traced(a: Any, b: Any, out: Any) -> Any:
    """The call as torch.compile sees it."""
    if (
        out is None
        and b.dim() == 2
        and a.dim() >= 2
        and not torch.is_autocast_enabled(a.device.type)
        and _in_graph(a, b)
    ):
        return _through_operator(a, b)
    return _torch(a, b, out)


def _in_graph(*tensors: Any) -> bool:
    """Whether a graph is being made in which these stand for tensors of ours: it is to have our operator.

    Dynamo shows tensors as what they will be; other tracers show fakes of them, or them. Modes that make no
    graph see torch's own operators.
    """
    if not all(t.layout is torch.strided and not t.is_nested for t in tensors) or not _ours(
        tensors[0], tensors[1], say=False
    ):
        return False
    if torch.compiler.is_dynamo_compiling():
        return all(type(t) in eligible.KINDS for t in tensors)
    return eligible.traced(*tensors)


def _through_operator(a: Any, b: Any) -> Any:
    if a.dim() == 2:
        return _mm(a, b)
    if not a.is_contiguous():  # flattening would copy
        return torch.matmul(a, b)
    return _mm(a.flatten(0, -2), b).unflatten(0, a.shape[:-1])


def _run(a: Any, b: Any) -> Any:
    """The operator's implementation, below autograd and modes."""
    result = _served(a, b) if eligible.plain(a) and eligible.plain(b) else NotImplemented
    return torch.mm(a, b) if result is NotImplemented else result


_mm = register(_run)


def _torch(a: Any, b: Any, out: Any) -> Any:
    return torch.matmul(a, b) if out is None else torch.matmul(a, b, out=out)


def _ours(a: Any, b: Any, *, say: bool) -> bool:
    """Type and device are such that a kernel of ours may exist."""
    if a.device.type != _device or b.device != a.device:
        if say:
            _warn("device", f"tensors on {a.device.type} are torch's")
        return False
    if a.dtype not in eligible.DTYPES or b.dtype != a.dtype:
        if say:
            _warn("dtype", f"{a.dtype} is torch's: our kernels multiply FP16 (and BF16 where one exists)")
        return False
    return True


def _lie_well(a: Any, b: Any, out: Any) -> bool:
    rows = folded(a.shape, a.stride())
    if rows is None:
        return False
    lines = [lies(rows[0], a.shape[-1], rows[1], a.stride(-1)), lies(*b.shape, *b.stride())]
    if out is not None:
        if tuple(out.shape) != (*a.shape[:-1], b.shape[1]) or out.dtype != a.dtype:
            return True  # torch resizes or refuses: not a matter of layout
        rows = folded(out.shape, out.stride())
        lines.append(lies(rows[0], out.shape[-1], rows[1], out.stride(-1)) if rows else None)
    return None not in lines


def _wants_grad(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _strict() -> bool:
    """Is a cuBLASLt algorithm that may reduce in FP16, or in any order, forbidden?"""
    allowed = torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    allowed = allowed[0] if isinstance(allowed, tuple) else allowed
    return not allowed or torch.are_deterministic_algorithms_enabled()


def _empty_bytes(count: int, device: int) -> Any:
    return torch.empty(count, dtype=torch.uint8, device=f"cuda:{device}")


def _warn(kind: str, text: str, level: int = 5) -> None:
    with _once:
        new = kind not in _warned
        _warned.add(kind)
    if new:
        warnings.warn(
            f"sassafras.matmul: {text}; torch.matmul runs instead", RuntimeWarning, stacklevel=level
        )


from . import epilogue_api  # noqa: E402  (it needs this module, and this one needs it at calls only)
