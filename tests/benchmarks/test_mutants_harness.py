"""The mutants' harness on real plans and real processes, with pretended outcomes: no GPU here."""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from mutants import lean, plan, schedule


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of 40 mutants of one kernel, without those that `Pretend` lets hang (they cost seconds each)."""
    place = tmp_path_factory.mktemp("plans")
    path = place / "rotary.xz"
    plan.make("rotary", 40, 3, str(path))
    made = plan.read(path)
    original = cubin(made)
    made["mutants"] = [
        m for m in made["mutants"]
        if hashlib.sha256(plan.patched(original, m["runs"])).digest()[0] >= 3
    ]  # fmt: skip
    path.write_bytes(lzma.compress(json.dumps(made).encode()))
    return place


def cubin(made: dict[str, Any]) -> bytes:
    import base64

    return base64.b64decode(made["cubin"])


def test_a_plan_holds_the_mutants_and_the_validators_verdicts(folder: Path) -> None:
    from sassafras.validate import Validator

    made = plan.read(folder / "rotary.xz")
    original = cubin(made)
    validator = Validator(original, made["facts"]["name"])
    assert {m["ok"] for m in made["mutants"]} == {True, False}
    for mutant in made["mutants"]:
        changed = plan.patched(original, mutant["runs"])
        assert changed != original
        assert hashlib.sha256(changed).hexdigest()[:16] == mutant["digest"]
        assert validator.check(changed).ok is mutant["ok"]


def test_every_mutant_runs_once_approved_first_and_a_second_call_adds_nothing(
    folder: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"gpus": 2, "only": [], "window": False, "pretend": True, "hang_s": 30.0}
    summary = schedule.run(folder, tmp_path, seconds=200, say=lambda text: None, **settings)
    made = plan.read(folder / "rotary.xz")
    lines = [
        json.loads(line)
        for path in sorted(tmp_path.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert sorted(line["n"] for line in lines) == sorted(m["n"] for m in made["mutants"])
    assert summary["complete"]
    assert summary["approved_run"] == summary["approved_and_right"] == sum(m["ok"] for m in made["mutants"])
    assert summary["approved_but_wrong"] == 0
    again = schedule.run(folder, tmp_path, seconds=200, say=lambda text: None, **settings)
    assert again["outcomes"] == summary["outcomes"]


def test_stopping_at_once_leaves_a_valid_partial_result(folder: Path, tmp_path: Path) -> None:
    summary = schedule.run(
        folder, tmp_path, gpus=1, seconds=0.0, only=[], window=False, pretend=True, say=lambda text: None
    )
    assert not summary["complete"]
    assert summary["mutants_run"] == 0
    assert summary["mutants_planned"] == len(plan.read(folder / "rotary.xz")["mutants"])


def test_a_stale_plan_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "validator_digest", lambda: "another")
    with pytest.raises(ValueError, match="make the plans again"):
        schedule.run(folder, tmp_path, gpus=1, seconds=5, only=[], window=False, pretend=True)
    with pytest.raises(ValueError, match="no plans"):
        schedule.run(tmp_path, tmp_path, gpus=1, seconds=5, only=[], window=False, pretend=True)


def test_a_line_cut_short_or_of_another_plan_is_not_counted(folder: Path, tmp_path: Path) -> None:
    made = plan.read(folder / "rotary.xz")
    first = made["mutants"][0]
    good = {"kernel": "rotary", "n": first["n"], "ok": first["ok"], "outcome": "right", "kinds": [],
            "digest": first["digest"]}  # fmt: skip
    text = json.dumps(good) + "\n" + json.dumps({**good, "n": 1, "digest": "other"}) + "\n" + '{"kernel": "ro'
    (tmp_path / "mutants-gpu0.jsonl").write_text(text)
    assert schedule.journal_rows(tmp_path, {"rotary": made}) == [good]


def test_a_summary_takes_todays_verdicts_and_says_what_an_older_validator_approved(
    folder: Path, tmp_path: Path
) -> None:
    made = plan.read(folder / "rotary.xz")
    approved, refused = (next(m for m in made["mutants"] if m["ok"] is ok) for ok in (True, False))
    lines = [
        {"kernel": "rotary", "n": m["n"], "ok": True, "outcome": outcome, "kinds": m["kinds"],
         "digest": m["digest"]}
        for m, outcome in ((approved, "right"), (refused, "hung"))
    ]  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines)
    journals = tmp_path / "journals"
    journals.mkdir()
    (journals / "mutants-then.jsonl.xz").write_bytes(lzma.compress(text.encode()))
    (journals / "sittings.json").write_text(json.dumps([{"command": "then"}]))
    import mutants_gpu

    arguments = ["summary", "--folder", str(folder), "--journals", str(journals), "--out", str(tmp_path)]
    assert mutants_gpu.main(arguments) == 0
    found = json.loads((tmp_path / "validator-mutants.json").read_text())
    assert found["environment"]["sittings"] == [{"command": "then"}]
    summary = found["summary"]
    assert (summary["approved_and_right"], summary["refused_and_wrong"]) == (1, 1)
    assert summary["approved_but_wrong"] == 0
    (only,) = summary["sets"]
    assert (only["edits"], only["seed"], only["complete"]) == ("wide", 3, False)
    assert summary["was_approved"]["outcomes"] == {"hung": 1}
    assert [row["n"] for row in summary["was_approved"]["wrong"]] == [refused["n"]]


def test_a_near_mutant_has_one_edit_and_moves_nothing_far(tmp_path: Path) -> None:
    path = tmp_path / "rotary.xz"
    plan.make("rotary", 60, 1, str(path), "near")
    made = plan.read(path)
    assert {len(m["kinds"]) for m in made["mutants"]} == {1}
    assert {kind for m in made["mutants"] for kind in m["kinds"]} == set(plan.KINDS) - {"move"}
    assert {m["ok"] for m in made["mutants"]} == {True, False}


def test_the_committed_journal_holds_the_sittings_mutants() -> None:
    from mutants_gpu import JOURNALS

    lines = [json.loads(line) for line in schedule._lines(JOURNALS)]
    rows = {(row["kernel"], row["n"], row["digest"]): row for row in lines}
    sittings = json.loads((JOURNALS / "sittings.json").read_text())
    assert len(rows) == sum(sitting["mutants_run"] for sitting in sittings)
    hung = [row for row in rows.values() if row["ok"] and row["outcome"] != "right"]
    assert {row["again"] for row in hung} == {"hung"}


def test_violations_of_one_class_are_spread() -> None:
    rows = [{"n": n, "why": why} for n, why in enumerate(["a b c 1"] * 3 + ["x y z"] * 2 + [""])]
    assert [row["n"] for row in schedule.spread(rows)] == [0, 3, 5, 1, 4, 2]


@pytest.mark.parametrize(
    ("grid", "cluster", "small"),
    [
        ([4096, 1, 1], [1, 1, 1], (264, 1, 1)),
        ([100, 1, 1], [1, 1, 1], (100, 1, 1)),
        ([4096, 8, 1], [2, 1, 1], (32, 8, 1)),
        ([64, 500, 1], [2, 1, 1], (2, 500, 1)),
    ],
)
def test_grids_are_cut_in_whole_clusters(grid: list[int], cluster: list[int], small: tuple) -> None:
    assert lean.small_grid(grid, cluster) == small
