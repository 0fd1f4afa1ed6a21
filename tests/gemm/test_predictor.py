"""The chooser's model: trees in NumPy, its file, and what it chooses for shapes never tuned."""

from __future__ import annotations

import gzip
import json
import resource
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sassafras.core import SassafrasError
from sassafras.gemm.configs import names, registry
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select import dataset, predictor
from sassafras.gemm.select.predictor import Model, Trees
from sassafras.gemm.select.selector import Selector, SelectorSettings
from sassafras.gemm.select.table import TableRow, TunedTable, shipped_path

GPU = "NVIDIA H200"
ROOT = Path(__file__).resolve().parents[2]


def constant(value: float) -> Trees:
    """A tree of one leaf."""
    zero = np.zeros(1, np.intp)
    return Trees(value, 0, zero, zero, np.array([np.inf]), np.zeros((1, 2), np.intp), np.zeros(1))


def grown(rng: np.random.Generator, width: int, depth: int = 4) -> tuple[list[int], list[list[float]]]:
    """Roots, and [feature, threshold, left, right, value] of each node; some branches end early."""
    nodes: list[list[float]] = []

    def node(left: int) -> int:
        me = len(nodes)
        nodes.append([0, np.inf, me, me, float(rng.normal())])
        if left and rng.random() < 0.8:
            nodes[me] = [int(rng.integers(width)), float(rng.normal()), 0, 0, 0.0]
            nodes[me][2] = node(left - 1)
            nodes[me][3] = node(left - 1)
        return me

    return [node(depth) for _ in range(7)], nodes


def test_trees_are_walked_from_root_to_leaf() -> None:
    rng = np.random.default_rng(0)
    roots, nodes = grown(rng, 5)
    table = np.array(nodes)
    trees = Trees(
        0.5, 4, np.array(roots), table[:, 0].astype(int), table[:, 1], table[:, 2:4].astype(int), table[:, 4]
    )
    rows = rng.normal(size=(40, 5))

    def walk(row: np.ndarray, at: int) -> float:
        feature, threshold, left, right, value = nodes[at]
        if left == at:
            return value
        return walk(row, int(right if row[int(feature)] > threshold else left))

    expected = [0.5 + sum(walk(row, root) for root in roots) for row in rows]
    assert trees.predict(rows) == pytest.approx(expected)


def test_the_mean_of_several_sets_is_one() -> None:
    rng = np.random.default_rng(1)
    sets = []
    for depth in (2, 5, 3):
        roots, nodes = grown(rng, 4, depth)
        table = np.array(nodes)
        feature, threshold, children = table[:, 0].astype(int), table[:, 1], table[:, 2:4].astype(int)
        sets.append(
            Trees(float(rng.normal()), depth, np.array(roots), feature, threshold, children, table[:, 4])
        )
    rows = rng.normal(size=(30, 4))
    mean = Trees.mean(sets)
    assert mean.predict(rows) == pytest.approx(np.mean([one.predict(rows) for one in sets], 0))
    assert mean.depth == 5 and len(mean.roots) == 21
    assert Trees.of_arrays("t", mean.arrays("t")).predict(rows) == pytest.approx(mean.predict(rows), abs=1e-5)


def test_a_model_may_be_what_is_added_to_another_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = predictor.shipped(GPU)
    assert base is not None
    monkeypatch.setattr(
        predictor, "shipped_path", lambda gpu, part="": tmp_path / f"{dataset.stem(gpu, part)}.npz"
    )
    base.save(tmp_path / "nvidia-h200.npz")
    Model(constant(0.25), constant(0.0), {"gpu": "other", "base": GPU}).save(tmp_path / "other.npz")
    Model(constant(0.25), constant(0.0), {"gpu": "lone", "base": "gone"}).save(tmp_path / "lone.npz")
    predictor.shipped.cache_clear()
    try:
        both = predictor.shipped("other")
        assert both is not None and predictor.shipped("lone") is None, "without its base it is nothing"
        assert both.header["gpu"] == "other" and both.known == base.known
        shape = Shape(512, 1024, 2048)
        configs = list(registry.legal(shape, layouts=("tn",)))[:40]
        more, less = ({c: s for s, c in one.speedups(configs, shape)} for one in (both, base))
        assert more.keys() == less.keys()
        assert all(more[c] == pytest.approx(less[c] * np.exp(0.25), rel=1e-6) for c in less)
    finally:
        predictor.shipped.cache_clear()


@pytest.mark.parametrize(
    ("shape", "aligned"),
    [((64, 64, 64), (8, 8, 8)), ((3, 20, 48), (8, 4, 4)), ((8, 16, 1191), (1, 8, 1)), ((8, 6, 4), (4, 2, 2))],
)
def test_how_rows_are_aligned_is_a_feature(shape: tuple[int, int, int], aligned: tuple[int, ...]) -> None:
    config = names.parse("small_nn_m1n2s1/w1x1x1/c1")
    found = predictor.features([config], Shape(*shape))[0]
    assert tuple(found[8:11]) == aligned
    assert predictor.families_in(found[None]) == ["small"]


def test_a_model_survives_its_file_and_damage_is_noticed(tmp_path: Path) -> None:
    model = predictor.shipped(GPU)
    assert model is not None and model.header["gpu"] == GPU and model.header["pairs"] > 100_000
    for name in ("a.npz", "b.npz"):
        model.save(tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    again, shape = Model.load(tmp_path / "a.npz"), Shape(120, 200, 1000)
    configs = [c for c in registry.legal(shape) if c.layout == "tn" and model.knows(c)][::20]
    assert again.speedups(configs, shape) == model.speedups(configs, shape)
    with np.load(tmp_path / "a.npz") as data:
        arrays = dict(data)
    for change in (
        {"version": np.int64(99)}, {"plain.children": arrays["plain.children"] + 10_000_000},
        {"modes.value": arrays["modes.value"][:-1]},
    ):  # fmt: skip
        np.savez(tmp_path / "bad.npz", **{**arrays, **change})
        with pytest.raises(SassafrasError, match="not a chooser's model"):
            Model.load(tmp_path / "bad.npz")
    whole, header = (tmp_path / "a.npz").read_bytes(), dict(model.header)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 16
    known = [[[1, 2]], "x", [[0, 0, 0, "tn", [0]]], [[64, 64, 64, "tn", 5]], [[64, 64, 64, "tn", [1 << 20]]]]
    for text in (b"", whole[: len(whole) // 2], b"x" * 500, bytes(flipped), *known):
        if isinstance(text, bytes):
            (tmp_path / "bad.npz").write_bytes(text)
        else:
            replace(model, header={**header, "known": text}).save(tmp_path / "bad.npz")
        with pytest.raises(SassafrasError, match="not a chooser's model"):
            Model.load(tmp_path / "bad.npz")
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    with pytest.raises(SassafrasError, match="not a chooser's model"):
        Model.load(tmp_path / "bad.npz")
    assert predictor.shipped("NVIDIA nothing") is None


def test_modes_are_ranked_by_trees_of_their_own() -> None:
    shape = Shape(64, 64, 512)
    config = next(c for c in registry.legal(shape) if len(c.in_modes()) > 2)
    plain = Model(constant(0.25), constant(-0.1), {}).speedups([*config.in_modes(), config], shape)
    assert plain == [(pytest.approx(np.exp(0.25)), config)]
    (gain, chosen), *rest = Model(constant(0.25), constant(0.1), {}).speedups([config], shape)
    assert gain == pytest.approx(np.exp(0.35)) and chosen.mode.pdl and not rest
    assert Model(constant(0.0), constant(0.0), {}).speedups([], shape) == []


def test_layers_of_programs_have_trees_of_their_own(tmp_path: Path) -> None:
    """With 65 to 2,048 rows and a large B they decide, whatever is learnt of calls back to back. Launches
    that overlap gain nothing there; the mode is still the one that gains the most back to back."""
    model = Model(constant(1.0), constant(0.1), {}, program=constant(np.log(1.05)))
    model.save(tmp_path / "m.npz")
    again = Model.load(tmp_path / "m.npz")
    assert again.program is not None and again.program.base == pytest.approx(np.log(1.05))
    layer, few, small, long = (
        Shape(*s) for s in ((80, 2048, 2048), (64, 2048, 2048), (80, 2048, 2040), (2049, 2048, 2048))
    )
    assert predictor.in_program(layer, "tn") and not predictor.in_program(layer, "nn")
    assert not any(predictor.in_program(shape, "tn") for shape in (few, small, long))
    config = names.parse("split_k_tn_64x128_s8q1/c1")
    ((between, chosen),) = again.speedups([config], layer, program=True)
    ((back, same),) = again.speedups([config], layer)
    assert between == pytest.approx(1.05) and back == pytest.approx(np.exp(1.1)) and chosen == same
    assert chosen.mode.pdl
    table = TunedTable({}, [TableRow(Shape(96, 2048, 2048), "tn", ((config, 1.0),), 2.0)])
    for promised, settings in ((1.05, SelectorSettings()), (1.05, SelectorSettings(program_margin=1.06))):
        choice = Selector(table, settings, model=again).choose(layer, "tn", lambda c: True)
        assert choice.speedup == pytest.approx(promised)
        assert choice.member == ("ours" if settings.program_margin < 1.05 else "torch")
    assert "layers of programs" in Selector(table, model=again).choose(layer, "tn", lambda c: True).why
    elsewhere = Selector(table, model=again).choose(small, "tn", lambda c: True)
    assert elsewhere.speedup == pytest.approx(np.exp(1.1)) and "tuned shapes" in elsewhere.why
    with np.load(tmp_path / "m.npz") as data:
        arrays = dict(data)
    np.savez(tmp_path / "bad.npz", **{**arrays, "program.children": arrays["program.children"] + 7})
    with pytest.raises(SassafrasError, match="the trees 'program' are damaged"):
        Model.load(tmp_path / "bad.npz")


def test_the_shipped_model_knows_layers_of_programs() -> None:
    """And another GPU's, to which something is added, does not: nothing was timed there."""
    model, other = predictor.shipped(GPU), predictor.shipped("NVIDIA H100 80GB HBM3")
    assert model is not None and model.program is not None and other is not None and other.program is None
    chooser = Selector(TunedTable.load(shipped_path(GPU)), model=model)
    shape = Shape(256, 4096, 14336)
    choice = chooser.choose(shape, "tn", lambda c: c.layout == "tn" and c.why_illegal(shape) is None)
    assert choice.member == "ours" and "layers of programs" in choice.why and 1.03 <= choice.speedup < 1.1


def test_the_shipped_model_chooses_for_new_shapes() -> None:
    table, model = TunedTable.load(shipped_path(GPU)), predictor.shipped(GPU)
    shapes = [Shape(m, n, k) for m in (72, 1000) for n in (104, 3000) for k in (88, 5000)]
    chooser, ours = Selector(table, model=model), 0
    for shape in shapes:
        for layout in ("nn", "tn"):

            def legal(config: registry.Config, shape: Shape = shape, layout: str = layout) -> bool:
                return config.layout == layout and config.why_illegal(shape) is None

            choice = chooser.choose(shape, layout, legal)
            assert choice == Selector(table, model=model).choose(shape, layout, legal)
            if choice.member == "ours":
                ours += 1
                config = choice.config
                assert config is not None and legal(config) and config.dominated(shape) is None
                settings = SelectorSettings()
                program = predictor.in_program(shape, layout)
                assert choice.speedup >= (settings.program_margin if program else settings.model_margin)
                assert "learnt" in choice.why
    assert ours > len(shapes) // 2
    assert chooser.choose(shapes[0], "tn", lambda c: False).member == "torch"
    assert chooser.choose(Shape(72, 65536, 65536), "tn", lambda c: True).why == "no tuned shape is near"
    margin = Selector(table, SelectorSettings(model_margin=1e9), model=model)
    assert margin.choose(shapes[0], "tn", lambda c: c.layout == "tn").member == "torch"


def test_what_no_sweep_times_is_not_chosen_for_new_shapes() -> None:
    """Clusters of which half would idle (chosen for shapes off the grid once, at 1.7 times torch's time), and
    CTAs alone on a multiprocessor where not all fit at once."""
    idle, fits = map(
        names.parse, (f"persistent_nn_{x}/g4" for x in ("192x128_pp2s4b3c1x2", "128x128_pp2s6b2c1x1"))
    )
    near, shape = Shape(1024, 256, 4416), Shape(1024, 128, 4416)
    row = TableRow(near, "nn", ((idle, 1.0), (fits, 1.1)), 5.0)
    praising = Model(constant(1.0), constant(-1.0), {})
    for model in (praising, None):
        settings = SelectorSettings(reach=9.0)
        choice = Selector(TunedTable({}, [row]), settings, model=model).choose(shape, "nn", lambda c: True)
        assert choice.config == fits, choice
        only = Selector(TunedTable({}, [replace(row, ours=row.ours[:1])]), settings, model=model)
        assert only.choose(shape, "nn", lambda c: True).member == "torch"
    odd = names.parse("fallback_tn_64x64_w2x2s4a1/c1")
    liked = Model(constant(1.0), constant(0.5), {})
    for shape, solo in ((Shape(264, 1824, 37), False), (Shape(264, 1600, 37), True)):
        (_, chosen), *_ = liked.speedups([odd], shape)
        assert chosen.mode.pdl
        assert any(config.mode.one_cta_per_sm for config in predictor.modes_that_may_pay(odd, shape)) == solo


def test_what_is_promised_has_to_reach_the_margin() -> None:
    name = names.parse("small_tn_m1n1s2/w1x2x1/c1")
    table = TunedTable({}, [TableRow(Shape(64, 64, 64), "tn", ((name, 1.0),), 2.0)])
    for promised, member in ((1.07, "torch"), (1.09, "ours")):
        chooser = Selector(table, model=Model(constant(np.log(promised)), constant(-1.0), {}))
        choice = chooser.choose(Shape(64, 64, 72), "tn", lambda c: True)
        assert choice.member == member and choice.speedup == pytest.approx(promised)


def test_a_tuned_shape_is_served_by_its_row_whatever_was_learnt() -> None:
    shape, name = Shape(64, 64, 64), names.parse("small_tn_m1n1s2/w1x2x1/c1")
    table = TunedTable({}, [TableRow(shape, "tn", ((name, 1.0),), 2.0)])
    lying = Model(constant(-9.0), constant(-9.0), {})
    assert Selector(table, model=lying).choose(shape, "tn", lambda c: True).config == name
    near = Selector(table, model=lying).choose(Shape(64, 64, 72), "tn", lambda c: True)
    assert near.member == "torch" and near.speedup < 0.01
    praising = Selector(table, model=Model(constant(1.0), constant(-1.0), {}))
    assert praising.choose(Shape(64, 64, 72), "tn", lambda c: True).config == name


def test_training_on_a_part_of_the_dataset_and_folds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import chooser_training as training
    import choosers

    whole = dataset.shipped()
    part = dataset.Dataset(whole.header, [whole[shape] for shape in sorted(whole.entries)[::50]])
    monkeypatch.setattr(choosers, "MARGINS", (1.08,))
    monkeypatch.setattr(choosers, "FOLDS", 2)
    monkeypatch.setattr(training, "MEMBERS", 2)
    few = {"max_iter": 20, "max_leaf_nodes": 15, "learning_rate": 0.3}
    for name in ("PLAIN", "MODES"):
        monkeypatch.setattr(training, name, few)
    # on the grid and off it, by folds, whose models are kept
    few_others = dataset.Dataset({}, [whole[shape] for shape in sorted(whole.entries)[25::50][:9]])
    half = dataset.Dataset(part.header, [part[shape] for shape in sorted(part.entries)[::2]])
    by_fold, grid, off = choosers.in_folds(half, few_others, tmp_path)
    assert len(by_fold) == 2 * choosers.FOLDS * len(grid) and grid["torch"]["problems"] == 20
    assert off["torch"]["problems"] == 18 and (tmp_path / "fold1.npz").is_file()
    assert choosers.in_folds(half, few_others, tmp_path)[1:] == (grid, off)
    monkeypatch.setattr(training, "PLAIN_FEW", few)
    recorded = dataset.Dataset.load(choosers.PROGRAM)
    seldom = dataset.Dataset(recorded.header, [recorded[shape] for shape in sorted(recorded.entries)[::12]])
    seldom.save(tmp_path / "program.jsonl.gz")
    monkeypatch.setattr(choosers, "PROGRAM", tmp_path / "program.jsonl.gz")
    shipped = predictor.shipped(GPU)
    assert shipped is not None
    rows, program = choosers.in_program_folds(TunedTable.load(shipped_path(GPU)), shipped, [])
    assert len(rows) == choosers.FOLDS * len(program) and program["torch"]["geomean_over_torch"] == 1.0
    assert all(found["problems"] + found["unknown"] == len(seldom) for found in program.values())
    assert program["the best known"]["geomean_over_torch"] > 1.02
    kinds = {(e.shape.n, e.shape.k) for e in recorded}
    with gzip.open(Path(choosers.__file__).parent / "data/nvidia-h200.early-rows.jsonl.gz", "rt") as file:
        kinds |= {(row["n"], row["k"]) for row in map(json.loads, file) if "n" in row}
    from contexts import LAYERS

    assert not kinds & set(LAYERS), "the judged layers have taught nothing"
    part.save(tmp_path / "part.jsonl.gz")
    few_others.save(tmp_path / "others.jsonl.gz")
    monkeypatch.setattr(choosers, "OFF_GRID", (tmp_path / "others.jsonl.gz",))
    words = ["choosers.py", "--train", "--dataset", str(tmp_path / "part.jsonl.gz")]
    monkeypatch.setattr(sys, "argv", [*words, "--model", str(tmp_path / "m.npz")])
    choosers.main()
    model = Model.load(tmp_path / "m.npz")
    assert model.header["pairs"] == part.pairs and "split_k" in model.header["families"]
    assert {shape for shape, _, _ in model.known} == {*few_others.entries, *seldom.entries}
    monkeypatch.setattr(sys, "argv", [*words, "--model", str(tmp_path / "m.npz"), "--program"])
    before, model.program.value[:] = model.plain.value, 0
    choosers.main()
    for header, entries, says in (({"modelled": True}, seldom, "modelled"), ({}, (), "has no times")):
        dataset.Dataset(header, entries).save(tmp_path / "teaches-nothing.jsonl.gz")
        with monkeypatch.context() as context:
            context.setattr(choosers, "PROGRAM", tmp_path / "teaches-nothing.jsonl.gz")
            with pytest.raises(SystemExit, match=says):
                choosers.main()
    again = Model.load(tmp_path / "m.npz")
    assert (again.plain.value == before).all() and again.program is not None and again.program.value.any()


def test_clusters_that_do_not_fit_at_once_take_another_round() -> None:
    """Observed: 12.0 us where 17 of 18 clusters of six find room; 6.4 us of a kernel without clusters."""
    shape = Shape(7, 1152, 13120)
    asked = (
        "split_k_nn_swapped_64x16_s16q1/c6",
        "split_k_nn_swapped_64x16_s16q1/c5",
        "split_k_two_pass_nn_64x64_s12q1/p7",
    )
    six, five, persistent = predictor.features(list(map(names.parse, asked)), shape)[:, -2:]
    assert six == pytest.approx([108 / 102, 2 * 102 / 108]) and five == pytest.approx([90 / 110, 110 / 90])
    assert not persistent.any(), "it brings as many CTAs as there is room for"


def test_a_band_is_launched_whole() -> None:
    """Observed, ten stages: three rows of tiles in bands of four 4.9 us, of three 2.8, in none 3.2."""
    asked = ("split_k_tn_64x64_s6q1/c1g4", "split_k_tn_64x64_s6q1/c1g3", "split_k_tn_64x64_s6q1/c1")
    found = predictor.features(list(map(names.parse, asked)), Shape(149, 2432, 512))[:, -2]
    assert found == pytest.approx([4 * 38 / 264, 3 * 38 / 264, 3 * 38 / 264])


def test_a_model_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    path, model = tmp_path / "m.npz", Model(constant(0.1), constant(0.2), {})
    model.save(path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))  # as a disk with so many bytes left
    try:
        with pytest.raises(OSError, match="File too large"):
            Model(constant(0.3), constant(0.2), {}).save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
