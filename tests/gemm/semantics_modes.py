"""More cases of `semantics`: kinds of tensors, modes, tracers and compilers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.gemm.semantics import CASES, M, N, Product, case, pair

__all__ = ["CASES"]

# --- kinds of tensors ---------------------------------------------------------------------------------------


class Marked(torch.Tensor):
    """Sees torch's functions."""


class Logged(torch.Tensor):
    """Sees torch's operators, and not its functions."""

    @staticmethod
    def __new__(cls, held: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, dtype=held.dtype, device=held.device, strides=held.stride(),
            requires_grad=held.requires_grad,
        )  # fmt: skip

    def __init__(self, held: Any) -> None:
        self.held = held.detach()

    __torch_function__ = torch._C._disabled_torch_function_impl
    log: ClassVar[list[str]] = []

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils._pytree import tree_map

        cls.log.append(str(func))
        held = tree_map(lambda x: x.held if isinstance(x, cls) else x, (args, kwargs or {}))
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, func(*held[0], **held[1]))


@case
def subclass_of_functions(product: Product, device: str) -> Any:
    a, b = pair(device)
    result = product(a.as_subclass(Marked), b)
    return type(result).__name__, result.as_subclass(torch.Tensor)


@case
def subclass_of_operators(product: Product, device: str) -> Any:
    a, b = pair(device)
    Logged.log.clear()
    result = product(Logged(a.requires_grad_()), Logged(b))
    result.sum()
    return type(result).__name__, result.held, list(Logged.log)


@case
def plain_and_subclass(product: Product, device: str) -> Any:
    a, b = pair(device)
    return type(product(a, Logged(b))).__name__, type(product(Logged(a), b)).__name__


@case
def parameters_and_buffers(product: Product, device: str) -> Any:
    a, b = pair(device)
    return product(a, torch.nn.Parameter(b)), product(torch.nn.Parameter(a, requires_grad=False), b)


@case
def distributed_tensor(product: Product, device: str) -> Any:
    import torch.distributed as distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Replicate, Shard

        mesh = init_device_mesh(device, (1,))
        # (nothing is sent: this group moves no data)
        a, b = (
            DTensor.from_local(t, mesh, [how], run_check=False).requires_grad_()
            for t, how in zip(pair(device), (Shard(0), Replicate()), strict=True)
        )
        result = product(a, b)
        result.sum().backward()
        return type(result).__name__, result.to_local().detach(), a.grad.to_local(), b.grad.to_local()
    finally:
        distributed.destroy_process_group()


def _layouts(tensor: Any) -> Iterator[Any]:
    yield tensor.to_sparse()
    yield tensor.to_sparse_csr()
    yield tensor.to_sparse_csc()


@case
def sparse(product: Product, device: str) -> Any:
    found: list[Any] = []
    for dtype in (torch.float16, torch.float32):
        a, b = pair(device, dtype)
        for x in (*_layouts(a * (a > 0.5)),):
            try:
                found.append(product(x, b))
            except (RuntimeError, NotImplementedError) as error:
                found.append(type(error).__name__)
    return found


@case
def sparse_with_gradients(product: Product, device: str) -> Any:
    a, b = pair(device, torch.float32)
    b.requires_grad_()
    product(a.to_sparse(), b).sum().backward()
    return b.grad


@case
def nested(product: Product, device: str) -> Any:
    a, b = pair(device)
    batch = torch.stack([b, b])
    return [t.clone() for t in product(torch.nested.nested_tensor([a, a[:8]]), torch.nested.nested_tensor(
        list(batch))).unbind()]  # fmt: skip


@case
def jagged(product: Product, device: str) -> Any:
    a, b = pair(device)
    rows = torch.nested.nested_tensor([a, a[:8]], layout=torch.jagged)
    return product(rows, b).values()


@case
def meta(product: Product, device: str) -> Any:
    a, b = pair("meta")
    return product(a, b), product(a, b).device.type


@case
def fakes(product: Product, device: str) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        a, b = (mode.from_tensor(t) for t in pair(device))
        found = product(a, b.requires_grad_())
        return tuple(found.shape), found.stride(), found.requires_grad, type(found).__name__


@case
def quantized(product: Product, device: str) -> Any:
    a = torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 0, torch.qint8)
    return product(a, a)


@case
def functional_wrappers(product: Product, device: str) -> Any:
    a, b = (torch._to_functional_tensor(t) for t in pair(device))
    return torch._from_functional_tensor(product(a, b))


@case
def no_tensors(product: Product, device: str) -> Any:
    return product(pair(device)[0], [[1.0]])


# --- modes and tracers --------------------------------------------------------------------------------------


class Operators(TorchDispatchMode):
    """Keeps the names of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """The same of functions, and doubles a product."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        result = func(*args, **(kwargs or {}))
        return 2 * result if func is torch.matmul else result


@case
def dispatch_mode(product: Product, device: str) -> Any:
    a, b = pair(device)
    with Operators() as mode:
        found = product(a, b), product(torch.stack([a, a]), b), product(a.requires_grad_(), b)
    return found, mode.seen


@case
def dispatch_mode_and_out(product: Product, device: str) -> Any:
    a, b = pair(device)
    with Operators() as mode:
        product(a, b, out=torch.empty(M, N, dtype=a.dtype, device=device))
    return [name for name in mode.seen if "empty" not in name]


@case
def function_mode(product: Product, device: str) -> Any:
    a, b = pair(device)
    with Functions() as mode:
        found = product(a, b)
    return found, [name for name in mode.seen if name == "matmul"]


@case
def flops(product: Product, device: str) -> Any:
    from torch.utils.flop_counter import FlopCounterMode

    a, b = pair(device)
    with FlopCounterMode(display=False) as counter:
        product(a, b.requires_grad_()).sum().backward()
    return counter.get_total_flops()


@case
def autocast(product: Product, device: str) -> Any:
    found: list[Any] = []
    types = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast(device, dtype=dtype):
            for kind in types:
                for other in types:
                    a, b = pair(device, kind)[0], pair(device, other)[1]
                    try:
                        found.append(product(a, b).dtype)
                    except RuntimeError:
                        found.append("raised")
    return found


@case
def autocast_with_gradients_and_out(product: Product, device: str) -> Any:
    a, b = pair(device, torch.float32)
    with torch.autocast(device, dtype=torch.float16):
        product(a.requires_grad_(), b).sum().backward()
        found = [a.grad, product(a.detach(), b, out=torch.empty(0, device=device)).dtype]
    return found


@case
def deterministic(product: Product, device: str) -> Any:
    a, b = pair(device)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return product(a, b), product(a, b, out=torch.empty(M, N, dtype=a.dtype, device=device))
    finally:
        torch.use_deterministic_algorithms(False)


@case
def default_device(product: Product, device: str) -> Any:
    a, b = pair(device)
    with torch.device("meta"):
        return product(a, b)


@case
def jit_trace(product: Product, device: str) -> Any:
    a, b = pair(device)
    return torch.jit.trace(lambda x, y: product(x, y), (a, b))(2 * a, b)


@case
def make_fx(product: Product, device: str) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx as made

    a, b = pair(device)
    found = []
    for settings in ({}, {"pre_dispatch": True}, {"tracing_mode": "fake"}, {"tracing_mode": "symbolic"}):
        with contextlib.suppress(TypeError):
            found.append(made(lambda x, y: product(x, y), **settings)(a, b)(2 * a, b))  # type: ignore[arg-type]
    return found


@case
def symbolic_trace(product: Product, device: str) -> Any:
    a, b = pair(device)

    def doubled(x: Any, y: Any) -> Any:
        return 2 * product(x, y)

    return torch.fx.symbolic_trace(doubled)(a, b)


class Layer(torch.nn.Module):
    """A product with a parameter."""

    def __init__(self, product: Product, weight: Any) -> None:
        super().__init__()
        self.product, self.weight = product, torch.nn.Parameter(weight)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.product(x, self.weight))


@case
def export(product: Product, device: str) -> Any:
    a, b = pair(device)
    found = []
    for strict in (True, False):
        program = torch.export.export(Layer(product, b), (a,), strict=strict)
        found.append(program.module()(2 * a))
        found.append(program.run_decompositions().module()(a))
    return found


@case
def compiled(product: Product, device: str) -> Any:
    found = []
    for backend in ("eager", "aot_eager"):
        a, b = (t.requires_grad_() for t in pair(device))
        function = torch.compile(lambda x, y: product(x, y).relu(), backend=backend, fullgraph=True)
        result = function(a, b)
        found += [result.detach(), *torch.autograd.grad(result.sum(), (a, b))]
        with torch.no_grad():
            found.append(function(torch.stack([a, a]), b))
    return found


@case
def compiled_with_out(product: Product, device: str) -> Any:
    a, b = pair(device)
    out = torch.empty(M, N, dtype=a.dtype, device=device)
    torch.compile(lambda x, y, z: product(x, y, out=z), backend="aot_eager")(a, b, out)
    return out


@case
def compiled_transformations(product: Product, device: str) -> Any:
    a, b = pair(device)

    def both(x: Any, y: Any) -> Any:
        batched = torch.func.vmap(product, in_dims=(0, None))(torch.stack([x, 2 * x]), y)
        return (
            batched, torch.func.jvp(lambda v: product(v, y), (x,), (x,))[1],
            torch.func.grad(lambda v: product(v, y).sum())(x),
        )  # fmt: skip

    return torch.compile(both, backend="aot_eager", fullgraph=True)(a, b)


@case
def compiled_subclass(product: Product, device: str) -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    a, b = pair(device)
    both = TwoTensor(a, 2 * a)
    result = torch.compile(lambda x, y: product(x, y), backend="aot_eager")(both, b)
    return type(result).__name__, result.a, result.b


@case
def within_an_operator(product: Product, device: str) -> Any:
    """Below autograd, where an operator's own implementation runs."""
    a, b = pair(device)
    with torch.library._scoped_library("sassafras_tests", "FRAGMENT") as library:
        library.define("into(Tensor a, Tensor b, Tensor(z!) z) -> ()")
        library.impl("into", lambda x, y, z: (product(x, y, out=z), None)[1], "CompositeExplicitAutograd")
        z = torch.empty(M, N, dtype=a.dtype, device=device)
        torch.ops.sassafras_tests.into(a, b, z)
    return z, z._version
