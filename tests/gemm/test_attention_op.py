"""Attention of one query row: operator, launchers, compiled models."""

from __future__ import annotations

import copy
import math
import random
import re
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.gemm.configs import attention  # noqa: E402
from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.matmul import attention_op, attention_patterns, inductor_graph  # noqa: E402
from sassafras.gemm.matmul.attention_patterns import served  # noqa: E402
from sassafras.gemm.matmul.attention_problem import AttentionCall, read_attention  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
from sassafras.gemm.matmul.problem import Problem  # noqa: E402

from . import graph_alone, stand_in  # noqa: E402
from .test_launchers import apart  # noqa: E402
from .test_layer import graphs  # noqa: E402
from .test_matmul_fused import Install, cache, close, engine, half, install, launches, library  # noqa: E402
from .test_rows import early  # noqa: E402

__all__ = ["cache", "early", "engine", "graphs", "install", "library"]  # fixtures
nn, attend = torch.nn, torch.nn.functional.scaled_dot_product_attention
ours = torch.ops.sassafras.attention
DTYPES = (torch.float16, torch.bfloat16)


def exact(q: Any, k: Any, v: Any, mask: Any = None, scale: float | None = None) -> Any:
    """In FP64, each head with its keys; zeros where a mask hides all keys."""
    times = q.shape[1] // k.shape[1]
    q, k, v = q.double(), *(t.double().repeat_interleave(times, 1) for t in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if mask is None else scores + mask.double()
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v


def operands(
    batch: int, groups: int, group: int, keys: int, head: int, dtype: Any = torch.float16, longer: int = 0
) -> list[Any]:
    """q as rows of a layer's result, k and v as parts of longer caches."""
    q = half(batch, 1, (groups * group + 1) * head, dtype=dtype)[..., : groups * group * head]
    q = q.view(batch, 1, groups * group, head).transpose(1, 2)
    caches = (half(batch, groups, keys + longer, head, seed=seed, dtype=dtype) for seed in (1, 2))
    return [q, *(cache[:, :, :keys] for cache in caches)]


# --- the operator -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_launch_a_kernel(engine: Planner, library: Path, dtype: Any) -> None:
    before, calls = launches(library), 0
    for batch, groups, group, keys, head in ((1, 2, 4, 40, 128), (3, 1, 8, 17, 64), (2, 3, 1, 1, 128)):
        q, k, v = operands(batch, groups, group, keys, head, dtype, longer=7)
        heads = groups * group
        masks = [
            None,
            *(half(*shape, keys, dtype=dtype) for shape in ((1, 1, 1), (batch, 1, 1), (batch, heads, 1))),
        ]
        masks += [
            half(batch, heads, 1, keys + 3, dtype=dtype)[..., :keys],
            half(1, heads, 1, keys, dtype=dtype),
        ]
        for mask in masks:
            if mask is not None:
                mask[..., : keys // 2] = float("-inf")
            for scale in (None, 0.3):
                c = ours(q, k, v, mask, scale)
                assert close(c, exact(q, k, v, mask, scale)) and c.is_contiguous() and c.dtype == dtype
                assert stand_in.state_of(library).overlap == 1
                calls += 1
        assert launches(library) == before + calls
    listed = [r for r in room.status()["rows"] if r["what"] == "attention"]
    assert {r["shape"] for r in listed} == {"1x8x40", "3x8x17", "2x3x1"}
    assert all(r["kernel"].startswith("attention") and r["dtype"] in ("fp16", "bf16") for r in listed)


def test_scales_beyond_fp32_are_infinite(engine: Planner, library: Path) -> None:
    """As C converts numbers, in both launchers."""
    (q, k, v), before = operands(2, 2, 2, 20, 64), launches(library)
    for sign in (1.0, -1.0):
        wanted = ours(q, k, v, None, sign * math.inf)
        for scale in (1e300, 3.4028236e38):
            assert torch.equal(ours(q, k, v, None, sign * scale).isnan(), wanted.isnan())
    assert launches(library) == before + 6


def test_the_launch_is_the_configurations(engine: Planner, library: Path) -> None:
    q, k, v = operands(2, 2, 4, 700, 128)
    ours(q, k, v)
    chosen = attention.chosen("fp16", 2, 2, 4, 700, 128, attention.Strides(*[0] * 10), False)
    assert chosen is not None
    instance, launch = chosen
    state = stand_in.state_of(library)
    assert (tuple(state.grid), state.threads) == (launch.grid, launch.threads)
    assert (state.shared, tuple(state.cluster)) == (launch.shared_bytes, launch.cluster)
    assert launch.cluster[0] > 1 and room.status()["rows"][-1]["kernel"] == instance.name


@pytest.mark.parametrize(("groups", "group"), [(1, 9), (2, 16), (2, 28)])
def test_large_groups_are_parts(engine: Planner, library: Path, groups: int, group: int) -> None:
    before, given = launches(library), operands(2, groups, group, 40, 64)
    assert close(ours(*given), exact(*given)) and launches(library) == before + 1
    parts = attention.parts_of(group)
    grid = tuple(stand_in.state_of(library).grid)
    assert parts and grid[0] % parts == 0 and grid[1:] == (groups, 2)


def test_a_graph_that_is_compiled_leaves_others_their_kernel(engine: Planner, library: Path) -> None:
    """Another thread runs attention that is served, while a graph with the same is compiled."""
    call, before, calls = AttentionCall(*operands(1, 1, 1, 8, 64)), launches(library), 2000
    assert attention_op.serves(call)
    running = threading.Thread(target=lambda: [ours(*call) for _ in range(calls)])
    running.start()
    while running.is_alive():
        assert attention_op.serves(call)
    running.join()
    assert launches(library) == before + calls and not room._warned


def test_what_no_kernel_takes_is_torchs(engine: Planner, library: Path) -> None:
    """More rows, other heads and types, uneven strides, groups that are too large; a refused launch."""
    before, (q, k, v) = launches(library), operands(2, 2, 2, 20, 64)
    for call in (
        (half(2, 4, 2, 64), k, v),
        (half(2, 4, 1, 48), half(2, 2, 20, 48), half(2, 2, 20, 48)),
        (half(2, 4, 1, 64), half(2, 2, 20, 68)[..., :64], v),
        (half(2, 22, 1, 64), k, v),
        (half(2, 4, 1, 64), k, v, half(1, 20)),
        (q.float(), k.float(), v.float()),
    ):
        assert close(ours(*call), exact(*call)), [t.shape for t in call]
    assert launches(library) == before
    stand_in.state_of(library).fail = 719
    try:
        with pytest.warns(RuntimeWarning, match="could not be launched .error 719. for 2x4x20"):
            assert close(ours(q, k, v), exact(q, k, v))
    finally:
        stand_in.state_of(library).fail = 0


def test_gradients_are_torchs(engine: Planner, library: Path) -> None:
    before, given = launches(library), [t.clone().requires_grad_() for t in operands(2, 2, 2, 20, 64)]
    wide = [t.detach().double().requires_grad_() for t in given]
    ours(*given, None, 0.2).sum().backward()
    exact(*wide, None, 0.2).sum().backward()
    for mine, other in zip(given, wide, strict=True):
        assert float((mine.grad - other.grad).abs().max()) <= 1e-2 * float(other.grad.abs().max())
    assert launches(library) == before


def test_torch_knows_the_operator(engine: Planner) -> None:
    """Its schema, its stand-in, its gradients; batches of calls."""
    (q, k, v), mask = operands(2, 2, 2, 20, 64), half(3, 2, 1, 1, 20)
    checks = "test_schema", "test_faketensor", "test_aot_dispatch_dynamic", "test_autograd_registration"
    for given in ((q, k, v), (q, k, v, mask[0], 0.3), (q.float(), k.float(), v.float())):
        torch.library.opcheck(ours.default, given, test_utils=checks)
    many = torch.stack([q, 2 * q])
    found = torch.vmap(lambda q, k: ours(q, k, v), in_dims=(0, 1))(many, torch.stack([k, k], 1))
    assert close(found, torch.stack([exact(x, k, v) for x in many]))
    found = torch.vmap(lambda m: ours(q, k, v, m, 0.2))(mask)
    assert close(found, torch.stack([exact(q, k, v, m, 0.2) for m in mask]))


def test_within_batch_invariance_it_is_torchs(engine: Planner, library: Path) -> None:
    given, before = operands(1, 2, 2, 20, 64), launches(library)
    with sassafras.batch_invariant():
        assert close(ours(*given), exact(*given)) and launches(library) == before


# --- launchers --------------------------------------------------------------------------------------------


def test_both_launchers_read_alike(install: Install) -> None:
    """What there is no plan for is told as a problem, as stand-ins without memory have it; or no plan can."""
    both = [install(kind).launcher for kind in ("python", "compiled")]

    def told(*call: Any) -> list[Any]:
        return [one.attention(*call, 0.125) for one in both]

    q, k, v = operands(2, 2, 4, 24, 64, torch.bfloat16, longer=8)
    out, mask = torch.empty(2, 8, 1, 64, dtype=q.dtype), half(2, 1, 1, 24, dtype=q.dtype)
    for given in ((q, k, v, None), (q, k, v, mask), (q, k, v, mask[:1].expand(2, 8, 1, 24))):
        problem, _ = read_attention(AttentionCall(*given), None, "cpu") or (None, None)
        assert told(*given, out) == [tuple(problem)] * 2  # type: ignore[arg-type]
        assert problem == Problem(0, 1, 2, 8, 24, 32, 2, 64, 0, 0, 0, extra=int(given[3] is not None))
    wide, odd = (
        half(2, 3, 24, 64, dtype=q.dtype),
        half(2 * 2 * 24 * 64 + 1, dtype=q.dtype)[1:].view(2, 2, 24, 64),
    )
    for bad in (
        (q[:, :, 0], k, v, None, out[:, :, 0]),
        (half(2, 8, 2, 64, dtype=q.dtype), k, v, None, half(2, 8, 2, 64, dtype=q.dtype)),
        (q, k, v[:, :, :23], None, out),
        (q, wide, wide, None, out),
        (q, k, v[:1], None, out),
        (q, odd, v, None, out),
        (q, k.half(), v, None, out),
        (q, k.mT.contiguous().mT, v, None, out),
        (q, half(2, 2, 24, 68, dtype=q.dtype)[..., :64], v, None, out),
        (q.float(), k.float(), v.float(), None, out.float()),
        (q, k, v, mask[..., :23], out),
        (q, k, v, mask[0], out),
        (q, k, v, mask[..., :1].expand(2, 1, 1, 24), out),
        (q, k, v, half(2, 4, 1, 24, dtype=q.dtype), out),
        (q, k, v, mask.half(), out),
        (q, k, v, mask > 0, out),
        (q, k, v, None, torch.empty(2, 1, 8, 65, dtype=q.dtype)[..., :64].transpose(1, 2)),
        (q, k, v, None, torch.empty(2, 8, 1, 128, dtype=q.dtype)),
        (q, k, v, None, half(2, 8, 1, 64)),
        (out, k, v, None, out),
        (q[:0], k[:0], v[:0], None, out[:0]),
        (q, k[:, :, :0], v[:, :, :0], None, out),
        (torch._neg_view(q), k, v, None, out),
        (q, k, "v", None, out),
    ):
        assert told(*bad) == [None, None], [getattr(t, "shape", t) for t in bad]
    with pytest.raises(TypeError):
        both[1].attention(q, k, v)
    far = torch.empty(2**31 + 8 * 64, dtype=q.dtype)  # which nothing touches
    for stride in (2**31 - 8, 2**31):
        apart_ = far.as_strided((2, 8, 1, 64), (stride, 64, 64, 1))
        found = (
            told(apart_, k, v, None, out),
            told(q, k, v, far.as_strided((2, 1, 1, 24), (stride, 1, 1, 1)), out),
        )
        assert all(x == y and (x is None) == (stride >> 31 > 0) for x, y in found)


def test_it_is_served_wherever_the_result_lies_apart(install: Install) -> None:
    """Operands drawn within one memory, the result within it too, and in another one."""
    both, draw = [install(kind).launcher for kind in ("python", "compiled")], random.Random(1)
    memory, other, seen = half(60_000), half(60_000), set()
    for _ in range(2000):
        batch, groups, group, keys = (draw.choice(range(1, most)) for most in (3, 3, 4, 6))

        def lines(*shape: int) -> Any:
            """With gaps between rows, between heads and between sequences."""
            strides, step = [1], shape[-1]
            for extent in reversed(shape[:-1]):
                step += draw.choice((0, 0, 8, 16))
                strides.insert(0, step)
                step *= extent
            return memory.as_strided(shape, strides, 8 * draw.randrange(3000))

        q, k, v = (
            lines(batch, groups * group, 1, 64),
            lines(batch, groups, keys, 64),
            lines(batch, groups, keys, 64),
        )
        mask = None
        if draw.random() < 0.5:
            shape = draw.choice((1, batch)), draw.choice((1, groups * group)), 1, keys
            mask = memory.as_strided(shape, (keys * shape[1], keys, keys, 1), draw.randrange(20_000))
        at = 8 * draw.randrange(5000)
        result = memory[at : at + q.numel()].view(q.shape)
        clear = other[at : at + q.numel()].view(q.shape)
        here, there = ([x.attention(q, k, v, mask, c, 0.1) for x in both] for c in (result, clear))
        right = apart(result, (q, k, v, mask))
        assert here[0] == here[1] and there[0] == there[1] and there[0] is not None
        assert (here[0] is not None) == right
        seen.add(right)
    assert len(seen) == 2


# --- graphs -----------------------------------------------------------------------------------------------


def repeated(x: Any, times: int) -> Any:
    """As transformers' repeat_kv."""
    batch, heads, keys, head = x.shape
    return (
        x[:, :, None, :, :].expand(batch, heads, times, keys, head).reshape(batch, heads * times, keys, head)
    )


class Attention(nn.Module):
    """A decoder's first half: keys and values of the token go into a cache that is longer than a sequence."""

    def __init__(
        self, batch: int = 3, heads: int = 4, groups: int = 2, head: int = 64, keys: int = 24
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.head = heads, groups, head
        self.norm = nn.RMSNorm(64, eps=1e-5)
        self.q, self.k, self.v = (nn.Linear(64, n * head, bias=False) for n in (heads, groups, groups))
        self.o = nn.Linear(heads * head, 64, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(batch, groups, keys, head))

    def forward(self, x: Any, last: Any, mask: Any = None) -> Any:
        y = self.norm(x)
        q, k, v = (f(y).view(x.shape[0], 1, -1, self.head).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = self.keys.index_copy_(2, last, k), self.values.index_copy_(2, last, v)
        return x + self.o(self.attend(q, k, v, mask).transpose(1, 2).reshape(x.shape[0], 1, -1))

    def attend(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        """As a model is written whose attention knows groups."""
        return attend(q, k, v, attn_mask=mask, enable_gqa=True)


class Repeating(Attention):
    """As transformers writes it."""

    def attend(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        times = self.heads // self.groups
        return attend(q, repeated(k, times), repeated(v, times), attn_mask=mask, scale=self.head**-0.5)


def names_of(graph: Any) -> list[str]:
    return [str(n.target).split(".")[1] for n in graph if "sassafras" in str(n.target)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("masked", "batch"), [(False, 3), (True, 9)])
@pytest.mark.parametrize("kind", [Attention, Repeating])
def test_attention_is_a_link_of_the_chain(
    early: Planner, library: Path, graphs: list[Any], kind: Any, masked: bool, batch: int, dtype: Any
) -> None:
    """o's weights are read while attention runs: they were written before the products ahead of it."""
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(1)
    made = kind(batch).to(dtype).requires_grad_(False)
    x, last = half(batch, 1, 64, dtype=dtype), torch.tensor([5])
    mask = (torch.arange(24) <= 5).expand(batch, 1, 1, 24) if masked else None
    caches = made.keys.clone(), made.values.clone()
    wanted = made.double()(x.double(), last, mask)
    made.to(dtype)
    made.keys, made.values = (c.clone() for c in caches)
    compiled = torch.compile(sassafras.accelerate(made), fullgraph=True, dynamic=False)
    before = launches(library)
    result, (code, *_) = run_and_get_code(compiled, x, last, mask)
    assert close(result, wanted), room.status()["problems"]
    names = names_of(graphs[-1])
    assert names[-2:] == ["attention", "layer"] and names.count("attention") == 1
    (call,) = [n for n in graphs[-1] if n.target is ours.default]
    assert [call.args[i].meta["val"].shape for i in (0, 1, 2)] == [
        (batch, 4, 1, 64),
        (batch, 2, 24, 64),
        (batch, 2, 24, 64),
    ]
    (o,) = [n for n in graphs[-1] if n.target is torch.ops.sassafras.layer.default and n.args[4] is not None]
    assert o.args[8], "its weights are read early"
    assert not [n for n in graphs[-1] if "scaled_dot" in str(n.target) or "getitem" in str(n.target)]
    assert len(re.findall(r"sassafras\.attention\.into\(", code)) == 1
    assert launches(library) == before + 2, "attention and what follows it; the others are torch's here"
    (listed,) = [r for r in room.status()["rows"] if r["what"] == "attention"]
    assert (listed["shape"], listed["kernel"].endswith("m")) == (f"{batch}x4x24", masked)
    kept = made.keys
    assert close(compiled(x, last, mask), wanted) and made.keys is kept, "the cache is written where it lies"


def of_transformers(name: str, **more: Any) -> Any:
    """A small decoder with random weights; two heads share keys."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    config = getattr(transformers, f"{name}Config")(**sizes, **heads, **more)
    torch.manual_seed(0)
    network = getattr(transformers, f"{name}ForCausalLM")(config).half().eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.dim() == 2:
            parameter.normal_(std=parameter.shape[1] ** -0.5)
    return network


@pytest.mark.parametrize("name", ["Llama", "Qwen2"])
def test_models_of_transformers_attend(early: Planner, graphs: list[Any], name: str) -> None:
    """A token decoded with a static cache whose mask hides what is not written yet, and padding."""
    network = of_transformers(name, pad_token_id=0)
    transformers = pytest.importorskip("transformers")
    tokens, seen = torch.randint(1, 90, (2, 5)), torch.ones(2, 5, dtype=torch.long)
    seen[1, :2] = 0

    def decoded(model: Any, forward: Any) -> Any:
        given = {"past_key_values": transformers.StaticCache(config=model.config, max_cache_len=32)}
        with torch.no_grad():
            model(input_ids=tokens[:, :4], attention_mask=seen[:, :4], use_cache=True, **given)
            return forward(
                input_ids=tokens[:, 4:], attention_mask=seen, use_cache=True, **given
            ).logits.double()

    exact_network = copy.deepcopy(network).double()
    wanted, errors = decoded(exact_network, exact_network.forward), []
    for model in (network, sassafras.accelerate(network)):
        torch._dynamo.reset()
        graphs.clear()
        result = decoded(model, torch.compile(model.forward, fullgraph=True, dynamic=False))
        errors.append(float((result - wanted).square().mean().sqrt()))
    names = names_of(graphs[-1])
    assert names.count("attention") == 2, names
    attends = [n for n in graphs[-1] if n.target is ours.default]
    assert [n.args[1].meta["val"].shape for n in attends] == [(2, 2, 32, 64)] * 2, "keys are not repeated"
    assert sum("auto_functionalized" in str(n.target) for n in graphs[-1]) == 2, "turned in one launch"
    assert errors[1] <= 1.5 * errors[0]


@pytest.mark.parametrize("name", ["Llama", "Qwen2"])
def test_transformers_generates_the_same_text(early: Planner, graphs: list[Any], name: str) -> None:
    """`generate` compiles the decoding step by itself; its mask is made outside of the graph."""
    transformers = pytest.importorskip("transformers")
    none = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    network, prompt, texts = of_transformers(name, **none), torch.randint(1, 90, (2, 5)), []
    how = transformers.CompileConfig()
    how._compile_all_devices = True
    for model in (copy.deepcopy(network), sassafras.accelerate(network)):
        torch._dynamo.reset()
        graphs.clear()
        model.generation_config.compile_config = how
        texts.append(model.generate(prompt, max_new_tokens=8, do_sample=False, cache_implementation="static"))
    assert texts[1].tolist() == texts[0].tolist() and texts[0].shape == (2, 13)
    assert names_of(graphs[-1]).count("attention") == 2
    assert sum("auto_functionalized" in str(n.target) for n in graphs[-1]) == 2, "turned in one launch"


class Crossed(nn.Module):
    """Keys and values are layers of the same rows, which nothing copies into a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead, self.o = nn.Linear(64, 64, bias=False), nn.Linear(256, 64, bias=False)
        self.q, self.k, self.v = (nn.Linear(64, n * 64, bias=False) for n in (4, 2, 2))

    def forward(self, x: Any, rows: Any) -> Any:
        rows = self.ahead(rows)
        k, v = (f(rows).view(*rows.shape[:2], 2, 64).transpose(1, 2) for f in (self.k, self.v))
        q = self.q(x).view(len(x), 1, 4, 64).transpose(1, 2)
        return self.o(attend(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2))


def test_joined_products_are_attended_to(early: Planner, library: Path, graphs: list[Any]) -> None:
    """Keys and values side by side in one result."""
    torch.manual_seed(2)
    made, x, rows = Crossed().half().requires_grad_(False), half(2, 1, 64), half(2, 7, 64, seed=1)
    wanted = made.double()(x.double(), rows.double())
    compiled = torch.compile(sassafras.accelerate(made.half()), fullgraph=True, dynamic=False)
    before = launches(library)
    assert close(compiled(x, rows), wanted)
    assert sorted(names_of(graphs[-1])) == ["attention", "joined", "layer", "mm", "mm"]
    assert launches(library) == before + 3, "theirs, attention, and the layer behind it"


def put(function: Any, *given: Any, graphs: list[Any], **options: Any) -> list[str]:
    """Our operators in a compiled function's graph, whose result is right."""
    torch._dynamo.reset()
    graphs.clear()
    wanted = function(*given)
    with torch.no_grad():
        result = torch.compile(function, backend=graph_alone.backend, fullgraph=True, **options)(*given)
    assert close(result, wanted.double())
    return names_of(graphs[-1]) if graphs else []


def test_what_is_replaced(early: Planner, graphs: list[Any]) -> None:
    """With what the kernel reads: keys unrepeated where both are repeated alike, masks as they were given."""
    o = sassafras.accelerate(nn.Linear(256, 64, bias=False).half()).requires_grad_(False)
    q, k, v = half(2, 4, 1, 64), half(2, 2, 24, 64, seed=1), half(2, 2, 24, 64, seed=2)

    def read(attention: Any, *given: Any, layer: Any = o) -> list[Any]:
        """Extents of keys and mask."""

        def model(*given: Any) -> Any:
            return layer(attention(*given).transpose(1, 2).flatten(2))

        # no product lies ahead of attention: the layer behind it does not read its weights early
        assert put(model, *given, graphs=graphs, dynamic=False) == ["attention", "mm"]
        (call,) = [n for n in graphs[-1] if n.target is ours.default]
        return [None if t is None else (*t.meta["val"].shape,) for t in (call.args[1], call.args[3])]

    def grouped(q: Any, k: Any, v: Any, mask: Any = None, scale: float | None = None) -> Any:
        return attend(q, k, v, mask, scale=scale, enable_gqa=True)

    apart_ = (2, 2, 24, 64)
    assert (
        read(grouped, q, k, v) == read(lambda *given: grouped(*given, scale=0.5), q, k, v) == [apart_, None]
    )
    for twice in (lambda x: x.repeat_interleave(2, 1), lambda x: repeated(x, 2)):
        assert read(lambda q, k, v, f=twice: attend(q, f(k), f(v)), q, k, v) == [apart_, None]
    assert read(lambda q, k, v: attend(q, k, repeated(v, 2)), q, repeated(k, 2), v) == [(2, 4, 24, 64), None]
    # a head and a half in each, and by turns
    few = [half(2, 2, 4, 64, seed=seed) for seed in (1, 2)]

    def more(x: Any) -> Any:
        return x[:, :, None].expand(2, 2, 3, 4, 64).reshape(2, 4, 6, 64)

    assert read(lambda q, k, v: attend(q, more(k), more(v)), q, *few) == [(2, 4, 6, 64), None]
    assert read(lambda q, k, v: attend(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)), q, k, v) == [
        (2, 4, 24, 64),
        None,
    ]
    # 16 heads that share one are two parts; 11 have no equal ones: repeated
    for heads, groups in ((16, 1), (11, 11)):
        wide = sassafras.accelerate(nn.Linear(heads * 64, 64, bias=False).half()).requires_grad_(False)
        given = half(2, heads, 1, 64), half(2, 1, 24, 64, seed=1), half(2, 1, 24, 64, seed=2)
        many = read(lambda q, k, v, n=heads: attend(q, repeated(k, n), repeated(v, n)), *given, layer=wide)
        assert many == [(2, groups, 24, 64), None]
    for mask, shape in (
        (half(1, 24), (1, 1, 1, 24)),
        (half(2, 1, 1, 24), (2, 1, 1, 24)),
        (half(2, 4, 1, 24) > 0.3, (2, 4, 1, 24)),
    ):
        assert read(grouped, q, k, v, mask) == [apart_, shape]
    expanded = read(lambda q, k, v, m: grouped(q, k, v, m.expand(2, 4, 1, 24)), q, k, v, half(1, 1, 1, 24))
    assert expanded == [apart_, (1, 1, 1, 24)]


def test_what_is_left_to_torch(early: Planner, graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows, other heads, a causal mask, unknown extents, uneven strides; too much work."""
    o = sassafras.accelerate(nn.Linear(256, 64, bias=False).half()).requires_grad_(False)
    q, k, v = half(2, 4, 1, 64), half(2, 4, 24, 64, seed=1), half(2, 4, 24, 64, seed=2)

    def among(attention: Any, *given: Any, dynamic: bool = False) -> int:
        def model(*given: Any) -> Any:
            return o(attention(*given).transpose(1, 2).reshape(given[0].shape[0], given[0].shape[2], -1))

        return put(model, *given, graphs=graphs, dynamic=dynamic).count("attention")

    assert among(attend, q, k, v) == 1
    assert among(attend, half(2, 4, 2, 64), k, v) == 0
    assert among(lambda q, k, v: attend(q, k, v, is_causal=True), q, k, v) == 0
    assert among(attend, half(2, 8, 1, 32), half(2, 8, 24, 32), half(2, 8, 24, 32)) == 0
    assert among(attend, q, k, v, dynamic=True) == 0
    assert among(attend, q, half(2, 4, 24, 68)[..., :64], v) == 0
    assert among(lambda q, k, v: attend(q, k[..., 1:65] * 2, v), q, half(2, 4, 24, 72), v) == 1
    assert among(lambda q, k, v: attend(q, k[..., 1:65], v), q, half(2, 4, 24, 72), v) == 0, "odd addresses"
    assert put(attend, q, k, v, graphs=graphs, dynamic=False) == [], "a graph without products of ours"
    monkeypatch.setattr(attention, "MOST_BATCH", 1)
    assert among(attend, q, k, v) == 0, "more sequences than pay"


def test_a_mask_of_bools_hides_keys_also_where_torch_writes_it_for_cudnn(early: Planner) -> None:
    """Its -65504 becomes -inf, by which a kernel leaves keys out: once for all layers, for such masks alone.
    With them a large cache is served; with another mask it would be read whole, faster by torch."""
    from torch.fx.experimental.proxy_tensor import make_fx

    cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    q, k, v, seen = *operands(2, 4, 1, 24, 64, torch.bfloat16), torch.arange(24)[None, None, None] < 5

    def masked(least: float, most: float = 0.0, by_torch: bool = True, seen: Any = seen) -> Any:
        def function(q: Any, k: Any, v: Any, seen: Any) -> Any:
            mask = torch.where(seen.logical_not(), least, torch.scalar_tensor(most, dtype=q.dtype))
            mask = mask.expand(2, 4, 1, 24)
            return [cudnn(x, k, v, mask, False)[0] for x in (q, q + 1)]

        graph = make_fx(function, tracing_mode="fake")(q, k, v, seen).graph
        for node in graph.nodes:  # as torch.compile notes what it traces
            node.meta |= {"source_fn_stack": [("attention", attend)]} if by_torch else {}
        return graph

    def rewritten(graph: Any) -> list[Any]:
        calls = [call for node in graph.nodes if (call := served(node))]
        assert len(calls) == 2
        return [attention_patterns.infinite(graph, call.mask) for call in calls]

    for least in (-65504.0, -65536.0):
        graph = masked(least)
        (old,) = [node for node in graph.nodes if node.target is torch.ops.aten.where.self]
        first, second = rewritten(graph)
        assert first is second is not old
        (output,) = [node for node in graph.nodes if node.op == "output"]
        output.args = (first,)
        for node in reversed(graph.nodes):  # no attention, which is a GPU's
            if node.op == "call_function" and not node.users:
                graph.erase_node(node)
        made = torch.fx.GraphModule({}, graph)(q, k, v, seen)
        assert torch.equal(made, torch.where(seen, 0.0, float("-inf")).to(q.dtype))
        assert first.meta["val"].dtype == made.dtype and first.meta["val"].shape == made.shape
    others = masked(-math.inf), masked(-65504.0, 1.0), masked(-3e4), masked(-65504.0, by_torch=False)
    for graph in others:
        (old,) = [node for node in graph.nodes if node.target is torch.ops.aten.where.self]
        assert rewritten(graph) == [old, old]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_patterns, "MOST_BYTES", 4 * k.numel() - 1)
        for least, count in ((-65504.0, 2), (-math.inf, 2), (-3e4, 0)):
            for rows in (seen, seen[0, 0], seen[0, 0, 0]):  # expanded to all heads
                graph = masked(least, seen=rows)
                assert sum(bool(served(node)) for node in graph.nodes) == count, (least, rows.shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_callers_mask_is_read_as_it_is(early: Planner, graphs: list[Any], dtype: Any) -> None:
    """-65504 for all keys of a sequence is no mask; for bools of torch's it would be -inf."""
    least, nothing = torch.finfo(torch.float16).min, torch.zeros((), dtype=dtype)
    o = sassafras.accelerate(nn.Linear(256, 64, bias=False).to(dtype)).requires_grad_(False)
    given = [half(2, 4, n, 64, seed=n, dtype=dtype) for n in (1, 24, 24)]
    seen = torch.stack([torch.arange(24) < 7, torch.zeros(24, dtype=torch.bool)])[:, None, None]
    for mask in (
        lambda: torch.where(seen, torch.tensor(0.0, dtype=dtype), least),  # as transformers writes it
        lambda: torch.where(seen.logical_not(), nothing + least, nothing),
        lambda: torch.where(seen, torch.zeros((), dtype=dtype), torch.full((), least, dtype=dtype)),
        lambda: torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, least),
        lambda: torch.full(seen.shape, least, dtype=dtype).masked_fill(seen, 0),
    ):

        def model(*given: Any, mask: Any = mask) -> Any:
            return o(attend(*given, attn_mask=mask()).transpose(1, 2).flatten(2))

        assert put(model, *given, graphs=graphs, dynamic=False) == ["attention", "mm"]


def test_torch_compile_and_export_note_torchs_own_masks(graphs: list[Any]) -> None:
    given, seen = operands(2, 2, 1, 24, 64), (torch.arange(24) < 7)[None, None, None]

    class Model(nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            own = torch.where(seen, torch.tensor(0.0, dtype=q.dtype), -65504.0)
            return attend(attend(q, k, v, seen), k, v, own)

    with torch.no_grad():
        torch.compile(Model(), backend=graph_alone.backend, dynamic=False)(*given)
        exported = torch.export.export(Model(), (*given,)).run_decompositions()
    for nodes in (graphs[-1], exported.graph.nodes):
        wheres = [node for node in nodes if node.target is torch.ops.aten.where.self][:2]  # softmax's follow
        torchs = [-math.inf in map(attention_patterns._constant, node.args[1:]) for node in wheres]
        assert sorted(torchs) == [False, True] and [*map(attention_patterns._torchs, wheres)] == torchs


def test_what_is_compiled_within_batch_invariance_keeps_torchs_kernel(
    early: Planner, graphs: list[Any]
) -> None:
    o = sassafras.accelerate(nn.Linear(256, 64, bias=False).half()).requires_grad_(False)

    def model(*given: Any) -> Any:
        return o(attend(*given).transpose(1, 2).flatten(2))

    given = half(2, 4, 1, 64), half(2, 4, 24, 64, seed=1), half(2, 4, 24, 64, seed=2)
    told = inductor_graph._decided_by()
    with sassafras.batch_invariant():
        assert put(model, *given, graphs=graphs, dynamic=False) == ["mm"]
        assert inductor_graph._decided_by() != told, "another entry of Inductor's cache"
    assert put(model, *given, graphs=graphs, dynamic=False) == ["attention", "mm"]


def test_operators_of_gpus(early: Planner) -> None:
    """No dropout, no causal mask, the result alone is read, and lies as that of a kernel of ours."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def found(name: str, *more: Any, turned: bool = False, both: bool = False, **named: Any) -> list[Any]:
        operator = getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention").default

        def function(q: Any, k: Any, v: Any) -> Any:
            return operator(q, k, v, *more, **named)[: 1 + both]

        q, k, v = half(2, 4, 1, 64), *operands(2, 4, 1, 24, 64)[1:]
        q = q.transpose(0, 1).contiguous().transpose(0, 1) if turned else q
        graph = make_fx(function, tracing_mode="fake")(q, k, v).graph
        return [call for node in graph.nodes if (call := served(node))]

    for name in ("flash", "cudnn", "efficient"):
        rest = () if name == "flash" else (None, False)
        (call,) = found(name, *rest)
        assert call.scale is None and call.mask is None
        (call,) = found(name, *rest, scale=0.5)
        assert call.scale == 0.5 and call.q.meta["val"].shape == (2, 4, 1, 64)
        assert found(name, *rest, 0.1) == found(name, *rest, 0.0, True) == []
        assert found(name, *rest, both=True) == [], "the logarithms of sums are read"
        assert len(found(name, *rest, turned=True)) == (name == "efficient"), "as the query, or without gaps"


def test_operators_alone_make_the_engine(
    install: Install, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that loads an exported program and never calls `matmul` or `accelerate`."""
    a, b, norm = half(16, 64), half(48, 64).t(), half(64)
    q, k = half(2, 4, 1, 64), half(2, 4, 24, 64)
    calls = (
        lambda: torch.ops.sassafras.mm(a, b),
        lambda: torch.ops.sassafras.rms_norm(a, norm, 1e-5),
        lambda: torch.ops.sassafras.attention(q, k, k),
        lambda: torch.ops.sassafras.joined(a, b, b),
    )
    made: list[Planner] = []

    def make() -> None:
        made.append(install("compiled"))
        made[0].everything = True

    monkeypatch.setattr(room, "_make_engine", make)
    for call in calls:
        made.clear()
        room.use(None, device="cpu")
        before = launches(library)
        call()
        assert len(made) == 1 and (launches(library) > before or call is calls[-1]), (
            "the last one is torch's here"
        )
        call()
        assert len(made) == 1
    room.use(None, device="cpu", launch=lambda *call: NotImplemented)  # no driver serves: asked once
    for call in calls:
        call()
    assert len(made) == 1
