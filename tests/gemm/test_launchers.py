"""Both launchers on a stand-in for the driver: what problem a call is, what a kernel gets, what comes out."""

from __future__ import annotations

import ctypes
import math
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from sassafras.gemm.configs import epilogue, registry  # noqa: E402
from sassafras.gemm.configs.base import Mode  # noqa: E402
from sassafras.gemm.configs.epilogue import NUMBERS, SWIGLU  # noqa: E402
from sassafras.gemm.configs.names import parse  # noqa: E402
from sassafras.gemm.configs.rows import GATED, LAYER_NORM, RMS_NORM  # noqa: E402
from sassafras.gemm.configs.split_k_two_pass import PartialsInstance, TwoPassSplitKConfig  # noqa: E402
from sassafras.gemm.matmul.driver import Driver, DriverError  # noqa: E402
from sassafras.gemm.matmul.plan import KernelPlan, LaunchPlan, plan, why_illegal  # noqa: E402
from sassafras.gemm.matmul.problem import MatmulCall, Problem, lies, read  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402
from sassafras.gemm.select.gpus import SHIPPED  # noqa: E402
from tests.gemm import stand_in  # noqa: E402

KINDS = ("compiled", "python")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    return stand_in.build_driver(tmp_path_factory.mktemp("driver"), shared)


@pytest.fixture(scope="module")
def launchers(library: Path, tmp_path_factory: pytest.TempPathFactory, shared: Path) -> dict[str, Any]:
    cache = stand_in.launcher_into(tmp_path_factory.mktemp("launcher"), shared)
    driver = Driver(str(library))
    return {kind: stand_in.make(kind, driver, stand_in.torch_side(), cache) for kind in KINDS}


@pytest.fixture(params=KINDS)
def launcher(request: pytest.FixtureRequest, launchers: dict[str, Any]) -> Any:
    made = launchers[request.param]
    made.forget()
    return made


def install(launcher: Any, library: Path, config: str, key: tuple[int, ...]) -> None:
    """A plan for one of our configurations."""
    put(launcher, library, parse(config), key)


def put(launcher: Any, library: Path, chosen: Any, key: tuple[int, ...]) -> None:
    problem = Problem(*key)
    assert why_illegal(chosen, problem) is None
    driver = Driver(str(library))
    functions = tuple(
        driver.load(0, b"\x7fELF", instance.name, 227 * 1024, number > 0)
        for number, instance in enumerate(chosen.instances)
    )
    launcher.add_kernel(key, driver.context(0), functions, plan(chosen, problem))


def half(*shape: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).half()


def close(result: Any, a: Any, b: Any) -> bool:
    exact = a.double() @ b.double()
    return bool(((result.double() - exact).abs() <= 2e-3 * (1 + exact.abs())).all())


# --- which problem a call is -------------------------------------------------------------------


@st.composite
def matrices(draw: st.DrawFn, rows: int, columns: int) -> Any:
    """A view with drawn strides: tight, with gaps, transposed, expanded, every second element."""
    kind = draw(st.sampled_from(["rows", "columns", "expanded", "stepped", "offset"]))
    gap = draw(st.sampled_from([0, 0, 8, 3]))
    if kind == "columns":
        return torch.zeros(columns, rows + gap, dtype=torch.float16)[:, :rows].t()
    if kind == "expanded":
        return torch.zeros(1, columns, dtype=torch.float16).expand(rows, columns)
    if kind == "stepped":
        return torch.zeros(rows, 2 * columns, dtype=torch.float16)[:, ::2]
    whole = torch.zeros(rows, columns + gap + 8, dtype=torch.float16)
    start = draw(st.sampled_from([0, 1, 8])) if kind == "offset" else 0
    return whole[:, start : start + columns] if gap else torch.zeros(rows, columns, dtype=torch.float16)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    extent = st.sampled_from([1, 2, 7, 8, 16, 24])
    m, n, k = draw(extent), draw(extent), draw(extent)
    a, b = draw(matrices(m, k)), draw(matrices(k, n))
    lead = draw(st.sampled_from([(), (1,), (2,), (3, 2)]))
    if lead:
        a = a.expand(*lead, m, k) if draw(st.booleans()) else torch.zeros(*lead, m, k, dtype=torch.float16)
    out = None
    if draw(st.booleans()):
        out = draw(matrices(m, n)) if not lead else torch.zeros(*lead, m, n, dtype=torch.float16)
    if draw(st.integers(0, 9)) == 0:
        b = b.bfloat16()
    return a, b, out


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(calls())
def test_both_launchers_see_the_same_problem(launchers: dict[str, Any], call: tuple[Any, Any, Any]) -> None:
    keys = {kind: launchers[kind].key(*call) for kind in KINDS}
    assert keys["compiled"] == keys["python"]


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(calls())
def test_the_problem_describes_the_tensors(call: tuple[Any, Any, Any]) -> None:
    a, b, out = call
    found = read(MatmulCall(a, b, out), "cpu")
    if found is None:
        return
    problem, at_a, at_b = found[:3]
    assert problem.plain or problem.matrices > 1
    if problem.matrices > 1:
        return
    exchanged = at_a == b.data_ptr()  # C^T = B^T A^T
    left, right = a.reshape(-1, a.shape[-1]), b
    if exchanged:
        left, right = right.t(), left.t()
    assert (problem.m, problem.k, problem.n) == (*left.shape, right.shape[1])

    def addresses(at: int, rows: int, columns: int, transposed: bool, leading: int) -> list[int]:
        step = (1, leading) if transposed else (leading, 1)
        return [at + 2 * (i * step[0] + j * step[1]) for i in range(rows) for j in range(columns)]

    def real(x: Any, rows: int, columns: int) -> list[int]:
        flat = [x[i].data_ptr() for i in range(x.shape[0])] if x.dim() == 1 else None
        assert flat is None
        s0, s1 = x.stride()
        return [x.data_ptr() + 2 * (i * s0 + j * s1) for i in range(rows) for j in range(columns)]

    # every element lies where the problem says; reshape may copy, so ask the originals
    first, second = (b.t(), a) if exchanged else (a, b)
    for x, at, extents, transposed, leading in (
        (first, at_a, (problem.m, problem.k), bool(problem.transposed & 2), problem.lda),
        (second, at_b, (problem.k, problem.n), bool(problem.transposed & 1), problem.ldb),
    ):
        plain = x.t() if exchanged and x is a and a.dim() == 2 else x
        if plain.dim() == 2:
            assert addresses(at, *extents, transposed, leading) == real(plain, *extents)
        else:
            wanted = addresses(at, *extents, transposed, leading)
            if exchanged:
                continue
            got = [
                x.data_ptr() + 2 * sum(i * s for i, s in zip(index, x.stride(), strict=True))
                for index in torch.cartesian_prod(*[torch.arange(e) for e in x.shape]).tolist()
            ]
            assert wanted == got


@pytest.mark.parametrize(
    ("rows", "columns", "s0", "s1", "expected"),
    [
        (4, 8, 8, 1, (False, 8)),
        (4, 8, 16, 1, (False, 16)),
        (4, 8, 1, 4, (True, 4)),
        (4, 8, 1, 3, None),  # columns overlap
        (4, 8, 0, 1, None),  # expanded
        (4, 8, 16, 2, None),
        (1, 8, 5, 1, (False, 8)),  # one row: its stride says nothing
        (8, 1, 1, 77, (True, 8)),  # as n x k: 16-byte loads
        (8, 1, 16, 1, (False, 16)),
        (1, 1, 3, 3, (False, 1)),
    ],
)
def test_how_a_matrix_lies(rows: int, columns: int, s0: int, s1: int, expected: tuple | None) -> None:
    assert lies(rows, columns, s0, s1) == expected


def test_what_no_plan_serves(launcher: Any) -> None:
    a, b = half(16, 8), half(8, 24)
    whole = half(16, 24)
    for call in (
        (a.float(), b.float()), (a, b.bfloat16()), (a, half(16, 24)), (a[0], b),
        (half(2, 1, 16, 8), half(1, 2, 8, 24)),
        (half(0, 8), b), (a, b, half(16, 25)), (a, b, whole.float()), (a[:, ::2], half(4, 24)),
        (whole[:, :8], b, whole), (torch.nn.Buffer(a), "b"), (a.numpy(), b),
        (half(2, 16, 16)[:, :, ::2], b), (torch._neg_view(a), b), (a, torch._neg_view(b)),
    ):  # fmt: skip
        assert launcher.key(*call) is None and launcher(*call) is NotImplemented
    assert launcher.key(torch.nn.Parameter(a), b) is not None


def test_where_a_pairs_result_may_lie(launcher: Any) -> None:
    """Behind the gate's matrix and ahead of up's, as memory has room, and in neither."""
    memory, size = half(4096 + 128 + 2048), 32 * 64
    gate, up = memory[:size].view(32, 64), memory[-size:].view(32, 64)
    for first, free in ((size, True), (size - 8, False), (4096 + 128 - 120, False)):
        out = memory[first : first + 128].view(4, 32)
        key = launcher.key(half(4, 64), gate.t(), out, None, NUMBERS[SWIGLU], 1.0, 1.0, up.t())
        assert (key is not None) == free


def reach(tensor: Any) -> int:
    """Bytes from a tensor's first to its last."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 2 * (1 + sum((extent - 1) * stride for extent, stride in pairs))


def apart(out: Any, tensors: tuple[Any, ...]) -> bool:
    """Whether a result shares no range of memory with any of these."""
    return not any(
        out.data_ptr() < t.data_ptr() + reach(t) and t.data_ptr() < out.data_ptr() + reach(out)
        for t in tensors
        if t is not None
    )


class Drawn:
    """Operands drawn within one memory; `clear`: the same lines in another one."""

    def __init__(self) -> None:
        self.random, self.memory, self.other = random.Random(1), half(40_000), half(40_000)

    def matrix(self, *shape: int, transposed: bool = False, tight: bool = False) -> Any:
        """Of a batch, perhaps with gaps between lines and matrices, perhaps expanded."""
        draw, (*leading, rows, columns) = self.random, shape
        lines, width = (columns, rows) if transposed else (rows, columns)
        line = width if tight else width + draw.choice((0, 0, 8, 3))
        step, strides = lines * line + (0 if tight else draw.choice((0, 0, 8, 40))), [line, 1]
        for extent in reversed(leading):
            strides.insert(0, step)
            step *= extent
        if not tight and draw.random() < 0.2:
            strides[:-2] = [0] * len(leading)
        at = 8 * draw.randrange(300) + draw.choice((0, 0, 0, 1))
        made = self.memory.as_strided((*leading, lines, width), strides, at)
        return made.mT if transposed else made

    def vector(self, length: int, share: float) -> Any:
        """Or None."""
        at = 8 * self.random.randrange(300)
        return self.memory[at : at + length] if self.random.random() < share else None

    def lines(self, *shape: int) -> Any:
        """Without gaps."""
        at = 8 * self.random.randrange(700)
        return self.memory[at : at + math.prod(shape)].view(shape)

    def clear(self, tensor: Any) -> Any:
        return self.other.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def test_a_product_is_served_wherever_its_result_lies_apart(launchers: dict[str, Any]) -> None:
    drawn, seen = Drawn(), set()
    draw = drawn.random
    for _ in range(4000):
        leading = draw.choice(((), (), (2,), (3,), (2, 2), (1,)))
        m, n, k = draw.choice((1, 2, 5, 9)), draw.choice((2, 16, 24)), draw.choice((1, 8, 24))
        a = drawn.matrix(*leading, m, k, transposed=draw.random() < 0.2)
        b = drawn.matrix(*draw.choice(((), leading)), k, n, transposed=draw.random() < 0.7)
        activation, width, addend = draw.choice((0, 0, 1, NUMBERS[SWIGLU])), n, None
        if activation == NUMBERS[SWIGLU] and draw.random() < 0.6:
            addend = drawn.memory.as_strided(b.shape, b.stride(), 8 * draw.randrange(300))
        elif activation == NUMBERS[SWIGLU]:
            width = n // 2
        elif draw.random() < 0.3:
            addend = drawn.matrix(*leading, m, n, tight=True)
        bias, norm = drawn.vector(n, 0.3), drawn.vector(k, 0.2)
        out = drawn.matrix(*leading, m, width, transposed=draw.random() < 0.2, tight=draw.random() < 0.5)
        more = bias, activation, 1.0, float(addend is not None), addend, norm
        here, there = ([x.key(a, b, c, *more) for x in launchers.values()] for c in (out, drawn.clear(out)))
        right = there[0] is not None and apart(out, (a, b, bias, addend, norm))
        assert here[0] == here[1] and there[0] == there[1] and (here[0] is not None) == right, (a, b, out)
        seen.add((there[0] is not None, right))
    assert len(seen) == 3


def test_rows_are_served_wherever_their_result_lies_apart(launchers: dict[str, Any]) -> None:
    drawn = Drawn()
    draw = drawn.random
    for _ in range(2000):
        leading, k, gap = draw.choice(((), (1,), (3,), (2, 2))), draw.choice((8, 24)), draw.choice((0, 8))
        widths = [draw.choice((16, 32)) for _ in range(draw.choice((2, 3)))]
        weights = [drawn.memory.as_strided((k, w), (1, k + gap), 8 * draw.randrange(300)) for w in widths]
        biases, none = [drawn.vector(w, 0.3) for w in widths], [None] * (3 - len(widths))
        joined = [drawn.lines(*leading, k), *weights, *none, *biases, *none, drawn.vector(k, 0.4)]
        kind, alone = draw.choice(((GATED, False), (GATED, True), (RMS_NORM, False), (LAYER_NORM, False)))
        other = None if alone else drawn.lines(*(leading if kind == GATED else ()), 2 * k)
        bias = drawn.vector(2 * k, 0.7) if kind == LAYER_NORM else None
        rows = [drawn.lines(*leading, 2 * k), other, bias]
        for name, ahead, operands, width in (
            ("joined", (), joined, sum(widths)),
            ("rows", (kind,), rows, k + k * (not alone)),
        ):
            out = drawn.lines(*leading, width)
            here, there = (
                [getattr(x, name)(*ahead, *operands, c, 1e-5, False) for x in launchers.values()]
                for c in (out, drawn.clear(out))
            )
            assert here[0] == here[1] and there[0] == there[1] and there[0] is not None
            assert (here[0] is not None) == apart(out, tuple(operands)), (name, operands, out)


# --- what comes out ----------------------------------------------------------------------------

CASES = {
    "small_tn_m1n2s2/w1x2x4/c2": (24, 40, 256, "tn"),
    "small_nn_m1n2s1/w2x1x1/c1": (40, 32, 64, "nn"),
    "small_tn_swapped_m1n1s4/w1x1x2/c1": (3, 48, 512, "tn"),
    "fallback_nn_32x64_w2x2s4/c2": (72, 64, 256, "nn"),
    "fallback_tn_64x64_w2x2s4a2/c1+o": (72, 64, 256, "tn"),
    "small_tn_m1n2s2/w1x2x4/c2+os": (24, 40, 256, "tn"),
    "split_k_tn_64x80_s9q1/c2+ol": (136, 72, 256, "tn"),
    "unaligned_tn_64x64_s6/c1": (61, 67, 71, "tn"),
    "unaligned_tn_64x128_s8/c2+ol": (7, 135, 129, "tn"),
    "unaligned_tn_64x64_s6/c1g4+o": (325, 67, 71, "tn"),
    "split_k_nn_64x64_s10q1/c1g4": (328, 72, 64, "nn"),
}


@pytest.mark.parametrize("config", CASES)
def test_our_kernels_are_given_what_they_need(launcher: Any, library: Path, config: str) -> None:
    m, n, k, layout = CASES[config]
    state = stand_in.state_of(library)
    a, b = half(m, k), half(k, n, seed=1) if layout == "nn" else half(n, k, seed=1).t()
    assert launcher(a, b) is NotImplemented, "no plan yet"
    key = launcher.key(a, b)
    install(launcher, library, config, key)
    before = state.launches
    result = launcher(a, b)
    assert close(result, a, b) and result.is_contiguous() and state.launches == before + 1
    assert state.stream == stand_in.STREAM and state.context == Driver(str(library)).context(0)
    wanted = parse(config).launch(parse_shape(key))
    assert tuple(state.grid) == wanted.grid and state.threads == wanted.threads
    assert tuple(state.cluster) == wanted.cluster and state.shared == wanted.shared_bytes
    assert bool(state.overlap) == wanted.overlap
    # out, and leading extents
    out = torch.full((m, n), float("nan"), dtype=torch.float16)
    assert launcher(a, b, out) is out and close(out, a, b)
    stacked = a.view(1, m, k)
    assert launcher(stacked, b).shape == (1, m, n)
    assert launcher(torch.nn.Parameter(a, requires_grad=False), b).shape == (m, n)
    assert launcher.counts()["plans"] == 1


def family_cases() -> list[tuple[str, tuple[int, int, int]]]:
    """One configuration of every family, layout, type, kind of scratch, and of swapped roles."""
    shapes = (Shape(64, 128, 512), Shape(16, 128, 512))
    found: dict[tuple, tuple[str, tuple[int, int, int]]] = {}
    for config in (*registry.configurations(), *registry.other_configurations()):
        instance = type(config).__name__, config.layout, config.dtype, config.swap_ab
        if len([kind for kind in found if kind[:4] == instance]) == 2:
            continue
        for shape in shapes:
            if config.why_illegal(shape) is None:
                launch = config.launch(shape)
                kind = (*instance, bool(launch.workspace_bytes))
                found.setdefault(kind, (config.name, (shape.m, shape.n, shape.k)))
                break
    return list(found.values())


def laid(rows: int, columns: int, transposed: bool, gap: int, dtype: Any, seed: int) -> Any:
    """A matrix of either layout with `gap` unused elements at the end of each line."""
    lines, width = (columns, rows) if transposed else (rows, columns)
    whole = half(lines, width + gap, seed=seed).to(dtype)[:, :width]
    return whole.t() if transposed else whole


def test_every_family_is_given_what_it_needs(launcher: Any, library: Path) -> None:
    """All families, layouts and types, tight and with gaps: results show what arrived."""
    cases = family_cases()
    assert {type(parse(name)).__name__ for name, _ in cases} >= {"SmallConfig", "FallbackConfig"}
    for name, (m, n, k) in cases:
        config = parse(name)
        dtype = torch.bfloat16 if config.dtype == "bf16" else torch.float16
        for gap in (0, 8, 5) if name.startswith("any_") else (0, 8):
            a = laid(m, k, config.layout[1] == "t", gap, dtype, 1)
            b = laid(k, n, config.layout[0] == "t", gap, dtype, 2)
            out = torch.full((m, n + gap), float("nan"), dtype=dtype)[:, :n]
            key = launcher.key(a, b, out)
            assert Problem(*key).layout == config.layout
            install(launcher, library, name, key)
            assert launcher(a, b, out) is out, name
            exact = a.double() @ b.double()
            allowed = (0.02 if dtype == torch.bfloat16 else 4e-3) * (1 + exact.abs())
            assert ((out.double() - exact).abs() <= allowed).all(), (name, gap)


def parse_shape(key: tuple[int, ...]) -> Any:
    return Shape(*key[2:5])


def test_gaps_between_lines_and_column_major_results(launcher: Any, library: Path) -> None:
    a = half(32, 80)[:, :64]
    b = half(48, 72, seed=1)[:, :64].t()
    whole = torch.full((32, 64), float("nan"), dtype=torch.float16)
    install(launcher, library, "small_tn_m1n2s2/w1x1x1/c1", launcher.key(a, b, whole[:, :48]))
    assert close(launcher(a, b, whole[:, :48]), a, b)
    assert whole[:, 48:].isnan().all(), "the gap stays as it was"
    # C column-major: C^T = B^T A^T, which is tn again
    out = torch.empty(48, 32, dtype=torch.float16).t()
    key = launcher.key(a, b, out)
    problem = Problem(*key)
    assert (problem.m, problem.n, problem.layout) == (48, 32, "tn")
    install(launcher, library, "small_tn_m1n2s2/w1x1x1/c1", key)
    assert launcher(a, b, out) is out and close(out, a, b)


def test_tensor_maps_and_workspace(launcher: Any, library: Path) -> None:
    state = stand_in.state_of(library)
    driver = Driver(str(library))
    function = driver.load(0, b"\x7fELF", "mapped_tn", 48 * 1024)

    def parameters(m: int, n: int, k: int) -> tuple[tuple, ...]:
        maps = (
            ("map", "a", 6, (k, m), (2 * k,), (64, 64), 3),
            ("map", "b", 6, (k, n), (2 * k,), (64, 64), 3),
        )
        return (*maps, ("c",), ("value", n), ("workspace",))

    tensors = [(half(24, 64, seed=s), half(16, 64, seed=s + 9).t()) for s in range(6)]
    key = launcher.key(*tensors[0])
    launch = LaunchPlan((1, 1, 1), 128, 0, (1, 1, 1), parameters(24, 16, 64))
    launcher.add_kernel(key, driver.context(0), (function,), KernelPlan((launch,), 4 * 24 * 16))
    before = state.encodes
    for a, b in tensors * 2:
        assert close(launcher(a, b), a, b)
    assert state.encodes == before + 24, "four addresses are kept, six went round"
    for _ in range(5):
        launcher(*tensors[-1])
    assert state.encodes == before + 24, "known addresses are not encoded again"


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_of_each_thread_leaves_a_workspace_to_torch(
    library: Path, tmp_path: Path, shared: Path, kind: str
) -> None:
    """Threads would share what torch's allocator gives for handle 2."""
    current = [0x10]
    side = stand_in.torch_side(stream=lambda device: current[0])
    driver, state = Driver(str(library)), stand_in.state_of(library)
    launcher = stand_in.make(kind, driver, side, stand_in.launcher_into(tmp_path, shared))
    a, b = half(16, 64), half(8, 64).t()
    problem = Problem(*launcher.key(a, b))
    rest = ((2 * problem.k,), (64, 64), 3)
    maps = ("map", "a", 6, (problem.k, problem.m), *rest), ("map", "b", 6, (problem.k, problem.n), *rest)
    parameters = (*maps, ("c",), ("value", problem.n), ("workspace",))
    launch = LaunchPlan((1, 1, 1), 128, 0, (1, 1, 1), parameters)
    function = driver.load(0, b"\x7fELF", "mapped_tn", 48 * 1024)
    launcher.add_kernel(problem, driver.context(0), (function,), KernelPlan((launch,), 512))
    before = state.launches
    for current[0], launches in ((0x10, 1), (2, 1), (0x20, 2)):
        assert close(launcher(a, b), a, b) and state.launches == before + launches


# --- two launches --------------------------------------------------------------------------------

SWAPPED = TwoPassSplitKConfig(
    PartialsInstance("nn", 64, 64, 3, swap_ab=True, dtype="bf16", k_blocks=1), split_k=3, mode=Mode(pdl=True)
)


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (parse("split_k_two_pass_tn_64x64_s12q1/p2"), (72, 40, 256)),
        (parse("split_k_two_pass_nn_64x128_s8q1/p7+ol"), (136, 72, 448)),
        (parse("split_k_two_pass_tn_128x64_s8q1/p4+o"), (72, 136, 456)),
        (SWAPPED, (24, 136, 328)),
    ],
    ids=lambda x: getattr(x, "name", None),
)
def test_two_launches_are_one_call(
    library: Path, tmp_path: Path, shared: Path, config: Any, shape: tuple[int, int, int]
) -> None:
    """In order, on the call's stream, the second overlapping, with one workspace of the call's own."""
    m, n, k = shape
    stand_in.describe(library, [config])
    state, driver, given, stream = stand_in.state_of(library), Driver(str(library)), [], [0x10]
    dtype = torch.bfloat16 if config.dtype == "bf16" else torch.float16

    def empty(count: int, device: int) -> Any:
        given.append(torch.full((count,), 0xFF, dtype=torch.uint8))
        return given[-1]

    side = stand_in.torch_side(empty_bytes=empty, stream=lambda device: stream[0])
    cache = stand_in.launcher_into(tmp_path, shared)
    a, b = laid(m, k, False, 8, dtype, 1), laid(k, n, config.layout[0] == "t", 8, dtype, 2)
    whole = torch.full((m, n + 16), float("nan"), dtype=dtype)
    exact = a.double() @ b.double()

    def right(c: Any) -> bool:
        allowed = (0.02 if dtype == torch.bfloat16 else 4e-3) * (1 + exact.abs())
        return bool(((c.double() - exact).abs() <= allowed).all())

    for kind in KINDS:
        launcher = stand_in.make(kind, driver, side, cache)
        divided = state.all_shared
        for out in (None, whole[:, :n], torch.empty(m, n, dtype=dtype)):
            key = launcher.key(a, b, out)
            put(launcher, library, config, key)
        assert state.all_shared == divided + 3
        wanted = config.launch(Shape(m, n, k))
        assert wanted.then is not None and wanted.then.launch.overlap
        for capturing in (0, 1):
            state.capturing = capturing
            try:
                for stream[0] in (0x10, 0x20, 0x10):
                    before, whole[:, :n] = state.launches, float("nan")
                    given.clear()
                    assert launcher(a, b, whole[:, :n]) is not NotImplemented and right(whole[:, :n])
                    assert state.launches == before + 2 and state.stream == state.stream_before == stream[0]
                    assert tuple(state.grid_before) == wanted.grid
                    assert tuple(state.grid) == wanted.then.launch.grid
                    assert bool(state.overlap_before) == wanted.overlap and state.overlap == 1
                    assert tuple(state.cluster) == (1, 1, 1)
                    (workspace,) = given
                    assert state.workspace == state.workspace_before == workspace.data_ptr()
                    assert workspace.numel() == wanted.workspace_bytes
            finally:
                state.capturing = 0
        assert whole[:, n:].isnan().all(), "the gap stays as it was"
        assert right(launcher(a, b))
        # C as columns: another problem, of another layout, has no plan
        assert launcher(a, b, torch.empty(n, m, dtype=dtype).t()) is NotImplemented
        state.fail_adding = 701
        try:
            with pytest.warns(RuntimeWarning, match=rf"error 701.*{m}x{n}x{k}"):
                assert torch.equal(launcher(a, b), torch.matmul(a, b))
        finally:
            state.fail_adding = 0
        before = state.launches
        assert torch.equal(launcher(a, b), torch.matmul(a, b)) and state.launches == before


def test_what_two_launches_cannot_serve_is_said() -> None:
    """Lines and addresses as the second stores them: whole 16 bytes."""
    chosen, size = parse("split_k_two_pass_nn_64x128_s8q1/p4"), (256, 512, 4096)
    tight = Problem(0, 0, *size, 0, 4096, 512, 512, 1)
    assert why_illegal(chosen, tight) is None and why_illegal(chosen, tight._replace(ldc=1024)) is None
    assert "multiple of 8" in (why_illegal(chosen, tight._replace(ldc=515)) or "")
    assert "16 bytes" in (why_illegal(chosen, tight._replace(aligned=0)) or "")
    assert "it reads nn" in (why_illegal(chosen, tight._replace(transposed=1)) or "")
    assert "multiplies fp16" in (why_illegal(chosen, tight._replace(dtype=1)) or "")
    assert registry.with_dtype(chosen, "bf16") == parse("split_k_two_pass_nn_bf16_64x128_s8q1/p4")
    shape = Shape(*size)
    assert epilogue.why_illegal(chosen, shape) == f"{chosen.instance.name} is compiled without an epilogue"
    made = plan(chosen, tight._replace(ldc=1024))
    assert len(made.launches) == 2
    places = [name for name, _ in chosen.adding.parameters]
    assert made.launches[1].parameters[places.index("ldc")] == ("value", 1024)


# --- when torch has to do it -------------------------------------------------------------------


def test_a_plan_may_name_torch(launcher: Any) -> None:
    a, b = half(16, 8), half(8, 24)
    launcher.add_torch(launcher.key(a, b))
    assert torch.equal(launcher(a, b), torch.matmul(a, b))
    out = torch.empty(16, 24, dtype=torch.float16)
    assert launcher(a, b, out) is out and torch.equal(out, torch.matmul(a, b))
    launcher.remove(launcher.key(a, b))
    assert launcher(a, b) is NotImplemented


def test_a_refused_launch_becomes_torchs(launcher: Any, library: Path) -> None:
    state = stand_in.state_of(library)
    a, b = half(32, 64), half(24, 64).t()
    install(launcher, library, "small_tn_m1n2s2/w1x1x1/c1", launcher.key(a, b))
    refused = launcher.counts()["refused"]
    state.fail = 701
    try:
        with pytest.warns(RuntimeWarning, match=r"error 701.*32x24x64"):
            result = launcher(a, b)
    finally:
        state.fail = 0
    assert torch.equal(result, torch.matmul(a, b)) and launcher.counts()["refused"] == refused + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(launcher(a, b), torch.matmul(a, b))


def test_gradients_and_modes_are_left_to_python(launcher: Any) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    a, b = half(16, 8), half(8, 24)
    launch = LaunchPlan((1, 1, 1), 32, 0, (1, 1, 1), (("a",),))
    launcher.add_kernel(launcher.key(a, b), 1, (1,), KernelPlan((launch,)))
    weight = b.clone().requires_grad_()
    assert launcher(a, weight) is NotImplemented
    launcher.add_torch(launcher.key(a, b))
    launcher(a, weight).sum().backward()  # torch sees to it itself
    assert torch.equal(weight.grad, a.sum(0)[:, None].expand(8, 24))
    with torch.no_grad():
        assert launcher(a, weight) is not NotImplemented
    assert launcher.raw(a, b) is not NotImplemented

    class Quiet(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with Quiet():
        assert launcher(a, b) is NotImplemented


def test_the_driver_says_what_failed(library: Path) -> None:
    driver = Driver(str(library))
    assert driver.facts(0) == ("NVIDIA H200", (9, 0))
    hardware = driver.hardware(0)
    assert hardware is not None and (hardware.multiprocessors, hardware.clock_mhz) == (132, 1980)
    assert abs(hardware.gigabytes_s - 4917) < 1 and hardware.distance(SHIPPED[0]) < 1e-3
    with pytest.raises(DriverError, match="cuModuleLoadData: CUDA error 200"):
        driver.load(0, b"nonsense", "x", 0)
    with pytest.raises(DriverError, match="cuFuncSetAttribute"):
        driver.load(0, b"\x7fELF", "x", 1 << 20)
    current = ctypes.c_void_p()
    driver.call("cuCtxGetCurrent", ctypes.byref(current))
    assert current.value is None, "the context before is current again"


def test_bad_plans_are_refused(launchers: dict[str, Any]) -> None:
    launcher = launchers["compiled"]
    launcher.forget()
    key = launcher.key(half(16, 8), half(8, 24))
    good = LaunchPlan((1, 1, 1), 32, 0, (1, 1, 1), ())
    for wrong in (("nonsense",), ("value",), ("map", "d", 6, (1,), (), (1,), 3), ()):
        bad = good._replace(parameters=(wrong,))
        for functions, launches in (((1,), (bad,)), ((1, 1), (good, bad))):
            with pytest.raises((ValueError, TypeError)):
                launcher.add_kernel(key, 1, functions, KernelPlan(launches))
    for functions, launches in (((1,), (good, good)), ((), ()), ((1,), (good._replace(grid=(1, 1)),))):
        with pytest.raises((ValueError, TypeError)):
            launcher.add_kernel(key, 1, functions, KernelPlan(launches))
    with pytest.raises(TypeError):
        launcher.add_kernel(key, 1, (1,), 7)
    with pytest.raises(TypeError):
        launcher.add_torch(key[:11])
    assert launcher.counts()["plans"] == 0
    with pytest.raises(TypeError):
        launcher(1)
