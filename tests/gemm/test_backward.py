"""The layouts nt and tt: swept, written, read back, dispatched; and gradients that run through them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sassafras.core import SassafrasError
from sassafras.gemm.bench import candidates, grids, runs
from sassafras.gemm.bench.dry_run import DryContestants
from sassafras.gemm.bench.options import Options, retuning
from sassafras.gemm.bench.tune import choose
from sassafras.gemm.bench.worker_client import WorkerClient
from sassafras.gemm.configs import backward, names, registry
from sassafras.gemm.configs.fields import from_fields
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select import dataset, table
from sassafras.gemm.select.dataset import Dataset
from sassafras.gemm.select.selector import Selector
from sassafras.gemm.select.table import TableRow, TunedTable
from tests.scripts import run_benchmark

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = Options(configs=12, finalists=2, layouts=("nt", "tt"))
SHAPES = (Shape(256, 512, 128), Shape(1024, 768, 512), Shape(64, 64, 72))
QUIET: dict[str, Any] = {"dry": True, "progress": 0, "say": lambda text: None}
GPU = "NVIDIA H200"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Dataset]:
    """A rehearsed sweep of two modelled GPUs."""
    folder = tmp_path_factory.mktemp("backward")
    return folder, runs.sweep(SHAPES, runs.RunSettings(folder, OPTIONS, gpus=2, **QUIET))


def measured(found: Dataset) -> Dataset:
    """The same as if a GPU had been there: what the writers make of it is what they would make then."""
    return Dataset({**found.header, "modelled": False, "gpu": GPU}, found)


# --- which kernels and shapes, the sweep, its files --------------------------------------------------------


def test_kernels_and_shapes_of_the_backward_pass() -> None:
    nt = backward.instances(("nt",))
    assert nt and {i.layout for i in nt} == {"nt"} and all(i.dtype == "fp16" for i in nt)  # type: ignore[union-attr]
    assert set(nt) < set(backward.instances(("nt", "tt"))) <= set(registry.OTHER_INSTANCES)
    assert backward.instances() == registry.INSTANCES
    assert {c.layout for c in backward.configurations()} == {"nt", "tt"}
    gradients, grid = backward.weight_gradients(), grids.choose_shapes("backward")
    assert set(gradients) < set(grid) and len(set(grid)) == len(grid) and 250 < len(grid) <= 310
    assert {s.k for s in gradients} >= set(backward.TOKENS) and any(s.k % 8 for s in gradients)
    for shape in gradients[::12]:
        assert registry.legal(shape, layouts=("nt",)), "any number of tokens"


def test_layouts_are_of_one_kind(tmp_path: Path) -> None:
    for layouts in (("nn", "nt"), ("xy",), ()):
        with pytest.raises(SassafrasError, match="layouts are of nn and tn, or of nt and tt"):
            Options(layouts=layouts)
    assert Options(layouts=["tt", "nt"]).layouts == ("tt", "nt")
    with pytest.raises(SassafrasError, match="measures nn and tn"):
        runs.run(SHAPES, runs.RunSettings(tmp_path, OPTIONS, **QUIET))


def test_one_shape_is_swept() -> None:
    record = choose(DryContestants(), SHAPES[1], OPTIONS)
    assert record["best"].keys() == record["lt"].keys() == record["torch"].keys() == {"nt", "tt"}
    assert {given["layout"] for given, _, _ in record["rungs"]} == {"nt", "tt"}
    assert record["ours"]["dtype"] == "fp16" and not record["wrong"]
    only = retuning(OPTIONS, "^persistent_")
    again = choose(DryContestants(), SHAPES[1], only)
    assert again["rungs"] and all(given["kernel"] == "persistent" for given, _, _ in again["rungs"])
    assert {c.layout for c in candidates.matching("^persistent_(n|t)t_")} == {"nt", "tt"}


def test_a_sweep_resumes_and_keeps_apart_from_the_others(
    swept: tuple[Path, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, found = swept
    assert found.modelled and set(found.entries) == set(SHAPES)
    assert all(entry.baselines["torch"].keys() == {"nt", "tt"} for entry in found)
    monkeypatch.setattr(runs, "instances", lambda layouts: pytest.fail("a rehearsal builds nothing"))
    with monkeypatch.context() as patch:
        patch.setattr(WorkerClient, "_start", lambda self: pytest.fail("a worker was started"))
        again = runs.sweep(SHAPES, runs.RunSettings(folder, OPTIONS, **QUIET))
    assert again.entries == found.entries
    nn = Options(configs=12, finalists=2)
    other = runs.sweep(SHAPES[2:], runs.RunSettings(folder, nn, **QUIET))
    assert set(other.entries) == {SHAPES[2]} and other[SHAPES[2]].baselines["torch"].keys() == {"nn", "tn"}
    assert runs.collected(folder, backward.PART).pairs == found.pairs


def test_its_files_have_names_of_their_own(swept: tuple[Path, Dataset], tmp_path: Path) -> None:
    _, found = swept
    assert runs.save_sweep(found, tmp_path) == [tmp_path / "sweep-backward-dry.jsonl.gz"]
    target = tmp_path / "here.table.json"
    paths = runs.save_sweep(measured(found), tmp_path, install=target)
    assert [p.name for p in paths[:2]] == [
        "nvidia-h200.backward.jsonl.gz", "nvidia-h200.backward.table.json",
    ]  # fmt: skip
    rows = TunedTable.load(paths[1]).rows
    assert {layout for _, layout in rows} == {"nt", "tt"} and TunedTable.load(target).rows == rows
    assert TunedTable.from_dataset(Dataset.load(paths[0])).rows == rows


def test_the_script_sweeps_them(tmp_path: Path) -> None:
    words = ["sweep", "--dry-run", "--grid", "backward", "--layouts", "nt,tt", "--shapes", "6", "--gpus", "2"]
    for _ in range(2):
        done = run_benchmark("hgemm", *words, "--out", tmp_path)
        assert done.returncode == 0 and "6 of 6 shapes" in done.stdout, done.stdout + done.stderr
    assert Dataset.load(tmp_path / "sweep-backward-dry.jsonl.gz").modelled


def test_what_is_shipped_of_them_belongs_together() -> None:
    path = table.shipped_path(GPU, backward.PART)
    held = dataset.DATASETS / path.name.replace(".table.json", ".jsonl.gz")
    assert path.is_file() == held.is_file(), "dataset and table come together"
    if held.is_file():
        shipped = dataset.shipped(GPU, backward.PART)
        assert not shipped.modelled and TunedTable.from_dataset(shipped).rows == TunedTable.load(path).rows
        assert {layout for _, layout in TunedTable.load(path).rows} <= {"nt", "tt"}


# --- the table and the chooser -----------------------------------------------------------------------------


def test_the_shipped_tables_are_read_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, swept: tuple[Path, Dataset]
) -> None:
    from sassafras.gemm.matmul.loading import load_table

    monkeypatch.setenv("SASSAFRAS_GEMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SASSAFRAS_GEMM_TABLE", raising=False)
    monkeypatch.setattr(table, "DATA", tmp_path)
    lt = {"layout": "nn", "blob": "01" * 64, "workspace": 0}
    main = TunedTable({"gpu": GPU, "cublaslt": 2}, [TableRow(SHAPES[0], "nn", (), 2.0, 1.0, lt)])
    main.save(table.shipped_path(GPU))
    before = load_table(GPU)
    assert before is not None and before.rows == main.rows, "without the file nothing changes"
    for version, kept in ((2, True), (3, False)):
        found = measured(swept[1])
        found.header["cublaslt"] = version
        TunedTable.from_dataset(found).save(table.shipped_path(GPU, backward.PART))
        both = load_table(GPU)
        assert both is not None and both.header["cublaslt"] == 2 and len(both) == 1 + 2 * len(SHAPES)
        assert both.rows[SHAPES[0], "nn"].lt == lt
        row = both.rows[SHAPES[1], "nt"]
        assert row.torch_us and (row.lt is not None) == kept, "algorithms of another cuBLASLt are not kept"


def rows_around(layout: str, config: registry.Config, us: float = 1.0) -> list[TableRow]:
    sizes = (512, 1024, 2048)
    return [
        TableRow(Shape(m, n, k), layout, ((config, us),), 1.5)
        for m in sizes
        for n in sizes
        for k in (512, 1024)
    ]


def test_shapes_never_tuned_are_chosen_by_neighbours_with_care() -> None:
    config = next(c for c in registry.legal(Shape(1024, 1024, 1024), layouts=("nt",)) if "128x128" in c.name)
    chooser = Selector(TunedTable({}, rows_around("nt", config)))

    def of(shape: Shape, layout: str = "nt") -> Any:
        return chooser.choose(shape, layout, lambda c: c.layout == layout and c.why_illegal(shape) is None)

    near = of(Shape(1024, 1024, 1016))
    assert near.member == "ours" and "neighbours" in near.why and near.speedup > 1.03
    assert of(Shape(1024, 1024, 1024), "tt").member == "torch", "nothing was tuned in tt"
    # one tile more than the GPU has room for, mostly empty: torch may do better than our neighbours did
    empty = of(Shape(520, 520, 1024))
    assert empty.speedup < near.speedup
    assert of(Shape(64, 64, 65536)).why == "no tuned shape is near"


def test_a_model_speaks_for_its_layouts_alone() -> None:
    from sassafras.gemm.select import predictor

    np = pytest.importorskip("numpy")
    zero = np.zeros(1, np.intp)

    def constant(value: float, layouts: list[str]) -> predictor.Model:
        trees = predictor.Trees(
            value, 0, zero, zero, np.array([np.inf]), np.zeros((1, 2), np.intp), np.zeros(1)
        )
        return predictor.Model(trees, trees, {"layouts": layouts})

    config = names.parse("persistent_nt_128x128_pp2s6b2c1x1/g8")
    found, shape = TunedTable({}, rows_around("nt", config)), Shape(1024, 1024, 1016)

    def why(**models: predictor.Model) -> str:
        return Selector(found, **models).choose(shape, "nt", lambda c: True).why

    assert "neighbours" in why(model=constant(1.0, ["nn", "tn"]))
    both = why(model=constant(-1.0, ["nn", "tn"]), backward=constant(1.0, ["nt", "tt"]))
    assert "learnt" in both
    assert "0.37 of torch" in why(backward=constant(-1.0, ["nt", "tt"]))
    assert predictor.Model(constant(0, []).plain, constant(0, []).modes, {}).layouts == ("nn", "tn")


# --- gradients ---------------------------------------------------------------------------------------------

LAYER = {
    layout: names.parse(f"persistent_{layout}_128x128_pp2s6b2c1x1/g8") for layout in ("nn", "tn", "nt", "tt")
}
M, N, K = 24, 40, 32  # tokens, outputs, inputs

Install = Callable[[TunedTable], Any]


@pytest.fixture
def install(tmp_path: Path, shared: Path) -> Iterator[Install]:
    """An engine on the driver's stand-in whose kernels are believed to be compiled."""
    torch = pytest.importorskip("torch")
    assert torch
    from sassafras.gemm.build.cubins import cached_path
    from sassafras.gemm.matmul import api as room
    from sassafras.gemm.matmul.driver import Driver
    from sassafras.gemm.matmul.planner import Planner
    from sassafras.gemm.matmul.torch_side import strict
    from tests.gemm import stand_in

    library = stand_in.build_driver(tmp_path, shared)
    for config in LAYER.values():
        cached_path(config.instance, tmp_path).write_bytes(b"\x7fELF")

    def make(found: TunedTable) -> Any:
        driver = Driver(str(library))
        side = stand_in.torch_side(strict=strict)
        engine = Planner(driver, side, cache=tmp_path, background=False, table=found)
        engine.launcher = stand_in.make("python", driver, side, tmp_path)
        room.use(engine, device="cpu")
        return room

    yield make
    room.use(None)


def tuned(*problems: tuple[Shape, str]) -> TunedTable:
    return TunedTable(
        {"gpu": GPU},
        [TableRow(shape, layout, ((LAYER[layout], 1.0),), 2.0) for shape, layout in problems],
    )


def members(room: Any) -> dict[tuple[str, str], str]:
    return {(p["shape"], p["layout"]): p["member"] for p in room.status()["problems"]}


def half(*shape: int, seed: int = 0) -> Any:
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half()


def near(result: Any, exact: Any) -> bool:
    return result.shape == exact.shape and bool(((result - exact).abs() <= 4e-3 * (1 + exact.abs())).all())


def test_gradients_of_a_linear_layer_run_in_nt_and_lie_as_the_weight(install: Install) -> None:
    room = install(tuned(
        (Shape(M, N, K), "tn"), (Shape(M, K, N), "nn"), (Shape(N, K, M), "nt"),
    ))  # fmt: skip
    x, w = half(M, K).requires_grad_(), half(N, K, seed=1).requires_grad_()
    grad = half(M, N, seed=2)
    room.matmul(x, w.t()).backward(grad)
    assert members(room) == {
        (f"{M}x{N}x{K}", "tn"): "ours", (f"{M}x{K}x{N}", "nn"): "ours", (f"{N}x{K}x{M}", "nt"): "ours",
    }  # fmt: skip
    assert near(x.grad, grad.double() @ w.detach().double())
    assert near(w.grad, grad.double().t() @ x.detach().double())
    assert w.grad.stride() == w.stride() and x.grad.stride() == x.stride()


def test_gradients_of_a_weight_kept_as_inputs_by_outputs(install: Install) -> None:
    import torch

    room = install(tuned((Shape(M, N, K), "nn"), (Shape(M, K, N), "tn"), (Shape(K, N, M), "nt")))
    x, w = half(M, K).requires_grad_(), half(K, N, seed=1).requires_grad_()
    grad = half(M, N, seed=2)
    dx, dw = torch.autograd.grad(room.matmul(x, w), (x, w), grad)
    assert members(room)[f"{K}x{N}x{M}", "nt"] == "ours" and members(room)[f"{M}x{K}x{N}", "tn"] == "ours"
    assert near(dx, grad.double() @ w.detach().double().t())
    assert near(dw, x.detach().double().t() @ grad.double()) and dw.is_contiguous()


@pytest.mark.parametrize("leading", [(), (2,)])
def test_gradients_of_a_layer_with_an_epilogue_are_plain_products(
    install: Install, leading: tuple[int, ...]
) -> None:
    import torch

    room = install(tuned((Shape(M, K, N), "nn"), (Shape(N, K, M), "nt")))
    x, w = half(M, K).requires_grad_(), half(N, K, seed=1).requires_grad_()
    bias, grad = half(N, seed=3).requires_grad_(), half(M, N, seed=2)
    rows = x.view(*leading, M // (leading or (1,))[0], K)
    y = room.matmul(rows, w.t(), bias=bias, activation="relu")
    y.backward(grad.view(y.shape))
    assert {at: who for at, who in members(room).items() if at[1] in ("nn", "nt")} == {
        (f"{M}x{K}x{N}", "nn"): "ours", (f"{N}x{K}x{M}", "nt"): "ours",
    }  # fmt: skip
    through = torch.where(y.detach().view(M, N) > 0, grad, 0)
    assert near(w.grad, through.double().t() @ x.detach().double())
    assert near(x.grad, through.double() @ w.detach().double())
    assert w.grad.stride() == w.stride() and near(bias.grad, through.double().sum(0))


def test_a_column_major_left_side_has_a_column_major_gradient(install: Install) -> None:
    room = install(tuned((Shape(K, M, N), "nt"), (Shape(M, N, K), "nt")))
    x, w = half(K, M).t().requires_grad_(), half(K, N, seed=1).requires_grad_()
    grad = half(M, N, seed=2)
    room.matmul(x, w).backward(grad)
    assert near(x.grad, grad.double() @ w.detach().double().t()) and x.grad.stride() == x.stride()
    assert near(w.grad, x.detach().double().t() @ grad.double())
    assert members(room)[f"{M}x{N}x{K}", "nt"] == "ours"


def test_without_rows_torch_serves_them(install: Install) -> None:
    room = install(tuned((Shape(M, N, K), "tn")))
    x, w = half(M, K).requires_grad_(), half(N, K, seed=1).requires_grad_()
    room.matmul(x, w.t()).backward(half(M, N, seed=2))
    assert members(room)[f"{N}x{K}x{M}", "nt"] == "torch"
    reasons = {p["layout"]: p["why"] for p in room.status()["problems"]}
    assert reasons["nt"] == "nothing was tuned in layout nt"


def test_a_column_major_result_is_the_transposed_problem(install: Install) -> None:
    import torch

    room = install(tuned((Shape(N, M, K), "tt"), (Shape(N, M, K), "nt")))
    columns = torch.empty(N, M, dtype=torch.float16).t()
    a, b = half(M, K), half(K, N, seed=1)
    assert room.matmul(a, b, out=columns) is columns and near(columns, a.double() @ b.double())
    assert members(room) == {(f"{N}x{M}x{K}", "tt"): "ours"}, "nn into columns"
    a_t = half(K, M).t()
    assert near(room.matmul(a_t, b, out=columns), a_t.double() @ b.double())
    assert members(room)[f"{N}x{M}x{K}", "nt"] == "ours", "nt into columns is nt"


@pytest.mark.parametrize("layout", ["nn", "tn", "nt", "tt"])
@pytest.mark.parametrize("columns", [False, True])
def test_every_layout_into_rows_and_columns(install: Install, layout: str, columns: bool) -> None:
    """C column-major: the transposed problem, whose operands have changed places."""
    import torch

    every = [(Shape(*size), name) for size in ((M, N, K), (N, M, K)) for name in LAYER]
    room = install(tuned(*every))
    a = half(K, M).t() if layout[1] == "t" else half(M, K)
    b = half(N, K, seed=1).t() if layout[0] == "t" else half(K, N, seed=1)
    out = torch.empty(N, M, dtype=torch.float16).t() if columns else torch.empty(M, N, dtype=torch.float16)
    assert near(room.matmul(a, b, out=out), a.double() @ b.double())
    turned = {"nn": "tt", "tt": "nn"}.get(layout, layout)
    expected = (f"{N}x{M}x{K}", turned) if columns else (f"{M}x{N}x{K}", layout)
    assert members(room) == {expected: "ours"}


def test_a_compiled_step_has_the_same_layouts(install: Install) -> None:
    import torch

    room = install(tuned((Shape(M, N, K), "tn"), (Shape(M, K, N), "nn"), (Shape(N, K, M), "nt")))
    torch._dynamo.reset()
    step = torch.compile(lambda x, w: room.matmul(x, w.t()), backend="aot_eager", fullgraph=True)
    x, w = half(M, K).requires_grad_(), half(N, K, seed=1).requires_grad_()
    grad = half(M, N, seed=2)
    step(x, w).backward(grad)
    assert w.grad.stride() == w.stride() and near(w.grad, grad.double().t() @ x.detach().double())
    assert members(room)[f"{N}x{K}x{M}", "nt"] == "ours"
    torch._dynamo.reset()


def test_trees_are_trained_on_them(
    swept: tuple[Path, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import chooser_training as training
    import choosers

    from sassafras.gemm.select import predictor

    shapes = [
        Shape(m, n, k) for m in (256, 512, 1024) for n in (256, 768, 2048) for k in (512, 1000, 1024, 4096)
    ]
    entries = []
    for shape in shapes:  # the modelled clock's times
        record = choose(DryContestants(), shape, OPTIONS)
        lt = {layout: found["us"] for layout, found in record["lt"].items()}
        ours = {from_fields(given): (us, rung) for given, us, rung in record["rungs"]}
        entries.append(dataset.DatasetEntry(shape, ours, {"torch": record["torch"], "lt_autotune": lt}))
    Dataset({"gpu": GPU}, entries).save(tmp_path / "made.jsonl.gz")
    words = ["choosers.py", "--backward", "--dataset", str(tmp_path / "made.jsonl.gz")]
    monkeypatch.setattr(training, "MEMBERS", 2)
    few = {"max_iter": 8, "max_leaf_nodes": 15, "learning_rate": 0.3}
    for name in ("PLAIN_FEW", "MODES"):
        monkeypatch.setattr(training, name, few)
    monkeypatch.setattr(sys, "argv", [*words, "--train", "--model", str(tmp_path / "m.npz")])
    choosers.main()
    model = predictor.Model.load(tmp_path / "m.npz")
    assert model.layouts == ("nt", "tt")
    chooser = Selector(TunedTable.from_dataset(Dataset.load(tmp_path / "made.jsonl.gz")), backward=model)
    shape = Shape(640, 768, 1024)
    choice = chooser.choose(shape, "nt", lambda c: c.layout == "nt" and c.why_illegal(shape) is None)
    assert "learnt" in choice.why or "predicted" in choice.why
