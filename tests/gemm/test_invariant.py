"""Batch invariance without a GPU: where kernels cut k, which of them may serve, the calls on host memory.

The engine runs on the stand-in for the CUDA driver, as in `test_matmul`.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.core import SassafrasError  # noqa: E402
from sassafras.gemm.configs import few_rows, registry  # noqa: E402
from sassafras.gemm.configs.base import cuts_at  # noqa: E402
from sassafras.gemm.configs.names import parse  # noqa: E402
from sassafras.gemm.configs.rows import RMS_NORM  # noqa: E402
from sassafras.gemm.matmul import api, planner, rows_op  # noqa: E402
from sassafras.gemm.matmul import batch_invariant as context  # noqa: E402
from sassafras.gemm.matmul import invariant as room  # noqa: E402
from sassafras.gemm.matmul.choice import chooser_of  # noqa: E402
from sassafras.gemm.matmul.driver import Driver  # noqa: E402
from sassafras.gemm.matmul.loading import load_table  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
from sassafras.gemm.matmul.torch_side import strict  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402
from sassafras.gemm.select import invariant  # noqa: E402
from sassafras.gemm.select.table import TunedTable  # noqa: E402
from tests.gemm import stand_in  # noqa: E402

functional = torch.nn.functional
#: (n, k) of layers of Qwen3 and Llama models
LAYERS = (
    (6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (28672, 4096), (4096, 14336), (10240, 8192),
    (8192, 8192), (57344, 8192), (8192, 28672), (4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072),
    (4096, 2048), (2048, 2048), (12288, 2048), (2048, 6144), (6144, 2560), (2560, 4096), (19456, 2560),
    (2560, 9728), (5120, 17408), (2048, 8192), (3072, 8192), (1024, 8192),
)  # fmt: skip
COUNTS = (1, 2, 3, 8, 9, 16, 17, 33, 64, 65, 100, 128, 200, 256, 333, 512, 1000, 2048, 4096)


# -- classes ----------------------------------------------------------------------------------------------


def test_cuts_are_where_the_kernels_begin_their_ranges() -> None:
    """Against what a launch tells the kernel: CTA or part i begins at stage i * tiles_per_slice."""
    rng, seen = np.random.default_rng(3), set()
    every = (*registry.configurations(), *registry.other_configurations())
    for config in (*every, *registry.epilogue_configurations()):
        shape = Shape(*(8 * int(rng.integers(1, most)) for most in (16, 64, 900)))
        if config.why_illegal(shape):
            continue
        cuts, scalars = config.cuts(shape), config.launch(shape).scalars
        if config.FAMILY in ("small", "stream"):
            assert cuts is None
        elif config.FAMILY in ("persistent", "persistent_pair"):
            assert cuts == ()
        else:
            tiles = scalars["range" if config.FAMILY == "persistent_folded" else "tiles_per_slice"]
            each = 64 * getattr(config.instance, "k_blocks", 1) * tiles
            assert cuts == tuple(range(each, shape.k, each))  # empty ranges add zeros
            assert len(cuts) + 1 == config.ranges or config.FAMILY == "fallback"
            seen.add((config.FAMILY, config.ranges > 1))
    assert len(seen) == 11, seen  # folds and two passes always cut


def test_two_blocks_a_stage_may_cut_elsewhere() -> None:
    one, two = parse("split_k_tn_64x32_s8q1/c4"), parse("split_k_tn_64x32_s4q2/c4")
    assert one.cuts(Shape(8, 64, 4096)) == two.cuts(Shape(8, 64, 4096)) == (1024, 2048, 3072)
    assert one.cuts(Shape(8, 64, 3136)) == (832, 1664, 2496)
    assert two.cuts(Shape(8, 64, 3136)) == (896, 1792, 2688)
    assert cuts_at(100, 4, 64) == (64,) and cuts_at(64, 1, 64) == ()


def test_the_cuts_follow_from_n_and_k_alone() -> None:
    found = {(n, k): invariant.ranges_of(n, k) for n, k in LAYERS}
    assert {found[at] for at in ((4096, 14336), (6144, 1024), (2048, 2048))} == {1}
    assert found[1024, 2048] == found[2560, 9728] == 4 and found[1024, 8192] == 8


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_no_number_of_rows_leaves_the_class(dtype: str) -> None:
    """Of each layer every other number of rows in FP16, the others in BF16."""
    table = load_table("NVIDIA H200")
    assert table is not None
    chooser, kinds = chooser_of("NVIDIA H200", table, None), set()
    for turn, (n, k) in enumerate(LAYERS):
        for m in COUNTS[(turn + (dtype == "bf16")) % 2 :: 2]:
            shape = Shape(m, n, k)
            for layout, epilogue in (("tn", False), ("nn", m > 64), ("tn", True))[: 3 if m % 8 else 2]:
                config = invariant.choose(
                    chooser,
                    shape,
                    layout,
                    dtype,
                    lambda c, shape=shape: c.why_illegal(shape) is None,
                    epilogue=epilogue,
                )
                assert config is not None, (shape, layout, epilogue)
                assert config.cuts(shape) == invariant.cuts_of(n, k) and config.why_illegal(shape) is None
                assert (config.layout, config.dtype) == (layout, dtype)
                assert config.instance.epilogue == epilogue
                kinds.add(config.FAMILY)
    wanted = {"split_k", "persistent", "split_k_folded"}
    assert wanted <= kinds <= set(registry.KERNELS) - {"small", "stream"}


def test_a_fold_of_many_tiles_is_the_persistent_kernels() -> None:
    table = load_table("NVIDIA H200")
    assert table is not None
    chooser, found = chooser_of("NVIDIA H200", table, None), {}
    for m, n, k in ((512, 2048, 6144), (4096, 2048, 6144), (1024, 2560, 9728), (4096, 1024, 2048)):
        shape = Shape(m, n, k)
        for given in (chooser, None):  # and where estimates decide

            def legal(config: registry.Config, shape: Shape = shape) -> bool:
                return config.why_illegal(shape) is None

            config = invariant.choose(given, shape, "tn", "bf16", legal)
            assert config is not None
            found[m, n, given is None] = config
    kinds = {at: config.FAMILY for at, config in found.items()}
    assert kinds[512, 2048, False] == kinds[512, 2048, True] == "split_k_folded"
    assert {kind for at, kind in kinds.items() if at[0] == 4096} == {"persistent_folded"}
    assert found[1024, 2560, False].tile == found[1024, 2560, True].tile == (128, 160)  # in one wave
    short = parse("persistent_folded_tn_128x128_co2s6b2c1x1l4/f8g4")
    assert "none empty" in (short.why_illegal(Shape(8, 8, 512 + 64)) or "")  # 9 k tiles in 8 ranges
    assert short.why_illegal(Shape(8, 8, 512)) is None


def test_few_rows_of_a_large_layer_have_the_tile_that_reads_it_fastest() -> None:
    table = load_table("NVIDIA H200")
    assert table is not None
    chooser, shape = chooser_of("NVIDIA H200", table, None), Shape(16, 28672, 4096)

    def served(shape: Shape) -> str:
        config = invariant.choose(chooser, shape, "tn", "bf16", lambda c: c.why_illegal(shape) is None)
        assert config is not None and config.cuts(shape) == invariant.cuts_of(shape.n, shape.k)
        return str(config.name)

    # that of the call without the mode; its cost model has no word on k in ranges, nor on 8 rows or 65
    assert served(shape).replace("bf16_", "") == f"{few_rows.best(shape)[0].name}"
    assert "q2" not in "".join(map(served, (Shape(65, 28672, 4096), Shape(16, 1024, 2048))))


# -- calls ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    return stand_in.build_driver(tmp_path_factory.mktemp("driver"), shared)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    return stand_in.launcher_into(tmp_path_factory.mktemp("cache"), shared)


@pytest.fixture(params=["compiled", "python"])
def engine(
    request: pytest.FixtureRequest, library: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[room.InvariantPlanner]:
    """Cubins are what the stand-in believes: no compiler runs."""
    monkeypatch.setattr(planner, "cubin", lambda instance, cache: b"\x7fELF")
    monkeypatch.setattr(context, "_KEY", "CPU")
    refused = {"matmul": room._refused, "linear": room._refused, "mm": room._refused}
    driver, side = Driver(str(library)), stand_in.torch_side(**refused)
    made = room.InvariantPlanner(driver, side, cache=cache, background=False)
    if request.param == "python":
        made.launcher = stand_in.make("python", driver, side, cache)
    room.use(made, device="cpu")
    yield made
    room.use(None)


def random(*shape: int, dtype: Any = torch.float16, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(result: Any, exact: Any) -> bool:
    unit = {torch.float16: 4e-3, torch.bfloat16: 3e-2}[result.dtype]
    exact = exact.double()
    return result.shape == exact.shape and bool(((result - exact).abs() <= unit * (1 + exact.abs())).all())


def chosen(engine: room.InvariantPlanner) -> list[str]:
    return [c.config.name for c in engine.served.values() if c.config]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_any_extents_and_strides(engine: room.InvariantPlanner, dtype: Any) -> None:
    for m, n, k in ((5, 48, 72), (1, 64, 64), (7, 33, 65), (9, 1, 136), (130, 40, 8), (3, 5, 1)):
        a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
        gaps = torch.zeros(m, k + 3, dtype=dtype)[:, :k].copy_(a)
        for left in (a, a.t().contiguous().t(), gaps):
            for right in (b, b.t().contiguous().t(), b.expand(1, -1, -1)):
                got = sassafras.matmul(left, right, invariant=True)
                assert close(got, left.double() @ right.double()), (m, n, k, left.stride(), right.stride())
    wanted = {(p.n, p.k): invariant.ranges_of(p.n, p.k) for p in engine.served}
    assert all(c.config is None or c.config.ranges == wanted[p.n, p.k] for p, c in engine.served.items())
    names = " ".join(chosen(engine))
    assert "fallback" in names and "unaligned" in names and "small" not in names


def test_leading_extents_vectors_and_out(engine: room.InvariantPlanner, library: Path) -> None:
    a, b = random(2, 3, 5, 64), random(64, 48, seed=1)
    exact = a.double() @ b.double()
    assert close(sassafras.matmul(a, b, invariant=True), exact)
    assert close(sassafras.matmul(a.transpose(0, 2), b, invariant=True), exact.transpose(0, 2))
    batch = random(3, 64, 16, seed=2)
    assert close(sassafras.matmul(a, batch, invariant=True), a.double() @ batch.double())
    assert close(sassafras.matmul(a[0, 0, 0], b, invariant=True), exact[0, 0, 0])
    assert close(sassafras.matmul(a[0, 0], b[:, 0], invariant=True), exact[0, 0, :, 0])
    assert close(sassafras.matmul(a[0, 0, 0], b[:, 0], invariant=True), exact[0, 0, 0, 0])
    before = stand_in.state_of(library).launches
    for out in (torch.empty(5, 48).half(), torch.empty(48, 5).half().t(), torch.empty(5, 96).half()[:, ::2]):
        assert sassafras.matmul(a[0, 0], b, out=out, invariant=True) is out and close(out, exact[0, 0])
    assert stand_in.state_of(library).launches == before + 3
    old = random(5, 48, seed=3)
    out, wanted = old.clone(), old.double() + exact[0, 0]
    assert sassafras.matmul(a[0, 0], b, out=out, beta=1.0, invariant=True) is out and close(out, wanted)
    out = old.clone()
    sassafras.matmul(a[0, 0], b, out=out, beta=0.5, alpha=2.0, invariant=True)
    assert close(out, 0.5 * old.double() + 2 * exact[0, 0])


def test_epilogues_and_gradients(engine: room.InvariantPlanner) -> None:
    x, w, bias = random(6, 64), random(48, 64, seed=1), random(48, seed=2)
    residual = random(6, 48, seed=3)
    for activation in (None, "relu", "gelu", "gelu_tanh", "silu", "swiglu"):
        added = None if activation == "swiglu" else residual
        given = [t.clone().requires_grad_() for t in (x, w, bias)]
        kept = [t.double().requires_grad_() for t in (x, w, bias)]
        got = sassafras.linear(*given, activation, added, invariant=True)
        value = functional.linear(*kept)
        value = value if added is None else value + added.double()
        if activation == "swiglu":
            wanted = functional.silu(value[:, :24]) * value[:, 24:]
        else:
            wanted = room.activated(value, activation)
        assert close(got.detach(), wanted.detach()), activation
        got.sum().backward()
        wanted.sum().backward()
        assert all(
            torch.allclose(p.grad.double(), q.grad, rtol=0.02, atol=0.1)
            for p, q in zip(given, kept, strict=True)
        )


@pytest.mark.parametrize("n", [1, 3])
def test_a_head_of_one_output_has_a_bias(engine: room.InvariantPlanner, n: int) -> None:
    """Kernels that multiply a pair of halves have none to read there."""
    for m in (1, 4, 33):
        x, w, bias = random(m, 64), random(n, 64, seed=1), random(n, seed=2)
        wanted = functional.linear(x.double(), w.double(), bias.double())
        assert close(sassafras.linear(x, w, bias, invariant=True), wanted)
        with sassafras.batch_invariant():
            assert close(functional.linear(x, w, bias), wanted)


def test_compiled_and_autocast(engine: room.InvariantPlanner, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = random(6, 64), random(48, 64, seed=1)
    call = torch.compile(
        lambda x, w: sassafras.linear(x, w, invariant=True) + 1, backend="aot_eager", fullgraph=True
    )
    eager = sassafras.linear(x, w, invariant=True) + 1
    assert torch.equal(call(x, w), eager)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sassafras.linear(x.float(), w.float(), invariant=True).dtype == torch.bfloat16


def test_what_is_refused(engine: room.InvariantPlanner, library: Path) -> None:
    x = random(8, 64)
    for a, b, what in (
        (x.float(), x.t().float(), "FP16 or BF16"),
        (x, x.t().bfloat16(), "FP16 or BF16"),
        (x.to("meta"), x.t().to("meta"), "a tensor is on meta"),
        (x, None, "b is no tensor"),
    ):
        with pytest.raises((SassafrasError, TypeError), match=what):
            sassafras.matmul(a, b, invariant=True)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        sassafras.matmul(x, x, invariant=True)
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        out = torch.empty(8, 8).half()
        sassafras.matmul(x.clone().requires_grad_(), x.t(), out=out, invariant=True)
    with pytest.raises(SassafrasError, match="a matrix"):
        sassafras.linear(x, x[0], invariant=True)
    assert sassafras.matmul(x[:0], x.t(), invariant=True).shape == (0, 8)
    state = stand_in.state_of(library)
    state.fail = 1
    try:
        with pytest.warns(RuntimeWarning), pytest.raises(SassafrasError, match="no other sums alike"):
            sassafras.matmul(x, x.t(), invariant=True)
    finally:
        state.fail = 0


def test_another_gpu_has_no_kernels(engine: room.InvariantPlanner) -> None:
    engine.gpu(0).chooser, engine.gpu(0).why_not = None, "our kernels are for sm_90"
    with pytest.raises(SassafrasError, match="sm_90"):
        sassafras.matmul(random(24, 64), random(64, 24), invariant=True)


# -- torch's operators ------------------------------------------------------------------------------------


def test_the_context_replaces_torchs_products(engine: room.InvariantPlanner, library: Path) -> None:
    x, w, b = random(3, 5, 64), random(48, 64, seed=1), random(48, seed=2)
    calls = (
        lambda: functional.linear(x, w, b),
        lambda: functional.linear(x, w),
        lambda: x @ w.t(),
        lambda: torch.bmm(x, x.mT),
        lambda: torch.baddbmm(x[:, :, :5], x, x.mT, beta=0.5, alpha=2),
        lambda: torch.addmm(b, x[0], w.t()),
        lambda: torch.addmm(x[0, :, :48], x[0], w.t()),
        lambda: torch.addmm(b, x[0], w.t(), beta=0),
        lambda: torch.mm(x[0], w.t(), out=torch.empty(5, 48).half()),
        lambda: torch.mv(x[0], w[0]),
        lambda: torch.zeros(5, 48).half().addmm_(x[0], w.t()),
        lambda: torch.einsum("bik,nk->bin", x, w),
    )
    wanted = [call() for call in calls]
    before = stand_in.state_of(library).launches
    with sassafras.batch_invariant():
        got = [call() for call in calls]
    assert stand_in.state_of(library).launches >= before + len(calls)
    for at, (one, other) in enumerate(zip(got, wanted, strict=True)):
        assert close(one, other), at
    before = stand_in.state_of(library).launches
    assert torch.equal(calls[2](), wanted[2]) and stand_in.state_of(library).launches == before


def test_the_context_nests_and_leaves_torch_as_it_was(engine: room.InvariantPlanner, library: Path) -> None:
    state, x = stand_in.state_of(library), random(8, 64)

    def ours() -> bool:
        before = state.launches
        torch.mm(x, x.t())
        return bool(state.launches > before)

    assert not ours()
    with pytest.raises(KeyError), sassafras.batch_invariant(), sassafras.batch_invariant():
        assert ours()
        raise KeyError
    assert not ours()
    entered, leave, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        with sassafras.batch_invariant():
            entered.set()
            leave.wait(30)
            seen.append(ours())

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(30)
    with sassafras.batch_invariant():
        assert ours()
    assert ours(), "another thread is within"
    leave.set()
    thread.join()
    assert seen == [True] and not ours()


@pytest.fixture(params=["compiled", "python"])
def ordinary(request: pytest.FixtureRequest, library: Path, cache: Path) -> Iterator[Planner]:
    """What serves calls that do not ask for `invariant`, whatever it is fast at."""
    driver, side = Driver(str(library)), stand_in.torch_side(strict=strict)
    made = Planner(driver, side, cache=cache, background=False, table=TunedTable({"gpu": "NVIDIA H200"}, []))
    made._stored = lambda instance: b"\x7fELF"  # type: ignore[method-assign]
    made.everything = True
    if request.param == "python":
        made.launcher = stand_in.make("python", driver, side, cache)
    api.use(made, device="cpu")
    yield made
    api.use(None)


def test_products_of_ours_are_torchs_within_the_context(
    engine: room.InvariantPlanner, ordinary: Planner
) -> None:
    x, w, bias = random(4, 64), random(48, 64, seed=1), random(48, seed=2)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48, bias=False)).half().requires_grad_(False)
    model[0].weight.copy_(w)
    layer = sassafras.accelerate(model)
    calls = (
        lambda: sassafras.matmul(x, w.t()),
        lambda: sassafras.matmul(x, w.t(), bias=bias, activation="relu"),
        lambda: sassafras.linear(x, w),
        lambda: layer(x),
        lambda: torch.ops.sassafras.mm(x, w.t()),
        lambda: torch.ops.sassafras.layer(x, w.t(), None, bias),
    )

    def ours() -> int:
        return int(ordinary.launcher.counts()["ours"])

    def launched() -> list[int]:
        counts = [ours()]
        for call in calls:
            call()
            counts.append(ours())
        return [after - before for before, after in itertools.pairwise(counts)]

    launched()  # plans are made
    assert launched() == [1] * len(calls)
    wanted = sassafras.matmul(x, w.t(), invariant=True)
    with sassafras.batch_invariant():
        assert launched() == [0] * len(calls)
        for at in (0, 2, 3, 4):
            assert torch.equal(calls[at](), wanted), at
        out = torch.empty_like(x)
        assert not rows_op._launched(RMS_NORM, x, random(64), None, out, 1e-6, False)
        api.use(ordinary, device="cpu")  # an engine that comes meanwhile waits
        assert launched() == [0] * len(calls)
    assert launched() == [1] * len(calls)


def test_the_context_refuses_types_without_a_kernel(engine: room.InvariantPlanner) -> None:
    x = torch.ones(4, 4, dtype=torch.float64)
    with sassafras.batch_invariant():
        for call in (lambda: x @ x, lambda: x.mean(0), lambda: torch.log_softmax(x, 0)):
            with pytest.raises(SassafrasError, match="no invariant"):
                call()
        assert torch.equal(torch.mm(x[:, :0], x[:0]), torch.zeros_like(x))
    assert float(x.mean()) == 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_context_refuses_what_torch_refuses(engine: room.InvariantPlanner, dtype: Any) -> None:
    """A kernel would read past the end of an operand, or give the result of other dimensions."""
    a, b, none = random(4, 8, dtype=dtype), random(16, 5, dtype=dtype), random(0, 4, dtype=dtype)
    fits, row = random(8, 5, dtype=dtype), random(8, dtype=dtype)
    calls = (
        lambda: torch.mm(a, b),
        lambda: torch.mm(a[None], fits),
        lambda: torch.mm(a[:, :0], b),
        lambda: torch.bmm(a[None], b[None]),
        lambda: torch.bmm(a.expand(2, 4, 8), fits[None]),
        lambda: torch.mv(b, row),
        lambda: torch.addmm(row[:5], a, b),
        lambda: torch.addmm(random(3, 4, 5, dtype=dtype), a, fits),
        lambda: torch.addmm(row[:5].double(), a, fits),
        lambda: torch.mm(a[:0], fits, out=torch.empty(0, 5).double()),
        lambda: none.mean(2),
        lambda: none.mean((1, -1)),
    )
    for at, call in enumerate(calls):
        with pytest.raises((RuntimeError, IndexError)) as wanted:
            call()
        with sassafras.batch_invariant(), pytest.raises((RuntimeError, IndexError)) as found:
            call()
        assert found.type is wanted.type, at
        known = ("multiplied", "expand", "type", "out is", "Dimension", "times")
        assert any(word in str(found.value) for word in known), (at, found.value)
    with sassafras.batch_invariant():
        assert random(1, dtype=dtype)[0].mean(0).shape == ()


def test_the_context_writes_a_mean_in_another_type_as_torch_does(engine: room.InvariantPlanner) -> None:
    x = random(1)[0]  # takes no kernel
    for kind in (torch.float16, torch.float32, torch.float64):
        wanted = torch.mean(x, 0, out=torch.empty((), dtype=kind))
        with sassafras.batch_invariant():
            found = torch.mean(x, 0, out=torch.empty((), dtype=kind))
        assert found.dtype == kind and torch.allclose(found, wanted, atol=1e-3)
    for within in (contextlib.nullcontext(), sassafras.batch_invariant()):
        with within, pytest.raises(RuntimeError):
            torch.mean(x, 0, out=torch.empty((), dtype=torch.int64))


def test_gradients_within_the_context(engine: room.InvariantPlanner, library: Path) -> None:
    x, w = random(6, 64).requires_grad_(), random(48, 64, seed=1).requires_grad_()
    with sassafras.batch_invariant():
        before = stand_in.state_of(library).launches
        functional.linear(x, w).sum().backward()
        assert stand_in.state_of(library).launches == before + 3
    assert close(x.grad, torch.ones(6, 48).double() @ w.detach().double())
