"""How configurations of two launches are chosen, for tuned shapes and others; what they leave to others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sassafras.core import SassafrasError
from sassafras.gemm.configs import registry, split_k_two_pass
from sassafras.gemm.configs.base import PLAIN
from sassafras.gemm.configs.epilogue import Batch
from sassafras.gemm.configs.fields import from_fields, to_fields
from sassafras.gemm.configs.names import parse
from sassafras.gemm.configs.split_k_two_pass import TwoPassSplitKConfig
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select import epilogue_selector, predictor
from sassafras.gemm.select.predictor import Model, Trees
from sassafras.gemm.select.selector import Selector, SelectorSettings
from sassafras.gemm.select.table import TableRow, TunedTable, shipped_path
from tests.gemm.test_predictor import GPU, constant

SHAPE, NEAR = Shape(256, 512, 8192), Shape(256, 512, 8256)
PAIR, ALONE = parse("split_k_two_pass_nn_64x128_s8q1/p8+ol"), parse("split_k_nn_64x128_s7q1/c8")
TUNED = TunedTable({}, [TableRow(SHAPE, "nn", ((PAIR, 7.0), (ALONE, 8.0)), 14.0)])
PLAIN_PAIR = replace(PAIR, mode=PLAIN)
#: what headers say that name pairs, and that do not
ONE: dict[str, list[str]] = {"families": ["split_k"]}
TWO = {"families": ["split_k", "split_k_two_pass"]}
#: one tree, which tells pairs (the last family) from all others: e and e^0.5 times torch's speed
PRAISING = Trees(
    0.0, 1, np.zeros(1, np.intp), np.array([predictor._FAMILY, 0, 0]), np.array([4.5, np.inf, np.inf]),
    np.array([[1, 2], [1, 1], [2, 2]]), np.array([0.0, 0.5, 1.0]),
)  # fmt: skip


def in_nn(config: registry.Config) -> bool:
    return config.layout == "nn" and config.why_illegal(NEAR) is None


def test_a_tuned_shape_is_served_by_the_pair_of_its_row() -> None:
    choice = Selector(TUNED, model=Model(constant(0.0), constant(0.0), {})).choose(SHAPE, "nn", in_nn)
    assert (choice.member, choice.config, choice.speedup) == ("ours", PAIR, 2.0)
    # what the pair cannot do, the next of the row does: other types, addresses, epilogues
    for translate, wanted in (
        (lambda c: None if len(c.instances) > 1 else c, ALONE),
        (lambda c: registry.with_dtype(c, "bf16"), registry.with_dtype(PAIR, "bf16")),
    ):
        assert Selector(TUNED).choose(SHAPE, "nn", in_nn, translate).config == wanted
    assert Selector(TUNED).choose(SHAPE, "nt", lambda c: c.layout == "nt").member == "torch"


def test_a_shape_never_tuned_gets_a_pair_from_neighbours() -> None:
    far = TableRow(Shape(256, 512, 640), "nn", ((parse("split_k_nn_64x64_s6q1/c2"), 2.0),), 4.0)
    for rows in (list(TUNED.rows.values()), [*TUNED.rows.values(), far]):
        choice = Selector(TunedTable({}, rows), SelectorSettings(reach=9.0)).choose(NEAR, "nn", in_nn)
        assert (choice.member, choice.config) == ("ours", PAIR) and "neighbours" in choice.why
    # one that would not fill the GPU, or is too short for its parts, is not proposed
    for shape in (Shape(256, 128, 8192), Shape(256, 512, 1024)):
        assert PAIR.dominated(shape) is not None
        choice = Selector(TUNED, SelectorSettings(reach=9.0, margin=0.0)).choose(shape, "nn", lambda c: True)
        assert choice.config != PAIR


@pytest.mark.parametrize(("header", "wanted"), [(ONE, ALONE), (TWO, PLAIN_PAIR)])
def test_a_model_is_asked_about_what_it_has_learnt_of(
    header: dict[str, list[str]], wanted: registry.Config, tmp_path: Path
) -> None:
    """These trees praise pairs, whatever a header says."""
    Model(PRAISING, constant(-1.0), header).save(tmp_path / "m.npz")
    model = Model.load(tmp_path / "m.npz")
    assert model.knows(ALONE) and model.knows(PAIR) == (header is TWO)
    row = replace(TUNED.rows[SHAPE, "nn"], ours=((PAIR, 7.0), (ALONE, 8.0)))
    choice = Selector(TunedTable({}, [row]), model=model).choose(NEAR, "nn", in_nn)
    assert (choice.config, choice.why) == (wanted, "chosen by what was learnt from tuned shapes")
    only = Selector(TunedTable({}, [replace(row, ours=row.ours[:1])]), model=model)
    assert only.choose(NEAR, "nn", in_nn).member == ("ours" if header is TWO else "torch")
    replace(model, header={"families": "split_k"}).save(tmp_path / "m.npz")
    with pytest.raises(SassafrasError, match="what it has learnt of"):
        Model.load(tmp_path / "m.npz")


def test_what_ships_is_not_asked_about_families_it_has_not_seen() -> None:
    from sassafras.gemm.select import dataset

    timed = {config.instance for entry in dataset.shipped() for config in entry.ours}
    leaving = set(split_k_two_pass.INSTANCES)
    model = predictor.shipped(GPU)
    assert model is not None and model.knows(ALONE)
    assert model.knows(PAIR) == bool(timed & leaving)


def test_features_of_a_pair() -> None:
    """Its parts are what others call slices; the columns before are those of every configuration."""
    pair, alone = PAIR, ALONE
    found = predictor.features([pair, alone], SHAPE)
    assert predictor.families_in(found) == ["split_k", "split_k_two_pass"]
    assert predictor.families_in(found[:1]) == ["split_k_two_pass"]
    both = -15  # slices, tiles, waves, ..., k of a slice, ...: `_both`
    assert found[0, both : both + 3].tolist() == pytest.approx([8.0, 16.0, 16 * 8 / 132])
    assert found[0, both + 6] == 1024.0 and found[0, both + 8] == pytest.approx(pair.estimate_us(SHAPE))
    assert found[1, both] == 8.0 and found[1, both + 6] == 1024.0
    numbers = list(predictor._NUMBERS)
    first = predictor._FAMILY + 7
    parts, band = first + numbers.index("split_k"), first + numbers.index("band")
    assert found[:, parts].tolist() == [8.0, 1.0] and found[0, band] == 0.0


def test_estimates_answer_for_shapes_that_cannot_run() -> None:
    """Neighbours are compared where a configuration may be illegal; no call fails by it."""
    for config, shape in (
        (parse("split_k_two_pass_nn_64x128_s8q1/p16"), Shape(64, 64, 256)),
        (PAIR, Shape(8, 12, 20)),
    ):
        assert config.why_illegal(shape) is not None and 0 < config.estimate_us(shape) < 100
    rng = np.random.default_rng(0)
    for config in TwoPassSplitKConfig.every(split_k_two_pass.INSTANCES):
        m, n, k = (int(x) for x in 2 ** rng.uniform(3, 13, 3))
        shape = Shape(m, 8 * (n // 8), 8 * (k // 8))
        if config.why_illegal(shape) is None:
            launch = config.launch(shape)
            assert config.ctas(shape) == int(np.prod(launch.grid))
            rows, columns = config.tile
            assert launch.workspace_bytes == 4 * config.ctas(shape) * rows * columns


def test_a_call_with_an_epilogue_is_chosen_for_by_what_adds_up_itself() -> None:
    extra = epilogue_selector.Extra(bias=True, activation="gelu")

    def chosen(*ours: tuple[registry.Config, float]) -> tuple[registry.Config | None, str]:
        chooser = Selector(TunedTable({}, [TableRow(SHAPE, "nn", ours, 14.0)]), SelectorSettings(reach=9.0))
        # a batch whose k is too short for any configuration of the row: nothing fails by it
        batch = Batch(3, 24 * 640, 0, 24 * 512)
        assert "torch" in epilogue_selector.choose(chooser, Shape(24, 512, 640), "nn", "fp16", batch)[1]
        return epilogue_selector.choose(chooser, SHAPE, "nn", "fp16", extra=extra)

    config, why = chosen((PAIR, 7.0), (ALONE, 8.0))
    assert config is not None and config.instance.epilogue and "predicted" in why
    assert (config, why) == chosen((ALONE, 8.0)), "the pair's time says nothing of it"
    assert "predicted at" in chosen((PAIR, 7.0))[1]


def test_what_ships_names_what_is_compiled() -> None:
    """A row of other kernels alone would be torch's."""
    for part in ("", "backward"):
        written = json.loads(shipped_path(GPU, part).read_text())
        assert [to_fields(from_fields(one)) for one in written["configurations"]] == written["configurations"]
