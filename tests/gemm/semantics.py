"""What a product means to torch beyond two plain tensors: cases that both matmuls answer alike.

A case takes a product and a device, and returns something comparable: tensors, values, or what it raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

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
