"""benchmarks/hgemm_twins.py: which times are compared, and how."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from sassafras.gemm.dataset import Dataset, Entry
from sassafras.gemm.shapes import Shape

ROOT = Path(__file__).parents[2]


def run(dataset: Dataset, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "times.jsonl.gz"
    dataset.save(path)
    command = [sys.executable, str(ROOT / "benchmarks/hgemm_twins.py"), str(path), "--out", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_twins_are_of_one_shape_slices_and_mode(tmp_path: Path) -> None:
    times = {
        "cs_tn_64x64_s6/c1": (4.0, 2), "cs_tn_64x64_s12/c1": (4.4, 2), "cs_tn_64x64_s6q1/c1": (3.0, 2),
        "cs_tn_64x64_s5q2/c1": (5.0, 0), "cs_tn_64x64_s6q1/c2": (1.0, 2), "cs_tn_64x64_s6/c1+o": (3.5, 1),
        "cs_tn_64x64_s6q1/c1+o": (2.8, -9), "cs_nn_64x64_s6q1/c1": (9.0, 2), "cs_tn_64x64_s99/c1": (0.1, 2),
    }  # fmt: skip
    entries = [Entry(Shape(512, 512, k), times) for k in (1024, 960, 832)]
    done = run(Dataset({"gpu": "none"}, entries), tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "hgemm-twins.json").read_text())
    assert {(r["new"], r["old"]) for r in found["rows"]} == {
        ("cs_tn_64x64_s6q1/c1", "cs_tn_64x64_s6/c1"), ("cs_tn_64x64_s5q2/c1", "cs_tn_64x64_s6/c1"),
    }  # fmt: skip
    medians = {(m["tile"], m["blocks"], m["k_tiles_up_to"]): m for m in found["summary"]["medians"]}
    assert medians["64x64", 1, 16]["ratio"] == 0.75 and medians["64x64", 1, 16]["gained_us"] == 1.0
    assert medians["64x64", 2, 16]["ratio"] == 1.25 and medians["64x64", 2, 16]["pairs"] == 3


def test_leads_have_twins_of_their_own(tmp_path: Path) -> None:
    times = {
        "cs_tn_128x128_s6/c1": (9.0, 2), "cs_tn_128x128_s6q1/c1": (8.0, 2),
        "cs_tn_128x128_s6q1l4/c1": (7.0, 2),
        "ws_tn_128x256_co2s4b2c2x1/g8/k1": (8.0, 2), "ws_tn_128x256_co2s4b2c2x1l3/g8/k1": (6.0, 2),
        "ws_tn_192x128_co3s4b2c1x1/g8/k1": (8.0, 2), "ws_tn_128x256_co2s4b2c2x1l3/g4/k1": (1.0, 2),
    }  # fmt: skip
    done = run(Dataset({"gpu": "none"}, [Entry(Shape(2048, 2048, 2048), times)]), tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "hgemm-twins.json").read_text())["rows"]
    assert {(r["what"], r["new"].split("/")[0], r["old"].split("/")[0]) for r in rows} == {
        ("quick", "cs_tn_128x128_s6q1", "cs_tn_128x128_s6"),
        ("lead", "cs_tn_128x128_s6q1l4", "cs_tn_128x128_s6q1"),
        ("lead", "ws_tn_128x256_co2s4b2c2x1l3", "ws_tn_128x256_co2s4b2c2x1"),
    }


def test_bands_are_compared_with_row_after_row(tmp_path: Path) -> None:
    times = {
        "cs_nn_64x64_s10q1/c1": (12.0, 2), "cs_nn_64x64_s10q1/c1g4": (9.0, 2),
        "cs_nn_64x64_s10q1/c1g8+o": (8.0, 2), "any_tn_64x64_s6/c1+o": (10.0, 1),
        "any_tn_64x64_s6/c1g4+o": (11.0, 2), "any_tn_64x64_s6/c1g2+o": (7.0, -9),
        "any_tn_128x128_s6/c1": (9.0, -9), "any_tn_128x128_s6/c1g4": (7.0, 2),
    }  # fmt: skip
    done = run(Dataset({"gpu": "none"}, [Entry(Shape(512, 1024, 4096), times)]), tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "hgemm-twins.json").read_text())["rows"]
    assert {(r["what"], r["new"], r["old"], r["new_us"] / r["old_us"], r["ctas"]) for r in rows} == {
        ("band 4", "cs_nn_64x64_s10q1/c1g4", "cs_nn_64x64_s10q1/c1", 0.75, 128),
        ("band 4", "any_tn_64x64_s6/c1g4+o", "any_tn_64x64_s6/c1+o", 1.1, 128),
    }


def test_without_twins_it_says_so(tmp_path: Path) -> None:
    done = run(Dataset({}, [Entry(Shape(512, 512, 512), {"cs_tn_64x64_s6/c1": (4.0, 2)})]), tmp_path)
    assert done.returncode == 1 and "no two of its times" in done.stdout
