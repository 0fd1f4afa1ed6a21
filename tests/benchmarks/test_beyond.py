"""The spaces beyond reordering: what is a row, what counts, and a small run on the timing model."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import beyond  # noqa: E402

from sassafras.frontend.ptx import axes  # noqa: E402
from tests.capture.conftest import recorded  # noqa: E402, F401 (a fixture)


def row(kernel: str, stage: str, speedup: float, **more: Any) -> dict[str, Any]:
    return {
        "kernel": kernel,
        "stage": stage,
        "speedup": speedup,
        "improved": speedup > 1,
        "modelled": False,
        "evaluations": 10,
        "failed_after_validation": 0,
    } | more


def suites(subjects: list[str]) -> list[str]:
    return [s.removeprefix("suite:") for s in subjects if s.startswith("suite:")]


def test_cuasmrls_six_come_first_and_nothing_comes_twice() -> None:
    from sassafras import suite

    found = beyond.subjects(())
    assert [s.removeprefix("suite:") for s in found[:6]] == list(suite.paper_six())
    assert len(found) == len(set(found)) == len(suite.names()) + len(beyond.GEMM_SHAPES)
    assert beyond.subjects(["softmax", "gemm:512x512x64"]) == ["suite:softmax", "gemm:512x512x64"]
    with_theirs = beyond.subjects((), ["captured.json:norm"])
    assert with_theirs == [f"suite:{name}" for name in suites(found)] + ["captured.json:norm"]
    assert beyond.subjects(["-"], ["captured.json:norm"]) == ["captured.json:norm"]


def test_stages_are_summarised_apart_and_errors_are_no_figures() -> None:
    rows = [
        row("softmax", "swaps", 1.1),
        row("rotary", "swaps", 1.0, failed_after_validation=2),
        row("gemm:64x64x64", "swaps", 1.2),
        {"kernel": "rotary", "stage": "control", "modelled": False, "error": "refused"},
        {"kernel": "rotary", "stage": "blocks", "modelled": False, "unavailable": "no copy was proved"},
    ]
    found = beyond.summarise(rows)
    assert found["swaps"]["kernels"] == 2 and found["swaps"]["improved"] == 1
    assert found["swaps"]["geomean_speedup"] == pytest.approx(1.1**0.5)
    assert found["hgemm_swaps"]["best_speedup"] == 1.2 and "control" not in found
    assert found["evaluations"] == 30 and found["wrong_or_crashed_after_validation"] == 2
    assert found["failed_rows"] == ["rotary/control", "rotary/blocks"]


def test_of_a_kernel_and_stage_the_last_row_without_an_error_counts(tmp_path: Path) -> None:
    rows = [
        row("softmax", "swaps", 1.1),
        row("softmax", "swaps", 1.3, environment={"gpu": "some"}),
        {"kernel": "softmax", "stage": "swaps", "modelled": False, "error": "lost"},
    ]
    path = beyond.finish(rows, str(tmp_path))
    kept = json.loads(path.read_text())
    assert [r["speedup"] for r in kept["rows"]] == [1.3] and kept["environment"]["gpu"] == "some"
    again = beyond.read_rows(path)
    assert again[0]["environment"]["gpu"] == "some" and beyond.summarise(again) == kept["summary"]
    assert beyond.read_rows(tmp_path / "missing.rows.jsonl") == []


def test_rows_of_two_gpus_make_no_result(tmp_path: Path) -> None:
    rows = [row("softmax", "swaps", 1.1, environment={"gpu": "NVIDIA H200"})]
    rows += [row("rotary", "swaps", 1.2, environment={"gpu": "NVIDIA H100"})]
    with pytest.raises(SystemExit, match="rows of NVIDIA H100 and of NVIDIA H200 make no result"):
        beyond.finish(rows, str(tmp_path))
    rows = [row("softmax", "swaps", 1.1, seconds=7.0), row("rotary", "swaps", 1.2, seconds=60.0)]
    with pytest.raises(SystemExit, match="several budgets"):
        beyond.finish(rows, str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_only_searches_of_the_same_budget_count_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has one of a rehearsal, and one of the budget that is asked for."""
    kept = [searched("layernorm", True, 1.0, 1.0, 1.5, modelled=True, seconds=60.0, asked_evaluations=5)]
    kept += [searched("softmax", True, 1.0, 1.0, 1.25, modelled=True, seconds=60.0)]
    path = tmp_path / "compiler-space-modelled.rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in kept))
    call = ["beyond.py", "--compiler", "--device", "model", "--seconds", "60", "--limit-s", "0"]
    monkeypatch.setattr(sys, "argv", [*call, "--only", "softmax,layernorm", "--out", str(tmp_path)])
    said: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *words, **more: said.append(" ".join(map(str, words))))
    beyond.main()
    assert json.loads(said[-1])["suite"]["kernels"] == 1 and '"geomean_speedup": 1.25' in said[-1]


def test_the_committed_results_are_what_the_script_says_of_their_rows() -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "beyond-reordering.json").read_text())
    assert beyond.summarise(kept["rows"]) == kept["summary"]
    kept = json.loads((ROOT / "benchmarks" / "results" / "compiler-space.json").read_text())
    found = beyond.summarise_compiler(kept["rows"])
    assert {k: v for k, v in kept["summary"].items() if isinstance(v, int)}.items() <= found.items()
    every = sum(row["verdicts"].get("crashed", 0) for row in kept["rows"])
    assert kept["summary"]["wrong_or_crashed"] == every > kept["summary"]["wrong_or_crashed_after_validation"]


def test_a_kernel_on_the_timing_model_has_a_row_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    # each setting is a run of ptxas; which there are is tests/api/test_ptxas_options.py's
    monkeypatch.setattr(axes, "CHOICES", {"opt_level": (1,), "load_cache": ("cg",), "max_registers": ()})
    options = argparse.Namespace(device="model", evaluations=4, seconds=1.0, seed=0)
    rows = beyond.rows_of("suite:topk_gating", options)
    assert [r["stage"] for r in rows] == list(beyond.STAGES)
    assert all(r["modelled"] and "error" not in r and r["speedup"] > 0.9 for r in rows), rows
    assert all(r["evaluations"] == 4 for r in rows if r["stage"] in beyond.SPACES)


def searched(kernel: str, suite: bool, *ratios: float, **more: Any) -> dict[str, Any]:
    """A row of a search by stages; a stage's ratio lies beyond its null from 1.01 on."""
    stages = [
        {"stage": part, "ratio": ratio, "interval": [ratio - 0.004, ratio + 0.004], "retained": 0.99,
         "null_interval": [0.998, 1.003], "verdicts": {"correct": 9, "crashed": int(part == "ptx")}}
        for part, ratio in zip(beyond.PARTS, ratios, strict=True)
    ]  # fmt: skip
    over = {"ratio": ratios[-1] / max(ratios[0], 1.0), "interval": [1.0, 1.1]}
    return row(kernel, beyond.COMPILER, ratios[-1], suite=suite, stages=stages, over_ptxas=over) | more


def test_stages_of_a_search_count_where_they_lie_beyond_their_null(tmp_path: Path) -> None:
    rows = [
        searched("softmax", True, 1.02, 1.05, 1.1, environment={"gpu": "some"}),
        searched("theirs", False, 1.0, 1.002, 1.21, verdicts={"correct": 20, "crashed": 3}),
        searched("none", True, 0.99, 1.0, 1.0, improved=False, speedup=1.0),
        {"kernel": "lost", "stage": beyond.COMPILER, "suite": True, "modelled": False, "error": "no PTX",
         "verdicts": {"wrong_result": 1}},
    ]  # fmt: skip
    found = beyond.summarise_compiler(rows)
    assert found["all"]["kernels"] == 3 and found["failed_rows"] == ["lost"]
    assert found["suite"]["geomean_after"] == {
        "settings": pytest.approx(1.02**0.5), "ptx": pytest.approx(1.05**0.5),
        "schedule": pytest.approx(1.1**0.5),
    }  # fmt: skip
    assert found["third_party"]["geomean_after"]["ptx"] == 1.0, "within its null"
    assert found["all"]["geomean_over_ptxas"] == pytest.approx((1.1 / 1.02 * 1.21) ** (1 / 3))
    assert found["all"]["geomean_retained"] == pytest.approx(0.99)
    assert found["refused_by_results"] == 3 and found["wrong_or_crashed_after_validation"] == 0
    assert found["wrong_or_crashed"] == 4, "whatever stage it was of, and in rows that failed later"
    path = beyond.finish(rows, str(tmp_path))
    assert path.name == "compiler-space.json" and json.loads(path.read_text())["summary"] == found
    assert beyond.summarise_compiler(beyond.read_rows(path)) == found


def test_a_row_names_no_folders_of_a_machine() -> None:
    names = [
        beyond.label(s) for s in ("suite:softmax", "gemm:64x64x64", "/some/where/norm-1/captured.json:norm")
    ]
    assert names == ["softmax", "gemm:64x64x64", "norm-1 norm"]


def test_a_rehearsal_is_cut_resumed_and_writes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    words = [
        "beyond.py",
        "--compiler",
        "--device",
        "model",
        "--evaluations",
        "4",
        "--only",
        "topk_gating,softmax",
    ]

    def ran(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", [*words, *more])
        beyond.main()
        return capsys.readouterr().out

    # one kernel a call, in this process: what a limit of time does
    monkeypatch.setattr(beyond, "per_gpu", lambda work, items, *_, **__: [(0, work(*items[0]))])
    assert '"modelled": true' in ran("--out", str(first))
    journal = first / "compiler-space-modelled.rows.jsonl"
    assert len(beyond.read_rows(journal)) == 1
    ran("--out", str(second), "--resume", str(journal))
    rows = beyond.read_rows(second / journal.name)
    assert [r["kernel"] for r in rows] == ["softmax", "topk_gating"]
    assert all([part["stage"] for part in r["stages"]] == list(beyond.PARTS) for r in rows)
    assert not list(tmp_path.rglob("compiler-space.json"))


def test_a_captured_kernel_is_searched_alone_and_one_that_is_not_there_is_a_row(
    recorded: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    targets = [f"{recorded}/captured.json:rmsnorm_kernel", f"{tmp_path}/gone/captured.json:lost"]
    words = ["beyond.py", "--compiler", "--device", "model", "--evaluations", "4", "--only", "-", "--targets"]
    monkeypatch.setattr(sys, "argv", [*words, *targets, "--out", str(tmp_path)])
    monkeypatch.setattr(
        beyond, "per_gpu", lambda work, items, *_, **__: [(i, work(*item)) for i, item in enumerate(items)]
    )
    beyond.main()
    found, lost = beyond.read_rows(tmp_path / "compiler-space-modelled.rows.jsonl")
    assert (found["kernel"], lost["kernel"]) == (
        "captured rmsnorm_kernel",
        "gone lost",
    )
    assert found["suite"] is False and found["evaluations"] == 4 and "error" not in found
    assert "cannot read the capture" in lost["error"]
    summary = json.loads("{" + capsys.readouterr().out.partition("\n{")[2])
    assert summary["third_party"]["kernels"] == 1 and "suite" not in summary
    assert summary["failed_rows"] == ["gone lost"]
