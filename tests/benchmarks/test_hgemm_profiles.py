"""Profiles beside cuBLASLt: the rule of their sentences, and the whole script with a stand-in for ncu."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import run_benchmark
from tests.shared import python_path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import hgemm_profiles as script  # noqa: E402

from sassafras.core import DeviceError  # noqa: E402
from sassafras.gemm.problem.shape import BANDS, cuda_l2_grid, stratified  # noqa: E402
from sassafras.gemm.select.table import TunedTable, shipped_path  # noqa: E402

#: runs the program behind its options, and makes a row of each launch that it says it would make
NCU = """#!{python}
import subprocess, sys
at = sys.argv.index({python!r})
options, program = sys.argv[1:at], sys.argv[at:]
names = options[options.index("--metrics") + 1].split(",")
assert options[options.index("--profile-from-start") + 1] == "off"
if "launch__waves_per_multiprocessor" in names and {lacks!r}:
    sys.exit("==ERROR== Failed to find metric launch__waves_per_multiprocessor")
if {denied!r}:
    sys.exit("==ERROR== ERR_NVGPUCTRPERM")
done = subprocess.run(program, capture_output=True, text=True)
sys.stderr.write(done.stderr)
said = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("launch ")]
print(",".join(f'"{{name}}"' for name in ("ID", "Kernel Name", *names)))
print(",".join(['""'] * (2 + len(names))))
for index, kernel in enumerate(said):
    lt = kernel == "lt_kernel"
    known = {{
        "gpu__time_duration.sum": (2000 if lt else 1000) + index, "dram__bytes_read.sum": 900 if lt else 400,
        "dram__bytes_write.sum": 100, "lts__t_bytes.sum": 3000, "launch__registers_per_thread": 168,
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": 30 if lt else 70,
        "sm__cycles_active.avg.pct_of_peak_sustained_elapsed": 50 if lt else 90,
        "launch__waves_per_multiprocessor": 1.25 if lt else 1,
    }}
    print(",".join(f'"{{word}}"' for word in (index, kernel, *(known.get(name, "") for name in names))))
"""


def kernel(name: str, ns: float, **metrics: Any) -> dict[str, Any]:
    return {"kernel": name, "duration_ns": ns, "stalls": {"wait": 2.0}, **metrics}


def call(ns: float, **metrics: Any) -> dict[str, Any]:
    return script.whole([kernel("k", ns, **metrics)])


def test_shapes_are_of_all_bands_and_ours_is_the_fastest_of_the_table() -> None:
    shapes = stratified(cuda_l2_grid(), 20, 0)
    assert len(shapes) == 20 and {shape.band for shape in shapes} == set(BANDS)
    table = TunedTable.load(shipped_path("NVIDIA H200"))
    for shape in shapes:
        rows = [table.get(shape, layout) for layout in ("nn", "tn")]
        pairs = [pair for row in rows if row for pair in row.ours]
        best = script.shipped(shape, table)
        assert best.why_illegal(shape) is None
        assert min(us for _, us in pairs) == min(us for config, us in pairs if config == best)


def test_a_call_of_several_kernels_adds_up() -> None:
    marked = [
        kernel("torch's", 5.0),
        kernel(script.MARKER, 1.0), kernel("gemm", 30.0, dram_percent=80.0, waves=1.5, l2_bytes=7),
        kernel("reduce", 10.0, dram_percent=40.0, waves=9.0, l2_bytes=3),
        kernel(script.MARKER, 1.0), kernel("gemm", 20.0),
    ]  # fmt: skip
    first, second = script.calls_of(marked)
    found = script.whole(first)
    assert (found["duration_ns"], found["kernel_count"], found["dram_percent"]) == (40.0, 2, 70.0)
    assert (found["waves"], found["whole_waves"], found["l2_bytes"]) == (1.5, 2, 10)
    assert found["kernels"] == ["gemm", "reduce"] and "dram_bytes" not in found
    assert script.median_call([first, second, second])["duration_ns"] == 20.0
    with pytest.raises(DeviceError, match="no kernel"):
        script.median_call([first, [], second])
    with pytest.raises(DeviceError, match="no kernel"):
        script.median_call([])


@pytest.mark.parametrize(
    ("metrics", "bound"),
    [
        ({"tensor_percent": 61.0, "dram_percent": 72.0}, "DRAM"),
        ({"tensor_percent": 61.0, "dram_percent": 59.0, "l2_percent": 60.0}, "tensor cores"),
        ({"dram_percent": 59.0, "sms_busy_percent": 40.0}, "idle multiprocessors"),
        ({"dram_percent": 59.0, "sms_busy_percent": 95.0}, "latency"),
        ({}, "latency"),
    ],
)
def test_what_bounds_a_call(metrics: dict[str, float], bound: str) -> None:
    found = script.bound(call(10.0, **metrics))
    assert found[0] == bound and found[1].startswith(bound)


def times(back_to_back: float, plain: float) -> dict[str, float]:
    return {"back_to_back": back_to_back, "plain": plain, "overlap": back_to_back / plain}


def test_the_sentence_follows_the_rule() -> None:
    ours = call(10.0, dram_read_bytes=50, dram_write_bytes=50, sms_busy_percent=90.0, waves=0.9, l2_bytes=95)
    lt = call(15.0, dram_read_bytes=100, dram_write_bytes=50, sms_busy_percent=60.0, waves=1.2, l2_bytes=100)
    row = script.explained(ours, lt, times(1.4, 1.4))
    assert row["because"] == ["fewer DRAM bytes", "busier multiprocessors", "fewer waves"]
    assert row["faster_plain"] == "ours" and row["alone"] == 1.5
    assert row["why"] == (
        "Back to back 1.40x, without overlapping launches 1.40x, kernels by ncu 1.50x; ours is bound by "
        "latency (stalls: wait), cuBLASLt by latency (stalls: wait). Launched plainly, ours gains by fewer "
        "DRAM bytes, busier multiprocessors, fewer waves."
    )
    row = script.explained({**ours, "nodes": 1}, {**lt, "nodes": 2}, times(1.5, 1.4))
    assert row["because"][:2] == [script.LAUNCHES, "fewer kernels and memsets"]
    row = script.explained(lt, ours, times(1.0, 0.9))
    assert row["faster_plain"] == "lt" and row["because"] == [script.LAUNCHES]
    assert "cuBLASLt gains by fewer DRAM bytes" in row["why"]
    row = script.explained(ours, lt, times(1.01, 1.01))
    assert (row["faster_plain"], row["because"]) == ("", []) and "the same time" in row["why"]
    row = script.explained(call(10.0), call(12.0), times(1.3, 1.2))
    assert row["because"] == [script.LAUNCHES] and "nothing that is measured" in row["why"]
    summary = script.summed([{**row, **times(1.3, 1.2)}, {"shape": "1x1x1", "error": "gone"}])
    assert summary["unexplained"] == 1 and summary["failed"] == {"1x1x1": "gone"}
    assert summary["because"][script.LAUNCHES] == 1 and summary["geomean_plain"] == pytest.approx(1.2)


def run(folder: Path, *more: str, **ncu: bool) -> subprocess.CompletedProcess[str]:
    tools = folder / "cuda" / "bin"
    tools.mkdir(parents=True, exist_ok=True)
    answers = {"lacks": False, "denied": False, **ncu}
    (tools / "ncu").write_text(NCU.format(python=sys.executable, **answers))
    (tools / "ncu").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_HOME", str(folder / "cuda"))
        patch.setenv("PYTHONPATH", python_path(ROOT / "src"))
        return run_benchmark(
            "hgemm_profiles", "--dry-run", "--shapes", "3", "--batch", "2", "--out", folder, *more
        )


def test_the_script_selects_profiles_explains_and_resumes(tmp_path: Path) -> None:
    done = run(tmp_path, "--limit-s", "0", lacks=True)
    assert done.returncode == 2, "no batch was begun" + done.stderr
    done = run(tmp_path, lacks=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "hgemm-profiles-dry.json").read_text())
    assert len(found["rows"]) == 3 and found["summary"]["profiled"] == 3
    for row in found["rows"]:
        assert row["modelled"] and row["back_to_back"] > 0 and row["algorithm"]["blob"]
        assert row["ours"]["kernel_count"] in (1, 2) and row["lt"]["kernels"] == ["lt_kernel"]
        assert row["overlap"] == pytest.approx(row["back_to_back"] / row["plain"])
        assert row["ours"]["nodes"] == row["lt"]["nodes"] == 1
        assert row["bound"] == "tensor cores" and row["lt_bound"] == "idle multiprocessors"
        assert "busier multiprocessors" in row["because"] or row["faster_plain"] != "ours"
        assert "waves" not in row["ours"], "a metric that the GPU lacks is left out"
    again = tmp_path / "again"
    lines = (tmp_path / "hgemm-profiles-dry.rows.jsonl").read_text().splitlines()
    (tmp_path / "two.jsonl").write_text("\n".join(lines[:2]))
    done = run(again, "--resume", str(tmp_path / "two.jsonl"))
    assert done.returncode == 0 and done.stdout.count("Back to back") == 1, done.stdout + done.stderr
    found = json.loads((again / "hgemm-profiles-dry.json").read_text())
    assert [row["shape"] for row in found["rows"]] == [
        str(shape) for shape in stratified(cuda_l2_grid(), 3, 0)
    ]


def test_a_product_that_fails_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path).returncode == 0  # makes the stand-in for ncu, too
    rows = json.loads((tmp_path / "hgemm-profiles-dry.json").read_text())["rows"]
    keys = ("shape", "config", "algorithm", "back_to_back", "plain", "overlap")
    first, second, third = ({key: row[key] for key in keys} for row in rows)
    bad = {**second, "algorithm": {**second["algorithm"], "blob": "00"}}
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    options = argparse.Namespace(seed=0, dry_run=True, cache=None)
    for tried in ([first, bad, third], [bad, third], [third, bad], [bad]):
        made = script.profiled(tried, options)
        assert [row["shape"] for row in made] == [row["shape"] for row in tried]
        for row, given in zip(made, tried, strict=True):
            assert ("why" in row) != ("error" in row)
            assert ("not a cuBLASLt algorithm" in row.get("error", "")) == (given is bad)


def test_without_counters_nothing_is_written(tmp_path: Path) -> None:
    done = run(tmp_path, denied=True)
    assert done.returncode == 1 and "ERR_NVGPUCTRPERM" in done.stdout
    assert not list(tmp_path.glob("*.json"))
