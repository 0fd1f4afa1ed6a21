"""`sassafras.matmul`: torch.matmul with our kernels where they are faster, and torch's everywhere else."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError, ToolMissing

try:  # this module is loaded by the first use of sassafras.matmul; dynamo needs torch as its global
    import torch as torch  # linear and layers take it from here, with this hint
except ImportError as error:
    raise ToolMissing("sassafras.matmul needs torch", hint="pip install torch") from error

from ..configs.epilogue import ACTIVATIONS, NUMBERS
from . import invariant as rows
from . import plain_tensors
from .composed import activated, asks_more, check, composed, fits, wants_grad
from .cublaslt import LtMember
from .driver import Driver
from .planner import Planner
from .problem import broadcast
from .recorder import VARIABLE, Recorder
from .torch_op import register
from .torch_side import torch_side

#: under a name of its own: a plain call has a microsecond, and finding it takes a thirtieth of that
_is_compiling = torch.compiler.is_compiling

_engine: Planner | None = None
_recorder: Recorder | None = None
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
    invariant: bool = False,
) -> Any:
    """The matrix product, as `torch.matmul(a, b, out=out)`: same shapes, same errors, FP32 accumulation.

    And more than that: activation(alpha * (a @ b) + beta * out + bias), in one kernel where one of ours
    serves, with everything in FP32 until the one rounding at the end. Where torch serves, it is torch.addmm,
    torch.baddbmm or torch.matmul, then the rest in operations of their own, each rounding to the type.

    For FP16 and BF16 tensors on a GPU with tuned kernels, each product runs the
    fastest member of a portfolio: our kernels, a tuned cuBLASLt algorithm, torch. Everything else is torch's:
    other types and devices (said once, in a warning), batches of both operands, empty tensors.

    Views are read as they lie (row-major or transposed, with gaps between lines); nothing is ever copied to
    change a layout. Works under torch.compile, autograd, autocast, CUDA graphs, on any stream and device;
    whatever is more than a plain tensor, or called where a mode or a transformation has to see it, is torch's
    (`plain_tensors`). All our kernels accumulate in FP32 in a fixed order, whatever torch's flags allow;
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
        invariant: a row's bits depend on that row and b alone, not on m or other rows (`invariant.product`):
            FP16 and BF16 on a Hopper GPU; torch serves nothing.

    Raises:
        RuntimeError: what torch.matmul raises.
        SassafrasError: an unknown activation, a bias of another shape, beta without out; with `invariant`
            what has no invariant kernel.
    """
    if invariant:
        return rows.product(a, b, out, bias, activation, alpha, beta)
    # (parameters by keyword only would cost every plain call some forty nanoseconds)
    if bias is not None or activation is not None or alpha != 1.0 or beta != 0.0:
        if _is_compiling():
            return _traced(a, b, out, bias, activation, alpha, beta)
        if activation in ACTIVATIONS:
            result = _launch(a, b, out, bias, ACTIVATIONS[activation], alpha, beta)
            if result is None:  # it is known that torch serves this problem
                return composed(a, b, out, bias, activation, alpha, beta)
            if result is not NotImplemented:
                return result
        return _general(a, b, out, bias, activation, alpha, beta)
    if _is_compiling():
        return _traced(a, b, out, None, None, 1.0, 0.0)
    result = _launch(a, b, out)
    return _general(a, b, out, None, None, 1.0, 0.0) if result is NotImplemented else result


def _first(*call: Any) -> Any:
    """Stands in for the launcher until the first call on the device."""
    if _engine is None and isinstance(call[0], torch.Tensor) and call[0].device.type == "cuda":
        _set_up()
        return _launch(*call)
    return NotImplemented


def _first_linear(*call: Any) -> Any:
    """The same for `sassafras.linear`."""
    if _engine is None and isinstance(call[0], torch.Tensor) and call[0].device.type == "cuda":
        _set_up()
        return _launch_linear(*call)
    return NotImplemented


#: the launcher's calls (`MatmulCall`; x, weight, bias, residual, activation's number) -> C, NotImplemented,
#: or None where torch serves what Python composes
_launch: Any = _first
_launch_linear: Any = _first_linear
#: what these are while torch does not serve every call (`suspend`)
_able: tuple[Any, Any] = (_first, _first_linear)
_suspended = False
_suspending = threading.Lock()


def engine_for(tensor: Any) -> Planner | None:
    """What serves an operator's call, made now where it is the first on the device: a loaded program calls
    operators alone. None without."""
    if _engine is None and _able[0] is _first and tensor.device.type == _device:
        _set_up()
    return _engine


def _set_up() -> None:
    """The engine for torch's CUDA devices, made once. Without a driver that serves, every call is torch's."""
    with _once:
        if _engine is None:
            _make_engine()


def _make_engine() -> None:
    try:
        driver = Driver()
    except SassafrasError as error:
        warn_once("driver", f"the CUDA driver does not serve ({error})")
        use(None, launch=lambda *call: NotImplemented)
        return
    use(Planner(driver, torch_side(), lt=lambda: LtMember(driver)))


def use(engine: Planner | None, *, device: str = "cuda", launch: Any = None) -> None:
    """Install an engine (tests and the benchmark do); None and no launch: as if never called."""
    global _engine, _device
    if engine is not None and _recorder is None and (folder := os.environ.get(VARIABLE)):
        watch(recorder := Recorder(Path(folder)))
        atexit.register(recorder.save)
    _engine, _device = engine, device
    _calls(launch or _first, launch or _first_linear)
    if engine is not None and launch is None:
        engine.attach(lambda launcher: _take(engine, launcher))


def _take(engine: Planner, launcher: Any) -> None:
    if _engine is engine:
        taken = launcher if _recorder is None else _recorder.over(launcher)
        _calls(taken, taken.linear)


def _calls(matmul: Any, linear: Any) -> None:
    """Let these be called, unless torch serves all calls."""
    global _able, _launch, _launch_linear
    with _suspending:
        _able = matmul, linear
        _launch, _launch_linear = (_refused, _refused) if _suspended else _able


def suspend(now: bool) -> None:
    """Let torch's operators serve every call, those of compiled programs too; False: let ours again.

    Within `batch_invariant` torch's operators are invariant, and what serves here is not.
    """
    global _suspended
    with _suspending:
        _suspended = now
    _calls(*_able)


def suspended() -> bool:
    """Whether torch's operators serve every call."""
    return _suspended


def _refused(*call: Any) -> Any:
    return NotImplemented


def watch(recorder: Recorder | None) -> None:
    """Let this recorder count calls from now on; None: let none."""
    global _recorder
    if _recorder is not None:
        _recorder.leave_graphs(torch.cuda.CUDAGraph)
    _recorder = recorder
    if recorder is not None:
        recorder.watch_graphs(torch.cuda.CUDAGraph)
    if _engine is not None:
        use(_engine, device=_device)


def status() -> dict[str, Any]:
    """What `matmul` has done in this process: launcher, devices, problems with who serves each."""
    return _engine.status() if _engine else {"launcher": None, "problems": [], "notes": sorted(_warned)}


def settle(timeout: float = 300.0) -> None:
    """Wait until the launcher and the kernels that calls have asked for are built."""
    if _engine:
        _engine.settle(timeout)


# -- the paths that are not fast ----------------------------------------------------------------------


def _general(
    a: Any,
    b: Any,
    out: Any,
    bias: Any,
    activation: str | None,
    alpha: float,
    beta: float,
    addend: Any = None,
) -> Any:
    """Any eager call that the launcher did not take."""
    call = (a, b, out, bias, activation, alpha, beta, addend)
    if more := asks_more(bias, activation, alpha, beta):
        check(*call)
    tensors = [a, b, *(t for t in (out, bias, addend) if t is not None)]
    if not all(isinstance(t, torch.Tensor) for t in tensors):
        return composed(*call)
    if not plain_tensors.quiet():
        return _recorded(*call) if _in_graph(a, b, out, more, bias, addend) else composed(*call)
    if not all(map(plain_tensors.plain, tensors)):
        if all(type(t) in plain_tensors.KINDS for t in tensors) and a.device.type == b.device.type != _device:
            _ours(a, b, say=True)
        return composed(*call)
    if torch.is_autocast_enabled(a.device.type):
        return _autocast(*call)
    if not _ours(a, b, say=True):
        return composed(*call)
    if a.dim() == 1 and b.dim() == 2 and out is None:
        row = None if addend is None else addend.unsqueeze(0)
        return _general(a.unsqueeze(0), b, None, bias, activation, alpha, beta, row).squeeze(0)
    if _engine is None or not fits(a, b):
        return composed(*call)
    if wants_grad(*tensors):
        return _recorded(*call) if out is None else composed(*call)
    result = _served(*call)
    if result is not None and result is not NotImplemented:
        return result
    if result is NotImplemented and not _lie_well(_engine, *call):
        if more:
            warn_once(
                "epilogue", "with an epilogue, operands that are not rows at equal distances are torch's", 4
            )
        elif b.dim() == 2:
            warn_once("layout", "strides that are neither rows nor columns (or overlap) are torch's", 4)
    return composed(*call)


def _autocast(
    a: Any, b: Any, out: Any, bias: Any, activation: Any, alpha: float, beta: float, addend: Any
) -> Any:
    tensors, dtype = [a, b] if bias is None else [a, b, bias], torch.get_autocast_dtype(a.device.type)
    promoted = addend is not None and addend.dtype != dtype  # sums are not cast
    if out is not None or b.device != a.device or not {a.dtype, b.dtype} <= _CAST or promoted:
        return composed(a, b, out, bias, activation, alpha, beta, addend)
    with torch.autocast(a.device.type, enabled=False):
        a, b, *cast = (t.to(dtype) for t in tensors)
        call = a, b, None, cast[0] if cast else None, activation, alpha, beta
        return matmul(*call) if addend is None else _general(*call, addend)


#: types that autocast casts, and that our kernels' types are cast from
_CAST = {torch.float16, torch.bfloat16, torch.float32}


def _served(a: Any, b: Any, out: Any, bias: Any, activation: str | None, *more: Any) -> Any:
    """A call below autograd and modes; its plan is made if there is none yet. None: `composed` serves it."""
    if _suspended:
        return None
    if (engine := engine_for(a)) is None:
        return NotImplemented
    call = (a, b, out, bias, NUMBERS[activation], *more)
    if _recorder is not None:
        _recorder.count(engine.launcher.key(*call))
    result = engine.launcher.raw(*call)
    if result is NotImplemented and (key := engine.launcher.key(*call)) is not None:
        engine.serve(key)
        if gone := engine.gpu(key[0]).why_not:
            warn_once("gpu", gone)
        result = engine.launcher.raw(*call)  # once more NotImplemented if a kernel has just been compiled
    return result


def _lie_well(
    engine: Planner, a: Any, b: Any, out: Any, bias: Any, activation: str | None, *rest: Any
) -> bool:
    """Whether it is for another reason than strides that no plan can serve a call."""
    key, more = engine.launcher.key, (bias, ACTIVATIONS[activation])
    if out is None:
        return key(a, b, None, *more, *rest) is not None
    if key(a, b, None, *more) is None:
        return False
    if out.dtype != a.dtype or out.shape[:-2] != broadcast(a.shape[:-2], b.shape[:-2]):
        return True  # torch resizes or refuses
    apart = torch.empty_strided(out.shape, out.stride(), dtype=out.dtype, device=out.device)
    return out.shape[-2:] != (a.shape[-2], b.shape[-1]) or key(a, b, apart, *more, *rest) is not None


# -- graphs and gradients: the operators ----------------------------------------------------------------


def _traced(a: Any, b: Any, out: Any, bias: Any, activation: str | None, alpha: float, beta: float) -> Any:
    """The call as torch.compile sees it."""
    call = (a, b, out, bias, activation, alpha, beta)
    if more := asks_more(bias, activation, alpha, beta):
        check(*call)
    if _in_graph(a, b, out, more, bias) and not torch.is_autocast_enabled(a.device.type):
        return _recorded(*call)
    return composed(*call)


def _in_graph(a: Any, b: Any, out: Any, more: bool, *others: Any) -> bool:
    """Whether a graph is being made in which these stand for tensors of ours: it is to have our operator.

    Dynamo shows tensors as what they will be; other tracers show fakes of them, or them. Modes that make no
    graph see torch's own operators.
    """
    if out is not None or not all(t.layout is torch.strided and not t.is_nested for t in (a, b)):
        return False
    if not (fits(a, b) if more else b.dim() == 2 and a.dim() >= 2) or not _ours(a, b, say=False):
        return False
    tensors = [a, b, *(t for t in others if t is not None)]
    if torch.compiler.is_dynamo_compiling():
        return all(type(t) in plain_tensors.KINDS for t in tensors)
    return plain_tensors.traced(*tensors)


def _recorded(
    a: Any,
    b: Any,
    out: Any,
    bias: Any,
    activation: str | None,
    alpha: float,
    beta: float,
    addend: Any = None,
) -> Any:
    """Through an operator; `out` is None.

    Where a gradient is wanted, what the activation's derivative needs is kept: its argument, so that it is
    applied by torch (relu's needs only the result).
    """
    if asks_more(bias, activation, alpha, beta):
        if any(t is not None and t.dtype != a.dtype for t in (bias, addend)):
            return composed(a, b, None, bias, activation, alpha, beta, addend)
        if activation not in (None, "relu") and wants_grad(a, b, bias, addend):
            return activated(_fused(a, b, bias, "none", alpha, addend), activation)
        return _fused(a, b, bias, activation or "none", alpha, addend)
    if b.dim() != 2 or (a.dim() != 2 and not a.is_contiguous()):  # flattening would copy
        return torch.matmul(a, b)
    if a.dim() == 2:
        return _mm(a, b)
    return _mm(a.flatten(0, -2), b).unflatten(0, a.shape[:-1])


def _run(a: Any, b: Any, *rest: Any) -> Any:
    """The operators' implementation, below autograd and modes: a fresh result, contiguous."""
    call = _call(a, b, *rest)
    plain = all(plain_tensors.plain(t) for t in call if isinstance(t, torch.Tensor))
    result = _served(*call) if plain else None
    return composed(*call).contiguous() if result is None or result is NotImplemented else result


def _call(
    a: Any, b: Any, bias: Any = None, activation: str = "none", alpha: float = 1.0, residual: Any = None
) -> tuple[Any, ...]:
    """The operators' arguments as those of `composed`."""
    beta = float(residual is not None)
    return a, b, None, bias, None if activation == "none" else activation, alpha, beta, residual


def _by_torch(*given: Any) -> Any:
    """What the operators do, out of torch's operators."""
    return composed(*_call(*given))


def _into(a: Any, b: Any, bias: Any = None, *, out: Any) -> None:
    """out = a @ b + bias in a program of Inductor's; b is a matrix, a one too or contiguous, as out is."""
    result = _served(a, b, out, bias, None, 1.0, 0.0)
    if result is None or result is NotImplemented:
        lines, c = a.view(-1, a.shape[-1]), out.view(-1, out.shape[-1])
        torch.mm(lines, b, out=c) if bias is None else torch.addmm(bias, lines, b, out=c)


_mm, _fused = (register(name, _run, _by_torch, _into) for name in ("mm", "fused"))


def _ours(a: Any, b: Any, *, say: bool) -> bool:
    """Type and device are such that a kernel of ours may exist."""
    if a.device.type != _device or b.device != a.device:
        if say:
            warn_once("device", f"tensors on {a.device.type} are torch's")
        return False
    if a.dtype not in plain_tensors.DTYPES or b.dtype != a.dtype:
        if say:
            warn_once("dtype", f"{a.dtype} is torch's: our kernels multiply FP16 and BF16")
        return False
    return True


def fell_back(operator: str) -> None:
    """Say, once, that torch computes what a graph was compiled to have from a kernel of ours."""
    if not _suspended:
        warn_once(operator, f"no kernel of ours served sassafras::{operator} in a compiled graph")


def warn_once(kind: str, text: str, level: int = 5) -> None:
    """Warn that torch runs instead of ours, the first time of each kind."""
    with _once:
        new = kind not in _warned
        _warned.add(kind)
    if new:
        warnings.warn(f"sassafras.matmul: {text}; torch runs instead", RuntimeWarning, stacklevel=level)
