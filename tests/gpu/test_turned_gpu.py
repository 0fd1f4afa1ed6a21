"""Rotary embedding and a cache's rows in one launch on a GPU: every instance, chains, compiled models."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.gemm.configs import turned as configs  # noqa: E402
from sassafras.gemm.matmul import api, layers  # noqa: E402
from sassafras.gemm.matmul.turned_problem import TurnedCall, read_turned  # noqa: E402
from tests.gpu.test_attention_gpu import among, random  # noqa: E402
from tests.gpu.test_layer_gpu import same_bits_in_replays  # noqa: E402
from tests.gpu.test_stream_gpu import DTYPES, engine  # noqa: E402

__all__ = ["engine"]  # a fixture
pytestmark = pytest.mark.gpu
ours = torch.ops.sassafras.turned
#: sequences, heads of q, of k, rows of the caches
SIZES = ((1, 32, 8, 512), (3, 14, 2, 17), (16, 8, 8, 4096), (64, 28, 4, 33), (2, 1, 1, 1))
nan = float("nan")


def turned(x: Any, cos: Any, sin: Any) -> Any:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def operands(batch: int, heads: int, groups: int, rows: int, head: int, dtype: Any, turn: int) -> TurnedCall:
    """q, k and v in one product's rows, caches with gaps, NaN around them all."""
    lines = random(batch, 1, heads + 2 * groups, head, dtype=dtype, seed=turn)
    parts = among(lines, 0, 0, 0, 8).transpose(1, 2).split([heads, groups, groups], 1)
    angles = random(batch if turn % 2 else 1, head, dtype=torch.float32, seed=turn + 50)
    cos, sin = (among(a.to(dtype), 0, 8) for a in (angles.cos(), angles.sin()))
    caches = (random(batch, groups, rows, head, dtype=dtype, seed=turn + more) for more in (100, 200))
    if turn % 3 == 2:
        caches = (c.transpose(1, 2).contiguous().transpose(1, 2) for c in caches)
    else:
        caches = (among(c, 0, 0, 9 * (turn % 3), 0) for c in caches)
    norms = [random(head, dtype=dtype, seed=turn + more) for more in (300, 400)] if turn % 2 else [None, None]
    place = torch.tensor([(7 * turn + 5) % rows], device="cuda")
    return TurnedCall(*parts, cos, sin, *caches, place, *norms, 1e-5)


def normed(x: Any, norm: Any, eps: float) -> Any:
    return x if norm is None else torch.nn.functional.rms_norm(x, norm.shape, norm.to(x.dtype), eps)


@pytest.mark.parametrize("instance", configs.INSTANCES, ids=lambda i: i.name)
def test_every_instance(engine: Any, instance: Any) -> None:
    """Against FP64; rows that are not written keep their bits, and what lies between them."""
    dtype = DTYPES[instance.dtype]
    unit = 2.0**-11 if dtype == torch.float16 else 2.0**-8
    for turn, sizes in enumerate(SIZES):
        call = operands(*sizes, instance.head, dtype, turn)
        problem, _ = read_turned(call) or (None, None)
        assert problem is not None
        engine.serve_rows(tuple(problem))
        api.settle()
        assert engine.serve_rows(tuple(problem))
        for place in (int(call.at), -1):
            call = call._replace(at=torch.tensor([place], device="cuda"))
            before = [c.clone() for c in (call.keys, call.values)]
            out = torch.full((*call.q.shape,), nan, dtype=dtype, device="cuda")
            assert engine.launcher.turned(*call[:-1], out, call.eps) is True
            angles = [a.double()[:, None, None] for a in (call.cos, call.sin)]
            for found, x, norm in (
                (out, call.q, call.q_norm),
                (call.keys[:, :, place, None], call.k, call.k_norm),
            ):
                x = normed(x.double(), norm, call.eps)
                wanted = turned(x, *angles)
                left, right = ((x * angle).abs() for angle in angles)
                size = left + torch.cat(right.chunk(2, -1)[::-1], -1) + wanted.abs()
                assert bool(
                    ((found.double() - wanted).abs() <= unit * (wanted.abs() + 1e-3 * size) + 2.0**-24).all()
                )
            assert torch.equal(call.values[:, :, place, None], call.v)
            for cache, old in zip((call.keys, call.values), before, strict=True):
                old[:, :, place] = cache[:, :, place]
                assert torch.equal(cache, old)


def rms(difference: Any) -> float:
    return float(difference.square().mean().sqrt())


class Rotary(torch.nn.Module):
    """A decoder's first half, with norms of heads or without."""

    def __init__(self, heads: int, groups: int, head: int, batch: int, rows: int, norms: bool) -> None:
        super().__init__()
        kinds = [torch.nn.RMSNorm(head, eps=1e-6) if norms else torch.nn.Identity() for _ in "qk"]
        self.norms = torch.nn.ModuleList([*kinds, torch.nn.Identity()])
        self.sizes, self.head = [heads, groups, groups], head
        self.norm = torch.nn.RMSNorm(2048, eps=1e-5)
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(2048, n * head, bias=False) for n in self.sizes)
        self.o = torch.nn.Linear(heads * head, 2048, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(batch, groups, rows, head))

    def forward(self, x: Any, last: Any, cos: Any, sin: Any, mask: Any) -> Any:
        y = self.norm(x)
        parts = [f(y).view(len(x), 1, -1, self.head) for f in self.qkv]
        q, k, v = (of(t).transpose(1, 2) for of, t in zip(self.norms, parts, strict=True))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        k, v = self.keys.index_copy_(2, last, k), self.values.index_copy_(2, last, v)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return x + self.o(y.transpose(1, 2).reshape(len(x), 1, -1))


@pytest.mark.parametrize(
    ("batch", "head", "dtype", "norms"),
    [
        (1, 128, "bf16", False), (4, 64, "fp16", True), (16, 128, "fp16", False), (64, 64, "bf16", False),
        (1, 128, "bf16", True), (33, 128, "bf16", True),
    ],
)  # fmt: skip
def test_compiled_models_turn(engine: Any, batch: int, head: int, dtype: str, norms: bool) -> None:
    """As near to FP64 as torch's, step by step, caches too; the same bits in 200 replays of a graph."""
    torch.manual_seed(3)
    torch._dynamo.reset()
    network = (
        torch.nn.ModuleList(Rotary(16, 4, head, batch, 256, norms) for _ in range(2))
        .cuda()
        .requires_grad_(False)
    )
    for parameter in network.parameters():
        if parameter.dim() == 2:
            parameter.normal_(std=parameter.shape[1] ** -0.5)
    network = network.to(DTYPES[dtype])
    exact, plain = copy.deepcopy(network).double(), copy.deepcopy(network)

    def forward(network: Any, x: Any, last: Any, angles: Any) -> Any:
        mask = torch.arange(256, device="cuda") <= last
        for layer in network:
            x = layer(x, last, *(a.to(x.dtype) for a in angles), mask[None, None, None])
        return x

    sassafras.accelerate(network)
    made = torch.compile(lambda *given: forward(network, *given), fullgraph=True, dynamic=False)
    for step in range(6):
        x = torch.randn(batch, 1, 2048, device="cuda").to(DTYPES[dtype])
        last, given = torch.tensor([100 + step], device="cuda"), torch.randn(batch, 1, 1, head, device="cuda")
        angles = [a.to(DTYPES[dtype]) for a in (given.cos(), given.sin())]
        kept = [layer.keys.clone() for layer in network], [layer.values.clone() for layer in network]
        first = made(x, last, angles).clone()
        if step == 0:  # the first may have been torch's while kernels were compiled
            api.settle()
            first = made(x, last, angles).clone()
        wanted, others = forward(exact, x.double(), last, angles), forward(plain, x, last, angles)
        assert rms(first.double() - wanted) <= 1.5 * rms(others.double() - wanted)
        place = 100 + step
        for n, layer in enumerate(network):
            for which, name in enumerate(("keys", "values")):
                cache, old = getattr(layer, name), kept[which][n]
                old[:, :, place] = cache[:, :, place]
                assert torch.equal(cache, old), "other rows keep their bits"
                right, theirs = (getattr(model[n], name)[:, :, place] for model in (exact, plain))
                error, others = (rms(row.double() - right) for row in (cache[:, :, place], theirs))
                assert error <= 1.5 * others
    found = [r for r in api.status()["rows"] if r["what"] == "turned" and r["shape"] == f"{batch}x16x256"]
    assert [r for r in found if r["kernel"]], found
    same_bits_in_replays(lambda x: made(x, last, angles), x, made(x, last, angles).clone())
    layers.restore(network)
