"""Bad input: every command says what is wrong, where, and what to do, before it begins long work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.in_process import invoke

MODEL = ["--device", "model", "--budget", "3e", "--store", "st.sqlite"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "x.cubin").write_bytes(b"\x7fELF")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "empty.json").write_text("{}")
    names = "from sassafras import suite\nfrom sassafras.frontend.triton import workload\n"
    (tmp_path / "imported.py").write_text(f"{names}mine = suite.load('softmax')\n")
    return tmp_path


def said(words: list[str]) -> str:
    """What a failing command writes to stderr, without line breaks and frames."""
    ran = invoke(words)
    assert ran.exit_code == 2, f"{ran.exit_code}: {ran.output} {ran.exception!r}"
    return " ".join(ran.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["optimize", "folder", *MODEL], ["folder: a folder is no target", "suite:NAME"]),
        (["optimize", "text.txt", *MODEL], ["text.txt: cannot tell what this is", "file.py"]),
        (["optimize", "x.cubin", *MODEL], ["x.cubin: a cubin alone", ".toml"]),
        (
            ["optimize", "imported.py", *MODEL],
            ["the file defines no 'workload' (it has imported.py:mine)"],
        ),
        (["optimize", "empty.json", *MODEL], ["empty.json: this is no sound capture: it has no 'format'"]),
        (["optimize", "bad.json", *MODEL], ["bad.json: this is no sound capture: it is no JSON"]),
        (["optimize", *MODEL], ["Missing argument"]),
        (
            ["optimize", "suite:softmax", "--device", "model", "--budget", "30"],
            ["the budget 30 has no unit (30s is seconds, 30e evaluations)"],
        ),
        (["mcp", "--root", "absent"], ["absent: no such folder"]),
        (["evolve", "suite:softmax", "--budget", "30"], ["the budget 30 has no unit"]),
        (["optimize", "suite:softmax", "--effort", "huge"], ["no effort 'huge' (quick, normal, full)"]),
        (
            ["optimize", "suite:softmax", "--effort", "full", *MODEL],
            ["both --budget 3e and --effort full are given (give one)"],
        ),
        (
            ["optimize", "suite:softmax", "--preset", "sip", "--effort", "quick"],
            ["a preset has a budget of its own (leave out --effort, or give --budget)"],
        ),
        (["optimize", "--captured", "folder"], ["optimize --captured has another name", "tune CAPTURE"]),
        (["optimize", "suite:softmax", "--knobs=x.json"], ["--knobs has another name", "--ptxas-options"]),
        (["knobs", "suite:softmax"], ["knobs has another name now (sassafras ptxas-options TARGET)"]),
        (["gemm", "tune", "--grid", "cuda-l2"], ["another name now (sassafras tune --products GRID)"]),
        (["tune"], ["nothing to tune is named", "tune captured, -- python program.py"]),
        (["tune", "folder", "--products", "64x64x64"], ["both 'folder' and --products are named"]),
        (["tune", "folder", "--bands", "<1e8"], ["--bands is for --products only"]),
        (
            ["tune", "--products", "64x64x64", "--budget", "1s"],
            ["--budget is for captures and programs"],
        ),
        (["tune", "folder", *MODEL], ["folder"]),
        (["tune", "--bands", "<1e8", "--", "python", "x.py"], ["--bands is for --products only"]),
        (["optimize", "suite:softmax", "--set", "foo=1", *MODEL], ["guided has no setting 'foo'", "cycles"]),
        (["optimize", "suite:softmax", "--set", "start=abc", *MODEL], ["guided's start", "not 'abc'"]),
        (["optimize", "suite:softmax", "--set", "start=-1", *MODEL], ["guided's start", "not -1"]),
        (["optimize", "suite:softmax", "--set", "start=0", *MODEL], ["guided cannot run", "above 0"]),
        (["optimize", "suite:softmax", "--set", "cycles=2.5", *MODEL], ["whole number", "not 2.5"]),
        (
            ["optimize", "suite:softmax", "--strategy", "ppo", "--set", "policy=pretrained", *MODEL],
            ["ppo has no setting 'policy'"],
        ),
        (["optimize", "suite:softmax", "--workers", "2", *MODEL], ["only in a cluster", "--cluster auto"]),
        (["optimize", "suite:softmax", "--seed", "-1", *MODEL], ["--seed", "0"]),
        (["optimize", "suite:softmax", "--out", "text.txt", *MODEL], ["text.txt: results cannot", "a file"]),
        (
            ["optimize", "suite:softmax", "--ptxas-options", "empty.json", *MODEL],
            ["empty.json", "no 'ptxas'"],
        ),
        (["optimize", "suite:softmax", "--ptxas-options", "no.json", *MODEL], ["no.json", "No such file"]),
        (["optimize", "suite:softmax", "--ptxas", "nosuch", *MODEL], ["nosuch: cannot run ptxas: No such"]),
        (["disasm", "text.txt"], ["text.txt, offset 0: 5 bytes are too few"]),
        (["validate", "text.txt", "x.cubin"], ["text.txt, offset 0: 5 bytes are too few"]),
        (["verify", "suite:softmax", "text.txt"], ["text.txt, offset 0: 5 bytes are too few"]),
        (["compare", "suite:softmax", "x.cubin", "no.cubin"], ["no.cubin: cannot read the cubin"]),
        (["compare", "suite:softmax", "x.cubin", "x.cubin", "--processes", "1"], ["--processes", "2"]),
        (["report", "--out", "folder"], ["folder: this is a folder"]),
        (["report", "--out", "no/x.html"], ["no/x.html: its folder does not exist"]),
        (["report", "--kernels", "-1"], ["--kernels", "0"]),
        (["store", "prune", "--older-than", "-1"], ["--older-than", "0"]),
        (["latency", "show", "--kind", "none"], ["no kind 'none'", "raw, waw, war, issue"]),
        (["latency", "mine", "x.cubin", "--out", "folder"], ["folder: this is a folder"]),
        (["gemm", "bench", "--dry-run", "--configs", "0"], ["'--configs'", "than or equal to 1"]),
        (["gemm", "bench", "--dry-run", "--calls", "4"], ["'--calls'", "than or equal to 5"]),
        (["gemm", "bench", "--dry-run", "--minutes", "nan"], ["'--minutes'", "than or equal to 0"]),
        (
            ["gemm", "bench", "--dry-run", "--known", "--from", "NVIDIA H200"],
            ["--known does nothing with --from (leave it out)"],
        ),
        (["gemm", "bench", "--dry-run", "--top", "3"], ["--top does nothing without --from"]),
        (["tune", "--products", "64x64x64", "--top", "3"], ["--top does nothing without --from"]),
        (["tune", "--products", "64x64x64", "--recorded", "3"], ["does nothing without --only-configs"]),
        (
            ["verify", "x.py", "--batch-invariant", "--samples", "3"],
            ["--samples does nothing"],
        ),
        (["evolve", "x.py", "--base-url", "http://x/v1"], ["--base-url does nothing with --proposer mutate"]),
        (
            ["evolve", "x.py", "--proposer", "endpoint:m", "--wait", "3"],
            ["--wait does nothing"],
        ),
        (["evolve", "x.py", "--folder", "run", "--fresh"], ["run: a run in a folder goes on"]),
        (
            ["evolve", "x.py", "--proposer", "exchange:run", "--fresh", "--device", "none"],
            ["run: a run in a folder goes on"],
        ),
        (["gemm", "configs", "64x64x64", "--limit", "-1"], ["'--limit'", "than or equal to 0"]),
        (["tune", "--products", "64x64x64", "--configs", "0"], ["'--configs'", "than or equal to 1"]),
        (["tune", "--products", "64x64x64", "--recorded", "-1"], ["'--recorded'", "than or equal to 0"]),
        (["explain", "suite:softmax", "--remeasure", "-1"], ["'--remeasure'", "than or equal to 0"]),
        (["explain", "suite:softmax", "--most", "-1"], ["'--most'", "than or equal to 0"]),
        (["gemm", "bench", "--grid", "nosuch"], ["there is no grid 'nosuch'", "cuda-l2, backward, judge-1"]),
        (
            ["gemm", "bench", "--dry-run", "--shapes", "2", "--out", "text.txt"],
            ["text.txt: results", "a file"],
        ),
        (
            ["tune", "--products", "cuda-l2", "--dry-run", "--shapes", "2", "--out", "text.txt"],
            ["text.txt: results", "a file"],
        ),
        (["status", "text.txt"], ["text.txt: there is no such folder", "SASSAFRAS_STATUS"]),
        (["capture", "--out", "text.txt", "--", "true"], ["text.txt: results cannot", "a file"]),
        (["capture", "--cases", "0", "--", "true"], ["--cases", "1"]),
    ],
    ids=lambda value: " ".join(value[:5]) if isinstance(value, list) else "",
)
def test_bad_input_is_named_with_a_way_out(here: Path, words: list[str], parts: list[str]) -> None:
    text = said(words)
    for part in parts:
        assert part in text, text
    assert not (here / "sassafras-out").exists() or not any((here / "sassafras-out").iterdir())


@pytest.mark.parametrize(
    ("setting", "part"), [("edits=abc", "evolve's edits is a whole number"), ("foo=1", "no setting 'foo'")]
)
def test_bad_settings_of_evolve(here: Path, setting: str, part: str) -> None:
    target = str(Path(__file__).parents[2] / "examples" / "evolve" / "softmax.py")
    assert part in said(["evolve", target, "--set", setting, "--device", "model", "--store", "st.sqlite"])


def test_a_strategy_of_ones_own_may_take_anything() -> None:
    from sassafras import search

    class Mine:
        name = "mine"

        def __init__(self, depth: int = 3, **others: object) -> None:
            self.depth, self.others = depth, others

        def search(self, space: object, evaluate: object, session: object) -> None: ...

    made = search.get(Mine, {"depth": 5, "anything": [1]})
    assert search.settings_of(made) == {"depth": 5, "others": {"anything": [1]}}
    assert json.dumps(search.settings_of(search.get("greedy", {"leap": 2})))


def test_a_number_is_no_budget() -> None:
    import sassafras
    from sassafras.core import SearchError

    for number in (30, 0.5):
        with pytest.raises(SearchError, match=rf"the budget {number} has no unit \({number}s is seconds"):
            sassafras.optimize("suite:softmax", device="model", budget=number)  # type: ignore[arg-type]
