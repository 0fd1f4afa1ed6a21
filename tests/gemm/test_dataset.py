"""The dataset, the table made of it, and the chooser for shapes never tuned."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path

import numpy as np
import pytest

from sassafras.core import SassafrasError
from sassafras.core.files import locked
from sassafras.gemm.configs import names, small
from sassafras.gemm.configs.fields import to_fields
from sassafras.gemm.configs.small import SmallConfig
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select import dataset
from sassafras.gemm.select.dataset import Dataset, DatasetEntry
from sassafras.gemm.select.selector import Selector, SelectorSettings
from sassafras.gemm.select.table import TableRow, TunedTable, shipped_path

ROOT = Path(__file__).resolve().parents[2]
A, B, C = map(names.parse, (
    "small_tn_m1n2s2/w1x1x1/c1", "small_nn_m1n2s1/w1x1x1/c1", "small_tn_m1n1s2/w1x1x2/c1",
))  # fmt: skip


def entry() -> DatasetEntry:
    baselines = {"torch": {"nn": 5.0, "tn": 4.0}, "lt_autotune": {"nn": 4.5, "tn": 3.9}}
    lt = {"tn": {"layout": "tn", "blob": "00" * 64, "workspace": 0}}
    return DatasetEntry(Shape(64, 128, 256), {A: (3.0, 1), B: (2.9, 2), C: (3.2, 2)}, baselines, lt)


def test_longer_timed_configurations_rank_first() -> None:
    found = entry()
    assert found.ranked() == [(B, 2.9), (C, 3.2), (A, 3.0)] and found.ranked("tn")[0] == (C, 3.2)
    assert found.baseline_us() == 3.9 and found.baseline_us("torch", "nn") == 5.0
    assert found.us(A) == 3.0 and found.us(names.parse("small_nn_m1n2s1/w1x1x1/c2")) is None


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
    good = json.dumps({"sassafras_hgemm": 2, "configurations": [to_fields(A)]})
    for line in (
        '{"m": 1}',
        '{"m": 1, "n": 1, "k": 1, "ours": [[0, -1, 0]]}',
        '{"m": 1, "n": 1, "k": 1, "ours": [[1, 1, 0]]}',
        '{"m": 1, "n": 1, "k": 1, "ours": {"small_tn_m1n2s2/w1x1x1/c1": [-1, 0]}}',
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


#: lines as the versions before wrote them: configurations are names, some of kernels that are gone
EARLIER_LINE = {
    "m": 64, "n": 128, "k": 256, "baselines": {"torch": {"tn": 9.0, "nt": 9.0}},
    "ours": {
        "lean_tn_m1n2s2/w1x1x1/c1+os": [7.0, 2], "ws_tn_128x128_pp2s6b2c1x1/g8/k1": [8.0, 2],
        "ws_tn_128x128_pp2s6b2c1x1/g8/k2": [0.5, 2], "quantum_tn_9000/c1": [0.5, 2],
        "cs_tn_64x64_s12/c1+ol": [3.0, 2], "cs_nt_64x64_s12/c1": [4.0, 2], "cs_nt_128x128_s6/c4": [5.0, 1],
        "cs_tn_64x128_s8/c2": [6.0, 1], "cs_tn_64x128_s7q1/c2": [5.5, 1], "cs_tn_64x64_s12/c1p4": [1.0, 2],
        "cs_tn_64x64_s12q1p/c1p4+o": [2.0, 2],
    },
}  # fmt: skip


def test_a_data_set_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """By today's kernels; what was timed by its own name counts, and what is gone is passed over."""
    wanted = {
        "small_tn_m1n2s2/w1x1x1/c1+os": 7.0, "persistent_tn_128x128_pp2s6b2c1x1/g8": 8.0,
        "split_k_tn_64x64_s10q1/c1+ol": 3.0, "split_k_nt_64x64_s12q1/c1": 4.0,
        "split_k_nt_128x128_s4q1/c4": 5.0, "split_k_tn_64x128_s7q1/c2": 5.5,
        "split_k_two_pass_tn_64x64_s12q1/p4+o": 2.0,
    }  # fmt: skip
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"sassafras_hgemm": 1}) + "\n" + json.dumps(EARLIER_LINE) + "\n")
    found = Dataset.load(path)
    assert {c.name: us for c, us in found[Shape(64, 128, 256)].ranked()} == wanted
    found.save(path)
    assert '"tile_m": 64' in path.read_text() and "64x64" not in path.read_text()
    assert Dataset.load(path).entries == found.entries
    kept = dataset.recorded_path()  # of today's repository
    line = json.loads(gzip.decompress(kept.read_bytes()).splitlines()[1])
    if isinstance(line["ours"], dict):
        of = DatasetEntry.from_json(line, ())
        assert len(of.ours) > 20 and all(us > 0 for us, _ in of.ours.values())


def test_a_table_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    path, lt = tmp_path / "t.json", {"layout": "nn", "blob": "42", "workspace": 256}
    ours = [["lean_nn_m1n2s2x/w1x1x1/c1+os", 1.081], ["gone_nn/c1", 1.09], ["cs_nn_64x64_s12/c1", 1.105]]
    row = [64, 64, 64, "nn", ours, 2.038, 2.05, lt]
    path.write_text(json.dumps({"header": {"sassafras_hgemm_table": 1, "gpu": "g"}, "rows": [row]}))
    table = TunedTable.load(path)
    found = table.rows[Shape(64, 64, 64), "nn"]
    assert [(c.name, us) for c, us in found.ours] == [
        ("small_nn_m1n2s2x/w1x1x1/c1+os", 1.081), ("split_k_nn_64x64_s10q1/c1", 1.105),
    ]  # fmt: skip
    table.save(path)
    written = json.loads(path.read_text())
    assert written["header"] == {"sassafras_hgemm_table": 2, "gpu": "g"}
    assert written["configurations"] == [to_fields(c) for c, _ in found.ours]
    assert TunedTable.load(path).rows == table.rows
    written["configurations"][0]["tile_m"] = 77  # a kernel of another version
    path.write_text(json.dumps(written))
    assert TunedTable.load(path).rows[Shape(64, 64, 64), "nn"].ours == found.ours[1:]


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
    with pytest.raises(SassafrasError, match=f"{tmp_path}/t.json: not a table.*remove it"):
        made.install(tmp_path / "t.json")
    assert (tmp_path / "t.json").read_text() == "{}"


def test_tables_of_two_processes_are_merged(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "t.json"
    ours, theirs = (TunedTable({"gpu": "g"}, [TableRow(Shape(64, 64, k), "tn", (), 2.0)]) for k in (64, 128))
    path.parent.mkdir()
    with locked(path.parent / "t.json.lock"):  # theirs is being installed
        installing = threading.Thread(target=ours.install, args=(path,))
        installing.start()
        installing.join(0.5)
        theirs.save(path)
    installing.join(60)
    assert TunedTable.load(path).rows == {**theirs.rows, **ours.rows}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl.gz"
    Dataset({"gpu": "g"}, [entry()]).save(path)
    whole = path.read_bytes()
    for at in range(10, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with pytest.raises(SassafrasError, match="dataset"):
            Dataset.load(path)
    (tmp_path / "d.jsonl").write_text('{"sassafras_hgemm": 2, "configurations": 5}\n')
    with pytest.raises(SassafrasError, match="no list of configurations"):
        Dataset.load(tmp_path / "d.jsonl")


def test_a_tuned_row_decides_by_its_figures() -> None:
    def member(
        ours: float,
        torch_us: float,
        lt_us: float | None,
        version: int = 7,
        legal: bool = True,
        size: int = 64,
        layout: str = "tn",
        lt_runs: bool = True,
    ) -> str:
        shape = Shape(size, size, size)
        lt = {"layout": layout, "blob": "00" * 64, "workspace": 0}
        table = TunedTable({"cublaslt": 7}, [TableRow(shape, layout, ((A, ours),), torch_us, lt_us, lt)])
        chooser = Selector(table, lt_version=version)
        return chooser.choose(shape, layout, lambda c: legal, lt=lt_runs).member

    assert member(1.0, 2.0, 1.5) == "ours" and member(1.0, 2.0, 1.5, legal=False) == "lt"
    assert member(1.5, 2.0, 1.2) == "lt" and member(1.5, 2.0, 1.2, lt_runs=False) == "ours", "BF16, say"
    assert member(2.0, 2.0, 2.0) == "lt", "a tie is the best algorithm's"
    assert member(2.0, 2.0, 2.12) == "torch" and member(1.98, 2.0, 2.12) == "torch", "margins"
    assert member(2.05, 2.0, 2.08) == "lt", "torch leads by less than chance may give it"
    assert member(1.97, 2.0, 2.0) == "lt" and member(1.95, 2.0, 2.0) == "ours"
    # times are noisier above 1e11 FLOP, and in the table of the backward pass
    assert member(1.93, 2.0, 2.0, size=4096) == "lt" and member(1.9, 2.0, 2.0, size=4096) == "ours"
    assert member(1.95, 2.0, 2.0, layout="nt") == "lt" and member(1.93, 2.0, 2.0, layout="nt") == "ours"
    assert member(1.93, 2.0, 2.0, size=4096, layout="nt") == "lt"
    assert member(1.8, 2.0, 1.5) == "lt" and member(1.8, 2.0, 1.5, version=8) == "ours"


CONFIGS = [c for c in SmallConfig.every(small.INSTANCES) if c.cluster in (1, 4) and c.warps_k in (1, 4)][::3]


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
                    ranked = sorted(
                        ((c.estimate_us(shape), c) for c in legal), key=lambda pair: (pair[0], pair[1].name)
                    )
                    rows.append(TableRow(shape, layout, tuple((c, us) for us, c in ranked[:12]), torch_us))
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
        over.append(
            row.torch_us
            / (dict(row.ours).get(choice.config, row.torch_us) if choice.config else row.torch_us)
        )
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
            assert choice.config is not None and choice.config.why_illegal(shape) is None
    assert any(chooser.choose(s, "tn", lambda c: True).member == "ours" for s in shapes)
    assert chooser.choose(shapes[0], "nn", lambda c: True).member == "torch", "no row in this layout"
    assert chooser.choose(Shape(72, 65536, 65536), "tn", lambda c: True).member == "torch", "too far"
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
