"""docs/results.md, docs/seeds.md and the figures that pages quote are those of the result files."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from .pages import ROOT

RESULTS = ROOT / "benchmarks" / "results"
HELP = "run: python benchmarks/figures.py --write"
_spec = importlib.util.spec_from_file_location("figures", ROOT / "benchmarks" / "figures.py")
assert _spec is not None and _spec.loader is not None
figures: ModuleType = importlib.util.module_from_spec(_spec)
sys.modules["figures"] = figures
_spec.loader.exec_module(figures)

BEST = "won {schedule-suite[summary][best_speedup]:.3f}x on 9"


def test_pages_print_the_results_figures() -> None:
    pages, wrong = figures.updated()
    stale = [path.name for path, text in pages.items() if path.read_text("utf-8") != text]
    assert not wrong and not stale, f"{wrong} {stale}; {HELP}"


def test_a_stale_figure_is_brought_up_to_date_and_nothing_else() -> None:
    best = f"{figures.result('schedule-suite')['summary']['best_speedup']:.3f}"
    text = "It won 9.999x\non 9, and 9.999x twice.\n"
    assert figures.quoted(text.replace("won 9.999x\non", "won 9.999x on"), BEST) == (
        f"It won {best}x on 9, and 9.999x twice.\n"
    )
    assert figures.quoted(text, BEST) == f"It won {best}x\non 9, and 9.999x twice.\n"


@pytest.mark.parametrize(
    ("text", "quote", "said"),
    [
        ("nothing", BEST, "0 times"),
        ("won 1x on 9, won 2x on 9", BEST, "2 times"),
        ("won 1x on 90", BEST, "0 times"),
        ("won 1x on 9", BEST.replace("best_speedup", "nosuch"), "no value"),
        ("won 1x on 9", BEST.replace("summary][best_speedup", "rows][999"), "no value"),
        ("won 1x on 9", BEST.replace("schedule-suite", "nosuch"), "no value"),
        ("won 1x on 9", BEST.replace(".3f", "q"), "no value"),
    ],
)
def test_a_quote_that_cannot_be_kept_says_why(text: str, quote: str, said: str) -> None:
    with pytest.raises(figures.QuoteError, match=said):
        figures.quoted(text, quote)


def test_several_figures_of_one_quote_are_replaced_at_their_places() -> None:
    quote = "{schedule-suite[summary][kernels]} of {schedule-suite[summary][evaluations]:,} runs"
    of = figures.result("schedule-suite")["summary"]
    assert figures.quoted("now 1 of 2,000,000 runs", quote) == (
        f"now {of['kernels']} of {of['evaluations']:,} runs"
    )


@pytest.mark.parametrize("which", ["0", "kernel=attention", "kernel=nosuch"])
def test_a_row_is_named_by_what_it_alone_holds(which: str) -> None:
    """A result that is made anew may have its rows in another order."""
    with pytest.raises(LookupError, match=f"rows have {which}"):
        figures.stated(f"{{rows[{which}][speedup]}}", figures.result("schedule-suite"))


def test_calls_of_server_mode() -> None:
    assert {row["rounds"] for row in figures.result("hgemm-server")["rows"]} == {30}, "calls each"


def test_a_cell_of_a_model_says_which_type_was_not_measured() -> None:
    row = {"contestant": "sassafras_compile", "vocabulary": False, "model": "llama-3", "tokens": 4}
    rows = [{**row, "dtype": "bf16", "over_compile": 1.25}, {**row, "dtype": "bf16", "tokens": 1}]
    rows += [{**row, "dtype": dtype, "model": "qwen", "over_compile": 1.5} for dtype in ("bf16", "fp16")]
    assert figures.forwards({"rows": rows}) == [
        {"tokens": 1, "llama_3": "-, wrong", "qwen": "not measured"},
        {"tokens": 4, "llama_3": "-, 1.250", "qwen": "1.500, 1.500"},
    ]


def test_a_cell_waits_for_its_result_file_and_for_nothing_else() -> None:
    of = figures.result("schedule-suite")
    one = "kernel=softmax/shape=" + next(row["shape"] for row in of["rows"] if row["kernel"] == "softmax")
    text = f"{{schedule-suite[rows][{one}][evaluations]}} ({{schedule-suite[where]}})"
    date = of["environment"]["date"]
    assert figures.filled(text) == f"{of['rows'][one]['evaluations']} (H200, {date})"
    assert figures.filled(" {nosuch[summary][x]:.3f}x ").split() == ["not", "measured", "yet"]
    with pytest.raises(KeyError):
        figures.filled("{schedule-suite[summary][nosuch]}")


def test_the_guides_commands_make_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`schedule_suite.py` without --cases all has no variants of odd sizes: a sentence less, not an error."""
    kept = json.loads((RESULTS / "schedule-suite.json").read_text("utf-8"))
    kept["summary"]["geomean_speedup_odd"] = None
    kept["rows"] = [row for row in kept["rows"] if not row["odd"]]
    (tmp_path / "schedule-suite.json").write_text(json.dumps(kept))
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    figures.result.cache_clear()
    try:
        page = figures.page()
    finally:
        figures.result.cache_clear()
    assert "odd sizes" not in page and "validated candidates, 0 were wrong or crashed." in page


def test_a_table_waits_for_its_result_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "validator.json").write_text((RESULTS / "validator.json").read_text("utf-8"))
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    assert re.findall("^## .*", figures.page(), re.MULTILINE) == ["## Validator"]


def test_every_result_says_where_and_by_which_command_it_was_made() -> None:
    for path in sorted(RESULTS.glob("*.json")):
        data = json.loads(path.read_text("utf-8"))
        assert "environment" in data and data["command"], path.name


def test_results_hold_no_machine_paths() -> None:
    """Where a file lay on the machine that measured is no part of a result."""
    found = []
    for path in sorted(RESULTS.glob("*.json")):
        for match in re.finditer(r"[ =\"](/(?:root|tmp|home|work)/[^ \"]*)", path.read_text("utf-8")):
            found.append(f"{path.name}: {match[1]}")
    assert not found, found[:5]


@pytest.mark.parametrize("text", ["", "{", '{"rows": []}'])
def test_a_damaged_result_is_one_line_and_nothing_is_written(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in figures.RESULTS.glob("*.json"):
        (tmp_path / path.name).write_text(text)
    page = tmp_path / "results.md"
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(figures, "PAGE", page)
    figures.result.cache_clear()
    try:
        assert figures.main(["--write"]) == 1
    finally:
        figures.result.cache_clear()
    assert "nothing was written" in capsys.readouterr().out and not page.exists()
