"""`benchmarks/contexts.py` on the modelled clock, and which shapes count as never tuned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sassafras.gemm.select.dataset import Dataset
from sassafras.gemm.select.table import TunedTable, shipped_path

pytest.importorskip("torch")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The command in this process: (exit code, its result)."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import contexts

    def call(table: str, *words: str) -> tuple[int, dict[str, Any]]:
        words = (*words,) if "--out" in words else (*words, "--out", str(tmp_path))
        monkeypatch.setattr("sys.argv", ["contexts.py", table, "--dry-run", *words])
        code = contexts.main()
        folder = Path(words[words.index("--out") + 1])
        return code, json.loads((folder / f"{table}-dry.json").read_text())

    return call


def test_contexts_have_both_launches_and_single_calls(run: Any) -> None:
    code, found = run("contexts", "--count", "8", "--dtypes", "bf16")
    assert code == 0
    small = [row for row in found["rows"] if 2 * row["m"] * row["n"] * row["k"] <= 1e10]
    assert {row["context"] for row in small} == {
        "back_to_back", "dependent", "elementwise", "pdl_neighbour", "cold",
        "isolated", "isolated_subtracted", "random",
    }  # fmt: skip
    assert {row["launch"] for row in small} == {"pdl", "plain"}
    for row in found["rows"]:  # the model serves torch's: an interval around the ratio of the two times
        assert row["over_lt_low"] <= row["over_lt"] <= row["over_lt_high"] and row["member"] == "torch"
        assert row["over_lt"] == pytest.approx(row["lt_autotune_us"] / row["sassafras_us"], rel=0.02)
    by = {(r["m"], r["n"], r["k"], r["context"]): r for r in small if r["launch"] == "pdl"}
    for *shape, context in list(by):
        if context == "isolated":  # the modelled empty kernel lasts a microsecond
            less = by[(*shape, "isolated_subtracted")]
            assert less["sassafras_us"] == pytest.approx(by[(*shape, context)]["sassafras_us"] - 1, abs=0.1)
        if context == "elementwise":  # the modelled one two
            alone = by[(*shape, "back_to_back")]["sassafras_us"]
            assert by[(*shape, context)]["sassafras_us"] == pytest.approx(alone + 2, rel=0.01)


def test_layers_resume_and_refuse_other_conditions(run: Any) -> None:
    _, first = run("layers", "--count", "3")
    code, second = run("layers", "--count", "5")
    assert code == 0 and len(first["rows"]) == 3 and len(second["rows"]) == 5
    assert second["rows"][:3] == first["rows"], "rows of the journal are not measured again"
    row, summary = second["rows"][0], second["summary"]
    assert row["cold_low"] <= row["cold"] <= row["cold_high"] and row["elementwise"] > 0
    assert summary["untuned_cold_fp16"] == summary["untuned_cold"] and summary["tuned_cold"] is None
    with pytest.raises(SystemExit, match="other conditions"):
        run("layers", "--seed", "1")


def test_shares_of_several_gpus_become_one_result(run: Any, tmp_path: Path) -> None:
    parts = [str(tmp_path / part / "layers-dry.jsonl") for part in "ab"]
    for number, part in enumerate(parts, 1):
        run("layers", "--count", "5", "--share", f"{number}/2", "--out", str(Path(part).parent))
    taken = [len(Path(part).read_text().splitlines()) - 1 for part in parts]
    assert taken == [3, 2]
    code, found = run("layers", "--count", "5", "--resume", *parts, "--limit-s", "0")
    assert code == 0 and len(found["rows"]) == 5
    for words, says in (
        (["--share", "3/2"], "3/2 is no share"),
        (["--resume", parts[0], __file__, "--out", str(tmp_path / "c")], "not a benchmark journal"),
    ):
        with pytest.raises(SystemExit) as ended:
            run("layers", *words)
        assert ended.value.code == 2 or says in str(ended.value)
    Path(parts[1]).write_text(Path(parts[1]).read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(SystemExit, match="unlike conditions"):
        run("layers", "--resume", *parts, "--out", str(tmp_path / "d"))


def test_a_wrong_contestant_has_no_speedup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from program_rows import context_rows, context_summary

    us = {"torch": [3.0, 3.0], "lt_autotune": [2.0, 2.2], "null": [2.0, 2.2], "sassafras": [1.0, 1.1]}
    record: dict[str, Any] = {"of": "8x16x32", "dtype": "fp16", "tuned": False, "served": {"member": "ours"}}
    right, wrong = (
        {**record, "us": {"cold": us, "elementwise": us}, "wrong": w} for w in ([], ["sassafras"])
    )
    assert context_rows("layers", [right])[0]["cold"] == 2.0
    assert "cold" not in context_rows("layers", [right, wrong])[0], "wrong in one process is wrong"
    early = {**right, "us": {"cold": {**us, "sassafras_layer": [0.5, 0.55]}, "elementwise": us}}
    (row,) = context_rows("layers", [early])
    assert (row["cold"], row["cold_layer"], row["elementwise_layer"]) == (2.0, 4.0, 2.0)
    assert context_summary("layers", [row])["untuned_cold_layer"] == 4.0
    spoilt = context_rows("layers", [{**early, "wrong": ["sassafras_layer"]}])
    assert "cold_layer" not in spoilt[0] and spoilt[0]["cold"] == 2.0
    both = {**us, "triton": [1.5, 1.65]}
    ours = context_rows("layers", [{**right, "us": {"cold": both, "elementwise": us}}])
    assert ours[0]["cold_over_triton"] == 1.5 and "elementwise_over_triton" not in ours[0]
    assert context_summary("layers", ours)["untuned_cold_over_triton_worst"] == 1.5
    assert context_summary("layers", ours)["tuned_cold_over_triton_worst"] is None
    plain = {**right, "us": {"cold": {**us, "sassafras_plain": [2.0, 2.2]}}}
    by = {row["launch"]: row["over_lt"] for row in context_rows("contexts", [plain])}
    assert by == {"pdl": 2.0, "plain": 1.0}


def test_what_is_learnt_is_a_dataset_without_what_was_wrong(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):  # it writes no result, but a dataset
        run("learn", "--count", "3")
    found = Dataset.load(tmp_path / "learn-dry.jsonl.gz")
    assert len(found) == 3 and found.modelled
    words = ["--dry-run", "--limit-s", "0", "--out", str(tmp_path / "none")]
    monkeypatch.setattr("sys.argv", ["contexts.py", "learn", *words])
    import contexts

    assert contexts.main() == 1, "nothing to learn from is no success"
    for entry in found:
        assert 10 < len(entry.ours) <= 26 and entry.baselines["torch"]["tn"] > 0
        assert len({config.instance for config in entry.ours}) >= 8
        assert all(c.layout == "tn" and c.why_illegal(entry.shape) is None for c in entry.ours)
    journal = tmp_path / "learn-dry.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[2]["wrong"], lines[3]["error"] = ["split_k"], "CudaError"
    del lines[3]["ours"], lines[3]["wrong"]
    from contexts import dataset_of

    assert [str(e.shape) for e in dataset_of(lines[1:], {})] == [lines[1]["of"]]


def test_layers_are_measured_that_no_table_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the layers' shapes the grid has 64x4096x4096 alone, whose row is marked as tuned."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from contexts import LAYERS, TOKENS, layer_shapes

    shapes = [shape for shape, dtype in layer_shapes(("fp16", "bf16")) if dtype == "bf16"]
    assert len(set(shapes)) == len(shapes) == len(LAYERS) * len(TOKENS)
    assert len({(s.n, s.k) for s in shapes[:11]}) == 11 and len({s.m for s in shapes[:11]}) == 11
    tuned = {row.shape for row in TunedTable.load(shipped_path("NVIDIA H200")).rows.values()}
    assert {str(s) for s in set(shapes) & tuned} == {"64x4096x4096"}
