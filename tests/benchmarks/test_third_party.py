"""Kernels of other projects: the rule of choosing, and the rows that a folder of cubins gives."""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import third_party

from sassafras.targets import load


@pytest.fixture
def entry(tmp_path: Path) -> dict[str, Any]:
    """A cubin of the suite, entered as another project's would be."""
    workload = load("suite:softmax")
    kernel = workload.build(workload.cases[0], "sm_90a")
    (tmp_path / "softmax.cubin").write_bytes(kernel.cubin)
    return {
        "repository": "owner/name", "commit": "0" * 40, "kernel": "softmax", "configuration": "BLOCK=1024",
        "arch": "sm_90a", "compiler": "triton 3.6.0", "path": "softmax.cubin", "entry": kernel.name,
        "sha256": hashlib.sha256(kernel.cubin).hexdigest(),
    }  # fmt: skip


def test_a_short_list_is_taken_whole_and_a_long_one_evenly() -> None:
    assert third_party.choose(range(10)) == list(range(10))
    assert third_party.choose(range(11)) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert third_party.choose("abcdefgh", 3) == ["a", "e", "h"]
    for length in range(11, 400):
        chosen = third_party.choose(range(length))
        steps = {b - a for a, b in itertools.pairwise(chosen)}
        assert len(chosen) == 10 and chosen[0] == 0 and chosen[-1] == length - 1
        assert max(steps) - min(steps) <= 1 and min(steps) >= 1
    with pytest.raises(ValueError, match="at least 2"):
        third_party.choose(range(9), 1)


def row_of(
    repository: str, kernel: str, accepted: bool = True, compiler: str = "triton 3.6.0"
) -> dict[str, Any]:
    """A row of the result, as far as a draw reads it."""
    return {
        "repository": repository, "commit": repository, "kernel": kernel, "accepted": accepted,
        "compiler": compiler,
    }  # fmt: skip


def test_a_draw_is_seeded_takes_two_of_a_repository_and_reports_who_is_passed_over() -> None:
    rows = [row_of(f"o/{r}", f"{r}{k}") for r in "abcdef" for k in range(9)] * 2
    rows += [row_of("o/g", "refused", accepted=False), row_of("o/h", "cuda", compiler="nvcc 13.0.88")]
    taken, passed = third_party.draw(rows, 8, 0, {})
    assert (taken, passed) == third_party.draw(rows[::-1], 8, 0, {})
    assert taken != third_party.draw(rows, 8, 1, {})[0]
    gone = taken[1]["kernel"]
    fewer, why = third_party.draw(rows, 8, 0, {gone: "needs a compiler"})
    assert fewer[0] == taken[0] and gone not in {each["kernel"] for each in fewer}
    assert [each["kernel"] for each in why if each["reason"] == "needs a compiler"] == [gone]
    whole, rest = third_party.draw(rows, 12, 0, {})
    repositories = [each["repository"] for each in whole]
    assert {repositories.count(name) for name in repositories} == {2} and len(set(repositories)) == 6
    assert all(each["reason"] == "2 of its repository are drawn" for each in rest)
    assert {each["kernel"] for each in whole + rest} <= {row["kernel"] for row in rows[:-2]}
    with pytest.raises(ValueError, match="12 kernels can be drawn, not 13"):
        third_party.draw(rows, 13, 0, {})
    with pytest.raises(ValueError, match="called cuda, typo"):
        third_party.draw(rows, 8, 0, {"typo": "", "cuda": ""})


def test_the_command_draws_from_the_published_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reasons = tmp_path / "reasons.json"
    reasons.write_text('{"no_such_kernel": "why"}')
    words = ["third_party.py", "--draw", "12", "--seed", "0"]
    monkeypatch.setattr(sys, "argv", words)
    third_party.main()
    found = json.loads(capsys.readouterr().out)
    assert found["seed"] == 0 and len({each["kernel"] for each in found["drawn"]}) == 12
    for wrong, said in (
        (["folder"], "name a folder or --draw"),
        (["--without", str(reasons)], "no_such_kernel"),
    ):
        monkeypatch.setattr(sys, "argv", words + wrong)
        with pytest.raises(SystemExit, match="2"):
            third_party.main()
        assert said in capsys.readouterr().err


def test_a_cubin_is_judged_and_another_one_under_its_name_is_not(
    tmp_path: Path, entry: dict[str, Any]
) -> None:
    row = third_party.judge(str(tmp_path), entry)
    assert row["accepted"] and row["reason"] is None and row["violations"] == []
    with pytest.raises(ValueError, match="not the cubin"):
        third_party.judge(str(tmp_path), {**entry, "sha256": "0" * 64})


def test_what_is_refused_is_counted_and_explained_only_as_a_whole(
    tmp_path: Path, entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = third_party.judge(str(tmp_path), {**entry, "entry": "no_such_kernel"})
    assert not refused["accepted"] and "no_such_kernel" in refused["reason"]
    rows = [
        {**third_party.judge(str(tmp_path), entry), "explanation": None},
        {**refused, "explanation": None},
    ]
    summary = third_party.summarise(rows, [])
    assert (summary["configurations"], summary["distinct_cubins"], summary["repositories"]) == (2, 1, 1)
    assert (summary["refused"], summary["refused_unexplained"], summary["accepted_percent"]) == (1, 1, 50.0)
    monkeypatch.setattr(third_party, "EXPLAINED", {"no_such_kernel": "it is not there"})
    assert third_party.explanation(refused["violations"]) == "it is not there"
    assert third_party.explanation([*refused["violations"], "something else"]) is None
    assert third_party.explanation([]) is None
    with pytest.raises(ValueError, match="more than 10 configurations of softmax"):
        third_party.summarise(rows * 6, [])


def test_the_result_names_no_path_and_the_refused_are_kept_in_full(
    tmp_path: Path, entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {**entry, "entry": "no_such_kernel", "configuration": "BLOCK=0"}
    failed = {k: entry[k] for k in ("repository", "commit", "kernel", "configuration")}
    index = {"cubins": [entry, wrong], "not_compiled": [{**failed, "error": "out of shared memory"}]}
    (tmp_path / "index.json").write_text(json.dumps(index))
    arguments = [str(tmp_path), "--jobs", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["third_party.py", *arguments])
    third_party.main()
    result = json.loads((tmp_path / "third-party.json").read_text())
    assert str(tmp_path) not in json.dumps(result)
    assert {"benchmark", "date", "command", "commit", "seed", "environment", "summary"} <= set(result)
    needed = {"repository", "commit", "kernel", "configuration", "arch", "sha256", "accepted", "reason"}
    assert all(needed <= set(row) for row in result["rows"])
    assert [row["accepted"] for row in result["rows"]] == [True, False]
    assert result["summary"]["not_compiled"] == 1
    assert [row["path"] for row in json.loads((tmp_path / "refused.json").read_text())] == ["softmax.cubin"]
    # what is judged is judged once by one validator
    (tmp_path / "softmax.cubin").unlink()
    third_party.main()
    assert json.loads((tmp_path / "third-party.json").read_text()) == result
    monkeypatch.setattr(third_party, "validator_digest", lambda: "another")
    with pytest.raises(FileNotFoundError):
        third_party.main()


def test_answers_cut_off_by_a_kill_are_gone_on_with(tmp_path: Path, entry: dict[str, Any]) -> None:
    (first,) = third_party.judge_all(tmp_path, [entry], 1)
    answers = tmp_path / "judged.jsonl"
    whole = answers.read_text()
    answers.write_text(whole + whole[:40])
    (again,) = third_party.judge_all(tmp_path, [entry], 1)
    assert again == first and answers.read_text() == whole


def test_what_is_not_answered_in_time_counts_as_refused(tmp_path: Path, entry: dict[str, Any]) -> None:
    (row,) = third_party.judge_all(tmp_path, [entry], 1, seconds=1e-3)
    assert not row["accepted"] and row["reason"] == "not judged in the time given" and row["explanation"]
    assert not (tmp_path / "judged.jsonl").exists()


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"cubins": []}'])
def test_a_folder_without_an_index_is_one_line(
    tmp_path: Path, text: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "index.json").write_text(text)
    monkeypatch.setattr(sys, "argv", ["third_party.py", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        third_party.main()
    assert ended.value.code == 2 and "has no index.json" in capsys.readouterr().err
