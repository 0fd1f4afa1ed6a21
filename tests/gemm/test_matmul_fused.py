"""sassafras.matmul with alpha, beta, bias, activations and batches, on host memory.

The engine runs on the driver's stand-in (`driver_stand_in.cpp`), which computes what our kernels are told to.
"""

from __future__ import annotations

import json
import math
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sassafras.core import SassafrasError  # noqa: E402
from sassafras.gemm.build.cubins import cached_path  # noqa: E402
from sassafras.gemm.configs import attention, epilogue, joined, names, registry, rows, turned  # noqa: E402
from sassafras.gemm.configs.epilogue import ACTIVATIONS, Batch  # noqa: E402
from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.matmul.composed import activated  # noqa: E402
from sassafras.gemm.matmul.driver import Driver  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
from sassafras.gemm.matmul.problem import stride_of  # noqa: E402
from sassafras.gemm.matmul.torch_side import strict  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402
from sassafras.gemm.select import epilogue_selector  # noqa: E402
from sassafras.gemm.select.selector import Selector  # noqa: E402
from sassafras.gemm.select.table import TableRow, TunedTable, shipped_path  # noqa: E402
from tests.gemm import stand_in  # noqa: E402
from tests.scripts import run_benchmark  # noqa: E402

#: torch takes long for all of these, so that ours is chosen wherever it can run
SIZES = ((32, 48, 64), (128, 64, 64), (64, 128, 512), (1, 48, 64))
NAMES = tuple(name for name in ACTIVATIONS if name)


def table() -> TunedTable:
    config = {layout: f"split_k_{layout}_64x64_s6q1/c1" for layout in ("tn", "nn")}
    rows = [
        TableRow(Shape(*size), layout, ((names.parse(config[layout]), 1.0),), 1000.0)
        for size in SIZES
        for layout in config
    ]
    return TunedTable({"gpu": "NVIDIA H200"}, rows)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    return stand_in.build_driver(tmp_path_factory.mktemp("driver"), shared)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    """Cubins that the stand-in believes."""
    folder = stand_in.launcher_into(tmp_path_factory.mktemp("cache"), shared)
    more = (*joined.INSTANCES, *rows.INSTANCES, *attention.INSTANCES, *turned.INSTANCES)
    for instance in (*registry.EPILOGUE_INSTANCES, *more):
        cached_path(instance, folder).write_bytes(b"\x7fELF")
    return folder


Install = Callable[..., Planner]


@pytest.fixture
def install(library: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    monkeypatch.setattr(room, "_warned", set())

    def make(launcher: str = "python", **changes: Any) -> Planner:
        driver = Driver(str(library))
        monkeypatch.setattr(Planner, "_build_launcher", lambda self: None)  # see below
        settings = {"cache": cache, "background": False, "table": table(), **changes}
        side = stand_in.torch_side(strict=strict)
        engine = Planner(driver, side, **settings)
        engine.launcher = stand_in.make(launcher, driver, side, cache)
        room.use(engine, device="cpu")
        return engine

    yield make
    room.use(None)


@pytest.fixture(params=["compiled", "python"])
def engine(request: pytest.FixtureRequest, install: Install) -> Planner:
    return install(request.param)


def half(*shape: int, seed: int = 0, dtype: Any = torch.float16) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def exact(
    a: Any, b: Any, out: Any = None, bias: Any = None, activation: Any = None, alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:  # fmt: skip
    value = alpha * (a.double() @ b.double())
    if beta:
        value = value + beta * out.double()
    if bias is not None:
        value = value + bias.double()
    return activated(value, activation)


def close(result: Any, wanted: Any) -> bool:
    unit = 2**-7 if result.dtype == torch.bfloat16 else 4e-3
    return result.shape == wanted.shape and bool(
        ((result.double() - wanted).abs() <= unit * (1 + wanted.abs())).all()
    )


def launches(library: Path) -> int:
    return int(stand_in.state_of(library).launches)


# --- our kernels -------------------------------------------------------------------------------------------


def test_factors_beyond_fp32_are_infinite(engine: Planner, library: Path) -> None:
    before, ones = launches(library), torch.ones(64, 64).half()
    for alpha in (1e300, -3.4028236e38):
        result = room.matmul(ones, ones, alpha=alpha)
        assert torch.equal(result, torch.full_like(result, math.copysign(math.inf, alpha)))
    assert launches(library) == before + 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_launch_does_it(engine: Planner, library: Path, activation: str | None, dtype: Any) -> None:
    before = launches(library)
    for number, (m, n, k) in enumerate(SIZES):
        a, bias = half(m, k, dtype=dtype), half(n, seed=1, dtype=dtype)
        for b in (half(k, n, dtype=dtype), half(n, k, dtype=dtype).t()):
            result = room.matmul(a, b, bias=bias, activation=activation, alpha=0.5)
            assert close(result, exact(a, b, None, bias, activation, 0.5)) and result.dtype == dtype
            out = half(m, n, seed=2, dtype=dtype)
            wanted = exact(a, b, out, bias, activation, -1.0, 2.0)
            again = room.matmul(a, b, out, bias=bias, activation=activation, alpha=-1.0, beta=2.0)
            assert again is out and close(out, wanted)
        assert launches(library) == before + 4 * (number + 1), room.status()["problems"]
    served = room.status()["problems"]
    assert {s["member"] for s in served} == {"ours"}
    assert {s["why"].partition(":")[0] for s in served if "not measured" not in s["why"]} <= {"tuned"}


def test_the_shapes_of_a_layer(engine: Planner, library: Path) -> None:
    before = launches(library)
    w, bias = half(48, 64).t(), half(48)
    for shape in ((64,), (1, 64), (4, 8, 64), (2, 3, 5, 64)):
        x = half(*shape)
        assert close(room.matmul(x, w, bias=bias, activation="silu"), exact(x, w, None, bias, "silu"))
    wide = half(4, 8, 128)[:, :, :64]  # gaps between rows, rows one after the other
    assert close(room.matmul(wide, w, bias=bias), exact(wide, w, None, bias))
    apart = half(4, 16, 64)[:, :8]  # a batch of matrices, one b
    assert close(room.matmul(apart, w, bias=bias), exact(apart, w, None, bias))
    assert launches(library) == before + 6, room.status()["problems"]
    assert [s["batch"] for s in room.status()["problems"]][-1] == 4


def test_batches_in_one_launch(engine: Planner, library: Path) -> None:
    before = launches(library)
    a, bias = half(6, 32, 64), half(48)
    for b in (half(6, 64, 48), half(6, 48, 64).mT, half(1, 64, 48), half(64, 48).expand(6, 64, 48)):
        assert close(room.matmul(a, b, bias=bias, activation="relu"), exact(a, b, None, bias, "relu"))
        assert close(room.matmul(a, b), exact(a, b))
    one = half(32, 64)  # one a for all
    assert close(room.matmul(one, half(6, 64, 48), bias=bias), exact(one, half(6, 64, 48), None, bias))
    four = half(2, 3, 32, 64), half(2, 3, 64, 48)
    out = half(2, 3, 32, 48)
    wanted = exact(*four, out, None, None, 1.0, 1.0)
    assert room.matmul(*four, out, beta=1.0) is out and close(out, wanted)
    heads = half(5, 32, 6, 64).transpose(1, 2)[
        0
    ]  # heads of one token sequence: lines far apart, matrices near
    assert close(room.matmul(heads, half(6, 64, 48), bias=bias), exact(heads, half(6, 64, 48), None, bias))
    assert launches(library) >= before + 7, room.status()["problems"]


def test_odd_shapes_and_addresses(engine: Planner, library: Path) -> None:
    before = launches(library)
    a, b, bias = half(31, 65), half(65, 47), half(48)[1:]
    assert close(room.matmul(a, b, bias=bias, activation="gelu"), exact(a, b, None, bias, "gelu"))
    skewed, b = half(32, 72)[:, 1:65], half(64, 48)
    got = room.matmul(skewed, b, bias=half(48), activation="silu")
    assert close(got, exact(skewed, b, None, half(48), "silu"))
    assert launches(library) == before + 2, room.status()["problems"]
    assert all("a1e" in s["config"] for s in room.status()["problems"])


def test_c_is_not_read_where_beta_is_zero(engine: Planner, library: Path) -> None:
    a, b, before = half(32, 64), half(64, 48), launches(library)
    out = torch.full((32, 48), float("nan"), dtype=torch.float16)
    assert close(room.matmul(a, b, out, activation="relu"), exact(a, b, None, None, "relu"))
    a[3, 5] = float("nan")
    result = room.matmul(a, b, activation="relu")
    assert result[3].isnan().all() and not result[4].isnan().any() and launches(library) == before + 2


def test_torch_serves_what_no_kernel_can(engine: Planner, library: Path) -> None:
    before = launches(library)
    warnings.simplefilter("ignore", RuntimeWarning)
    bias = half(48)
    column = torch.empty(48, 32, dtype=torch.float16).t()  # column-major out
    a, b = half(32, 64), half(64, 48)
    assert room.matmul(a, b, column, bias=bias) is column and close(column, exact(a, b, None, bias))
    for left, right in (
        (half(64, 32).t(), b),
        (half(3, 1, 32, 64), half(1, 4, 64, 48)),
        (half(32, 128)[:, ::2], b),
    ):
        result = room.matmul(left, right, bias=bias, activation="silu")
        assert close(result, exact(left, right, None, bias, "silu"))
    inner, square = half(32, 64), half(64, 64)
    wanted = exact(inner, square, inner, None, None, 1.0, 1.0)
    assert close(room.matmul(inner, square, inner, beta=1.0), wanted)  # out is an operand, too
    for left, right in ((half(0, 64), b), (half(32, 0), half(0, 48))):
        assert torch.equal(room.matmul(left, right, bias=bias), torch.addmm(bias, left, right))
    assert launches(library) == before


def test_unfit_strides_are_said_once(install: Install) -> None:
    install()
    a, b, bias = half(64, 32).t(), half(64, 48), half(48)
    with pytest.warns(RuntimeWarning, match="not rows at equal distances") as seen:
        room.matmul(a, b, bias=bias)
    assert [w.filename for w in seen] == [__file__], "it points to the caller"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(room.matmul(a, b, bias=bias), torch.addmm(bias, a, b))


def test_no_table_or_nothing_near_is_torchs(install: Install, library: Path) -> None:
    far = TableRow(Shape(4096, 48, 64), "nn", ((names.parse("small_nn_m1n2s1/w1x1x1/c1"), 1.0),), 1000.0)
    install(table=TunedTable({}, [far]))
    before = launches(library)
    a, b, bias = half(32, 64), half(64, 48), half(48)
    got = room.matmul(a, b, bias=bias, activation="silu")
    assert torch.equal(got, torch.nn.functional.silu(torch.addmm(bias, a, b)))
    assert launches(library) == before and room.status()["problems"][0]["why"] == "no tuned shape is near"


def test_another_type_or_device_is_said_once(install: Install) -> None:
    install()
    a, b, bias = torch.randn(4, 8), torch.randn(8, 6), torch.randn(6)
    with pytest.warns(RuntimeWarning, match="float32 is torch's"):
        result = room.matmul(a, b, bias=bias, activation="relu", alpha=2.0)
    assert torch.allclose(result, torch.relu(torch.addmm(bias, a, b, alpha=2.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        room.matmul(a, b, bias=bias, activation="relu")


@pytest.mark.parametrize("launcher", ["compiled", "python"])
def test_a_kernel_that_is_not_there_yet(
    launcher: str, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from sassafras.gemm.matmul import planner as module

    may_finish = threading.Event()

    def slow_cubin(instance: Any, cache: Path) -> bytes:
        assert may_finish.wait(60)
        cached_path(instance, cache).write_bytes(b"\x7fELF")
        return b"\x7fELF"

    monkeypatch.setattr(module, "cubin", slow_cubin)
    engine = install(launcher, cache=tmp_path, background=True)
    a, b, bias = half(32, 64), half(64, 48), half(48)
    for _ in range(2):
        assert torch.equal(room.matmul(a, b, bias=bias), torch.addmm(bias, a, b))
    assert "being compiled" in room.status()["problems"][0]["why"]
    may_finish.set()
    engine.settle()
    assert (
        close(room.matmul(a, b, bias=bias), exact(a, b, None, bias)) and engine.launcher.counts()["ours"] == 1
    )


def test_a_launch_that_fails_leaves_torch(engine: Planner, library: Path) -> None:
    state = stand_in.state_of(library)
    a, b, bias = half(32, 64), half(64, 48), half(48)
    state.fail = 719
    try:
        with pytest.warns(RuntimeWarning, match="error 719"):
            assert torch.equal(room.matmul(a, b, bias=bias), torch.addmm(bias, a, b))
    finally:
        state.fail = 0
    before = launches(library)
    assert torch.equal(room.matmul(a, b, bias=bias), torch.addmm(bias, a, b)) and launches(library) == before
    engine.forget()
    assert room.status()["problems"] == [] and close(room.matmul(a, b, bias=bias), exact(a, b, None, bias))


# --- torch's semantics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_on_the_cpu_it_is_torch(dtype: Any) -> None:
    """As it is installed, without a GPU: the reference for what everything else is compared with."""
    room.use(None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for left, right in (((5, 7), (7, 6)), ((2, 5, 7), (7, 6)), ((2, 5, 7), (2, 7, 6)), ((7,), (7, 6)),
                            ((3, 2, 5, 7), (2, 7, 6)), ((0, 7), (7, 6))):  # fmt: skip
            a, b, bias = half(*left, dtype=dtype), half(*right, dtype=dtype), half(6, dtype=dtype)
            for activation in ACTIVATIONS:
                result = room.matmul(a, b, bias=bias, activation=activation, alpha=0.5)
                assert result.dtype == dtype and close(result, exact(a, b, None, bias, activation, 0.5))
                out = half(*result.shape, seed=3, dtype=dtype)
                wanted = exact(a, b, out, bias, activation, 1.0, -1.5)
                assert room.matmul(a, b, out, bias=bias, activation=activation, beta=-1.5) is out
                assert close(out, wanted)
        whole = torch.ones(2, 3, dtype=torch.int64)
        assert torch.equal(room.matmul(whole, whole.t(), activation="relu"), whole @ whole.t())


def test_bad_calls_say_what_is_wrong(engine: Planner) -> None:
    a, b = half(4, 8), half(8, 6)
    for wrong, match in (
        ({"activation": "swish"}, "no activation 'swish'.*gelu_tanh"), ({"beta": 1.0}, "there is no out"),
        ({"bias": half(5)}, "not one value for each column"), ({"bias": half(4, 6)}, "not one value"),
        ({"bias": torch.zeros(6, device="meta", dtype=torch.float16)}, "bias is on meta"),
    ):  # fmt: skip
        with pytest.raises(SassafrasError, match=match):
            room.matmul(a, b, **wrong)
    with pytest.raises(SassafrasError, match=r"out is \(4, 5\)"):
        room.matmul(a, b, half(4, 5), bias=half(6))
    with pytest.raises(RuntimeError):
        room.matmul(a, half(7, 6), activation="relu")
    with pytest.raises(TypeError, match="alpha is a number, not a tensor"):
        room.matmul(a, b, alpha=torch.tensor(2.0))
    with pytest.raises(TypeError, match="b is no tensor"):
        room.matmul(a, 3, activation="relu")
    with pytest.raises(RuntimeError, match="does not support automatic differentiation"):
        room.matmul(a.requires_grad_(), b, half(4, 6), activation="relu")


def test_the_benchmark_rehearses(tmp_path: Path) -> None:
    done = run_benchmark("matmul_epilogue", "--dry-run", "--rounds", "2", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "matmul-epilogue-dry.json").read_text())
    assert written["summary"]["modelled"] and written["summary"]["rows"] == len(written["rows"]) == 4
    assert all(row["sassafras_speedup"] > 0 and "ours" not in row for row in written["rows"])


def test_the_benchmark_counts_no_contestant_whose_result_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here `sassafras.matmul` gives NaN, of which no comparison with a bar says that it is above."""
    matmul = room.matmul

    def spoilt(*given: Any, **more: Any) -> Any:
        return matmul(*given, **more).fill_(float("nan"))

    monkeypatch.setattr(room, "matmul", spoilt)
    done = run_benchmark("matmul_epilogue", "--dry-run", "--rounds", "2", "--out", tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    written = json.loads((tmp_path / "matmul-epilogue-dry.json").read_text())
    spoilt_rows = [row for row in written["rows"] if row["activation"] != "swiglu"]
    assert all(row["wrong"] == ["sassafras"] and "sassafras_speedup" not in row for row in spoilt_rows)
    assert written["summary"]["rows"] == 1 and len(written["rows"]) == 4


def test_both_launchers_see_the_same_problem(install: Install) -> None:
    other, launcher = (install(kind).launcher for kind in ("python", "compiled"))
    bias = half(48)
    x, w = half(4, 32, 64), half(64, 48)
    calls = [
        (x, w, None, None), (x[0], w, None, bias), (x, half(48, 64).t(), None, bias),
        (x, half(4, 64, 48), None, None), (x, half(4, 48, 64).mT, half(4, 32, 48), bias),
        (x[:1], half(4, 64, 48), None, None), (x[0], half(4, 64, 48), None, None),
        (x, half(1, 64, 48), None, None), (half(2, 3, 32, 64), half(2, 3, 64, 48), None, None),
        (half(2, 3, 32, 64).transpose(0, 1), half(3, 2, 64, 48), None, None),
        (half(2, 1, 32, 64), half(1, 3, 64, 48), None, None),
        (half(3, 32, 64), half(2, 3, 64, 48), None, None),
        (half(4, 64, 64)[:, :32], w, None, None), (half(4, 64, 64)[:, ::2], w, None, None),
        (half(4, 32, 128)[:, :, ::2], w, None, None), (half(64, 32).t(), w, None, None),
        (half(1, 64), w, None, None),
        (half(4, 1, 64), half(4, 64, 48), None, None), (half(6, 32, 64).expand(6, 32, 64), w, None, None),
        (half(32, 64).expand(6, 32, 64), half(6, 64, 48), None, None), (x, w.expand(4, 64, 48), None, None),
        (x, half(4, 64, 48), half(32, 48).expand(4, 32, 48), None), (x[0], w, half(48, 32).t(), None),
        (x[0], w, half(32, 56)[:, :48], bias), (x[0], w, half(32, 47), None),
        (x, w, half(4, 40, 48)[:, :32], None),
        (x[0], w, None, half(96)[::2]), (x[0], w, None, half(49)[1:]),
        (half(31, 65), half(65, 47), None, None),
        (x[0].bfloat16(), w.bfloat16(), None, bias.bfloat16()), (x[0], w, None, bias.bfloat16()),
        (x[0], w.float(), None, None), (x[0].float(), w.float(), None, None),
        (x[0], half(64, 1), None, half(1)),
        (half(4, 32, 1), half(4, 1, 48), None, None), (half(7, 1, 64), w, None, None),
        (torch._neg_view(x), w, None, None), (x[0], x[0].t(), x[0][:, :32], None),
    ]  # fmt: skip
    served = 0
    for number, call in enumerate(calls):
        for more in ((), (3, 0.5, 0.0)):
            found, native = other.key(*call, *more), launcher.key(*call, *more)
            assert native == found, f"{number}: {found} {native}"
        served += found is not None
    assert 18 <= served < len(calls)


def test_both_launchers_see_the_same_random_problem(install: Install) -> None:
    other, launcher = (install(kind).launcher for kind in ("python", "compiled"))
    draw = random.Random(4)
    served = 0
    for _ in range(600):
        leading = draw.choice([(), (3,), (2, 3), (1, 3)])
        m, n, k = (draw.choice([1, 2, 7, 8, 16]) for _ in range(3))

        def view(*shape: int) -> Any:
            gaps = [draw.choice([0, 0, 0, 1, 8]) for _ in shape]
            order = list(range(len(shape)))
            if draw.random() < 0.3:
                draw.shuffle(order)
            whole = torch.zeros([shape[d] + gaps[d] for d in order], dtype=torch.float16)
            whole = whole.permute([order.index(d) for d in range(len(shape))])
            return whole[tuple(slice(extent) for extent in shape)]

        a = view(*draw.choice([leading, leading, ()]), m, k)
        b = view(*draw.choice([leading, (), (1,) * len(leading)]), k, n)
        wanted = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), m, n)
        out = view(*wanted) if draw.random() < 0.4 else None
        bias = view(n) if draw.random() < 0.4 else None
        more = draw.choice([(), (1, 1.0, 0.0), (4, 0.5, 2.0 * (out is not None))])
        found, native = other.key(a, b, out, bias, *more), launcher.key(a, b, out, bias, *more)
        assert native == found, (a.stride(), b.stride(), found, native)
        served += found is not None
    assert 100 < served < 500


def test_the_compiled_launcher_serves_epilogues(install: Install, library: Path) -> None:
    engine = install("compiled")
    four, out = (half(2, 3, 32, 64), half(2, 3, 64, 48)), half(2, 3, 32, 48)
    bias = half(48)
    for beta in (0.0, 2.0):
        for _ in range(3):
            if beta:
                c, wanted = out, exact(*four, out, bias, "silu", 0.5, beta)
            else:
                c, wanted = None, exact(*four, None, bias, "silu", 0.5)
            hits, before = engine.launcher.counts()["hits"], launches(library)
            result = room.matmul(*four, c, bias=bias, activation="silu", alpha=0.5, beta=beta)
            assert close(result, wanted) and launches(library) == before + 1
            assert engine.launcher.counts()["hits"] == hits + 1
    torchs = half(64, 32).t(), half(64, 48)
    far = half(9, 4096, 8), half(9, 8, 48)
    for a, b in (torchs, far):
        for _ in range(2):
            assert close(room.matmul(a, b, activation="relu"), exact(a, b, None, None, "relu"))
    assert engine.launcher(*far, None, None, 1, 1.0, 0.0) is None, "known to be torch's"
    a, b = half(32, 64).requires_grad_(), half(64, 48)
    assert engine.launcher(a, b, None, None, 1, 1.0, 0.0) is NotImplemented
    assert engine.launcher(half(32, 64), b, None, None, 1, 1.0, 1.0) is NotImplemented
    with pytest.raises(TypeError, match="by position"):
        engine.launcher(a)


def test_any_configuration_can_be_bound(engine: Planner, library: Path) -> None:
    a, b, bias = half(3, 32, 64), half(3, 64, 48), half(48)
    shape, batch = Shape(32, 48, 64), Batch(3, 32 * 64, 64 * 48, 32 * 48)
    configs = [c for c in registry.epilogue_configurations() if c.layout == "nn" and c.dtype == "fp16"]
    bound = [c for c in configs if epilogue.why_illegal(c, shape, batch) is None]
    before = launches(library)
    for config in bound[::6]:
        call = engine.bind(config, a, b, None, bias, "silu", 0.5)
        assert call() is call() and close(call(), exact(a, b, None, bias, "silu", 0.5)), config.name
    assert launches(library) == before + 3 * len(bound[::6]) and len(bound) > 12
    with pytest.raises(SassafrasError, match="16 bytes"):
        engine.bind(bound[0], half(32, 72)[:, 1:65], half(64, 48))
    with pytest.raises(SassafrasError, match="no kernel takes such"):
        engine.bind(bound[0], half(64, 32).t(), half(64, 48), None, bias)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients(engine: Planner, library: Path, activation: str | None) -> None:
    inputs = [half(4, 8, 64), half(64, 48), half(48, seed=1)]
    ours = [t.clone().requires_grad_() for t in inputs]
    torchs = [t.double().requires_grad_() for t in inputs]
    weight = half(4, 8, 48, seed=2)
    before = launches(library)
    result = room.matmul(ours[0], ours[1], bias=ours[2], activation=activation, alpha=0.5)
    assert result.requires_grad and launches(library) == before + 1
    result.backward(weight)
    wanted = exact(torchs[0], torchs[1], None, torchs[2], activation, 0.5)
    wanted.backward(weight.double())
    assert close(result.detach(), wanted.detach())
    for mine, other in zip(ours, torchs, strict=True):
        scale = float(other.grad.abs().max())
        assert mine.grad.shape == other.grad.shape
        assert float((mine.grad.double() - other.grad).abs().max()) <= 0.02 * scale


@pytest.mark.parametrize("activation", ["none", *NAMES])
def test_the_operators_formula(activation: str) -> None:
    """First derivatives against differences, in FP64 (torch serves there): batches, shared operands."""
    for left, right in (((3, 4), (4, 2)), ((2, 3, 4), (2, 4, 2)), ((2, 3, 4), (4, 2)), ((3, 4), (2, 4, 2))):
        a, b, bias = (half(*s, seed=n, dtype=torch.float64) for n, s in enumerate((left, right, (2,))))
        inputs = [t.requires_grad_() for t in (a, b, bias)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert torch.autograd.gradcheck(
                lambda x, y, z: torch.ops.sassafras.fused.default(x, y, z, activation, 0.5), inputs
            )


def test_the_operator_is_well_made(install: Install) -> None:
    install()
    operator = torch.ops.sassafras.fused.default
    a, b, bias = half(16, 8).requires_grad_(), half(8, 24).requires_grad_(), half(24).requires_grad_()
    for arguments in ((a, b, bias, "relu", 1.0), (half(3, 16, 8), b, None, "none", 0.5)):
        tests = ("test_schema", "test_faketensor", "test_autograd_registration")
        torch.library.opcheck(operator, arguments, test_utils=tests)
    meta = operator(half(5, 4, 8).to("meta"), half(8, 6).to("meta"), None, "none", 1.0)
    assert meta.shape == (5, 4, 6) and meta.is_contiguous()
    with pytest.raises(RuntimeError, match="do not fit"):
        operator(half(4, 8).to("meta"), half(4, 8).to("meta"), None, "none", 1.0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile(install: Install, library: Path, backend: str) -> None:
    install()
    torch._dynamo.reset()

    def layer(x: Any, w: Any, bias: Any) -> Any:
        return room.matmul(x, w.t(), bias=bias, activation="gelu", alpha=0.5) + 1

    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    x, w, bias = half(32, 64), half(48, 64), half(48)
    before = launches(library)
    assert close(compiled(x, w, bias), exact(x, w.t(), None, bias, "gelu", 0.5) + 1)
    assert launches(library) == before + 1
    x = half(2, 16, 64).requires_grad_()
    compiled(x, w, bias).sum().backward()

    def in_place(x: Any, w: Any, out: Any) -> Any:
        return room.matmul(x, w.t(), out, activation="relu", beta=2.0)

    z, out = half(32, 64), half(32, 48)
    wanted = exact(z, w.t(), out, None, "relu", 1.0, 2.0)
    torch.compile(in_place, backend=backend, fullgraph=True)(z, w, out)
    assert close(out, wanted)
    y = x.detach().double().requires_grad_()
    exact(y, w.t(), None, bias, "gelu", 0.5).sum().backward()
    assert float((x.grad.double() - y.grad).abs().max()) <= 0.02 * float(y.grad.abs().max())
    torch._dynamo.reset()


def test_modes_and_transformations(engine: Planner) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils.flop_counter import FlopCounterMode

    a, b, bias = half(3, 16, 8), half(8, 24), half(24)
    traced = make_fx(lambda x, y, z: room.matmul(x, y, bias=z, activation="relu"))(a, b, bias)
    assert any("sassafras.fused" in str(node.target) for node in traced.graph.nodes)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in (a, b, bias)]
        assert room.matmul(fake[0], fake[1], bias=fake[2], activation="silu").shape == (3, 16, 24)
    with FlopCounterMode(display=False) as counter:
        room.matmul(a, b, bias=bias)
    assert counter.get_total_flops() == 2 * 3 * 16 * 8 * 24
    batch = torch.func.vmap(lambda x: room.matmul(x, b, bias=bias, activation="relu"))(a)
    assert close(batch, exact(a, b, None, bias, "relu"))


@pytest.mark.parametrize("leading", [(2, 1), (1, 2)])
def test_a_shared_matrix_is_added_to_what_out_holds(leading: tuple[int, int]) -> None:
    """By torch, whose baddbmm broadcasts no batch."""
    a, b, bias = torch.randn(leading[0], 4, 8), torch.randn(leading[1], 8, 6), torch.randn(6)
    out = torch.randn(2, 4, 6)
    wanted = 0.5 * (a @ b) + 2 * out + bias
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.allclose(room.matmul(a, b, out=out, bias=bias, alpha=0.5, beta=2), wanted, atol=1e-5)


def test_a_subclass_sees_operators_that_have_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have none for what torch reaches cuBLASLt's epilogue by."""
    monkeypatch.setattr(room, "_warned", {"driver", "gpu"})
    seen: list[str] = []

    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device="cuda")

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return Wrapped(func(*(getattr(a, "inner", a) for a in args), **(kwargs or {})))

    a, b, bias = half(4, 64), half(64, 48), half(48)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = room.matmul(Wrapped(a), Wrapped(b), bias=Wrapped(bias), activation="relu")
    assert seen == ["aten.addmm.default", "aten.relu.default"]
    assert torch.equal(result.inner, torch.relu(torch.addmm(bias, a, b)))
    room.use(None)


def test_autocast(engine: Planner, library: Path) -> None:
    a, b, bias = torch.randn(32, 64), torch.randn(64, 48), torch.randn(48)
    before = launches(library)
    with torch.autocast("cpu", dtype=torch.float16):
        result = room.matmul(a, b, bias=bias, activation="relu")
    assert result.dtype == torch.float16 and launches(library) == before + 1
    assert close(result, exact(a.half(), b.half(), None, bias.half(), "relu"))


# --- choosing -----------------------------------------------------------------------------------------------


def test_choices_from_the_shipped_table() -> None:
    """The winner's twin where it is compiled; ours only where more is predicted than torch's time."""
    chooser = Selector(TunedTable.load(shipped_path("NVIDIA H200")))
    extra = epilogue_selector.Extra(bias=True, activation="gelu")
    ours = 0
    for m in (48, 128, 2048, 9000):
        for n, k in ((4096, 4096), (1024, 8192), (64, 64)):
            for layout in ("nn", "tn"):
                config, why = epilogue_selector.choose(chooser, Shape(m, n, k), layout, "fp16", extra=extra)
                few = layout == "tn" and m <= 64 and n * k >= 1 << 24
                assert ("few rows" if few else "not measured") in why
                if config is not None:
                    assert config.instance.epilogue and config.why_illegal(Shape(m, n, k)) is None
                    ours += 1
    assert ours >= 12
    torchs_own = epilogue_selector.Extra(
        bias=True, activation="relu"
    )  # cuBLASLt does that in one kernel, too
    assert epilogue_selector.torch_passes(torchs_own, Batch(), Shape(64, 64, 64)) == 0
    assert epilogue_selector.torch_passes(extra, Batch(), Shape(64, 64, 64)) > 0
    small, four = Shape(64, 64, 64), Batch(4, 4096, 4096, 4096)
    assert epilogue_selector.choose(chooser, small, "tn", "fp16", four, extra=extra)[0] is not None
    plain = epilogue_selector.choose(chooser, small, "tn", "fp16", four)
    assert plain[0] is None and "torch.bmm" in plain[1]
    row = next(
        r
        for r in chooser.table.rows.values()
        if r.ours and r.ours[0][0].instance.name == "cs_tn_64x64_s6q1" and not r.ours[0][0].band  # type: ignore[union-attr]
    )
    config, _ = epilogue_selector.choose(chooser, row.shape, "tn", "fp16", extra=extra)
    assert config is not None and config.name.replace("_s6q1e", "_s6q1") == row.ours[0][0].name
    assert epilogue_selector.choose(chooser, Shape(61, 67, 71), "tn", "bf16")[0] is None


def test_a_bias_alone_follows_the_plain_product() -> None:
    """torch has it in its product; ours serves where the plain kernel that was chosen has it, too."""
    extra = epilogue_selector.Extra(bias=True)
    shape, far = Shape(64, 512, 512), Shape(64, 9999, 512)
    with_it, without = (names.parse(f"split_k_tn_64x64_{s}/c1") for s in ("s6q1", "s10q1"))

    def chosen(config: Any, us: float, asked: Shape = shape) -> tuple[Any, str]:
        table = TunedTable({}, [TableRow(shape, "tn", ((config, us),), 10.0)])
        return epilogue_selector.choose(Selector(table), asked, "tn", "fp16", extra=extra)

    config, why = chosen(with_it, 5.0)
    assert config is not None and config.name == "split_k_tn_64x64_s6q1e/c1" and "tuned" in why
    assert chosen(with_it, 9.9) == (None, "torch adds a bias in its product: tuned: torch is the fastest")
    assert chosen(without, 5.0)[0] is None, "no instance of it has an epilogue"
    assert "torch adds a bias" in chosen(with_it, 5.0, far)[1]


def test_strides_of_batches() -> None:
    assert stride_of((6,), (100,), (6,)) == 100 and stride_of((), (), (6,)) == 0
    assert stride_of((2, 3), (300, 100), (2, 3)) == 100 and stride_of((2, 3), (400, 100), (2, 3)) is None
    assert stride_of((1, 3), (7, 100), (2, 3)) is None and stride_of((6,), (0,), (6,)) == 0
    assert stride_of((1, 1), (5, 5), (2, 3)) == 0 and stride_of((3,), (10,), (1, 3)) == 10


def test_a_batch_counts_its_tiles() -> None:
    config = next(c for c in registry.epilogue_configurations() if c.layout == "tn" and not c.swap_ab)
    rows = config.tile[0]
    assert epilogue_selector.flat(config, Shape(rows + 1, 64, 64), Batch(3, 8, 8, 8)) == Shape(
        6 * rows, 64, 64
    )
    swapped = next(c for c in registry.epilogue_configurations() if c.swap_ab)
    assert epilogue_selector.flat(swapped, Shape(8, 64, 64), Batch(3, 8, 8, 8)).n == 192
