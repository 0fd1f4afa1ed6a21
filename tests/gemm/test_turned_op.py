"""Rotary embedding and a cache's rows in one launch: operator, launchers, compiled models."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.gemm.configs import turned as configs  # noqa: E402
from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
from sassafras.gemm.matmul.turned_problem import TurnedCall, read_turned  # noqa: E402

from . import graph_alone, stand_in  # noqa: E402
from .test_launchers import apart  # noqa: E402
from .test_layer import Spelled, graphs  # noqa: E402
from .test_matmul_fused import Install, cache, close, engine, half, install, launches, library  # noqa: E402
from .test_rows import early  # noqa: E402

__all__ = ["cache", "early", "engine", "graphs", "install", "library"]  # fixtures
nn, attend = torch.nn, torch.nn.functional.scaled_dot_product_attention
ours = torch.ops.sassafras.turned


def turned(x: Any, cos: Any, sin: Any) -> Any:
    """As models write it."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def angled(*shape: int, dtype: Any = torch.float16) -> list[Any]:
    """cos and sin."""
    angles = half(*shape, seed=3, dtype=dtype).float()
    return [angles.cos().to(dtype), angles.sin().to(dtype)]


def operands(
    batch: int = 3, heads: int = 4, groups: int = 2, rows: int = 24, head: int = 64, *,
    dtype: Any = torch.float16, angles: int = 1, at: int = 5, eps: float = 0.0,
) -> TurnedCall:  # fmt: skip
    """q, k and v as parts of one product's rows, caches as parts of longer ones."""
    lines = half(batch, 1, (heads + 2 * groups) * head, dtype=dtype)
    parts = lines.view(batch, 1, -1, head).transpose(1, 2).split([heads, groups, groups], 1)
    cos, sin = angled(angles, head, dtype=dtype)
    caches = (half(batch, groups, rows + 3, head, seed=seed, dtype=dtype) for seed in (1, 2))
    norms = [half(head, seed=seed, dtype=dtype) for seed in (4, 5)] if eps else [None, None]
    return TurnedCall(*parts, cos, sin, *(c[:, :, :rows] for c in caches), torch.tensor([at]), *norms, eps)


def exact(call: TurnedCall) -> tuple[Any, Any, Any]:
    """In FP64: the result and the caches."""
    at, eps = call.at, call.eps
    call = TurnedCall(*(t if t is None else t.double() for t in call[:-1]))
    angles = call.cos[:, None, None], call.sin[:, None, None]

    def of(x: Any, norm: Any) -> Any:
        return turned(x if norm is None else nn.functional.rms_norm(x, norm.shape, norm, eps), *angles)

    keys = call.keys.index_copy(2, at, of(call.k, call.k_norm))
    return of(call.q, call.q_norm), keys, call.values.index_copy(2, at, call.v)


def right(found: Any, call: TurnedCall, wanted: tuple[Any, Any, Any]) -> bool:
    return all(close(a, b) for a, b in zip((found, call.keys, call.values), wanted, strict=True))


@pytest.mark.parametrize("kind", ["compiled", "python"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_it_turns_and_writes(install: Install, library: Path, kind: str, dtype: Any) -> None:
    install(kind)
    for sizes in (
        {},
        {"angles": 3},
        {"batch": 1, "heads": 7, "groups": 1, "head": 128},
        {"rows": 1, "at": 0},
        {"eps": 1e-6},
        {"batch": 2, "heads": 6, "groups": 3, "head": 128, "eps": 0.5},
    ):
        for turn in range(2):  # the first has no plan yet
            call = operands(**sizes, dtype=dtype)
            wanted, before = exact(call), launches(library)
            assert right(ours(*call), call, wanted), (sizes, turn)
            assert launches(library) == before + 1
        state = stand_in.state_of(library)
        assert state.overlap == 1 and state.threads == 128
    (listed, *_) = [r for r in room.status()["rows"] if r["what"] == "turned"]
    assert (listed["shape"], listed["kernel"][-4:]) == ("3x4x24", "_d64")
    call = operands(at=-2, dtype=dtype)
    assert right(ours(*call), call, exact(call._replace(at=torch.tensor([22]))))


def test_what_no_kernel_takes_is_torchs(install: Install, library: Path) -> None:
    install("compiled")
    call = operands()
    for other in (
        call._replace(cos=call.cos.double()),
        call._replace(at=call.at.int()),
        call._replace(at=torch.tensor(3)),
        call._replace(keys=call.keys[..., :32]),
        call._replace(k=call.k[:2]),
        call._replace(sin=call.sin.expand(2, 64)),
        call._replace(q=call.q.transpose(1, 2)),
        call._replace(keys=call.keys[:1].expand(3, 2, 24, 64)),
        call._replace(values=call.values.as_strided(call.values.shape, (64, 64, 256, 1))),
        call._replace(q_norm=half(64)),
        call._replace(q_norm=half(64), k_norm=half(32)),
        call._replace(q_norm=half(64), k_norm=half(128)[::2]),
        call._replace(q_norm=half(64).float(), k_norm=half(64)),
    ):
        assert read_turned(other, None, "cpu") is None
        assert room._engine is not None
        assert room._engine.launcher.turned(*other[:-1], torch.empty(3, 4, 1, 64).half(), 0.0) is None
    assert read_turned(call, None, "cpu") is not None
    for other in (
        TurnedCall(*(t.double() if t.is_floating_point() else t for t in call[:8])),
        operands(head=32),
        operands(batch=configs.MOST_BATCH + 1),
    ):
        wanted, before = exact(other), launches(library)
        assert right(ours(*other), other, wanted) and launches(library) == before
    with sassafras.batch_invariant():
        for at, eps in ((5, 0.0), (-19, 0.0), (5, 1e-3)):
            call = operands(at=at, eps=eps)
            before, wanted = launches(library), exact(call._replace(at=torch.tensor([5])))
            assert right(ours(*call), call, wanted) and launches(library) == before


def test_it_is_read_alike_and_writes_apart(install: Install) -> None:
    """Random operands in one memory: both launchers read the same problem, or none; what is written shares no
    byte with anything else."""
    compiled, plain = (install(kind).launcher for kind in ("compiled", "python"))
    draw, counts = random.Random(5), {"served": 0, "refused": 0}
    memory = torch.zeros(60_000, dtype=torch.float16)
    for _ in range(400):
        batch, groups, times, rows = (
            draw.choice((1, 2, 3)),
            draw.choice((1, 2)),
            draw.choice((1, 3)),
            draw.choice((1, 4)),
        )
        head, heads = draw.choice((64, 64, 63)), groups * times

        def part(*shape: int, step: int = 1) -> Any:
            strides, size = [], step
            for extent in reversed(shape):
                strides.append(size)
                size *= extent
                size += draw.choice((0, 0, 0, 8, 4))
            return memory.as_strided(shape, strides[::-1], 8 * draw.randrange(5_000))

        q, k, v, out = (
            part(batch, heads, 1, head),
            *(part(batch, groups, 1, head) for _ in "kv"),
            part(batch, heads, 1, head),
        )
        cos, sin = (part(draw.choice((1, batch)), head) for _ in range(2))
        keys, values = (part(batch, groups, rows, head) for _ in range(2))
        norms = [part(head) if draw.random() < 0.5 else None] * 2
        call = TurnedCall(q, k, v, cos, sin, keys, values, torch.tensor([0]), *norms)
        results = [launcher.turned(*call[:-1], out, 1e-6) for launcher in (compiled, plain)]
        assert results[0] == results[1] or None not in results, (call, results)
        assert (results[0] is None) == (read_turned(call, out, "cpu") is None)
        served = results[0] is not None
        counts["served" if served else "refused"] += 1
        others = [*call[:7], out, *(norm for norm in norms[:1] if norm is not None)]
        for n, written in ((5, keys), (6, values), (7, out)):
            rest = [t for i, t in enumerate(others) if i != n]
            assert not served or apart(written, rest)
    assert min(counts.values()) > 20, counts


class Rotary(nn.Module):
    """A decoder's first half: keys and values of the token go into a cache, queries and keys are turned.

    Args:
        late: heads are moved ahead behind the embedding.
        how: the embedding.
    """

    def __init__(
        self,
        batch: int = 3,
        heads: int = 4,
        groups: int = 2,
        head: int = 64,
        late: bool = False,
        how: Any = turned,
    ) -> None:
        super().__init__()
        self.sizes, self.head, self.late, self.how = [heads, groups, groups], head, late, how
        self.norm = nn.RMSNorm(64, eps=1e-5)
        self.qkv = nn.Linear(64, sum(self.sizes) * head, bias=False)
        self.o = nn.Linear(heads * head, 64, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(batch, groups, 24, head))

    def forward(self, x: Any, last: Any, cos: Any, sin: Any) -> Any:
        found = self.qkv(self.norm(x)).view(len(x), 1, -1, self.head).split(self.sizes, 2)
        if self.late:
            q, k, v = (
                t.transpose(1, 2)
                for t in (self.how(found[0], cos, sin), self.how(found[1], cos, sin), found[2])
            )
        else:
            q, k, v = (t.transpose(1, 2) for t in found)
            q, k = self.how(q, cos, sin), self.how(k, cos, sin)
        return x + self.o(self.attend(q, k, v, last).transpose(1, 2).reshape(len(x), 1, -1))

    def attend(self, q: Any, k: Any, v: Any, last: Any) -> Any:
        k, v = self.keys.index_copy_(2, last, k), self.values.index_copy_(2, last, v)
        return attend(q, k, v, enable_gqa=True)


class Layers(nn.Sequential):
    """Layers with caches of their own."""

    def forward(self, x: Any, *given: Any) -> Any:
        for layer in self:
            x = layer(x, *given)
        return x


class Normed(Rotary):
    """Each head is normalised first; `other`: k's eps is another."""

    def __init__(self, late: bool = False, spelled: bool = False, other: bool = False) -> None:
        super().__init__(late=late)
        self.q_norm, self.k_norm = (
            Spelled(64) if spelled else nn.RMSNorm(64, eps=eps) for eps in (1e-5, 1e-3 if other else 1e-5)
        )

    def forward(self, x: Any, last: Any, cos: Any, sin: Any) -> Any:
        q, k, v = self.qkv(x).view(len(x), 1, -1, self.head).split(self.sizes, 2)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.late:
            q, k = turned(q, cos, sin), turned(k, cos, sin)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if not self.late:
            q, k = turned(q, cos, sin), turned(k, cos, sin)
        return x + self.o(self.attend(q, k, v, last).transpose(1, 2).reshape(len(x), 1, -1))


class Reads(Rotary):
    """The cache is read once more."""

    def attend(self, q: Any, k: Any, v: Any, last: Any) -> Any:
        before = self.keys.sum()
        return super().attend(q, k, v, last) + before * 0


class Twice(Rotary):
    """Two rows are written, the second one as it is."""

    def attend(self, q: Any, k: Any, v: Any, last: Any) -> Any:
        self.keys.index_copy_(2, last + 1, v)
        return super().attend(q, k, v, last)


class One(Rotary):
    """A cache that is read as keys and as values."""

    def attend(self, q: Any, k: Any, v: Any, last: Any) -> Any:
        keys = self.keys.index_copy_(2, last, k)
        return attend(q, keys, keys, enable_gqa=True)


class Elsewhere(Rotary):
    """Keys and values go to different rows."""

    def attend(self, q: Any, k: Any, v: Any, last: Any) -> Any:
        k, v = self.keys.index_copy_(2, last, k), self.values.index_copy_(2, last + 1, v)
        return attend(q, k, v, enable_gqa=True)


class Returned(Rotary):
    """What is written is a result, too."""

    def attend(self, q: Any, k: Any, v: Any, last: Any) -> Any:
        k, v = self.keys.index_copy(2, last, k), self.values.index_copy(2, last, v)
        return attend(q, k, v, enable_gqa=True) + k[:, :1, -1:].mean() * 0


class Fresh(Rotary):
    """The caches stay as they are."""

    def attend(self, q: Any, k: Any, v: Any, last: Any) -> Any:
        return attend(
            q, self.keys.index_copy(2, last, k), self.values.index_copy(2, last, v), enable_gqa=True
        )


class Odd(Rotary):
    """Queries begin anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 8 * 72, bias=False)

    def forward(self, x: Any, last: Any, cos: Any, sin: Any) -> Any:
        lines = self.qkv(self.norm(x)).view(len(x), 1, -1, 72)
        q, k, v = (t.transpose(1, 2) for t in lines[..., 1:65].split(self.sizes, 2))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        return x + self.o(self.attend(q, k, v, last).transpose(1, 2).reshape(len(x), 1, -1))


class Straight(Rotary):
    """Halves are not changed for each other."""

    def forward(self, x: Any, last: Any, cos: Any, sin: Any) -> Any:
        q, k, v = (
            t.transpose(1, 2)
            for t in self.qkv(self.norm(x)).view(len(x), 1, -1, self.head).split(self.sizes, 2)
        )
        left, right = q.chunk(2, dim=-1)
        q = q * cos + torch.cat((-left, right), dim=-1) * sin
        return x + self.o(self.attend(q, turned(k, cos, sin), v, last).transpose(1, 2).reshape(len(x), 1, -1))


def ran(made: Any, *given: Any, graphs: list[Any], program: bool = False) -> int:
    """How many launches a compiled model's graph has for them; results and caches are right, three times."""
    made = made.requires_grad_(False)
    double = copy.deepcopy(made).double()
    torch._dynamo.reset()
    graphs.clear()
    backend = {} if program else {"backend": graph_alone.backend}
    compiled = torch.compile(sassafras.accelerate(made), fullgraph=True, dynamic=False, **backend)
    both = zip(made.modules(), double.modules(), strict=True)
    pairs = [(layer, kept) for layer, kept in both if isinstance(layer, Rotary)]
    caches = [(getattr(a, name), getattr(b, name)) for a, b in pairs for name in ("keys", "values")]
    x, last, *angles = given
    for step in range(3):
        wanted = double(x.double(), last + step, *(a.double() for a in angles))
        assert close(compiled(x, last + step, *angles), wanted), room.status()["problems"]
        assert all(close(a, b) for a, b in caches), step
    return sum("auto_functionalized" in str(n.target) or n.target is ours.default for n in graphs[-1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("late", [False, True])
def test_compiled_models_turn_in_one_launch(
    early: Planner, library: Path, graphs: list[Any], late: bool, dtype: Any
) -> None:
    """The caches are written where they lie; nothing is copied."""
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(1)
    made = Rotary(late=late).to(dtype)
    x, last = half(3, 1, 64, dtype=dtype), torch.tensor([5])
    for shape in ((1, 1, 64), (3, 1, 1, 64)):
        angles = angled(*shape, dtype=dtype)
        before = launches(library)
        assert ran(copy.deepcopy(made), x, last, *angles, graphs=graphs, program=True) == 1
        assert launches(library) == before + 3 * 3, "that, attention and the layer behind it, three times"
    torch._dynamo.reset()
    compiled = torch.compile(sassafras.accelerate(made.requires_grad_(False)), fullgraph=True, dynamic=False)
    kept = made.keys
    _, (code, *_) = run_and_get_code(compiled, x, last, *angles)
    assert code.count("torch.ops.sassafras.turned.default(") == 1 and "aten.clone" not in code
    assert "index_put" not in code.partition("def call")[2] and made.keys is kept
    (listed, *_) = [r for r in room.status()["rows"] if r["what"] == "turned"]
    assert listed["shape"] == "3x4x24"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("late", "spelled", "other"),
    [(False, False, False), (True, False, False), (False, True, False), (False, False, True)],
)
def test_norms_of_heads_are_taken_in(
    early: Planner, library: Path, graphs: list[Any], late: bool, spelled: bool, other: bool, dtype: Any
) -> None:
    """Where both have one eps."""
    torch.manual_seed(1)
    given = half(3, 1, 64, dtype=dtype), torch.tensor([5]), *angled(1, 1, 64, dtype=dtype)
    made, before = Normed(late, spelled, other).to(dtype), launches(library)
    for norm in (made.q_norm, made.k_norm):
        norm.weight.data = half(64, seed=7, dtype=dtype)
    assert ran(made, *given, graphs=graphs) == 1 and launches(library) == before + 3 * 3
    assert sum("rsqrt" in str(n.target) for n in graphs[-1] if n.users) == 2 * other


def test_what_is_left_as_it_is(early: Planner, graphs: list[Any]) -> None:
    torch.manual_seed(2)
    x, last, angles = half(3, 1, 64), torch.tensor([5]), angled(1, 1, 64)
    assert ran(Rotary().half(), x, last, *angles, graphs=graphs) == 1
    assert ran(Layers(Rotary(), Rotary(late=True)).half(), x, last, *angles, graphs=graphs) == 2
    for kind in (Reads, Twice, One, Elsewhere, Returned, Fresh, Odd, Straight):
        assert ran(kind().half(), x, last, *angles, graphs=graphs) == 0, kind
    narrow = [a[..., :32] for a in angles]
    assert ran(Rotary(head=32).half(), x, last, *narrow, graphs=graphs) == 0, "no kernel has such heads"
    each = angled(4, 1, 64)
    assert ran(Rotary(groups=4).half(), x, last, *each, graphs=graphs) == 0, (
        "heads turn by angles of their own"
    )


@pytest.fixture
def halving() -> Iterator[Any]:
    """Another's operator, which takes its tensor by name: the halves of its last extent."""
    library = torch.library.Library("sassafras_tests", "FRAGMENT")
    library.define("halves(*, Tensor x) -> (Tensor, Tensor)")

    def apart(*, x: Any) -> Any:
        return tuple(part.clone() for part in x.chunk(2, dim=-1))

    library.impl("halves", apart, "CompositeExplicitAutograd")
    yield torch.ops.sassafras_tests.halves
    library._destroy()


def test_how_halves_are_taken(early: Planner, graphs: list[Any], halving: Any) -> None:
    torch.manual_seed(4)
    x, last, angles = half(3, 1, 64), torch.tensor([5]), angled(1, 1, 64)
    for halves, turns in (
        (lambda x: (x[..., :32], x[..., 32:]), 1),
        (lambda x: (x[..., :-32], x[..., -32:]), 1),
        (lambda x: x.split([32, 32], -1), 1),
        (lambda x: (x[..., :16], x[..., 16:]), 0),
        (lambda x: x.unflatten(-1, (32, 2)).unbind(-1), 0),
        (lambda x: halving(x=x), 0),
    ):

        def how(x: Any, cos: Any, sin: Any, halves: Any = halves) -> Any:
            left, right = halves(x)
            return x * cos + torch.cat((-right, left), dim=-1) * sin

        assert ran(Rotary(how=how).half(), x, last, *angles, graphs=graphs) == turns


def test_angles_of_queries_and_keys(early: Planner, graphs: list[Any]) -> None:
    """A function of one tensor is called twice, with what it makes of its angles, and of the row's number."""
    torch.manual_seed(5)
    x, last, (cos, sin) = half(3, 1, 64), torch.tensor([5]), angled(1, 1, 2, 64)
    wide = cos.float(), sin.float()

    class Apart(Rotary):
        def attend(self, q: Any, k: Any, v: Any, last: Any) -> Any:
            self.keys[:, :, last.view(1, 1)[0]] = k
            self.values[:, :, last.view(1, 1)[0]] = v
            return attend(q, self.keys, self.values, enable_gqa=True)

    def first(x: Any, cos: Any, sin: Any) -> Any:
        return turned(x, cos[:, :, :1].to(x.dtype), sin[:, :, :1].to(x.dtype))

    def other(x: Any, cos: Any, sin: Any) -> Any:  # keys have fewer heads
        at = slice(int(x.shape[1] == 2), None, 2)
        return turned(x, cos[:, :, at].to(x.dtype), sin[:, :, at].to(x.dtype))

    for how, turns in ((first, 1), (other, 0)):
        assert ran(Apart(how=how).half(), x, last, *wide, graphs=graphs) == turns


def test_exported_models_turn(early: Planner, library: Path, graphs: list[Any], tmp_path: Path) -> None:
    """The caches are buffers of the program."""
    torch.manual_seed(6)
    made = Layers(Rotary(), Rotary()).half().requires_grad_(False)
    double = copy.deepcopy(made).double()
    x, last, angles = half(3, 1, 64), torch.tensor([5]), angled(1, 64)
    exported = torch.export.export(sassafras.accelerate(made), (x, last, *angles))
    path = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "made.pt2"))
    program = torch._inductor.aoti_load_package(path)
    for step in range(2):
        before, wanted = launches(library), double(x.double(), last + step, *(a.double() for a in angles))
        assert close(program(x, last + step, *angles), wanted)
        assert launches(library) >= before + 2 * 3, "those, attention, layers"
    assert sum("auto_functionalized" in str(node.target) for node in graphs[-1]) == 2


class Projected(Rotary):
    """Queries, keys and values are products of their own, or queries alone are."""

    def __init__(self, pair: bool) -> None:
        super().__init__()
        self.sizes = [4, 4] if pair else self.sizes
        self.parts = nn.ModuleList(nn.Linear(64, 64 * heads, bias=False) for heads in self.sizes)

    def forward(self, x: Any, last: Any, *angles: Any) -> Any:
        lines = self.norm(x)
        q, *others = (part(lines).view(len(x), 1, -1, 64) for part in self.parts)
        k, v = others if len(others) == 2 else others[0].view(len(x), 1, 2, 2, 64).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = turned(q, *angles), turned(k, *angles)
        return x + self.o(self.attend(q, k, v, last).transpose(1, 2).reshape(len(x), 1, -1))


@pytest.mark.parametrize("pair", [False, True])
def test_parts_of_joined_products_are_not_copied(early: Planner, graphs: list[Any], pair: bool) -> None:
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(7)
    made = Layers(Projected(pair), Projected(pair)).half().requires_grad_(False)
    compiled = torch.compile(sassafras.accelerate(made), fullgraph=True, dynamic=False)
    double = copy.deepcopy(made).double()
    given = half(3, 1, 64), torch.tensor([5]), *angled(1, 1, 64)
    wanted = double(*(t.double() if t.is_floating_point() else t for t in given))
    result, (code, *_) = run_and_get_code(compiled, *given)
    assert close(result, wanted) and close(made[1].values, double[1].values)
    _, asked = [line for line in code.splitlines() if "torch.ops.sassafras.turned.default(" in line]
    (product,) = re.findall(r"torch.ops.sassafras.joined.into\(.* out=(buf\d+)\)", code)
    assert asked.count(f"reinterpret_tensor({product}, (3, ") == 3


@pytest.mark.parametrize("kind", [Rotary, Straight])
def test_parts_of_longer_caches_are_not_copied(early: Planner, graphs: list[Any], kind: Any) -> None:
    """Behind rows of torch's neither; attention that could not read them where they lie is torch's."""
    from torch._inductor.utils import run_and_get_code

    for gap, attends in ((16, 1), (16 + 1 / 16, 0)):
        made = kind().half().requires_grad_(False)
        for name in ("keys", "values"):
            memory = half(3, 2, int(64 * (24 + gap)))
            setattr(made, name, memory[..., : 24 * 64].view(3, 2, 24, 64))
        torch._dynamo.reset()
        compiled = torch.compile(sassafras.accelerate(made), fullgraph=True, dynamic=False)
        double = copy.deepcopy(made).double()
        given = half(3, 1, 64), torch.tensor([5]), *angled(1, 1, 64)
        wanted = double(*(t.double() if t.is_floating_point() else t for t in given))
        result, (code, *_) = run_and_get_code(compiled, *given)
        assert close(result, wanted) and close(made.keys, double.keys)
        assert code.count("torch.ops.sassafras.attention.into(") == attends
        assert "_cpu((3, 2, 24, 64)" not in code


def test_caches_that_share_memory_are_not_copied(early: Planner, graphs: list[Any]) -> None:
    """Of two inputs in one memory Inductor lets an operator write one where it lies, and copies both then."""
    torch.manual_seed(3)
    x, last, angles = half(3, 1, 64), torch.tensor([5]), angled(1, 1, 64)
    for turns in (2, 0):
        made, memory = Layers(Rotary(), Rotary()).half(), [torch.randn(2, 3, 2, 24, 64).half() for _ in "12"]
        for layer, caches in zip(made, zip(*memory, strict=True) if turns else memory, strict=True):
            layer.keys, layer.values = caches
        assert ran(made, x, last, *angles, graphs=graphs) == turns
