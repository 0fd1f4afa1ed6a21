"""``torch.ops.sassafras.rms_norm`` and ``.gated``: what stands between the products of a compiled model.

Their kernels (`configs.rows`) let the product behind them start, and read its weights, while they run.
`inductor_graph` puts them into the graphs of compiled models, where products of ours are around them.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from ..configs import rows
from ..configs.epilogue import bits
from . import api, plain_tensors, torch_op
from .launcher_python import KernelLauncher
from .planner import Planner

_functional = torch.nn.functional


class Rows(NamedTuple):
    """What decides how a kernel is launched.

    Attributes:
        device: CUDA ordinal.
        dtype: ``fp16`` or ``bf16``.
        m, columns: extents of C.
        ld: elements from line to line of the operands.
        gated: silu(gate) * up; otherwise an RMS norm.
        constant: the norm's weight was written before the launch ahead began.
    """

    device: int
    dtype: str
    m: int
    columns: int
    ld: int
    gated: bool = False
    constant: bool = False

    def kernel(self, engine: Planner) -> KernelLauncher | None:
        """What launches it; None where no kernel can, or it is not compiled yet."""
        place = self.m, self.columns, self.ld
        for instance in rows.GATED if self.gated else rows.RMS_NORMS:
            if instance.dtype == self.dtype and instance.why_illegal(*place) is None:
                more = () if isinstance(instance, rows.GatedInstance) else (self.constant,)
                return engine.alone(self.device, instance, instance.launch(*place, *more))
        return None


_kernels: WeakKeyDictionary[Planner, dict[Rows, KernelLauncher]] = WeakKeyDictionary()


def rows_of(x: Any, *others: Any, gated: bool = False, constant: bool = False) -> Rows | None:
    """What these operands (tensors, or what stands for them in a graph) ask for; None: no kernel's matter.

    Args:
        others: up or norm, if there is one.
    """
    engine = api._engine
    tensors = (x, *others)
    if engine is None or x.dim() < 1 or x.numel() == 0 or x.dtype not in plain_tensors.DTYPES:
        return None
    if x.device.type != engine.torch.device_type or not all(t.is_contiguous() for t in tensors):
        return None
    if any((t.dtype, t.device) != (x.dtype, x.device) for t in others):
        return None
    ld = x.shape[-1]
    if any(t.shape != (x.shape if gated else (ld,)) for t in others):
        return None
    halves = 2 if gated and not others else 1
    if ld % halves:
        return None
    kind = "bf16" if x.dtype == torch.bfloat16 else "fp16"
    return Rows(x.device.index or 0, kind, x.numel() // ld, ld // halves, ld, gated, constant)


def ready(asked: Rows) -> bool:
    """Whether a kernel serves it; that is compiled, then."""
    for _ in range(2):  # a second time with the kernel that has been compiled
        if api._engine is not None and asked.kernel(api._engine) is not None:
            return True
        api.settle()
    return False


def _launched(asked: Rows | None, c: Any, eps: float = 0.0, **operands: int) -> bool:
    """Whether a kernel was launched that writes C."""
    engine = api._engine
    if asked is None or engine is None or any(at % 16 for at in (c.data_ptr(), *operands.values())):
        return False
    known = _kernels.setdefault(engine, {})
    kernel = known.get(asked)
    if kernel is None:
        kernel = asked.kernel(engine)
        if kernel is None:
            return False
        known[asked] = kernel
    values = {"c": c.data_ptr(), "eps": bits(eps) & 0xFFFFFFFF, **operands}
    stream = engine.torch.stream(asked.device)
    if code := kernel.launch(engine.torch, asked.device, values, stream):
        api._warn("rows", f"a kernel could not be launched (error {code}) for {asked}")
        return False
    return True


# --- RMS norm ---------------------------------------------------------------------------------------------


def _normed(a: Any, norm: Any, eps: float, constant: bool, c: Any) -> bool:
    if not (plain_tensors.plain(a) and plain_tensors.plain(norm)):
        return False
    asked = rows_of(a, norm, constant=constant)
    return _launched(asked, c, eps, a=a.data_ptr(), norm=norm.data_ptr())


def _norm_by_torch(a: Any, norm: Any, eps: float, constant: bool = False) -> Any:
    return _functional.rms_norm(a, norm.shape, norm, eps)


def _norm_run(a: Any, norm: Any, eps: float, constant: bool = False) -> Any:
    c = torch.empty(a.shape, dtype=a.dtype, device=a.device)
    return c if _normed(a, norm, eps, constant, c) else _norm_by_torch(a, norm, eps).contiguous()


def _norm_into(a: Any, norm: Any, eps: float, constant: bool, *, out: Any) -> None:
    if not _normed(a, norm, eps, constant, out):
        out.copy_(_norm_by_torch(a, norm, eps))


def _norm_fake(a: Any, norm: Any, eps: float, constant: bool = False) -> Any:
    return a.new_empty(a.shape)


# --- silu(gate) * up --------------------------------------------------------------------------------------


def _multiplied(gate: Any, up: Any, c: Any) -> bool:
    others = () if up is None else (up,)
    if not all(map(plain_tensors.plain, (gate, *others))):
        return False
    asked = rows_of(gate, *others, gated=True)
    if asked is None:
        return False
    behind = gate.data_ptr() + gate.element_size() * asked.columns if up is None else up.data_ptr()
    return _launched(asked, c, a=gate.data_ptr(), b=behind)


def _gated_by_torch(gate: Any, up: Any = None) -> Any:
    if up is None:
        gate, up = gate.chunk(2, dim=-1)
    return _functional.silu(gate) * up


def _gated_fake(gate: Any, up: Any = None) -> Any:
    return gate.new_empty((*gate.shape[:-1], gate.shape[-1] // (2 if up is None else 1)))


def _gated_run(gate: Any, up: Any = None) -> Any:
    c = _gated_fake(gate, up)
    return c if _multiplied(gate, up, c) else _gated_by_torch(gate, up).contiguous()


def _gated_into(gate: Any, up: Any = None, *, out: Any) -> None:
    if not _multiplied(gate, up, out):
        out.copy_(_gated_by_torch(gate, up))


def _lower(packet: Any) -> None:
    """Let Inductor's programs call `into` with a C of their memory plan."""
    from torch._inductor import ir, lowering
    from torch._inductor.virtualized import V

    dispatched = lowering.fallback_handler(packet.default, add_to_fallback_set=False)

    def lowered(*given: Any) -> Any:
        node = V.graph.current_node
        if V.graph.cpp_wrapper or not node.args[0].meta["val"].is_contiguous():
            return dispatched(*given)
        tensors = [g for g in given if isinstance(g, ir.IRNode)]
        more = tuple(g for g in given if g is not None and not isinstance(g, ir.IRNode))
        inputs = [ir.ExternKernel.realize_input(tensor) for tensor in tensors]
        layout, name = ir.FallbackKernel.tensor_to_layout(node.meta["val"]), packet.default._opname
        called = f"torch.ops.sassafras.{name}.into"
        return ir.TensorBox.create(ir.ExternKernelOut(layout, inputs, more, python_kernel_name=called))

    lowering.add_needs_realized_inputs(packet.default)
    lowering.register_lowering(packet.default, type_promotion_kind=None)(lowered)


rms_norm = torch_op.register("rms_norm", _norm_run, _norm_by_torch, _norm_into, _norm_fake, _lower)
gated = torch_op.register("gated", _gated_run, _gated_by_torch, _gated_into, _gated_fake, _lower)
