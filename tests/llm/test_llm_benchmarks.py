"""The benchmarks that a GPU sitting runs, rehearsed, so that nothing trivial fails there."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from sassafras.evaluate.sandbox.confine import landlock_version

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.skipif(landlock_version() < 1 or shutil.which("nvcc") is None, reason="cannot build confined")
def test_proposals_are_generated_and_measured_on_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import llm_proposals

    words = ["llm_proposals.py", "--workloads", "bias_gelu", "--proposals", str(tmp_path / "p.jsonl")]
    words += ["--cubins", str(tmp_path / "carried")]
    monkeypatch.setattr(sys, "argv", [*words, "--generate", "--count", "3", "--seed", "1"])
    llm_proposals.main()
    llm_proposals.main()  # finished: nothing is done twice
    records = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert records[-1]["tally"]["proposed"] == 3 and "correct" not in records[-1]["tally"]
    assert {"compiled", "compile_error"} >= {r["static"] for r in records if "static" in r}
    monkeypatch.setattr(sys, "argv", [*words, "--carry"])
    llm_proposals.main()
    compiled = {r["digest"] for r in records if r.get("static") == "compiled"}
    assert {p.stem for p in (tmp_path / "carried").glob("*.cubin")} == {"bias_gelu", *compiled}
    measure = ["--measure", "--dry-run", "--journal", str(tmp_path / "j.jsonl"), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*words, *measure])
    llm_proposals.main()
    said = capsys.readouterr().out
    summary = json.loads(said[said.index("{\n") :])
    assert summary["mutation"]["proposed"] == 3 and summary["mutation"]["correct"] == 0
    journal = (tmp_path / "j.jsonl").read_text()
    llm_proposals.main()
    assert (tmp_path / "j.jsonl").read_text() == journal  # resumed: nothing is judged twice
    assert not (tmp_path / "llm-proposals.json").exists()


def test_the_live_benchmark_runs_on_a_modelled_clock(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    import llm_live

    from sassafras.gemm.shapes import Shape
    from sassafras.llm.policy import Table
    from sassafras.llm.policy.model import Policy

    table = Table.stand_in([Shape(64, 64, 512), Shape(64, 128, 2048)], most=8)
    policy = Policy(table.columns)
    policy.standardise(table.problems)
    policy.save(tmp_path / "p.npz")
    given = {
        "policy": tmp_path / "p.npz", "cache": None, "shapes": 1, "seed": 0, "dry_run": True,
        "journal": tmp_path / "j.jsonl", "until": float("inf"),
    }  # fmt: skip
    for _ in range(2):  # the second time everything is known
        for step in ("choose", "compare0", "compare1"):
            llm_live.worker(Namespace(**given, worker=step))
    records = llm_live.read(tmp_path / "j.jsonl")
    assert len(records) == 6
    chosen = next(r for r in records if "policy" in r)
    assert chosen["policy_us"] <= chosen["rule_us"] and chosen["control_us"] <= chosen["rule_us"]
    rows, summary = llm_live.summarise(records)
    assert summary["measured"] == 1 and rows[0]["null_low"] <= 1.01 and rows[0]["null_high"] >= 0.99


def test_live_shapes_are_off_the_grid_and_fixed() -> None:
    import llm_live

    shapes = llm_live.live_shapes(40, 0)
    assert shapes == llm_live.live_shapes(40, 0) and len(set(shapes)) == 40
    assert all(int(extent) % 8 == 0 for shape in shapes for extent in shape.split("x"))


def test_the_live_gemm_benchmark_from_proposals_to_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import llm_live_gemm

    words = ["llm_live_gemm.py", "--shapes", "5", "--count", "3", "--proposals", str(tmp_path / "p.jsonl")]
    monkeypatch.setattr(sys, "argv", [*words, "--generate"])
    llm_live_gemm.main()
    llm_live_gemm.main()  # finished: nothing is done twice
    assert len(llm_live_gemm.read(tmp_path / "p.jsonl")) == 15
    measure = ["--measure", "--dry-run", "--processes", "2", "--journal", str(tmp_path / "j.jsonl")]
    monkeypatch.setattr(sys, "argv", [*words, *measure, "--contest-seconds", "0.001"])
    llm_live_gemm.main()
    said = capsys.readouterr().out
    summary = json.loads(said[said.index("{\n") : said.rindex("}") + 1])
    rule, control = summary["sides"]["rule"], summary["sides"]["control"]
    assert summary["shapes"] == 5 and rule["tried"] == control["tried"] == rule["correct"] == 15
    assert rule["measured"] == rule["alone_measured"] == 5 and control["same_winner"] == 5
    journal = (tmp_path / "j.jsonl").read_text()
    records = llm_live_gemm.read(tmp_path / "j.jsonl")
    rows, _ = llm_live_gemm.summarise(records)
    heads = {r["shape"]: r for r in records if r["step"] == "sides"}
    for row in (r for r in rows if r["side"] == "rule"):
        head = heads[row["shape"]]
        assert not set(head["dataset"]) & {*head["sides"]["rule"], *head["sides"]["control"]}
        assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"] and 0.97 < row["null"] < 1.03
        assert row["winner"] in (*head["sides"]["rule"], *head["dataset"])
    llm_live_gemm.main()
    again = llm_live_gemm.read(tmp_path / "j.jsonl")
    assert [r for r in again if r["step"] != "sides"] == [r for r in records if r["step"] != "sides"]
    assert journal and not (tmp_path / "llm-live-gemm.json").exists()


def test_a_model_is_told_what_was_measured_and_why_it_was_refused(tmp_path: Path) -> None:
    import llm_live_gemm

    from sassafras.gemm import families
    from sassafras.gemm.dataset import Dataset, Entry
    from sassafras.gemm.shapes import Shape
    from sassafras.llm.gemm_json import to_fields
    from sassafras.llm.proposer import Reply, Request

    def one(text: str) -> Entry:
        """A shape with one measured configuration."""
        shape = Shape.parse(text)
        return Entry(
            shape, {families.legal(shape)[3].name: (2.0, 2)}, {"lt_autotune": {"nn": 3.0, "tn": 4.0}}
        )

    entry = one("64x64x512")
    dataset = Dataset({}, [entry, one("64x128x512"), one("128x128x512"), one("4096x4096x4096")])
    fresh = llm_live_gemm.unmeasured(entry)[0]
    asked: list[Request] = []
    answers = ["nothing", llm_live_gemm.incumbent(entry)[0], json.dumps(to_fields(fresh))]

    class Scripted:
        name = "scripted"

        def propose(self, request: Request) -> Reply:
            asked.append(request)
            return Reply(answers.pop(0), "scripted", 9, 9)

    given = Namespace(exemplars=3, count=1, repairs=2, seed=0, max_tokens=99, temperature=0.5)
    (record,) = llm_live_gemm._asked(Scripted(), entry, dataset, [], given)
    assert record["config"] == fresh.name and record["tokens"] == 27 and len(asked) == 3
    first = asked[0].messages[1]["content"]
    assert first.count("### Variant") == 3 and first.count("score 1.500") == 4, "and what is to be changed"
    assert "at M=64, N=128, K=512" in first and "M=4096" not in first, "the nearest shapes, of others"
    assert "no JSON object" in asked[1].messages[-1]["content"]
    assert len(asked[0].choices) == len(llm_live_gemm.unmeasured(entry))


def test_proposals_that_newer_kernels_lack_are_left_out() -> None:
    import llm_live_gemm

    from sassafras.gemm.dataset import Entry
    from sassafras.gemm.shapes import Shape

    entry = Entry(Shape(64, 64, 512), {})
    good = [config.name for config in llm_live_gemm.unmeasured(entry)[:3]]
    known = Entry(entry.shape, {good[0]: (2.0, 2)})
    records = [{"shape": "64x64x512", "by": "a", "config": name} for name in (*good, "lean_of_old/c1")]
    records += [{"shape": "64x64x512", "by": "b", "problem": "answer"}]
    given = Namespace(exclude="", seed=0)
    assert llm_live_gemm.sides(entry, records, given)["a"] == good
    found = llm_live_gemm.sides(known, records, given)
    assert found["a"] == good[1:] and len(found["control"]) == 2 and "b" not in found
    assert good[0] not in found["control"]
    given.exclude = "^" + good[2].split("/")[0]
    assert good[2] not in llm_live_gemm.sides(known, records, given).get("a", [])
