"""`optimize(space="compiler")`: stages and their shares, resumption, what is proved, what is re-measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sassafras
from sassafras import Store
from sassafras.api.compiler_space import CompilerJudge, CompilerSpace, prover
from sassafras.api.verify import PROOF, verify
from sassafras.core import At, Candidate, Evaluation, Verdict
from sassafras.core.statistics import expected_excess
from sassafras.deploy.check import LaunchFacts, refusal
from sassafras.evaluate.gpu import CudaDevice
from sassafras.frontend import ptx
from sassafras.frontend.ptxas_options import PtxasOptions, available
from sassafras.jobs.result import Result
from sassafras.report.page import write_report
from sassafras.targets import load
from sassafras.validate import Validator
from tests import by_recipe
from tests.cli.in_process import sassafras as command
from tests.evaluate.pretended_gpu import __name__ as PRETENDED
from tests.shared import python_path

ROOT = Path(__file__).parents[2]
#: small, and the model's ratios of it are evidence
KERNEL = "suite:rmsnorm"
STAGES = ["settings", "ptx", "schedule"]


@dataclass
class Bench(by_recipe.Bench):
    """Re-measured, half of a gain is left."""

    slowest: float = 0.97
    span: float = 0.125

    def remeasure(self, candidate: Candidate) -> Evaluation:
        found = self.run(candidate)
        assert found.speedup is not None
        return self.evaluation(candidate, (1 + found.speedup) / 2)


def search(device: Any, budget: str, kernel: str = KERNEL, **more: Any) -> Result:
    given: dict[str, Any] = {"store": False, "check": False, **more}
    return sassafras.optimize(kernel, device=device, space="compiler", budget=budget, **given)


@pytest.fixture(scope="module")
def modelled() -> Result:
    return search("model", "16e")


def test_stages_follow_one_another_on_the_timing_model(modelled: Result) -> None:
    rows = modelled.facts["stages"]
    assert [row["stage"] for row in rows] == STAGES
    assert modelled.modelled and modelled.evaluations == 16 == sum(row["evaluations"] for row in rows)
    assert rows[0]["budget"] == pytest.approx(0.2, abs=0.07) and rows[-1]["budget"] == 1.0
    assert rows[1]["budget"] == pytest.approx(0.5, abs=0.07)
    assert all(0 < row["retained"] <= 1.05 for row in rows if "retained" in row)
    assert Result.from_json(
        json.loads(json.dumps(modelled.to_json())), modelled.baseline, modelled.cubin
    ).facts == (modelled.facts)


def test_a_run_that_is_killed_in_any_stage_ends_as_one_that_is_not(modelled: Result, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    for last in (2, 6, 12):  # a stage each

        def progress(event: Any, last: int = last) -> None:
            if event.evaluations == last:
                raise Killed

        with pytest.raises(Killed):
            search("model", "16e", store=tmp_path / "s.sqlite", progress=progress)
    resumed = search("model", "16e", store=tmp_path / "s.sqlite")
    assert resumed.replayed == 12 and resumed.evaluations == 16
    assert resumed.kernel.digest == modelled.kernel.digest
    assert resumed.facts["stages"] == modelled.facts["stages"], "a seed gives the same search"
    assert search("model", "16e", store=tmp_path / "s.sqlite").from_store


def test_what_is_left_of_the_selected_gain(tmp_path: Path) -> None:
    result = search(Bench(), "60e", store=tmp_path / "s.sqlite", out=tmp_path)
    assert result.reason == "budget" and result.improved
    rows = result.facts["stages"]
    assert [row["stage"] for row in rows] == STAGES
    assert rows[0]["budget"] == pytest.approx(0.2, abs=0.05)
    assert rows[1]["budget"] == pytest.approx(0.5, abs=0.05)
    ratios = [row["ratio"] for row in rows]
    assert ratios == sorted(ratios) and ratios[-1] == result.speedup
    for row in rows:
        assert row["ratio"] == pytest.approx((1 + row["as_selected"]) / 2)
        assert row["retained"] == pytest.approx(row["ratio"] / row["as_selected"]) and row["retained"] < 1
        excess = row["as_selected"] - row["corrected"]
        assert excess == pytest.approx(expected_excess(1e-3 / 1.96, row["candidates"])) and excess > 0
    over = result.facts["over_settings"]
    assert over["ratio"] == pytest.approx(result.speedup / ratios[0])
    assert over["interval"][0] < over["ratio"] < over["interval"][1]
    assert "parent" in result.recipe and result.kernel.digest != result.recipe["parent"]
    assert result.failed_after_validation == 0 and any("after ptx" in line for line in result.stages())
    page = write_report(tmp_path / "page.html", [tmp_path / "s.sqlite"], explain=0).read_text()
    assert f"{rows[-1]['as_selected']:.3f}" in page and f"{rows[-1]['corrected']:.3f}" in page


def test_a_schedule_is_proved_against_its_own_parent() -> None:
    workload = load(KERNEL)
    case = workload.case()
    space = CompilerSpace(ptx.of(workload, case, "sm_90a"))
    own = space.candidate(space.start())
    other = space.coarse.build(ptx.PtxState(PtxasOptions(opt_level=1)))
    assert other.digest != own.digest
    bench = Bench()
    bench.open(workload, case, own.kernel)
    judge = CompilerJudge(bench, own.kernel, space)
    swaps, _ = space.finer(other)
    start = At(swaps, swaps.start())
    assert space.candidate(start) is other, "the parent's own schedule is the parent"
    made = space.candidate(space.apply(start, space.sample(start, np.random.default_rng(0))))
    assert made.recipe["parent"] == other.digest and made.recipe["ptx"] == other.recipe
    assert judge.evaluate(made).verdict is Verdict.CORRECT
    assert prover(other.kernel).check(made.kernel.cubin).ok
    assert not Validator(own.kernel.cubin, own.kernel.name).check(made.kernel.cubin).ok
    space.finer(own)
    forged = Candidate(made.kernel, {**made.recipe, "parent": own.digest})
    assert judge.evaluate(forged).verdict is Verdict.ILLEGAL_SCHEDULE


def test_schedules_that_turn_out_wrong_are_counted_and_the_stage_before_stands() -> None:
    class Wrong(Bench):
        def run(self, candidate: Candidate) -> Evaluation:
            found = super().run(candidate)
            assert found.speedup is not None
            return self.evaluation(candidate, found.speedup + 0.1 * ("parent" in candidate.recipe))

        def remeasure(self, candidate: Candidate) -> Evaluation:
            if "parent" not in candidate.recipe:
                return super().remeasure(candidate)
            return Evaluation(candidate.digest, Verdict.WRONG_RESULT, detail="out[3] differs")

    result = search(Wrong(), "30e", seed=1)
    _, ptx_row, last = result.facts["stages"]
    assert result.improved and "parent" not in result.recipe and result.kernel.digest == ptx_row["digest"]
    assert result.failed_after_validation == len([n for n in result.notes if "out[3] differs" in n]) > 0
    assert result.speedup == ptx_row["ratio"] and last["ratio"] in (1.0, result.speedup)


def test_a_winner_is_kept_with_what_it_rests_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sassafras.frontend.ptx.space.available", lambda: available()[:1])
    seen = set()
    for kernel, seed in ((KERNEL, 0), (KERNEL, 1), *(("suite:softmax", seed) for seed in range(4))):
        store = tmp_path / f"{kernel[6:]}{seed}.sqlite"
        result = search(Bench(), "20e", kernel, store=store, seed=seed)
        with Store.open(store) as kept:
            winners = kept.winners()
        assert result.improved and winners, "nothing that a launch relies on differs"
        assert not any("running programs keep the original" in text for text in result.notes)
        parent = result.recipe.get("parent")
        for winner in winners:
            launch = LaunchFacts(name=result.baseline.name, threads=result.baseline.threads)
            assert refusal(winner, result.baseline.cubin, launch) is None
            grounds = winner.facts["validator"]
            assert (grounds == "legal") == (parent == result.baseline.digest)
            if grounds != "legal":
                step = verify(kernel, store=store).steps[0]
                assert (step.name, step.status) == (PROOF, "not done")
            assert ("its schedule" in grounds or grounds == "legal") == (parent is not None)
        seen.add("schedule" if parent else "no schedule")
        if len(seen) == 2:
            break
    assert seen == {"schedule", "no schedule"}


class Pretended(CudaDevice):
    """No GPU is looked for; notes which processes the search's figures come from."""

    worker = PRETENDED

    def _find(self) -> tuple[str, str]:
        return "a pretended GPU", "sm_90a"

    def run(self, candidate: Candidate) -> Evaluation:
        outcome = super().run(candidate)
        self.searching.add(self.last_answer["pid"])
        return outcome

    searching: set[int]


def test_finalists_are_measured_by_other_processes_than_selected_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("PYTHONPATH", python_path(ROOT))
    monkeypatch.setenv("PRETEND_LOG", str(log))
    with Pretended() as device:
        device.searching = set()
        result = search(device, "24e")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    measured = [line["pid"] for line in lines if line["do"] == "measure"]
    frozen = {row["digest"] for row in result.facts["stages"]}
    assert result.improved and result.kernel.digest in frozen and 1 <= len(frozen) <= 3
    assert len(measured) == len(set(measured)) == 5 * len(frozen)
    assert not set(measured) & device.searching and len(device.searching) == 1


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--strategy", "anneal"], "the space compiler has a strategy of its own"),
        (["--preset", "sip"], "the space compiler has a strategy of its own"),
        (["--ptxas-options", "x.json"], "contains the options of ptxas"),
        (["--cluster", "auto"], "searched on one machine"),
        (["--set", "kernels=0"], "descent cannot run with"),
        (["--set", "settings=0.8"], "descent cannot run with"),
        (["--set", "schedule=ppo"], "no schedule strategy 'ppo'"),
        (["--set", "rungs=3"], "descent has no setting 'rungs'"),
    ],
)
def test_what_does_not_go_together_is_one_line(words: list[str], part: str, tmp_path: Path) -> None:
    given = ["optimize", KERNEL, "--device", "model", "--space", "compiler", "--out", tmp_path]
    status, _, err = command(*given, *words, store=tmp_path / "s.sqlite")
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert status == 2 and part in line
