"""`benchmarks/cluster.py` between two sittings: what its file holds already is not measured again."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COMMAND = ["--device", "model", "--kernels", "softmax", "--workers", "1,2", "--seconds", "3"]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("SASSAFRAS_COMMIT", "this")
    spec = importlib.util.spec_from_file_location("cluster_benchmark", BENCHMARKS / "cluster.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(workers: int, rate: float, **other: Any) -> dict[str, Any]:
    return {
        "kernel": "softmax", "asked_workers": workers, "workers": workers, "device": "model", "budget_s": 3.0,
        "evaluations_per_second": rate, "commit": "this", **other,
    }  # fmt: skip


def keep(folder: Path, *rows: dict[str, Any], gpu: str = "A") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "cluster.json").write_text(json.dumps({"environment": {"gpu": gpu}, "rows": rows}))
    return folder


def asked(resume: Path | None = None) -> argparse.Namespace:
    return argparse.Namespace(device="model", resume=resume)


def test_a_file_that_is_complete_is_written_again_without_measuring(cluster: Any, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    keep(tmp_path, row(1, 100.0), row(2, 190.0))
    cluster.main([*COMMAND, "--out", str(tmp_path)])
    found = json.loads((tmp_path / "cluster.json").read_text())
    assert [(r["workers"], r["times_one"]) for r in found["rows"]] == [(1, 1.0), (2, 1.9)]
    assert found["summary"]["least_times_one"] == {"1": 1.0, "2": 1.9}
    assert (found["commit"], found["environment"]["gpu"]) == ("this", "A")


def test_rows_of_other_commits_stand_only_where_they_were_asked_for(cluster: Any, tmp_path: Path) -> None:
    out = keep(tmp_path / "out", row(1, 100.0), row(2, 150.0, commit="that"))
    old = keep(tmp_path / "old", row(1, 90.0, commit="that"), row(2, 190.0, commit="that"))
    assert cluster.earlier(asked(), out, "this")[0] == [row(1, 100.0)]
    rows, environment = cluster.earlier(asked(old), out, "this")
    assert rows == [row(1, 100.0), row(2, 190.0, commit="that")], "ours first, each measurement once"
    assert environment == {"gpu": "A"} and cluster.commits(rows) == "that, this"
    assert cluster.earlier(asked(), tmp_path / "nowhere", "this") == ([], {})


def test_rows_of_two_gpus_do_not_meet(cluster: Any, tmp_path: Path) -> None:
    out = keep(tmp_path / "out", row(1, 100.0))
    old = keep(tmp_path / "old", row(2, 190.0), gpu="B")
    with pytest.raises(SystemExit, match="do not belong in one file"):
        cluster.earlier(asked(old), out, "this")


def test_times_one_is_of_the_same_kernel_and_settings(cluster: Any) -> None:
    rows = [row(2, 150.0, budget_s=9.0), row(1, 100.0), row(2, 170.0), row(2, 20.0, kernel="rotary")]
    done, summary = cluster.finished(rows)
    assert [r["times_one"] for r in done] == [None, 1.0, 1.7, None]
    assert summary == {"least_times_one": {"1": 1.0, "2": 1.7}}


def test_settings_tell_measurements_apart(cluster: Any) -> None:
    given = argparse.Namespace(device="cuda", seconds=14.0, shapes=40, exclude="x", sampling=5.0)
    assert cluster.settings(given, cluster.SAMPLING + "softmax", 2)["budget_s"] == 5.0
    search, sweep = (cluster.settings(given, kernel, 2) for kernel in ("softmax", cluster.SWEEP))
    assert search["budget_s"] == 14.0 and "shapes" not in search
    assert sweep["shapes"] == 40 and "budget_s" not in sweep
    assert cluster.same(search, {**search, "evaluations": 5})
    assert not cluster.same(search, {**search, "budget_s": 20.0})
    assert not cluster.same(search, sweep)
