"""sassafras.matmul on host memory: the portfolio, torch's semantics, autograd, torch.compile, what it warns
of.

The engine runs on a stand-in for the CUDA driver (`driver_stand_in.cpp`), so that our kernels' launches are
real as far as the driver's door.
"""

from __future__ import annotations

import pwd
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sassafras.core import SassafrasError  # noqa: E402
from sassafras.gemm.build import cubins, launcher  # noqa: E402
from sassafras.gemm.build.cubins import cached_path  # noqa: E402
from sassafras.gemm.configs.names import parse  # noqa: E402
from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.matmul.driver import Driver  # noqa: E402
from sassafras.gemm.matmul.loading import load_table  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
from sassafras.gemm.matmul.torch_side import strict  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402
from sassafras.gemm.select.table import TableRow, TunedTable  # noqa: E402
from tests.gemm import stand_in  # noqa: E402
from tests.shared import python_path  # noqa: E402

TN = "small_tn_m1n2s2/w1x1x1/c1"
NN = "small_nn_m1n2s1/w1x1x1/c1"
SIZES = ((32, 48, 64), (16, 64, 64), (64, 32, 128), (64, 64, 64))


def table(us: float = 1.0) -> TunedTable:
    """Ours is twice as fast as torch for `SIZES` in nn and tn, and slower for 128 x 128 x 128."""
    rows = [
        TableRow(Shape(*size), layout, ((parse(config), us),), 2.0, 1.9)
        for size in SIZES
        for layout, config in (("tn", TN), ("nn", NN))
    ]
    return TunedTable(
        {"gpu": "NVIDIA H200"}, [*rows, TableRow(Shape(128, 128, 128), "nn", ((parse(NN), 3.0),), 2.0)]
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    return stand_in.build_driver(tmp_path_factory.mktemp("driver"), shared)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    """Cubins that the stand-in believes, and room for the launcher."""
    folder = stand_in.launcher_into(tmp_path_factory.mktemp("cache"), shared)
    for name in (TN, NN):
        cached_path(parse(name).instance, folder).write_bytes(b"\x7fELF")
    return folder


Install = Callable[..., Planner]


@pytest.fixture
def install(library: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    monkeypatch.setattr(room, "_warned", set())

    def make(launcher: str = "compiled", **changes: Any) -> Planner:
        driver = Driver(str(library))
        settings = {"cache": cache, "background": False, "table": table(), **changes}
        side = stand_in.torch_side(strict=strict)
        engine = Planner(driver, side, **settings)
        if launcher == "python":
            engine.launcher = stand_in.make("python", driver, side, cache)
        room.use(engine, device="cpu")
        return engine

    yield make
    room.use(None)


@pytest.fixture(params=["compiled", "python"])
def engine(request: pytest.FixtureRequest, install: Install) -> Planner:
    return install(request.param)


def half(*shape: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).half()


def close(result: Any, exact: Any) -> bool:
    exact = exact.double()
    return result.shape == exact.shape and bool(((result - exact).abs() <= 4e-3 * (1 + exact.abs())).all())


def launches(library: Path) -> int:
    return int(stand_in.state_of(library).launches)


# --- the portfolio -----------------------------------------------------------------------------------------


def test_the_fastest_member_serves(engine: Planner, library: Path) -> None:
    before = launches(library)
    for m, n, k in SIZES:
        a = half(m, k)
        for b in (half(k, n), half(n, k).t()):
            for _ in range(3):
                assert close(room.matmul(a, b), a.double() @ b.double())
    assert launches(library) == before + 3 * 2 * len(SIZES)
    a, b = half(128, 128), half(128, 128)
    assert torch.equal(room.matmul(a, b), torch.matmul(a, b)) and launches(library) == before + 24
    members = {(s["shape"], s["layout"]): s["member"] for s in room.status()["problems"]}
    assert members["64x64x64", "tn"] == "ours" and members["128x128x128", "nn"] == "torch"


def test_out_and_leading_extents(engine: Planner, library: Path) -> None:
    a, b = half(4, 8, 64), half(64, 48)
    before = launches(library)
    assert close(room.matmul(a, b), a.double() @ b.double())
    out = torch.empty(4, 8, 48, dtype=torch.float16)
    assert room.matmul(a, b, out) is out and close(out, a.double() @ b.double())
    assert room.matmul(a, b, out=out) is out
    assert launches(library) == before + 3
    assert close(room.matmul(half(64), half(64, 32)), half(64).double() @ half(64, 32).double())


def test_no_table_row_and_nothing_near_is_torchs(engine: Planner, library: Path) -> None:
    before = launches(library)
    a, b = half(1024, 8), half(8, 2048)
    assert torch.equal(room.matmul(a, b), torch.matmul(a, b)) and launches(library) == before


def test_a_neighbour_is_chosen_for_a_shape_never_tuned(engine: Planner, library: Path) -> None:
    before = launches(library)
    a, b = half(40, 64), half(64, 48)
    assert close(room.matmul(a, b), a.double() @ b.double()) and launches(library) == before + 1
    (problem,) = room.status()["problems"]
    assert problem["member"] == "ours" and problem["why"].startswith("chosen by what was learnt")


def test_unaligned_addresses_and_odd_gaps_are_torchs(engine: Planner, library: Path) -> None:
    before = launches(library)
    whole, b = half(32, 72), half(64, 48)
    for a in (whole[:, 1:65], half(32, 67)[:, :64]):
        assert close(room.matmul(a, b), a.double() @ b.double())
    assert launches(library) == before
    a = whole[:, :64]  # a gap of 8 is fine
    assert close(room.matmul(a, b), a.double() @ b.double()) and launches(library) == before + 1


def test_bf16_runs_the_twin_of_what_was_tuned(install: Install, library: Path, tmp_path: Path) -> None:
    from sassafras.gemm.configs import registry
    from sassafras.gemm.configs.registry import with_dtype

    shape = Shape(64, 128, 512)
    found = [(c, with_dtype(c, "bf16")) for c in registry.legal(shape, layouts=("tn",))]
    assert all(twin is not None and twin.why_illegal(shape) is None for _, twin in found)
    config, other = found[0]
    assert other is not None and other.dtype == "bf16" and with_dtype(other, "bf16") is other
    cached_path(other.instance, tmp_path).write_bytes(b"\x7fELF")
    install(cache=tmp_path, table=TunedTable({}, [TableRow(shape, "tn", ((config, 1.0),), 2.0)]))
    a, b = half(64, 512).bfloat16(), half(128, 512).bfloat16().t()
    before = launches(library)
    result = room.matmul(a, b)
    assert launches(library) == before + 1 and result.dtype == torch.bfloat16
    assert torch.allclose(result.float(), torch.matmul(a, b).float(), rtol=0.02, atol=0.1)
    assert room.status()["problems"][0]["config"] == other.name


def test_bf16_has_the_families_of_fp16() -> None:
    from sassafras.gemm.configs import registry

    for extents in ((32, 48, 64), (33, 47, 61), (5, 8, 96), (4096, 4096, 4096)):
        for layout in ("nn", "tn"):
            half, brain = (
                {c.FAMILY for c in registry.legal(Shape(*extents), dtype=dtype, layouts=(layout,))}
                for dtype in ("fp16", "bf16")
            )
            assert half == brain and half, (extents, layout)


# --- what is torch's, and what is said
# -----------------------------------------------------------------------


def quiet(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call()


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("dtype", lambda: (torch.ones(4, 4), torch.ones(4, 4))),
        ("layout", lambda: (half(16, 128)[:, ::2], half(64, 8))),
        ("layout", lambda: (half(1, 64).expand(16, 64), half(64, 8))),
    ],
)
def test_what_is_not_supported_is_said_once(engine: Planner, what: str, make: Callable[[], Any]) -> None:
    a, b = make()
    with pytest.warns(RuntimeWarning, match=r"sassafras.matmul: .*torch runs instead") as seen:
        result = room.matmul(a, b)
    assert [w.filename for w in seen] == [__file__], "it points to the caller"
    assert torch.equal(result, torch.matmul(a, b))
    assert torch.equal(quiet(lambda: room.matmul(a, b)), torch.matmul(a, b))
    assert room._warned == {what}


def test_another_device_or_gpu_is_said_once(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    room.use(None)
    with pytest.warns(RuntimeWarning, match="tensors on cpu"):
        room.matmul(half(8, 8), half(8, 8))
    engine = install()
    monkeypatch.setattr(engine.driver, "facts", lambda ordinal: ("NVIDIA B200", (10, 0)))
    with pytest.warns(RuntimeWarning, match="B200 is sm_100"):
        room.matmul(half(32, 64), half(64, 48))
    assert quiet(lambda: room.matmul(half(32, 64), half(64, 48))).shape == (32, 48)
    assert quiet(lambda: room.matmul(half(16, 64), half(64, 48))).shape == (16, 48)


def test_a_hopper_without_tables_is_served_by_the_nearest_one(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GH200 takes the tables of the GPU that is nearest; `status` says so."""
    engine = install(table=None)
    monkeypatch.setattr(engine.driver, "facts", lambda ordinal: ("NVIDIA GH200 480GB", (9, 0)))
    near = engine.gpu(0)
    assert near.chooser is not None and not near.why_not and near.tables_of == "NVIDIA H200"
    assert engine.status()["gpus"]["0"]["tables_of"] == "NVIDIA H200"
    assert "NVIDIA GH200 480GB was not tuned" in engine.status()["notes"][-1]


def test_torch_decides_on_shapes_and_errors(engine: Planner) -> None:
    for a, b in (
        (half(2, 3, 8), half(2, 8, 5)), (half(5, 8), half(8)), (half(8), half(8)), (half(0, 8), half(8, 4)),
        (half(4, 0), half(0, 4)), (half(8), half(8, 24)), (half(2, 8, 8)[:, ::2], half(8, 8)),
    ):  # fmt: skip
        assert torch.equal(quiet(lambda a=a, b=b: room.matmul(a, b)), torch.matmul(a, b))
    for a, b in ((half(4, 8), half(4, 8)), (half(4, 8), half(8, 4).bfloat16()), (half(4), half(5))):
        with warnings.catch_warnings(), pytest.raises(RuntimeError):
            warnings.simplefilter("ignore")
            room.matmul(a, b)
    with pytest.raises(TypeError):
        room.matmul(half(4, 8), 3)


def test_overlapping_out_and_negative_views(engine: Planner, library: Path) -> None:
    before = launches(library)
    a, b = half(64, 64), half(64, 64)
    assert torch.equal(room.matmul(torch._neg_view(a), b), torch.matmul(-a, b))
    assert launches(library) == before


def test_strict_flags_reach_cublaslt_only() -> None:
    assert strict() is False
    torch.use_deterministic_algorithms(True)
    try:
        assert strict() is True
    finally:
        torch.use_deterministic_algorithms(False)
    flag = torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    try:
        assert strict() is True
    finally:
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = flag


# --- kernels that are not there yet
# --------------------------------------------------------------------------


PAIR = "split_k_two_pass_nn_64x64_s12q1/p2+o"


def test_two_launches_serve_when_both_kernels_are_there(
    install: Install, tmp_path: Path, library: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table may name a configuration of two kernels; until both are compiled it is torch's."""
    from sassafras.gemm.matmul import planner as module

    asked: list[str] = []

    def made(instance: Any, cache: Path) -> bytes:
        asked.append(instance.name)
        if "refused" not in asked:
            cached_path(instance, cache).write_bytes(b"\x7fELF")
        return b"\x7fELF"

    monkeypatch.setattr(module, "cubin", made)
    named = TunedTable(
        {"gpu": "NVIDIA H200"}, [TableRow(Shape(64, 128, 256), "nn", ((parse(PAIR), 1.0),), 2.0)]
    )
    a, b = half(64, 256), half(256, 128)
    exact, state = a.double() @ b.double(), stand_in.state_of(library)
    for kind in ("compiled", "python"):
        asked.clear()
        folder = tmp_path / kind
        folder.mkdir()
        stand_in.launcher_into(folder, shared)
        # both kernels are compiled by the first call, if it may wait
        before = state.launches
        engine = install(kind, table=named, cache=folder)
        assert close(room.matmul(a, b), exact) and state.launches == before + 2
        assert asked == ["cs_nn_64x64_s12q1p", "add_t2"]
        (problem,) = room.status()["problems"]
        assert (problem["member"], problem["config"]) == ("ours", PAIR)
        engine.forget()
        asked.append("refused")
        cached_path(parse(PAIR).instances[1], folder).unlink()
        assert torch.equal(room.matmul(a, b), torch.matmul(a, b)), "one kernel is not enough"
        (problem,) = room.status()["problems"]
        assert (problem["member"], problem["config"]) == ("torch", PAIR)


@pytest.mark.parametrize("families_of", [None, ["split_k_two_pass"]], ids=["neighbours", "model"])
def test_two_launches_serve_a_shape_never_tuned(
    engine: Planner, library: Path, monkeypatch: pytest.MonkeyPatch, families_of: list[str] | None
) -> None:
    """As they serve a tuned one: by both rules, in both launchers, once both kernels are there."""
    from sassafras.gemm.matmul import planner as module
    from sassafras.gemm.select import predictor, selector
    from tests.gemm.test_predictor import constant

    def made(instance: Any, cache: Path) -> bytes:
        cached_path(instance, cache).write_bytes(b"\x7fELF")
        return b"\x7fELF"

    fast, plain = constant(1.0), constant(-1.0)
    model = None if families_of is None else predictor.Model(fast, plain, {"families": families_of})
    near = TableRow(Shape(256, 704, 1024), "nn", ((parse(PAIR), 1.0),), 2.0)
    chooser = selector.Selector(TunedTable({}, [near]), model=model)
    monkeypatch.setattr(module, "cubin", made)
    monkeypatch.setattr(module, "chooser_of", lambda *args: chooser)
    before, (a, b) = launches(library), (half(250, 1032), half(1032, 712))
    for _ in range(2):
        assert close(room.matmul(a, b), a.double() @ b.double())
    (problem,) = room.status()["problems"]
    served = PAIR if model is None else PAIR.partition("+")[0]
    assert (problem["member"], problem["config"]) == ("ours", served), problem
    assert launches(library) == before + 4


def test_a_first_call_never_waits_for_a_compiler(
    install: Install, tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from sassafras.gemm.matmul import planner as module

    may_finish, compiled = threading.Event(), []

    def slow_cubin(instance: Any, cache: Path) -> bytes:
        assert may_finish.wait(60)
        compiled.append(instance.name)
        cached_path(instance, cache).write_bytes(b"\x7fELF")
        return b"\x7fELF"

    monkeypatch.setattr(module, "cubin", slow_cubin)
    engine = install("python", cache=tmp_path, background=True)
    before = launches(library)
    a, b = half(32, 64), half(64, 48)
    for _ in range(3):
        assert torch.equal(room.matmul(a, b), torch.matmul(a, b))
    assert launches(library) == before and "being compiled" in room.status()["problems"][0]["why"]
    may_finish.set()
    engine.settle()
    assert close(room.matmul(a, b), a.double() @ b.double())
    assert launches(library) == before + 1 and compiled == ["lean_nn_m1n2s1"]


def test_the_launcher_that_takes_over_is_called(install: Install, library: Path) -> None:
    engine = install("python")
    old = room._launch
    engine._build_launcher()
    assert engine.launcher is room._launch is not old
    other = install("python")
    engine._on_launcher("of an engine that serves no more")
    assert room._launch is other.launcher


def test_a_kernel_that_does_not_compile_leaves_torch(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sassafras.core import CompileError
    from sassafras.gemm.matmul import planner as module

    def broken(instance: Any, cache: Path) -> bytes:
        raise CompileError("no such instruction", where=instance.name)

    monkeypatch.setattr(module, "cubin", broken)
    install(cache=tmp_path)
    a, b = half(32, 64), half(64, 48)
    for _ in range(2):
        assert torch.equal(room.matmul(a, b), torch.matmul(a, b))
    assert "no such instruction" in room.status()["notes"][-1]


def test_a_damaged_cubin_leaves_torch(install: Install, tmp_path: Path) -> None:
    for name in (TN, NN):
        cached_path(parse(name).instance, tmp_path).write_bytes(b"\x7fELX")
    engine = install(cache=tmp_path)
    engine._stored = lambda instance: b"nonsense"  # type: ignore[method-assign]
    a, b = half(32, 64), half(64, 48)
    assert torch.equal(room.matmul(a, b), torch.matmul(a, b))
    assert "cuModuleLoadData" in room.status()["problems"][0]["why"]


def test_a_cache_that_takes_no_file_costs_a_compilation(
    install: Install, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is read-only, another user's, or none: kernels stay in memory, and that is said once."""
    compiled: list[str] = []
    monkeypatch.setattr(cubins, "_compile", lambda text, name: compiled.append(name) or b"\x7fELF")
    monkeypatch.delitem(sys.modules, "sassafras_launcher", raising=False)
    (tmp_path / "file").write_text("")
    engine = install(cache=tmp_path / "file" / "cache")
    assert room.status()["launcher"] == "compiled" or launcher.compiler() is None
    a, before = half(32, 64), launches(library)
    with pytest.warns(
        RuntimeWarning, match=r"kernels cannot be kept there: Not a directory .*others compile"
    ):
        assert close(room.matmul(a, half(64, 48)), a.double() @ half(64, 48).double())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        room.matmul(a, half(48, 64).t())
        engine.forget()
        room.matmul(a, half(64, 48))
    assert launches(library) == before + 3 and len(compiled) == 2
    assert "cannot be kept" in room.status()["notes"][0]
    far = tmp_path / ("x" * 300)
    assert cubins.stored(far / "kernel") is None and load_table("NVIDIA H200") is not None
    monkeypatch.setenv("SASSAFRAS_GEMM_CACHE", str(far))
    assert load_table("NVIDIA H200") is not None
    with pytest.raises(SassafrasError, match="the launcher cannot be kept there: File name too long"):
        launcher.build(far)
    monkeypatch.delenv("SASSAFRAS_GEMM_CACHE")


def test_without_a_home_directory_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a user of its own."""
    for name in ("HOME", "XDG_CACHE_HOME", "SASSAFRAS_GEMM_CACHE"):
        monkeypatch.delenv(name, raising=False)

    def unknown(user: int) -> Any:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert not cubins.default_cache().parent.is_dir() and load_table("NVIDIA H200") is not None


def test_a_table_that_is_none_is_said_once(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SASSAFRAS_GEMM_TABLE", "/no/table.json")
    install(table=None)
    a, b = half(32, 64), half(64, 48)
    with pytest.warns(RuntimeWarning, match=r"SASSAFRAS_GEMM_TABLE=/no/table\.json: .*torch runs instead"):
        assert torch.equal(room.matmul(a, b), torch.matmul(a, b))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(room.matmul(a, b.relu_()), torch.matmul(a, b))
        room.matmul(half(3, 64), b)


def test_code_is_loaded_in_relaxed_capture_mode(install: Install, library: Path) -> None:
    state = stand_in.state_of(library)
    install()
    loads, relaxed = state.loads, state.relaxed_loads
    room.matmul(half(32, 64), half(64, 48))
    assert state.loads == loads + 1 and state.relaxed_loads == relaxed + 1 and state.mode == 0


# --- gradients, transformations, compilation
# -----------------------------------------------------------------


def test_gradients_go_through_the_portfolio(engine: Planner, library: Path) -> None:
    a, b = half(32, 64).requires_grad_(), half(64, 48).requires_grad_()
    weight = half(32, 48, seed=2)
    before = launches(library)
    result = room.matmul(a, b)
    assert result.requires_grad and launches(library) == before + 1
    result.backward(weight)
    assert close(a.grad, weight.double() @ b.detach().double().t())
    assert close(b.grad, a.detach().double().t() @ weight.double())
    frozen = half(64, 48)
    (room.matmul(a, frozen) * 2).sum().backward()
    stacked = half(2, 16, 64).requires_grad_()
    room.matmul(stacked, frozen).sum().backward()
    assert close(stacked.grad, torch.ones(2, 16, 48).double() @ frozen.double().t())
    with torch.no_grad():
        assert not room.matmul(a, b).requires_grad
    with torch.inference_mode():
        assert close(room.matmul(a, frozen), a.double() @ frozen.double())


def test_second_derivatives(engine: Planner) -> None:
    a, b = half(16, 8).requires_grad_(), half(8, 24).requires_grad_()
    (first,) = torch.autograd.grad(room.matmul(a, b).float().square().sum(), a, create_graph=True)
    first.float().sum().backward()
    x, y = half(16, 8).requires_grad_(), half(8, 24).requires_grad_()
    (other,) = torch.autograd.grad(torch.matmul(x, y).float().square().sum(), x, create_graph=True)
    other.float().sum().backward()
    assert torch.allclose(b.grad.float(), y.grad.float(), rtol=0.02, atol=0.5)


def test_the_operator_is_well_made(install: Install) -> None:
    install()
    a, b = half(16, 8).requires_grad_(), half(8, 24).requires_grad_()
    torch.library.opcheck(
        torch.ops.sassafras.mm.default,
        (a, b),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )
    with pytest.raises(RuntimeError, match="do not fit"):
        torch.ops.sassafras.mm.default(half(4, 8).to("meta"), half(4, 8).to("meta"))
    assert torch.ops.sassafras.mm.default(half(4, 8).to("meta"), half(8, 4).to("meta")).shape == (4, 4)


def test_modes_and_transformations_see_the_call(engine: Planner) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils.flop_counter import FlopCounterMode

    a, b = half(16, 8), half(8, 24)
    traced = make_fx(lambda x, y: room.matmul(x, y))(a, b)
    assert any("sassafras.mm" in str(node.target) for node in traced.graph.nodes)
    with FakeTensorMode() as mode:
        assert room.matmul(mode.from_tensor(a), mode.from_tensor(b)).shape == (16, 24)
    with FlopCounterMode(display=False) as counter:
        room.matmul(a, b)
    assert counter.get_total_flops() == 2 * 16 * 8 * 24
    batch = torch.func.vmap(room.matmul, in_dims=(0, None))(half(3, 16, 8), b)
    assert torch.equal(batch, torch.matmul(half(3, 16, 8), b))
    gradient = torch.func.grad(lambda x: room.matmul(x, b).float().sum())(a)
    assert gradient.shape == a.shape


def test_autocast(engine: Planner, library: Path) -> None:
    before = launches(library)
    a, b = torch.randn(32, 64), torch.randn(64, 48)
    with torch.autocast("cpu", dtype=torch.float16):
        result = room.matmul(a, b)
        assert result.dtype == torch.float16 and close(result, a.half().double() @ b.half().double())
        assert launches(library) == before + 1
        assert room.matmul(a.double(), b.double()).dtype == torch.matmul(a.double(), b.double()).dtype


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile(install: Install, library: Path, backend: str) -> None:
    install()
    torch._dynamo.reset()

    def layer(x: Any, w: Any) -> Any:
        return torch.relu(room.matmul(x, w.t()) + 1)

    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    x, w = half(32, 64), half(48, 64)
    before = launches(library)
    assert close(compiled(x, w), layer(x, w)) and launches(library) == before + 2
    x = half(2, 16, 64).requires_grad_()
    result = compiled(x, w)
    result.sum().backward()
    assert x.grad.shape == x.shape and result.shape == (2, 16, 48)
    fallback = torch.compile(lambda x, w: room.matmul(x, w), backend=backend, fullgraph=True)
    assert torch.equal(fallback(torch.ones(4, 4), torch.ones(4, 4)), torch.full((4, 4), 4.0))
    torch._dynamo.reset()


def test_subclasses_keep_their_behaviour(engine: Planner) -> None:
    class Marked(torch.Tensor):
        seen = 0

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cls.seen += func is torch.matmul
            return super().__torch_function__(func, types, args, kwargs or {})

    a = half(32, 64).as_subclass(Marked)
    assert type(room.matmul(a, half(64, 48))) is Marked and Marked.seen == 1


def test_public_name() -> None:
    import sassafras

    assert sassafras.matmul is room.matmul and "matmul" in dir(sassafras)


def test_a_default_device_changes_nothing(engine: Planner, library: Path) -> None:
    before = launches(library)
    with torch.device("cpu"):
        assert close(room.matmul(half(32, 64), half(64, 48)), half(32, 64).double() @ half(64, 48).double())
    assert launches(library) == before + 1


def test_the_example_runs_without_a_gpu(tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    root = Path(__file__).resolve().parents[2]
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(root / "src"),
        "SASSAFRAS_GEMM_CACHE": str(tmp_path),
    }
    command = [sys.executable, str(root / "examples/matmul.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loss ") and (torch.cuda.is_available() or "torch runs" in done.stderr)
