"""`sassafras tune CAPTURE`: all shapes at once, winners that slow one refused, and what to expect."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sassafras.api.multi_shape import EveryCase, together
from sassafras.api.optimize_captured import CapturedReport, CapturedRow, optimize_captured
from sassafras.api.tune_program import tune_program
from sassafras.core import Candidate, Case, Evaluation, Interval, Kernel, Modelled, SassafrasError, Verdict
from sassafras.frontend.captured.files import read
from sassafras.frontend.captured.workloads import workload
from sassafras.gemm.bench.program import RECORD
from sassafras.gemm.problem.shape import Product, Shape
from sassafras.store import Store
from sassafras.timing_model import ModelDevice
from sassafras.validate import Validator
from tests.by_recipe import Bench

#: compiling the model and the space for the first time takes a while on a busy machine
pytestmark = pytest.mark.timeout(1500)


def test_all_shapes_are_the_objective(recorded: Path) -> None:
    found = read(recorded)
    made = workload(found, found.find("rmsnorm_kernel"))
    kernel = made.build(made.case(), "sm_90a")
    launches = {case.name: n for case, n in zip(made.cases, (6, 2), strict=True)}
    device = EveryCase(lambda: ModelDevice("sm_90a"), launches)
    device.open(made, made.case(), kernel)
    outcome = device.run(Candidate(kernel))
    assert isinstance(outcome, Modelled) and outcome.modelled_ratio == pytest.approx(1.0)
    single = []
    for case in made.cases:
        one = ModelDevice("sm_90a")
        one.open(made, case, kernel)
        single.append(one.run(Candidate(kernel)).baseline_cycles or 0.0)
    assert outcome.baseline_cycles == pytest.approx(6 * single[0] + 2 * single[1])
    assert set(outcome.facts["cases"]) == set(launches) and outcome.facts["slowed"] == []
    assert device.environment()["objective"] == {"launches": launches}
    device.close()
    device.close()


def measured(speedups: list[float], launches: list[float]) -> Evaluation:
    rows = []
    for n, (speedup, count) in enumerate(zip(speedups, launches, strict=True)):
        near, null = Interval(speedup - 0.01, speedup + 0.01), Interval(0.999, 1.001)
        outcome = Evaluation("d", Verdict.CORRECT, 10 / speedup, 10.0, speedup, near, 1.0, null, 5 + n)
        rows.append((Case(f"c{n}", (1, 1, 1), {}), count, outcome))
    found = together(Candidate(Kernel(b"", "k", "sm_90a", 32)), rows)
    assert isinstance(found, Evaluation)
    return found


def test_a_schedule_that_slows_a_shape_is_worth_no_more_than_there() -> None:
    fine = measured([1.1, 1.05], [3, 1])
    assert fine.speedup == pytest.approx(40 / (30 / 1.1 + 10 / 1.05)) and fine.facts["slowed"] == []
    assert fine.interval is not None and fine.interval.low < fine.speedup < fine.interval.high
    assert fine.samples == 5 and fine.time_us == pytest.approx(10 / fine.speedup)
    slow = measured([1.5, 0.95], [1000, 1])
    assert slow.speedup == 0.95 and slow.facts["slowed"] == ["c1"] and "slows case c1" in slow.detail
    unsure = measured([1.5, 0.995], [1, 1])  # its interval reaches 1: not known to be slower
    assert unsure.facts["slowed"] == [] and (unsure.speedup or 0) > 1.1


def test_what_to_expect_is_amdahls() -> None:
    near = Interval(1.9, 2.1)
    rows = (
        CapturedRow("a", "f", "", False, 0.5, 10, 2.0, near, None, True, 20.0, 10.0),
        CapturedRow(
            "b", "f", "", True, 0.5, 0, 4.0, near, None, True, 20.0, 5.0
        ),  # a runner-up is not what ran
        CapturedRow("c", "g", "", False, 0.5, 10, 1.0, None, None, False),
    )
    report = CapturedReport(rows, False, "NVIDIA H200", True, 1e-3)
    total, low, high = report.expected
    assert total == pytest.approx(1 / 0.75) and low < total < high
    assert report.saved_s == pytest.approx(1e-4) and "at most 10.00 % of" in report.conclusion()
    said = replace(report, graphs=True).conclusion()
    assert said.endswith("; replays of CUDA graphs are not counted") and "at most" not in said
    assert report.expected_cold is None and "cold" not in report.conclusion()
    cold = CapturedReport((replace(rows[0], cold=1.25), *rows[1:]), False, "NVIDIA H200", True, 1e-3)
    assert (
        cold.expected_cold == pytest.approx(1 / 0.9)
        and ", 1.111x by launches on a cold L2" in cold.conclusion()
    )
    modelled = CapturedReport(rows, True, "timing model", False, 1.0)
    assert modelled.saved_s is None and modelled.conclusion().startswith("modelled, not measured")
    assert "shares may mislead" in modelled.conclusion()


def test_kernels_of_a_program_with_products_are_tuned_if_asked_for(recorded: Path, tmp_path: Path) -> None:
    """Not within the time that its products are promised."""
    pytest.importorskip("torch")
    product = Product(Shape(64, 512, 512), "nt")
    shutil.copytree(recorded, tmp_path / "captured")
    record = {"command": ["serve"], "others": 0, "products": [{**product.to_json(), "calls": 2}]}
    (tmp_path / RECORD).write_text(json.dumps(record))

    def run(environment: dict[str, str]) -> None:
        raise AssertionError("it is recorded")

    found = tune_program(
        ["serve"], tmp_path, run, budget="20s", kernels_too=False, products={"dry": True, "cache": tmp_path}
    )
    assert found.products is not None and found.products.products == 1 and found.kernels is None
    assert found.left == 3 and found.to_json()["left"] == 3 and found.program is None


def test_down_the_list_into_the_store(recorded: Path, tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.sqlite") as store:
        report = optimize_captured(
            recorded, device="model", budget="10e", strategy="greedy", store=store, most=3, runner_ups=1,
            out=tmp_path / "out",
        )  # fmt: skip
        runs = store.runs()
    assert (report.modelled and "modelled" in report.device) or "model" in report.device
    tried = [row for row in report.rows if row.ratio is not None]
    assert {row.function for row in tried} == {
        "__main__.gather_kernel", "__main__.rmsnorm_kernel", "__main__.swiglu_kernel",
    }  # fmt: skip
    assert sum(row.runner_up for row in tried) == 1 and all(row.ratio >= 1 for row in tried if row.ratio)
    assert sum(row.share for row in report.rows if not row.runner_up) == pytest.approx(1.0)
    assert len(runs) == 4 and all(run.spec["objective"]["launches"] for run in runs)
    captured = read(recorded)
    for row in tried:
        if row.improved:
            variant = captured.find(row.label)
            tuned = next((tmp_path / "out").glob(f"{row.label}-*.cubin")).read_bytes()
            assert Validator(captured.cubin(variant), variant.name).check(tuned).ok


def test_nothing_is_expected_of_kernels_that_were_not_judged(recorded: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded, tmp_path / "c")
    for cubin in (tmp_path / "c").glob("*.cubin"):
        cubin.write_bytes(b"")
    report = optimize_captured(tmp_path / "c", device="model", budget="5e", store=False, out=tmp_path / "out")
    assert all(row.ratio is None and "damaged" in row.detail for row in report.rows)
    assert report.to_json()["expected"] is None and "1.000x" not in report.conclusion()


def test_an_interrupted_search_is_the_last(recorded: Path, tmp_path: Path) -> None:
    def interrupt(_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    how = {"device": "model", "budget": "5e", "store": False, "out": tmp_path, "progress": interrupt}
    report = optimize_captured(recorded, **how)  # type: ignore[arg-type]
    first, *others = report.rows
    assert report.interrupted and first.ratio is not None and len(others) >= 2
    assert all(row.ratio is None and row.detail.startswith("left alone:") for row in others)
    assert any(row.detail == "left alone: interrupted" for row in others)


def test_the_compilers_space_on_every_shape(recorded: Path, tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.sqlite") as store:
        report = optimize_captured(
            recorded, device=Bench, space="compiler", budget="16e", store=store, most=1, runner_ups=0
        )  # fmt: skip
        (winner,) = store.winners()
    row = report.rows[0]
    assert row.improved and row.interval and row.interval.low > 1 and "keep the original" not in row.detail
    assert winner.kernel.name.startswith(row.label.split("-")[0]) and winner.facts["polls"] is False
    assert winner.facts["validator"] != "legal" and row.before == pytest.approx(10.0)
    with pytest.raises(SassafrasError, match="has a strategy of its own"):
        optimize_captured(recorded, device=Bench, space="compiler", strategy="greedy", most=1)
    with pytest.raises(SassafrasError, match="there is no space 'compilers'"):
        optimize_captured(recorded, device=Bench, space="compilers", most=1)


def test_the_command_line(recorded: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "sassafras", "tune", str(recorded), "--device", "model",
        "--budget", "5e", "--kernels", "1", "--runner-ups", "0", "--store", str(tmp_path / "s.sqlite"),
        "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stderr
    assert "left alone" in ran.stdout and "modelled, not measured: expected change" in ran.stdout
    facts = json.loads((tmp_path / "out" / "captured-report.json").read_text())
    assert facts["modelled"] is True and len(facts["rows"]) == 3
