"""The dataset, the table made of it, and the chooser for shapes never tuned."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from sassafras.core import SassafrasError
from sassafras.gemm.configs import registry, small
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select import dataset
from sassafras.gemm.select.cost_model import estimate_us
from sassafras.gemm.select.dataset import Dataset, DatasetEntry
from sassafras.gemm.select.selector import Selector, SelectorSettings
from sassafras.gemm.select.table import TableRow, TunedTable, shipped_path

ROOT = Path(__file__).resolve().parents[2]
A, B, C = "lean_tn_m1n2s2/w1x1x1/c1", "lean_nn_m1n2s1/w1x1x1/c1", "lean_tn_m1n1s2/w1x1x2/c1"


def entry() -> DatasetEntry:
    baselines = {"torch": {"nn": 5.0, "tn": 4.0}, "lt_autotune": {"nn": 4.5, "tn": 3.9}}
    lt = {"tn": {"layout": "tn", "blob": "00" * 64, "workspace": 0}}
    return DatasetEntry(Shape(64, 128, 256), {A: (3.0, 1), B: (2.9, 2), C: (3.2, 2)}, baselines, lt)


def test_longer_timed_configurations_rank_first() -> None:
    found = entry()
    assert found.ranked() == [(B, 2.9), (C, 3.2), (A, 3.0)] and found.ranked("tn")[0] == (C, 3.2)
    assert found.baseline_us() == 3.9 and found.baseline_us("torch", "nn") == 5.0
    assert found.us(A) == 3.0 and found.us("lean_nn_m1n2s1/w1x1x1/c2") is None


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz"])
def test_a_file_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    other = DatasetEntry(Shape(8, 8, 8), {}, {"torch": {"nn": 1.0}})
    made = Dataset({"gpu": "NVIDIA H200", "modelled": False}, [entry(), other])
    made.save(tmp_path / name)
    again = Dataset.load(tmp_path / name)
    assert again.header == made.header and again.entries == made.entries
    assert again.pairs == 3 and next(iter(again)).shape == Shape(8, 8, 8), "smallest work first"
    again.save(tmp_path / ("again" + name))
    assert (tmp_path / name).read_bytes() == (tmp_path / ("again" + name)).read_bytes()


def test_bad_files_say_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    with pytest.raises(SassafrasError, match="cannot be read"):
        Dataset.load(path)
    path.write_text('{"gpu": "x"}\n')
    with pytest.raises(SassafrasError, match="not a dataset"):
        Dataset.load(path)
    good = json.dumps({"sassafras_hgemm": 1})
    for line in (
        '{"m": 1}',
        '{"m": 1, "n": 1, "k": 1, "ours": {"x": [-1, 0]}}',
        "[]",
        '{"m":1,"n":1,"k":0,"ours":{}}',
    ):
        path.write_text(f"{good}\n{line}\n")
        with pytest.raises(SassafrasError):
            Dataset.load(path)
    packed = tmp_path / "d.jsonl.gz"
    packed.write_bytes(gzip.compress(good.encode())[:-4])
    with pytest.raises(SassafrasError, match="cannot be read"):
        Dataset.load(packed)


def test_names_of_another_version_are_kept_but_never_ranked() -> None:
    found = DatasetEntry(Shape(8, 8, 8), {"quantum_tn_9000": (1.0, 3), A: (2.0, 0)})
    assert found.ranked() == found.ranked("tn") == [(A, 2.0)]
    assert DatasetEntry.from_json(found.to_json()).ours == found.ours


def test_times_by_earlier_names_are_read_as_todays(tmp_path: Path) -> None:
    """In data sets and tables alike; what was timed by its own name counts."""
    line = entry().to_json() | {"ours": {
        "cs_tn_64x64_s12/c1+ol": [3.0, 2], "cs_nt_64x64_s12/c1": [4.0, 2], "cs_nt_128x128_s6/c4": [5.0, 1],
        "cs_tn_64x128_s8/c2": [6.0, 1], "cs_tn_64x128_s7q1/c2": [5.5, 1], "cs_tn_64x64_s12/c1p4": [1.0, 2],
    }}  # fmt: skip
    now = {
        "cs_tn_64x64_s10q1/c1+ol": 3.0, "cs_nt_64x64_s12q1/c1": 4.0, "cs_nt_128x128_s4q1/c4": 5.0,
        "cs_tn_64x128_s7q1/c2": 5.5,
    }  # fmt: skip
    assert dict(DatasetEntry.from_json(line).ranked()) == now
    row = TableRow(Shape(64, 128, 256), "nt", (("cs_nt_64x64_s12/c1", 4.0),), 5.0)
    TunedTable({}, [row]).save(tmp_path / "t.json")
    assert TunedTable.load(tmp_path / "t.json").rows[row.shape, "nt"].ours == (("cs_nt_64x64_s12q1/c1", 4.0),)


def test_a_table_names_something_for_bf16() -> None:
    """Where no winner multiplies BF16, the fastest that does comes last, of an earlier run even."""
    shape, quick, plain = Shape(512, 512, 1024), "lean_tn_m1n1s4/w1x1x8/c4", "cs_tn_64x64_s10q1/c1"
    slow = {f"cs_tn_64x64_s10q1/c{slices}": (4.0 + slices, -8) for slices in (2, 4)}

    def rows(ours: dict[str, tuple[float, int]]) -> tuple[tuple[str, float], ...]:
        entry = DatasetEntry(shape, ours, {"torch": {"tn": 6.0}})
        return TunedTable.from_dataset(Dataset({}, [entry])).rows[shape, "tn"].ours

    assert rows({quick: (3.0, 2), plain: (4.0, -8), **slow}) == ((quick, 3.0), (plain, 4.0))
    assert rows({quick: (3.0, 2), plain: (6.5, -8)}) == ((quick, 3.0),), "torch is faster"
    assert rows({quick: (3.0, 2), plain: (3.1, 2), **slow}) == ((quick, 3.0), (plain, 3.1))


def test_what_is_shipped_is_what_the_results_hold() -> None:
    """The committed table is made of the committed dataset; neither is edited by hand."""
    shipped = dataset.shipped()
    assert not shipped.modelled and shipped.header["gpu"] == "NVIDIA H200" and shipped.pairs >= 312
    assert TunedTable.from_dataset(shipped).rows == TunedTable.load(shipped_path("NVIDIA H200")).rows
    for found in shipped:
        assert found.baseline_us("torch") and all(us > 0 for us, _ in found.ours.values())
    with pytest.raises(SassafrasError, match="no dataset"):
        dataset.shipped("Voodoo 2")


# --- the table and the chooser
# -------------------------------------------------------------------------------


def test_a_dry_run_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(SassafrasError, match="modelled"):
        TunedTable.from_dataset(Dataset({"modelled": True}, [entry()]))
    made = TunedTable.from_dataset(Dataset({"gpu": "g", "cublaslt": 130100}, [entry()]))
    made.save(tmp_path / "t.json")
    assert TunedTable.load(tmp_path / "t.json").rows == made.rows
    assert made.get(Shape(64, 128, 256), "tn") == TableRow(
        Shape(64, 128, 256), "tn", ((C, 3.2), (A, 3.0)), 4.0, 3.9, entry().lt["tn"]
    )
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(SassafrasError, match="not a table"):
        TunedTable.load(tmp_path / "t.json")


def test_a_tuned_row_decides_by_its_figures() -> None:
    def member(
        ours: float,
        torch_us: float,
        lt_us: float | None,
        version: int = 7,
        legal: bool = True,
        size: int = 64,
        layout: str = "tn",
    ) -> str:
        shape = Shape(size, size, size)
        lt = {"layout": layout, "blob": "00" * 64, "workspace": 0}
        table = TunedTable({"cublaslt": 7}, [TableRow(shape, layout, ((A, ours),), torch_us, lt_us, lt)])
        return Selector(table, lt_version=version).choose(shape, layout, lambda c: legal).member

    assert member(1.0, 2.0, 1.5) == "ours" and member(1.0, 2.0, 1.5, legal=False) == "lt"
    assert member(2.0, 2.0, 2.0) == "lt", "a tie is the best algorithm's"
    assert member(2.0, 2.0, 2.12) == "torch" and member(1.98, 2.0, 2.12) == "torch", "margins"
    assert member(2.05, 2.0, 2.08) == "lt", "torch leads by less than chance may give it"
    assert member(1.97, 2.0, 2.0) == "lt" and member(1.95, 2.0, 2.0) == "ours"
    # times are noisier above 1e11 FLOP, and in the table of the backward pass
    assert member(1.93, 2.0, 2.0, size=4096) == "lt" and member(1.9, 2.0, 2.0, size=4096) == "ours"
    assert member(1.95, 2.0, 2.0, layout="nt") == "lt" and member(1.93, 2.0, 2.0, layout="nt") == "ours"
    assert member(1.93, 2.0, 2.0, size=4096, layout="nt") == "lt"
    assert member(1.8, 2.0, 1.5) == "lt" and member(1.8, 2.0, 1.5, version=8) == "ours"


CONFIGS = [c for c in small.configurations() if c.cluster in (1, 4) and c.warps_k in (1, 4)][::3]


def made_up(layouts: tuple[str, ...] = ("tn",)) -> TunedTable:
    """A whole grid with times by the static estimate: ours beats torch below some 2e8 FLOP."""
    rows = []
    extents = (64, 128, 256, 512)
    for m in extents:
        for n in extents:
            for k in extents:
                shape = Shape(m, n, k)
                torch_us = 2.0 + shape.flop / 1.5e8
                for layout in layouts:
                    legal = [c for c in CONFIGS if c.layout == layout and c.why_illegal(shape) is None]
                    ranked = sorted((estimate_us(c, shape), c.name) for c in legal)
                    rows.append(
                        TableRow(shape, layout, tuple((name, us) for us, name in ranked[:12]), torch_us)
                    )
    return TunedTable({}, rows)


@pytest.fixture(scope="module")
def grid() -> TunedTable:
    return made_up()


def test_shapes_left_out_are_chosen_well(grid: TunedTable) -> None:
    """Chosen by their neighbours: mostly ours where it is faster, and never slower than torch."""
    over, possible, ours = [], [], 0
    for row in grid.rows.values():
        others = Selector(grid.without([row.shape]), SelectorSettings(margin=1.03))
        choice = others.choose(row.shape, row.layout, lambda c, s=row.shape: c.why_illegal(s) is None)  # type: ignore[misc]
        assert row.torch_us is not None and row.speedup is not None
        ours += choice.member == "ours"
        over.append(row.torch_us / dict(row.ours).get(choice.config or "", row.torch_us))
        possible.append(max(1.0, row.speedup))
    assert len(over) == 64 and ours >= 28 and min(over) > 0.99
    assert np.log(over).mean() > 0.6 * np.log(possible).mean() > 0
    asking = Selector(grid.without([Shape(64, 64, 64)]), SelectorSettings(margin=10.0))
    assert asking.choose(Shape(64, 64, 64), "tn", lambda c: True).member == "torch"


def test_choices_are_legal_and_equal(grid: TunedTable) -> None:
    rule = SelectorSettings(margin=1.03)
    chooser = Selector(grid, rule)
    shapes = [Shape(m, n, k) for m in (60, 100, 130) for n in (72, 200) for k in (88, 96, 400)]
    for shape in shapes:
        choice = chooser.choose(shape, "tn", lambda c, s=shape: c.why_illegal(s) is None)  # type: ignore[misc]
        again = Selector(grid, rule).choose(shape, "tn", lambda c, s=shape: c.why_illegal(s) is None)  # type: ignore[misc]
        assert choice == again
        if choice.member == "ours":
            assert registry.parse(choice.config or "").why_illegal(shape) is None
    assert any(chooser.choose(s, "tn", lambda c: True).member == "ours" for s in shapes)
    assert chooser.choose(shapes[0], "nn", lambda c: True).member == "torch", "no row in this layout"
    assert chooser.choose(Shape(1, 16384, 16384), "tn", lambda c: True).member == "torch", "too far"
    nobody = chooser.choose(shapes[0], "tn", lambda c: False)
    assert nobody.why == "no configuration that won nearby can run it"


def test_tables_merge_and_leave_out() -> None:
    one = TunedTable(
        {"gpu": "g"}, [TableRow(Shape(8, 8, 8), "nn", (), 1.0), TableRow(Shape(8, 8, 16), "nn", (), 1.0)]
    )
    two = TunedTable({"gpu": "g"}, [TableRow(Shape(8, 8, 8), "nn", (), 2.0)])
    merged = one.merged(two)
    assert len(merged) == 2 and merged.get(Shape(8, 8, 8), "nn") == TableRow(Shape(8, 8, 8), "nn", (), 2.0)
    assert len(merged.without([Shape(8, 8, 8)])) == 1


def test_names_of_another_version_are_skipped() -> None:
    shape = Shape(64, 64, 64)
    table = TunedTable({}, [TableRow(shape, "tn", (("quantum_tn_9000", 0.1), (A, 1.0)), 2.0)])
    assert Selector(table).choose(shape, "tn", lambda c: True).config == A
