"""Attention of one query row on a GPU: every instance, what lies around operands, chains, compiled models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.gemm.configs import attention  # noqa: E402
from sassafras.gemm.configs.attention import AttentionInstance, Strides  # noqa: E402
from sassafras.gemm.matmul import api, attention_op, layers  # noqa: E402
from sassafras.gemm.matmul.attention_problem import AttentionCall, read_attention  # noqa: E402
from tests.gpu.test_layer_gpu import early_config, same_bits_in_replays  # noqa: E402
from tests.gpu.test_stream_gpu import DTYPES, drawn, engine  # noqa: E402

__all__ = ["engine"]  # a fixture
pytestmark = pytest.mark.gpu
SPLITS = (1, 2, 4, 8)
#: sequences, heads of k, heads of q for each
SIZES = ((1, 8, 4), (3, 2, 7), (16, 1, 8), (2, 2, 28), (1, 3, 9), (7, 4, 2), (33, 2, 16), (1, 1, 1))
KEYS = (1, 15, 16, 17, 63, 512, 1000, 4096)
nan = float("nan")


def random(*shape: int, dtype: Any, seed: int) -> Any:
    made = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=made).to(dtype)


def among(tensor: Any, *more: int) -> Any:
    """The same values with so much more in each extent around them, all NaN."""
    whole = tensor.new_full([n + m for n, m in zip(tensor.shape, more, strict=True)], nan)
    inner = whole[tuple(slice(0, n) for n in tensor.shape)]
    return inner.copy_(tensor)


def operands(batch: int, groups: int, group: int, keys: int, head: int, dtype: Any, turn: int) -> list[Any]:
    """q as a part of rows, k and v as a cache has them: longer, with gaps, or sequence by sequence."""
    q = random(batch, 1, groups * group * head, dtype=dtype, seed=turn)
    q = (
        among(q, 0, 0, head)[..., : groups * group * head]
        .view(batch, 1, groups * group, head)
        .transpose(1, 2)
    )
    caches = [random(batch, groups, keys, head, dtype=dtype, seed=turn + more) for more in (100, 200)]
    if turn % 3 == 0:
        return [q, *(among(cache, 0, 0, 9, 0) for cache in caches)]
    if turn % 3 == 1:
        return [q, *(among(cache, 0, 0, 0, 8) for cache in caches)]
    return [q, *(among(cache.transpose(1, 2), 0, 9, 0, 0).transpose(1, 2) for cache in caches)]


def masks(q: Any, keys: int, turn: int) -> list[Any]:
    """A number each, for all heads, for all sequences; at any address; hidden keys, and none that is seen."""
    batch, heads = q.shape[:2]
    shape = ((batch, heads), (batch, 1), (1, 1), (1, heads))[turn % 4]
    full = random(*shape, 1, keys, dtype=q.dtype, seed=turn + 300)
    odd = torch.full((*shape, 1, keys + 3), nan, dtype=q.dtype, device="cuda")[..., 1 : keys + 1].copy_(full)
    hidden = full.clone()
    hidden[..., keys // 3 :] = float("-inf")
    if shape[0] > 1:
        hidden[1] = float("-inf")
    return [full, odd, hidden]


def exact(call: AttentionCall) -> tuple[Any, Any]:
    """In FP64: the result, zeros where no key is seen; and the mean of v's magnitudes by the same weights."""
    times = call.q.shape[1] // call.k.shape[1]
    q, k, v = call.q.double(), *(t.double().repeat_interleave(times, 1) for t in (call.k, call.v))
    scores = q @ k.mT * call.factor
    scores = scores if call.mask is None else scores + call.mask.double()
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return weights @ v, weights @ v.abs()


def right(got: Any, call: AttentionCall) -> bool:
    """Weights are rounded to the type, and the result is."""
    unit = 2.0**-11 if got.dtype == torch.float16 else 2.0**-8
    wanted, size = exact(call)
    allowed = (unit + 2e-4) * size + unit * wanted.abs() + 2.0**-25
    return bool(((got.double() - wanted).abs() <= allowed).all())


def launcher(
    engine: Any, call: AttentionCall, patch: pytest.MonkeyPatch, instance: Any = None, splits: int = 1
) -> Callable[[], Any]:
    """A call that this instance serves (None: the chosen one); its result is written again each time."""
    out = torch.full(call.q.shape, nan, dtype=call.q.dtype, device="cuda")
    problem, _ = read_attention(call, out) or (None, None)
    assert problem is not None
    engine.launcher.remove(tuple(problem))
    with patch.context() as patched:
        if instance is not None:
            engine._made(instance)
            place = problem.m, problem.lda, problem.n // problem.lda, problem.k, Strides(*[0] * 10), splits
            assert instance.why_illegal(*place) is None
            patched.setattr(attention, "chosen", lambda *given: (instance, instance.launch(*place)))
        engine.serve_rows(tuple(problem))
        api.settle()
        assert engine.serve_rows(tuple(problem))
    asked = *call[:4], out, call.factor

    def launch() -> Any:
        assert engine.launcher.attention(*asked) is True
        return out

    return launch


@pytest.mark.parametrize("instance", attention.INSTANCES, ids=lambda i: i.name)
def test_every_instance(engine: Any, instance: AttentionInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against FP64, with NaN around all that is read; the same bits again, and from other strides."""
    dtype = DTYPES[instance.dtype]
    for turn, (keys, (batch, groups, group)) in enumerate(zip(KEYS, SIZES, strict=True)):
        q, k, v = operands(batch, groups, group, keys, instance.head, dtype, turn)
        for mask in masks(q, keys, turn) if instance.masked else [None]:
            scale = None if turn % 2 else 0.3
            call = AttentionCall(q, k, v, mask, scale)
            tight = AttentionCall(*(t if t is None else t.contiguous() for t in call[:4]), scale)
            for splits in SPLITS:
                launch = launcher(engine, call, monkeypatch, instance, splits)
                first, what = launch().clone(), (keys, batch, groups, group, splits)
                assert right(first, call), what
                assert torch.equal(launch(), first) and torch.equal(launch(), first), what
                assert torch.equal(launcher(engine, tight, monkeypatch, instance, splits)(), first), what


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("head", [64, 128])
def test_a_heads_bits_are_its_own(
    engine: Any, head: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever other sequences and heads hold: alone, and beside NaN; large and small numbers."""
    instance = AttentionInstance(dtype, head, 4, False)
    q, k, v = operands(4, 3, 4, 700, head, DTYPES[dtype], 0)
    q = q * 9  # few keys have all the weight
    whole = launcher(engine, AttentionCall(q, k, v), monkeypatch, instance, 4)().clone()
    assert right(whole, AttentionCall(q, k, v))
    one = AttentionCall(q[2:3, 4:8], k[2:3, 1:2], v[2:3, 1:2])
    assert torch.equal(launcher(engine, one, monkeypatch, instance, 4)(), whole[2:3, 4:8])
    k[1, 1, 699], v[3, 0, 0] = nan, float("inf")
    spoilt = launcher(engine, AttentionCall(q, k, v), monkeypatch, instance, 4)()
    assert bool(spoilt[1, 4:8].isnan().all()) and not bool(spoilt[3, :4].isfinite().any())
    kept = torch.ones(4, 12, dtype=torch.bool)
    kept[1, 4:8] = kept[3, :4] = False
    assert torch.equal(spoilt[kept], whole[kept])


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_chosen_launches(engine: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As models have them, through the operator; 3,000 replays of a graph have the same bits."""
    ops = torch.ops.sassafras
    cases = (
        (1, 8, 4, 512, 128),
        (16, 8, 4, 512, 128),
        (1, 8, 4, 8192, 64),
        (64, 8, 4, 300, 128),
        (5, 4, 7, 33, 128),
    )
    calls = []
    for turn, (*sizes, head) in enumerate(cases):
        q, k, v = operands(*sizes, head, DTYPES[dtype], turn)
        calls += [AttentionCall(q, k, v, mask) for mask in (None, masks(q, sizes[3], 1)[2])]
    first = []
    for call in calls:
        ops.attention(*call)
        api.settle()
        assert attention_op._launched(call, torch.empty_like(call.q)), "a kernel of ours"
        first.append(ops.attention(*call))
        assert right(first[-1], call)
    outs = [torch.empty_like(c) for c in first]
    captured, wrong = torch.cuda.CUDAGraph(), torch.zeros((), dtype=torch.int64, device="cuda")
    with torch.cuda.graph(captured):
        for call, out, wanted in zip(calls, outs, first, strict=True):
            tensors = [t for t in call[:4] if t is not None]
            ops.attention.into(*tensors, call.scale, out=out)
            wrong.add_((out != wanted).sum())
            out.zero_()
    for _ in range(3000):
        captured.replay()
    assert int(wrong) == 0


@pytest.mark.parametrize("batch", [4, 16])
@pytest.mark.parametrize("written", ["query", "keys"])
@pytest.mark.parametrize("splits", [1, 8])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_a_chain_with_attention_reads_whole_operands(
    engine: Any, graph: bool, splits: int, written: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 rounds: a layer's weight, the cache and a product's rows are written; the product writes the
    query, or keys and values; attention reads them, lets the layer behind it start, which reads its weight
    early. Bitwise as when everything is at rest."""
    groups, group, keys, head, width, count = 2, 4, 64, 64, 1024, 5
    heads, dtype = groups * group, torch.float16
    n = heads * head if written == "query" else groups * keys * head
    xs = [drawn(batch, 1, width, dtype, seed)[0] for seed in range(count)]
    weights = [drawn(1, 2048, heads * head, dtype, seed)[1] * 0.04 for seed in range(count)]
    caches = [
        [random(batch, groups, keys, head, dtype=dtype, seed=s + 9 * i) for i in (1, 2)] for s in range(count)
    ]
    x, weight, (k, v) = xs[0].clone(), weights[0].clone(), (c.clone() for c in caches[0])
    square = drawn(1, n, width, dtype, 9)[1] * width**-0.5
    ahead = engine.bind(early_config(batch, "fp16", 1, True), x, square.t())
    y = ahead()
    if written == "query":
        q = y.view(batch, heads, 1, head)
    else:
        q, k = random(batch, heads, 1, head, dtype=dtype, seed=77), y.view(batch, groups, keys, head)
        v = k if splits == 1 else v
    call = AttentionCall(q, k, v)
    attend = launcher(engine, call, monkeypatch, AttentionInstance("fp16", head), splits)
    rows = attend().view(batch, heads * head)

    def layer(constant: bool, pdl: bool) -> Any:
        more = None, None, None, 1.0, 0.0, None, None, 0.0, constant
        return engine.bind(early_config(batch, "fp16", 1, pdl), rows, weight.t(), *more)

    plain, early, wanted = layer(False, False), layer(True, True), []
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    def write(index: int) -> None:
        weight.copy_(weights[index])
        if written == "query":
            k.copy_(caches[index][0])
        if v.data_ptr() != k.data_ptr():
            v.copy_(caches[index][1])
        x.copy_(xs[index])

    for index in range(count):
        for step in (lambda index=index: write(index), ahead, attend):
            step()
            torch.cuda.synchronize()
        assert right(rows.view(call.q.shape), call)
        wanted.append(plain().clone())

    def turn(index: int) -> None:
        write(index)
        ahead()
        attend()
        wrong.add_((early() != wanted[index]).sum())

    def turns() -> None:
        for index in range(count):
            turn(index)

    if graph:
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            turns()
    for _ in range(10_000 // count):
        captured.replay() if graph else turns()
    assert int(wrong) == 0


class Decoder(torch.nn.Module):
    """A layer's first half with a cache; `repeating`: as transformers has it."""

    def __init__(self, heads: int, groups: int, head: int, batch: int, keys: int, repeating: bool) -> None:
        super().__init__()
        self.sizes, self.repeating = (heads, groups, groups), repeating
        self.norm = torch.nn.RMSNorm(2048, eps=1e-5)
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(2048, n * head, bias=False) for n in self.sizes)
        self.o = torch.nn.Linear(heads * head, 2048, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(batch, groups, keys, head))

    def forward(self, x: Any, last: Any, mask: Any) -> Any:
        y = self.norm(x)
        split = [
            f(y).view(len(x), 1, n, -1).transpose(1, 2) for f, n in zip(self.qkv, self.sizes, strict=True)
        ]
        q, k, v = (
            split[0].sin(),
            self.keys.index_copy_(2, last, split[1]),
            self.values.index_copy_(2, last, split[2]),
        )
        named: dict[str, Any] = {"enable_gqa": True}
        if self.repeating:
            (batch, groups, keys, head), heads = k.shape, self.sizes[0]
            shape, named = (batch, groups, heads // groups, keys, head), {}
            k, v = (t[:, :, None].expand(shape).reshape(batch, heads, keys, head) for t in (k, v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **named)
        return x + self.o(y.transpose(1, 2).reshape(len(x), 1, -1))


@pytest.mark.parametrize(
    ("batch", "head", "dtype", "masked"),
    [(1, 128, "bf16", False), (4, 64, "fp16", True), (16, 128, "fp16", True), (64, 64, "bf16", False)],
)
def test_compiled_models_attend(engine: Any, batch: int, head: int, dtype: str, masked: bool) -> None:
    """As near to FP64 as torch's, and the same bits in 200 replays of a graph."""
    torch.manual_seed(3)
    torch._dynamo.reset()
    network = (
        torch.nn.ModuleList(Decoder(16, 4, head, batch, 512, masked) for _ in range(2))
        .cuda()
        .requires_grad_(False)
    )
    for parameter in network.parameters():
        if parameter.dim() == 2:
            parameter.normal_(std=parameter.shape[1] ** -0.5)
    network, last = network.to(DTYPES[dtype]), torch.tensor([200], device="cuda")
    mask = (torch.arange(512, device="cuda") <= 200).expand(batch, 1, 1, 512) if masked else None
    x = torch.randn(batch, 1, 2048, device="cuda").to(DTYPES[dtype])

    def forward(network: Any, x: Any) -> Any:
        for layer in network:
            x = layer(x, last, mask)
        return x

    wanted = forward(copy.deepcopy(network).double(), x.double())
    plain = forward(copy.deepcopy(network), x).double()
    for cache in [c for layer in network for c in (layer.keys, layer.values)] if masked else ():
        cache[:, :, 208:] = nan  # tiles of which no key is seen: they are not read
    sassafras.accelerate(network)
    made = torch.compile(lambda x: forward(network, x), fullgraph=True, dynamic=False)
    made(x)
    api.settle()
    first = made(x).clone()
    found = [r for r in api.status()["rows"] if r["what"] == "attention" and r["shape"] == f"{batch}x16x512"]
    assert [r for r in found if r["kernel"] and r["kernel"].endswith("m") == masked], found
    error, others = ((y.double() - wanted).square().mean().sqrt() for y in (first, plain))
    assert float(error) <= 1.5 * float(others)
    same_bits_in_replays(made, x, first)
    layers.restore(network)
