"""nt and tt on a GPU: every kernel through sassafras.matmul; gradients; a training step in a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")


@pytest.fixture
def room() -> Iterator[Any]:
    """The module, with the compiled launcher built; what a test told the chooser is forgotten after it."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("needs a Hopper GPU")
    from sassafras.gemm.matmul import api

    if api._engine is None:
        api._set_up()
    api.settle()
    yield api
    api._engine.forget()


def tell(room: Any, rows: Sequence[Any]) -> None:
    from sassafras.gemm.select.selector import Selector
    from sassafras.gemm.select.table import TunedTable

    room._engine.forget()
    for ordinal in range(torch.cuda.device_count()):
        room._engine.gpu(ordinal).chooser = Selector(TunedTable({}, rows))


def normal(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    generator = torch.Generator(device="cuda")
    generator.manual_seed(seed)
    found = torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32)
    return found.to(dtype or torch.float16)


def right(result: Any, a: Any, b: Any) -> bool:
    exact = a.double() @ b.double()
    unit = 2.0**-10 if result.dtype == torch.float16 else 2.0**-7
    return bool(((result.double() - exact).abs() <= unit * exact.abs() + 2e-4 * a.shape[-1] ** 0.5).all())


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("layout", ["nt", "tt"])
def test_every_kernel_through_the_front_door(room: Any, layout: str, dtype: str) -> None:
    from sassafras.gemm.configs import registry
    from sassafras.gemm.problem.shape import Shape
    from sassafras.gemm.select.table import TableRow

    kind = torch.float16 if dtype == "fp16" else torch.bfloat16
    for shape in (Shape(768, 1024, 520), Shape(264, 136, 2051 if layout == "nt" else 2056)):
        by_instance = {}
        for config in registry.legal(shape, waste=True, dtype=dtype, layouts=(layout,)):
            by_instance.setdefault(config.instance, []).append(config)
        assert by_instance
        a = normal(shape.k, shape.m, dtype=kind).t()
        b = normal(shape.k, shape.n, seed=1, dtype=kind)
        if layout == "tt":
            b = b.t().contiguous().t()
        for configs in by_instance.values():
            for config in {configs[0], configs[-1]}:
                tell(room, [TableRow(shape, layout, ((config, 1.0),), 9.0)])
                room.matmul(a, b)
                room.settle()
                result = room.matmul(a, b)
                served = room.status()["problems"][-1]
                if dtype == "fp16":  # a table names FP16 configurations; BF16 runs their twins
                    assert (served["member"], served["config"]) == ("ours", config.name)
                assert right(result, a, b), config.name
                assert torch.equal(room.matmul(a, b), result), f"{config.name}: the same bits"


def rows_of(room: Any, tokens: int, outputs: int, inputs: int) -> list[Any]:
    from sassafras.gemm.configs import registry
    from sassafras.gemm.problem.shape import Shape
    from sassafras.gemm.select.table import TableRow

    rows = []
    for layout, shape in (
        ("tn", Shape(tokens, outputs, inputs)), ("nn", Shape(tokens, inputs, outputs)),
        ("nt", Shape(outputs, inputs, tokens)),
    ):  # fmt: skip
        legal = registry.legal(shape, layouts=(layout,))
        best = min(legal, key=lambda c: (c.estimate_us(shape), c.name))
        rows.append(TableRow(shape, layout, ((best, 1.0),), 9.0))
    return rows


def test_a_step_runs_on_our_kernels_and_in_a_graph(room: Any) -> None:
    tokens, outputs, inputs = 1024, 768, 512
    tell(room, rows_of(room, tokens, outputs, inputs))
    x, w = normal(tokens, inputs).requires_grad_(), normal(outputs, inputs, seed=1).requires_grad_()
    grad = normal(tokens, outputs, seed=2)

    def step() -> Any:
        return torch.autograd.grad(room.matmul(x, w.t()), (x, w), grad)

    for _ in range(3):
        step()
        room.settle()
    assert {p["layout"]: p["member"] for p in room.status()["problems"]} == dict.fromkeys(
        ("tn", "nn", "nt"), "ours"
    )
    room.matmul(x, w.t()).backward(grad)
    assert w.grad.stride() == w.stride() and right(w.grad, grad.t(), x.detach())
    assert right(x.grad, grad, w.detach())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dx, dw = step()
    with torch.no_grad():
        x.copy_(normal(tokens, inputs, seed=5))
    grad.copy_(normal(tokens, outputs, seed=6))
    graph.replay()
    torch.cuda.synchronize()
    assert right(dw, grad.t(), x.detach()) and right(dx, grad, w.detach())
