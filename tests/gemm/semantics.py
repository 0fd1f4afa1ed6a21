"""What a product means to torch beyond two plain tensors: cases that both matmuls answer alike.

A case takes a product and a device, and returns something comparable: tensors, values, or what it raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Product = Callable[..., Any]
CASES: dict[str, Callable[[Product, str], Any]] = {}
M, K, N = 16, 32, 24


def case(function: Callable[[Product, str], Any]) -> Callable[[Product, str], Any]:
    CASES[function.__name__] = function
    return function


def alike(name: str, ours: Product, device: str) -> None:
    """Raises AssertionError unless a case's answer is torch's."""
    same(_outcome(name, ours, device), _outcome(name, torch.matmul, device), name)


def _outcome(name: str, product: Product, device: str) -> Any:
    torch._dynamo.reset()
    try:
        return CASES[name](product, device)
    except Exception as error:
        return type(error)


def same(mine: Any, theirs: Any, what: str) -> None:
    """Recursively."""
    assert type(mine) is type(theirs), (what, mine, theirs)
    if isinstance(mine, list | tuple):
        assert len(mine) == len(theirs), (what, mine, theirs)
        for index, pair in enumerate(zip(mine, theirs, strict=True)):
            same(*pair, f"{what}[{index}]")
    elif isinstance(mine, torch.Tensor):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype, (what, mine, theirs)
        assert mine.requires_grad == theirs.requires_grad and mine.layout == theirs.layout, what
        if mine.device.type != "meta":
            x, y = (
                t.detach().to_dense() if t.layout != torch.strided else t.detach() for t in (mine, theirs)
            )
            assert mine.layout != torch.strided or mine.stride() == theirs.stride(), what
            torch.testing.assert_close(x, y, rtol=4e-3, atol=4e-3 * K, msg=lambda m: f"{what}: {m}")
    else:
        assert mine == theirs, (what, mine, theirs)


def normal(*shape: int, device: str, seed: int = 0, dtype: Any = torch.float16) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def pair(device: str, dtype: Any = torch.float16) -> tuple[Any, Any]:
    return normal(M, K, device=device, dtype=dtype), normal(K, N, device=device, seed=1, dtype=dtype)


# --- views and memory ---------------------------------------------------------------------------------------


@case
def negative_view(product: Product, device: str) -> Any:
    a, b = pair(device)
    return product(torch._neg_view(a), b), product(a, torch._neg_view(b))


@case
def conjugate_view(product: Product, device: str) -> Any:
    a, b = pair(device, torch.complex64)
    return product(a.conj(), b), product(torch.view_as_real(a.conj().contiguous())[..., 0], b.real)


@case
def zeros_without_memory(product: Product, device: str) -> Any:
    a, b = pair(device)
    zero = torch._efficientzerotensor((M, K), dtype=a.dtype, device=device)
    return product(zero, b)


@case
def names(product: Product, device: str) -> Any:
    a, b = pair(device)
    return product(a.refine_names("rows", None), b).names


@case
def views_of_views(product: Product, device: str) -> Any:
    a, b = pair(device)
    return product(a[1:9, 8:24], b[8:24]), product(a.t().contiguous().t(), b), product(a.flip(0), b)


@case
def empties(product: Product, device: str) -> Any:
    a, b = pair(device)
    return product(a[:0], b), product(a[:, :0], b[:0]), product(a, b[:, :0])


# --- out and versions ---------------------------------------------------------------------------------------


@case
def version_of_out(product: Product, device: str) -> Any:
    a, b = pair(device)
    out = normal(M, N, device=device)
    view = out[:4]
    found = [out._version]
    for _ in range(2):
        product(a, b, out=out)
        found.append(out._version)
    return found, view._version, out


@case
def backward_of_what_out_overwrote(product: Product, device: str) -> Any:
    a, b = pair(device)
    x = normal(M, N, device=device).requires_grad_()
    kept = normal(M, N, device=device, seed=3)
    y = x * kept  # keeps `kept`
    product(a, b, out=kept)
    y.sum().backward()
    return x.grad


@case
def out_that_is_read(product: Product, device: str) -> Any:
    a = normal(K, K, device=device)
    return type(product(a, a.clone(), out=a))  # (what it holds is undefined)


@case
def out_that_wants_gradients(product: Product, device: str) -> Any:
    a, b = pair(device)
    return product(a, b, out=normal(M, N, device=device).requires_grad_())


@case
def operand_that_wants_gradients_and_out(product: Product, device: str) -> Any:
    a, b = pair(device)
    return product(a.requires_grad_(), b, out=normal(M, N, device=device))


@case
def out_without_gradients(product: Product, device: str) -> Any:
    a, b = pair(device)
    out = normal(M, N, device=device).requires_grad_()
    with torch.no_grad():
        return product(a.requires_grad_(), b, out=out), out._version


@case
def out_elsewhere(product: Product, device: str) -> Any:
    a, b = pair(device)
    return product(a, b, out=torch.empty(M, N, dtype=a.dtype, device="meta"))


@case
def inference_tensors(product: Product, device: str) -> Any:
    a, b = pair(device)
    with torch.inference_mode():
        inner, out = a + 0, torch.empty(M, N, dtype=a.dtype, device=device)
        within = product(inner, b), product(a, b, out=out), product(a, b).is_inference()
        normal_out = torch.empty(0)
    with torch.inference_mode(False):
        normal_out = torch.empty(M, N, dtype=a.dtype, device=device)
    with torch.inference_mode():
        product(a, b, out=normal_out)
    return [*(t.clone() for t in within[:2]), within[2], product(inner, b), normal_out._version]


@case
def out_of_inference_mode_outside(product: Product, device: str) -> Any:
    a, b = pair(device)
    with torch.inference_mode():
        out = torch.empty(M, N, dtype=a.dtype, device=device)
    return product(a, b, out=out)


@case
def inference_tensor_that_is_kept(product: Product, device: str) -> Any:
    a, b = pair(device)
    with torch.inference_mode():
        inner = a + 0
    return product(inner, b.requires_grad_())


# --- autograd -----------------------------------------------------------------------------------------------


@case
def operand_changed_before_backward(product: Product, device: str) -> Any:
    found = []
    for only in (0, 1):
        for changed in (0, 1):
            tensors = list(pair(device))
            tensors[only].requires_grad_()
            result = product(*tensors)
            with torch.no_grad():
                tensors[changed].mul_(2)
            try:
                found.append(torch.autograd.grad(result.sum(), tensors[only])[0])
            except RuntimeError:
                found.append("raised")
    return found


@case
def tangents(product: Product, device: str) -> Any:
    a, b = pair(device)
    found: list[Any] = []
    for wants in (False, True):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(a.clone().requires_grad_(wants), torch.ones_like(a))
            for call in ((dual, b), (dual[0], b)):
                found += forward_ad.unpack_dual(product(*call))
    return found


@case
def forward_over_reverse(product: Product, device: str) -> Any:
    a, b = (t.requires_grad_() for t in pair(device))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, torch.ones_like(a))
        result = product(dual, b)
        grads = torch.autograd.grad(result, (dual, b), torch.ones_like(result), create_graph=True)
        return [part for grad in grads for part in forward_ad.unpack_dual(grad)]


@case
def tangent_of_the_gradient(product: Product, device: str) -> Any:
    a, b = (t.requires_grad_() for t in pair(device))
    result = product(a, b)  # recorded without a tangent; the gradient that comes back carries one
    with forward_ad.dual_level():
        grad = forward_ad.make_dual(torch.ones_like(result), torch.full_like(result, 2))
        found = torch.autograd.grad(result, (a, b), grad)
        return [part for each in found for part in forward_ad.unpack_dual(each)]


@case
def batched_gradients(product: Product, device: str) -> Any:
    a, b = (t.requires_grad_() for t in pair(device))
    result = product(a, b)
    weights = torch.stack([torch.ones_like(result), torch.full_like(result, 2)])
    return torch.autograd.grad(result, (a, b), weights, is_grads_batched=True)


@case
def hooks_and_accumulation(product: Product, device: str) -> Any:
    a, b = (t.requires_grad_() for t in pair(device))
    seen: list[Any] = []
    a.register_hook(lambda grad: seen.append(tuple(grad.shape)))
    for _ in range(2):
        product(a, b).sum().backward()
    return a.grad, b.grad, seen


@case
def checkpoint(product: Product, device: str) -> Any:
    from torch.utils.checkpoint import checkpoint as kept

    a, b = (t.requires_grad_() for t in pair(device))
    kept(lambda x, y: product(x, y).relu(), a, b, use_reentrant=False).sum().backward()
    return a.grad, b.grad


@case
def functional(product: Product, device: str) -> Any:
    a, b = pair(device)

    def total(x: Any, y: Any) -> Any:
        return product(x, y).float().square().sum()

    small_a, small_b = a[:2, :8].float(), b[:8, :2].float()
    return [
        torch.func.grad(total, (0, 1))(a, b),
        torch.func.vmap(product)(torch.stack([a, a]), torch.stack([b, b])),
        torch.func.vmap(product, in_dims=(None, 1))(a, torch.stack([b, b], 1)),
        torch.func.jvp(product, (a, b), (a, b)), torch.func.vjp(product, a, b)[0],
        torch.func.hessian(total)(small_a, small_b), torch.func.jacfwd(product)(a[:2], b),
        torch.func.jacrev(product)(a[:2], b), torch.func.functionalize(product)(a, b),
        torch.func.vmap(torch.func.grad(total), in_dims=(0, None))(torch.stack([a, a]), b),
    ]  # fmt: skip


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
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh(device, (1,))
        a, b = (distribute_tensor(t, mesh, [Shard(0)]).requires_grad_() for t in pair(device))
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
