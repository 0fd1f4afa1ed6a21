"""`benchmarks/model_forward.py` without a GPU: small models, the journal, and what counts as a speed-up."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_dry_run_writes_its_file_and_resumes(tmp_path: Path) -> None:
    asked = ["--dry-run", "--models", "qwen2.5-7b", "--tokens", "1024", "--dtypes", "bf16"]
    command = [sys.executable, str(BENCHMARKS / "model_forward.py"), *asked, "--out", str(tmp_path)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads((tmp_path / "model-forward-dry.json").read_text())
        rows = {row["contestant"]: row for row in found["rows"]}
        assert set(rows) == {"eager", "compile", "sassafras_eager", "sassafras_compile"}
        assert rows["sassafras_compile"]["over_compile"] > 0 and "over_compile" not in rows["compile"]
        assert rows["sassafras_eager"]["served"]["torch"] == 8, "four products in each of two layers"
        assert found["summary"]["over_compile_1024_up"] == rows["sassafras_compile"]["over_compile"]
    lines = (tmp_path / "model-forward-dry.jsonl").read_text().splitlines()
    assert len(lines) == 3, "the second run found its row in the journal"


def test_a_wrong_model_has_no_speedup(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import model_forward

    def spoilt(model: Any) -> Any:
        layer = model.layers[1].up  # a copy's weights are shared: its forward is another's
        layer.forward = lambda x: torch.nn.functional.linear(x, layer.weight) * 1.05
        return model

    monkeypatch.setattr(model_forward, "with_sassafras", spoilt)
    given = Namespace(dry_run=True, context=8, long=1024, sustained=0.0, seconds=0.1)
    with torch.no_grad():
        record = model_forward.Bench(given).measure(model_forward.Row("llama-3-8b", "fp16", 4, True))
    assert record["wrong"] == ["sassafras_eager", "sassafras_compile"] and not record["failed"]
    rows = model_forward.rows_of([{**record, "gpu": "NVIDIA H200", "process": 0}])
    by = {row["contestant"]: row for row in rows}
    ours, theirs = by["sassafras_compile"], by["compile"]
    assert ours["wrong"] and ours["deviation_over_eager"] > 1.1
    assert not {"over_compile", "over_eager", "share_of_bound"} & set(ours)
    assert not theirs["wrong"] and theirs["over_eager"] > 0 and theirs["bound_us"] > 0


def test_the_lower_of_short_and_long_blocks_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from forward_rows import interval, ratios

    us = {"compile": [10.0, 11.0, 10.0], "sassafras_compile": [8.0, 8.8, 8.0], "null": [10.0, 11.0, 10.0]}
    record = {"us": us, "sustained": {"compile": [10.0], "sassafras_compile": [9.5]}}
    short, long = (ratios(r, "compile", "sassafras_compile") for r in ({**record, "sustained": {}}, record))
    assert short is not None and long is not None
    assert interval([short])[0] == 1.25 and interval([long])[0] == round(10 / 9.5, 4)
    assert ratios(record, "compile", "max_autotune") is None
    low, high = interval([short, long])[1:]
    assert low < interval([short, long])[0] < high
