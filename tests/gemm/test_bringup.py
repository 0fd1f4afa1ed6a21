"""The bring-up's plan, its diagnosis, and its supervision of processes that hang or die. No GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from sassafras.gemm.bench import bringup, sweep
from sassafras.gemm.bench.bringup_plan import (
    VARIANTS,
    BringupJob,
    diagnose,
    hopper_instances,
    jobs,
    probe_k,
    read_probe,
    variants_for,
)
from sassafras.gemm.build.cubins import source
from sassafras.gemm.configs import registry
from sassafras.gemm.configs.registry import parse
from sassafras.gemm.problem.shape import Shape

#: stands in for the GPU worker: hangs in job 1, dies in job 3, does the rest
WORKER = """
import json, os, sys, time
plan = json.loads(open(sys.argv[1]).read())
for job in plan["jobs"]:
    name = job["config"] + " [" + job["variant"] + "]"
    with open(plan["journal"], "a") as file:
        file.write(json.dumps({"begun": name}) + "\\n")
    if job["config"] == "c1":
        time.sleep(600)
    if job["config"] == "c3":
        os._exit(7)
    with open(plan["journal"], "a") as file:
        file.write(json.dumps({"job": name, "config": job["config"], "right": True, "checks": []}) + "\\n")
"""


def test_a_hang_and_a_crash_cost_one_job_each(tmp_path: Path) -> None:
    wanted = [BringupJob(f"c{i}", "plain", ("8x8x8",)) for i in range(6)]
    said: list[str] = []
    found = bringup.supervise(
        wanted, tmp_path / "out" / "journal.jsonl", patience=10.0, command=(sys.executable, "-c", WORKER),
        say=said.append,
    )  # fmt: skip
    assert [r["config"] for r in found if not r["right"]] == ["c1", "c3"]
    assert {r["config"] for r in found} == {job.config for job in wanted}
    assert "no progress" in said[0] and "status 7" in said[1]
    assert "WRONG c1 [plain]" in bringup.line(next(r for r in found if r["config"] == "c1"))
    # a second call has nothing left to do
    assert bringup.supervise(wanted, tmp_path / "out" / "journal.jsonl", command=("false",)) == found


def test_a_worker_that_never_starts_ends_the_run(tmp_path: Path) -> None:
    found = bringup.supervise(
        [BringupJob("c0", "plain", ("8x8x8",))],
        tmp_path / "journal.jsonl",
        command=(sys.executable, "-c", "1/0"),
    )
    assert found == []


def test_every_instance_has_jobs_and_variants_compile_differently() -> None:
    plain = jobs()
    instances = hopper_instances()
    assert {job.config.split("/")[0] for job in plain} == {i.name for i in instances}
    assert len(plain) == len({job.name for job in plain}) < 1400
    for job in plain[::7]:
        config = parse(job.config)
        assert all(config.why_illegal(Shape.parse(text)) is None for text in job.shapes) and job.shapes
    wanted = {name for i in instances for name in variants_for(i)}
    assert wanted == set(VARIANTS) - {"plain"}
    instance = next(i for i in instances if set(variants_for(i)) == wanted)
    texts = {source(instance, defines) for defines in VARIANTS.values()}
    assert len(texts) == len(VARIANTS)
    assert source(instance, ("A=1", "B")).startswith("#define A 1\n#define B\n")


def _random(m: int, n: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal((m, n))


def test_diagnosis_names_what_was_spoilt() -> None:
    expected = _random(256, 192)
    assert diagnose(expected, expected.copy(), (128, 64))["pattern"] == ""
    rows = expected.copy()
    rows[64:128] = np.nan
    rows[192:256] = 7
    text = diagnose(expected, rows, (128, 64))["pattern"]
    assert (
        "wrong rows: 64-127, 192-255" in text
        and "modulo the tile's 128: 64-127" in text
        and "25% NaN" in text
    )
    columns = expected.copy()
    columns[:, 8:16], columns[:, 64:72] = expected[:, 64:72], expected[:, 8:16]
    text = diagnose(expected, columns, (128, 64))["pattern"]
    assert "columns moved: 8-15 hold 64-71, 64-71 hold 8-15" in text
    halved = diagnose(expected, 0.5 * expected, (128, 64))
    assert "slope 0.500" in halved["pattern"] and halved["wrong"] > 0.9
    nothing = diagnose(expected, np.full_like(expected, np.nan), (128, 64))
    assert nothing["error"] is None and "100% NaN" in nothing["pattern"]


def test_the_probe_shows_how_k_is_paired() -> None:
    a, b = probe_k(70, 80, 64)
    assert read_probe(a @ b, 64) == ""
    swapped = b.copy()
    swapped[[0, 8]] = swapped[[8, 0]]
    assert "2 of 64 k wrong, 0 meets 8, 8 meets 0" in read_probe(a @ swapped, 64)


def test_sweep_takes_some_of_every_family_and_leaves_out_what_failed() -> None:
    shape = Shape(512, 512, 512)
    everything = sweep.contestants(shape)
    odd = sweep.contestants(Shape(511, 513, 515))
    assert {registry.kind(c) for c in odd} == {"FallbackConfig", "UnalignedConfig"}
    assert {registry.kind(c) for c in (*everything, *odd)} == set(sweep.MOST)
    bad = frozenset(c.instance.name for c in everything if c.name.startswith("cs_nn"))
    assert bad and not [c for c in sweep.contestants(shape, bad) if c.instance.name in bad]
    wanted = sweep.shapes()
    assert 55 <= len(wanted) == len(set(wanted)) <= 70
    assert all(sweep.contestants(s) for s in wanted[::9])
    record = {
        "job": "sweep [x]", "shape": "64x64x64", "baseline_us": 2.0, "wrong": [],
        "best": {"SmallConfig": {"config": "lean", "us": 1.0, "ratio": 2.0}},
        "ours": {"config": "lean", "us": 1.0, "ratio": 2.0},
    }  # fmt: skip
    assert "ours 1.00 (2.000) | Lean 2.000 lean" in sweep.line(record)


def test_a_torn_line_is_dropped(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    bringup.append(journal, {"begun": "a"})
    bringup.append(journal, {"job": "a", "right": True})
    with journal.open("a") as file:
        file.write('{"job": "b", "ri')
    assert bringup.records(journal) == [{"job": "a", "right": True}]
    assert json.loads(journal.read_text().splitlines()[0]) == {"begun": "a"}
