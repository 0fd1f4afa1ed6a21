"""`benchmarks/model_forward.py` without a GPU: small models, the journal, and what counts as a speed-up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import BENCHMARKS, run_benchmark

torch = pytest.importorskip("torch")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import model_forward

    threads = torch.get_num_threads()
    yield model_forward
    torch.set_num_threads(threads)


def test_a_wrong_model_has_no_speedup_and_a_right_one_has(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The eager model with Sassafras is spoilt, the compiled one is not; the journal has the row."""

    def spoilt(model: Any, tokens: int) -> Any:
        layer = model.layers[1].up[0]  # weights are shared with torch's: the forward is this model's own

        def forward(x: Any) -> Any:
            y = torch.nn.functional.linear(x, layer.weight)
            return y if torch.compiler.is_compiling() else 1.05 * y

        layer.forward = forward
        return model

    monkeypatch.setattr(bench, "with_sassafras", spoilt)
    words = ["--dry-run", "--models", "qwen2.5-7b", "--tokens", "4", "--dtypes", "fp16", "--context", "8"]
    monkeypatch.setattr("sys.argv", ["model_forward.py", *words, "--out", str(tmp_path)])
    given = bench.arguments()
    assert bench.measure(given, 0, time.time() + 600) == 0
    journal = given.path.read_text()
    assert bench.measure(given, 0, time.time() + 600) == 0
    assert given.path.read_text() == journal, "a row that the journal has is not measured again"
    record = json.loads(journal.splitlines()[-1])
    assert record["wrong"] == ["sassafras_eager"] and not record["failed"] and record["layers"] == 2
    assert record["served"]["torch"] == 8, "four products in each of two layers"
    rows = bench.forward_rows([{**record, "gpu": "NVIDIA H200"}])
    by = {row["contestant"]: row for row in rows}
    assert set(by) == {"eager", "compile", "sassafras_eager", "sassafras_compile"}
    spoilt_row, right = by["sassafras_eager"], by["sassafras_compile"]
    assert spoilt_row["wrong"] and spoilt_row["deviation_over_eager"] > 1.1
    assert not {"over_compile", "over_eager", "share_of_bound"} & set(spoilt_row)
    assert not right["wrong"] and right["over_compile_low"] <= right["over_compile"]
    assert right["linears_us"] + right["without_linears_us"] == pytest.approx(right["us"], abs=0.02)
    summary = bench.forward_summary(rows, [record])
    assert summary["over_compile_fp16_1_64"] == right["over_compile"] and summary["wrong"]


def test_a_process_with_max_autotune_is_asked_for_that_alone(bench: Any) -> None:
    """Its other ratios, beside those of a process without, would be an interval of two processes."""

    def record(process: int, autotune: bool, factor: float) -> dict[str, Any]:
        us = {"eager": 3.0, "compile": 2.0, "null": 2.0, "sassafras_compile": 2.0 / factor}
        us |= {"max_autotune": 1.8} if autotune else {}
        row = {"model": "m", "dtype": "bf16", "tokens": 1, "vocabulary": False, "autotune": autotune}
        return {
            "row": row, "us": {name: [v, v, v] for name, v in us.items()}, "sustained": {}, "wrong": [],
            "process": process, "gpu": "NVIDIA H200", "bytes": 4e6, "layers": 4, "context": 8, "served": {},
            "deviations": dict.fromkeys(us, (0.1, 0.2)),
        }  # fmt: skip

    apart, alone = record(0, False, 1.25), record(1, True, 1.5)
    by = {row["contestant"]: row for row in bench.forward_rows([apart, alone])}
    ours = by["sassafras_compile"]
    assert ours["us"] == 1.6 and (ours["over_compile_low"], ours["over_compile_high"]) == (1.25, 1.25)
    assert ours["over_max_autotune"] == pytest.approx(1.35) and by["max_autotune"]["us"] == 1.8
    spoilt = {row["contestant"]: row for row in bench.forward_rows([apart | {"wrong": ["compile"]}, alone])}
    assert "over_compile" not in spoilt["sassafras_compile"] and "null" not in spoilt["eager"], "a wrong base"
    assert spoilt["sassafras_compile"]["over_max_autotune"] == ours["over_max_autotune"]
    only = {row["contestant"]: row for row in bench.forward_rows([alone])}
    assert only["sassafras_compile"]["over_compile"] == 1.5


def test_layers_apart_compute_what_joined_ones_do(bench: Any) -> None:
    """As transformers has them: the same result with the rows of the joined weights."""
    import torch
    from decoder import MODELS, SMALL, made

    assert MODELS["llama-3-8b-apart"].layer_elements == MODELS["llama-3-8b"].layer_elements
    (joined, x), (apart, _) = (
        made(SMALL[name], 1, 4, 8, False, torch.float32, "cpu") for name in ("qwen2.5-7b", "qwen2.5-7b-apart")
    )
    assert sum(isinstance(m, torch.nn.Linear) for m in apart.modules()) == 7
    own, theirs = apart.layers[0], joined.layers[0]
    for layers, (whole,) in ((own.qkv, theirs.qkv), (own.up, theirs.up)):
        sizes = [layer.out_features for layer in layers]
        for name in ("weight", "bias"):
            if (joined_rows := getattr(whole, name)) is not None:
                for layer, rows in zip(layers, joined_rows.split(sizes), strict=True):
                    getattr(layer, name).data = rows
    rest = {k: v for k, v in joined.state_dict().items() if ".qkv." not in k and ".up." not in k}
    assert not apart.load_state_dict(rest, strict=False).unexpected_keys
    with torch.no_grad():
        torch.testing.assert_close(apart(x), joined(x))


def test_a_static_cache_is_read_as_far_as_it_is_filled(bench: Any) -> None:
    import torch
    from decoder import SMALL, made

    kinds = [f"llama-3-8b-{kind}" for kind in ("static", "apart")]
    (static, x), (apart, _) = (made(SMALL[kind], 1, 4, 8, False, torch.float32, "cpu") for kind in kinds)
    state = static.state_dict()
    del state["counts"]
    apart.load_state_dict({name: t[:, :, :8] if t.dim() == 4 else t for name, t in state.items()})
    assert static.layers[0].keys.shape[2] == 4096
    torch.testing.assert_close(static(x), apart(x))


def test_a_process_without_time_leaves_its_journal(tmp_path: Path) -> None:
    done = run_benchmark("model_forward", "--dry-run", "--limit-s", "0", "--out", tmp_path)
    assert done.returncode == 1, "no row is no result"
    found = json.loads((tmp_path / "model-forward-dry.json").read_text())
    assert found["rows"] == [] and "qwen2.5-7b bf16 4096" in found["summary"]["not_reached"]


def test_a_result_that_is_no_number_after_the_timing_is_wrong(bench: Any) -> None:
    """`max` of a number and NaN is the one that comes first."""
    right, nan, above = (1.0, 1.0), (float("nan"), 1.0), (1.2, 1.0)
    before = {"eager": right, "compile": right, "sassafras_compile": right, "null": above}
    after = {"eager": right, "compile": above, "sassafras_compile": nan, "null": right}
    assert bench.wrong_of(before, after) == ["compile", "sassafras_compile", "null"]


def test_the_lower_of_short_and_long_blocks_counts(bench: Any) -> None:
    from program_rows import interval, ratios

    us = {"compile": [10.0, 11.0, 10.0], "sassafras_compile": [8.0, 8.8, 8.0], "null": [10.0, 11.0, 10.0]}
    record = {"us": us, "sustained": {"compile": [10.0], "sassafras_compile": [9.5]}}
    short, long = (ratios(r, "compile", "sassafras_compile") for r in ({**record, "sustained": {}}, record))
    assert interval([short])[0] == 1.25 and interval([long])[0] == round(10 / 9.5, 4)
    assert ratios(record, "compile", "max_autotune") is None
    value, low, high = interval([short, long])
    assert low < value < high


def test_rows_that_matter_most_come_first(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["model_forward.py", "--max-autotune", "--out", str(tmp_path)])
    rows = bench.wanted(bench.arguments())
    assert len(rows) == len(set(rows)) == 3 * 8 * 2 + 3 * 2 + 2
    assert {(r.tokens, r.autotune) for r in rows[:18]} == {(1, True), (16, True), (64, True)}
    assert not any(r.autotune for r in rows[18:]) and [r.model for r in rows[-2:]] == ["vit-l", "vit-l"]
