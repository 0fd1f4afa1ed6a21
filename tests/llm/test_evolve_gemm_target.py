"""`evolve gemm:MxNxK`: JSON in, reasons back, judged in a process on the modelled clock, kept, resumed."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sassafras.api.evolve import evolve
from sassafras.cli.app import app
from sassafras.core import (
    Candidate,
    DeviceError,
    Evaluation,
    Modelled,
    SassafrasError,
    SearchError,
    Verdict,
)
from sassafras.gemm import GemmSpace, Shape
from sassafras.gemm.bench.device import GemmDevice
from sassafras.gemm.configs import registry
from sassafras.gemm.configs.fields import from_fields, to_fields
from sassafras.gemm.select.table import TunedTable
from sassafras.gemm.select.workload import workload as gemm_workload
from sassafras.jobs.result import Result
from sassafras.llm.gemm_space import GemmJsonSpace
from sassafras.llm.proposer import Reply, Request
from sassafras.store import Store
from sassafras.timing_model import ModelDevice

SHAPE = Shape(64, 64, 512)


@pytest.fixture
def cubins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes in the place of cubins: the modelled clock runs none, and compiling takes seconds each."""

    def named(instance: Any, cache: Path | None = None) -> bytes:
        return bytes(instance.name, "ascii")

    monkeypatch.setattr("sassafras.api.evolve.cubin", named)
    monkeypatch.setattr("sassafras.gemm.select.workload.cubin", named)


class Scripted:
    """Answers from a list, and keeps what it was asked."""

    name = "scripted"

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked = list(answers), []

    def propose(self, request: Request) -> Reply:
        self.asked.append(request)
        return Reply(self.answers.pop(0), "scripted", 100, 20)


def legal(count: int) -> list[str]:
    """Answers that name legal configurations, not the start."""
    space = GemmJsonSpace(SHAPE, lambda config: b"")
    return [space.show(config) for config in space.configs[1 : 1 + count]]


def test_one_cubin_serves_several_configurations() -> None:
    space = GemmSpace(SHAPE, lambda config: config.instance.name.encode())
    first = next(c for c in space.configs if c.cluster == 1)
    second = next(c for c in space.configs if c.instance == first.instance and c != first)
    one, other = space.candidate(first), space.candidate(second)
    assert one.kernel.cubin == other.kernel.cubin and one.digest != other.digest
    assert one.digest == space.candidate(first).digest


@pytest.mark.usefixtures("cubins")
def test_answers_are_checked_for_legality_and_judged(tmp_path: Path) -> None:
    good = legal(3)
    bad = json.dumps({**json.loads(good[0]), "cluster_split_k": 3})
    proposer = Scripted(bad, good[0], "no idea", good[1], good[2], good[0])
    store = tmp_path / "s.sqlite"
    result = evolve(
        f"gemm:{SHAPE}", proposer=proposer, settings={"proposals": 5}, device="model", budget="20e",
        store=store, out=tmp_path / "out",
    )  # fmt: skip
    assert result.modelled and result.workload == "hgemm" and result.case == str(SHAPE)
    tally = result.facts["proposals"]
    assert (tally["proposed"], tally["unreadable"], tally["compiled"]) == (5, 2, 3)
    assert result.evaluations == 4, "the start and three that are legal"
    said = proposer.asked[1].messages[-1]["content"]
    assert "cluster_split_k may not be 3" in said and "repaired" in said
    assert proposer.asked[0].schema is not None
    left = [len(request.choices) for request in proposer.asked]
    assert left[0] > left[-1] > 0, "what was tried is offered no more"
    with Store.open(store) as opened:
        (run,) = opened.runs()
        outcomes = [outcome for outcome, _ in opened.recorded(run.id)]
    assert len(outcomes) == 4 and all(isinstance(outcome, Modelled) for outcome in outcomes)
    assert all("nothing was run" in outcome.facts["warning"] for outcome in outcomes)
    variants = (tmp_path / "out" / f"hgemm-{SHAPE}-variants.jsonl").read_text().splitlines()
    assert len(variants) == 4


@pytest.mark.usefixtures("cubins")
def test_the_same_search_resumes_and_asks_nothing_twice(tmp_path: Path) -> None:
    def run(proposer: Scripted, proposals: int) -> Result:
        return evolve(
            f"gemm:{SHAPE}", proposer=proposer, settings={"proposals": proposals}, device="model",
            budget="20e", store=tmp_path / "s.sqlite",
        )  # fmt: skip

    first = Scripted(*legal(4))
    run(first, 2)
    second = Scripted(*legal(4)[2:])
    result = run(second, 4)
    assert len(first.asked) == 2 and len(second.asked) == 2
    assert result.evaluations == 5 and result.replayed == 0, "another number of proposals is another search"
    again = run(Scripted(), 4)
    assert again.run == result.run and again.evaluations == 5


@pytest.mark.usefixtures("cubins")
def test_chance_finds_better_and_commands_say_what_is_not_for_it(tmp_path: Path) -> None:
    run = CliRunner()
    common = ["evolve", f"gemm:{SHAPE}", "--device", "model", "--store", str(tmp_path / "s.sqlite")]
    common += ["--out", str(tmp_path)]
    done = run.invoke(app, [*common, "--budget", "12e", "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["evaluations"] == 12 and found["strategy"] == "evolve"
    for option in (["--whole"], ["--arch", "sm_90a"]):
        done = run.invoke(app, [*common, *option])
        assert done.exit_code == 2 and "is not for gemm:MxNxK" in done.output
    with pytest.raises(SassafrasError, match="not a shape"):
        evolve("gemm:64x64", device="model", store=False)
    with pytest.raises(SearchError, match="needs a GemmDevice"):
        evolve(f"gemm:{SHAPE}", device=ModelDevice(), store=False)
    with pytest.raises(DeviceError, match="no device 'tpu'"):
        evolve(f"gemm:{SHAPE}", device="tpu", store=False)


class Measuring(GemmDevice):
    """The modelled clock, taken for a GPU: everything that follows a measurement is gone through."""

    def __init__(self, faster: float) -> None:
        super().__init__(dry=True, processes=2)
        self.modelled = False
        self._faster = faster

    def confirm(self, config: Any) -> Any:
        times, error = super().confirm(config)
        for one in times:
            middle = statistics.median(one["lt"])
            own = statistics.median(one["ours"])
            one["ours"] = [middle / self._faster * us / own for us in one["ours"]]
        return times, error


@pytest.mark.usefixtures("cubins")
@pytest.mark.parametrize("faster", [1.2, 0.9])
def test_a_winner_is_measured_afresh_and_told_to_matmul(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: float
) -> None:
    table = tmp_path / "table.json"
    monkeypatch.setattr("sassafras.gemm.matmul.planner.tuned_path", lambda gpu: table)
    result = evolve(f"gemm:{SHAPE}", device=Measuring(faster), budget="6e", store=tmp_path / "s.sqlite")
    assert not result.modelled and result.facts["proof"].startswith("compared with the reference")
    assert result.null == pytest.approx(1.0, abs=0.02)
    if faster < 1:
        assert not result.improved and result.speedup == 1.0 and not table.exists()
        assert any("re-measured 0.9" in note for note in result.notes)
        return
    assert result.improved and result.speedup == pytest.approx(1.2, rel=0.02)
    assert "nothing is proved" in result.summary()
    (row,) = TunedTable.load(table).rows.values()
    config = from_fields(result.recipe["config"])
    assert row.shape == SHAPE and row.layout == config.layout and row.ours[0][0] == config
    assert row.torch_us and row.torch_us > row.ours[0][1]


def test_verdicts_of_a_device() -> None:
    """What cannot run, what is no configuration, and a process that dies."""
    device = GemmDevice(dry=True, processes=2)
    device.modelled = False
    space = GemmSpace(SHAPE, lambda config: config.instance.name.encode())
    workload = gemm_workload(SHAPE, space.start())
    start = space.candidate(space.start())
    try:
        device.open(workload, workload.case(None), start.kernel)
        with pytest.raises(DeviceError, match="no baseline"):
            device.remeasure(start)
        outcome = device.run(start)
        assert isinstance(outcome, Evaluation) and outcome.verdict is Verdict.CORRECT
        assert (
            outcome.interval is not None and outcome.interval.low <= outcome.speedup <= outcome.interval.high
        )  # type: ignore[operator]
        assert device.baseline is not None and device.baseline["layout"] in ("nn", "tn")
        illegal = next(c for c in registry.configurations() if c.why_illegal(SHAPE))
        refused = device.run(Candidate(start.kernel, {"config": to_fields(illegal)}))
        assert refused.verdict is Verdict.UNSUPPORTED and refused.detail == illegal.why_illegal(SHAPE)
        with pytest.raises(DeviceError, match="there is no kernel 'none'"):
            device.run(Candidate(start.kernel, {"config": {"kernel": "none"}}))
        process = device._child._process
        assert process is not None
        process.kill()
        assert device.run(start).verdict is Verdict.CORRECT, "another process judges on"
        again = device.remeasure(start)
        assert again.verdict.ok and again.facts["processes"] == 2 and again.null_interval is not None
    finally:
        device.close()
    if shutil.which("nvcc"):
        kernel = workload.build(workload.case(None), "sm_90a")
        assert kernel.cubin[:4] == b"\x7fELF" and kernel.name == space.start().instance.name
