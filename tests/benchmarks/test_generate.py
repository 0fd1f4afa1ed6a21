"""`benchmarks/generate.py` without a GPU: small models, the journal, and which text is wrong."""

from __future__ import annotations

import json
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
    import generate

    threads = torch.get_num_threads()
    yield generate
    torch.set_num_threads(threads)


def row(model: str, over: float, low: float, **more: Any) -> dict[str, Any]:
    """One of the result's."""
    found = {"model": model, "dtype": "bf16", "batch": 1, "over_compile": over, "over_compile_low": low}
    return found | {"null": 1.0, "wrong": False} | more


def test_a_program_counts_once_however_often_it_ran(bench: Any) -> None:
    """Two processes of one, one of the other; a wrong one names its program."""
    rows = [row("a", 1.0, 0.9), row("a", 1.21, 1.1), row("b", 1.1, 1.05, wrong=True)]
    summary = bench.summary_of(rows)
    assert summary["over_compile"] == 1.1 and summary["over_compile_lowest"] == 0.9
    assert summary["programs"] == 2 and summary["wrong"] == ["b bf16 1"]
    assert bench.summary_of([])["over_compile"] is None


def test_a_spoilt_copy_writes_a_wrong_text(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first program is right; the second one's copy has its last norm negated. Rows are kept."""
    pytest.importorskip("transformers")
    contestants = bench.contestants

    def spoilt(model: Any, batch: int, given: Any) -> Any:
        found = contestants(model, batch, given)
        if batch == 2:
            found["sassafras"][0].model.norm.weight.neg_()
        return found

    monkeypatch.setattr(bench, "contestants", spoilt)
    words = [
        "--models",
        "llama-3.2-1b",
        "--batches",
        "1",
        "2",
        "--dtypes",
        "bf16",
        "--new",
        "6",
        "--prompt",
        "5",
    ]
    more = ["--rounds", "3", "--dry-run", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["generate.py", *words, *more])
    with torch.no_grad():
        assert bench.main() == 1
    journal = (tmp_path / "generate-dry.jsonl").read_text()
    data = json.loads((tmp_path / "generate-dry.json").read_text())
    assert [r["wrong"] for r in data["rows"]] == [False, True]
    assert data["summary"]["wrong"] == ["llama-3.2-1b bf16 2"]
    assert bench.main() == 1
    assert (tmp_path / "generate-dry.jsonl").read_text() == journal, "a row is not measured again"


@pytest.mark.parametrize("words", [("--batches", "2", "0"), ("--new", "-1"), ("--rounds", "0")])
def test_what_cannot_be_generated_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run_benchmark("generate", "--dry-run", "--out", tmp_path / "new", *words)
    assert done.returncode == 2 and "1 at least" in done.stderr
    assert not (tmp_path / "new").exists()


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    done = run_benchmark("generate", "--dry-run", "--out", tmp_path / "new")
    assert done.returncode == 2 and "transformers is missing" in done.stderr
