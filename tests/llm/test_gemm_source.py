"""`evolve gemm:M,N,K` without a GPU: real builds on the timing model, an exchange folder, a replay."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sassafras.api.evolve import evolve, replay_run
from sassafras.cli.app import app
from sassafras.core import SassafrasError, Verdict
from sassafras.evaluate.sandbox.confine import landlock_version
from sassafras.evaluate.source import SourceEvaluator
from sassafras.gemm.configs.fields import from_fields
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select.source_workload import plain, source_workload
from sassafras.gemm.select.workload import winner
from sassafras.llm.answer import AnswerError
from sassafras.llm.gemm_source import GemmSourceSpace, seed_source
from sassafras.llm.program_model import ProgramModel

pytestmark = [
    pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock"),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc"),
]
SHAPE = Shape(64, 128, 256)
SETTINGS = ["--set", "width=2", "--set", "proposals=2", "--set", "give_up=0"]


@pytest.fixture(scope="module")
def space() -> GemmSourceSpace:
    workload = source_workload(SHAPE)
    case = workload.case(None)
    baseline = workload.build(case, "sm_90a")
    return GemmSourceSpace(
        workload, case, baseline, SourceEvaluator(ProgramModel(), workload, case, baseline), whole=True
    )


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_the_seed_builds_in_both_layouts(space: GemmSourceSpace, layout: str) -> None:
    from sassafras.evaluate.source import build
    from sassafras.evaluate.source.declared import declared

    built = build(
        declared(seed_source(space.case, layout), space.case), space.case, "sm_90a", fp32_accumulation=True
    )
    assert built.kernel is not None, built.detail
    assert built.kernel.meta["grid"] == [1, 1, 1] and built.kernel.threads == 256


def test_a_shape_that_the_seed_cannot_serve_is_refused(space: GemmSourceSpace) -> None:
    from dataclasses import replace

    odd = replace(space.case, constants={"GEMM_M": 64, "GEMM_N": 129, "GEMM_K": 256})
    with pytest.raises(SassafrasError, match="multiples of 8"):
        seed_source(odd, "tn")


def test_states_of_the_space(space: GemmSourceSpace) -> None:
    start, seed = space.start(), space.seed()
    assert start != seed and space.candidate(start).kernel is space.baseline
    assert space.read(space.show(seed).replace("STAGES = 4", "STAGES = 5"), seed).origin == "answer"
    with pytest.raises(AnswerError, match="threads is a whole number"):
        space.read(space.show(seed).replace('"threads": 256', '"threads": 4096'), seed)
    with pytest.raises(AnswerError, match="nothing was changed"):
        space.read(space.show(seed), seed)
    one = space.candidate(space.read(space.show(seed).replace('"threads": 256', '"threads": 288'), seed))
    assert (
        one.kernel.cubin == space.candidate(seed).kernel.cubin and one.digest != space.candidate(seed).digest
    )
    brief = space.brief()
    assert "M = 64, N = 128, K = 256" in brief and "a: the memory bound" not in brief
    assert "the memory bound is the larger one" in brief and "3.35 TB/s" in brief


def test_narrow_accumulation_and_state_are_refused(space: GemmSourceSpace) -> None:
    seed = space.seed()
    text = space.show(seed).replace(
        "wmma::accumulator, 16, 16, 16, float", "wmma::accumulator, 16, 16, 16, half"
    )
    text = text.replace("float *const tile = (float *)shared", "half *const tile = shared")
    text = (
        text.replace("const float *const from", "const half *const from")
        .replace(
            "__floats2half2_rn(from[2 * p], from[2 * p + 1])", "__halves2half2(from[2 * p], from[2 * p + 1])"
        )
        .replace("0.0f", "__float2half(0.0f)")
    )
    outcome = space.evaluate(space.candidate(space.read(text, seed)))
    assert outcome.verdict is Verdict.CHEATED and "FP32 accumulation" in outcome.detail


def test_the_command_line_goes_through_an_exchange_folder(tmp_path: Path) -> None:
    run, folder = CliRunner(), tmp_path / "run"
    out = ["--out", str(tmp_path / "out"), "--whole", *SETTINGS]
    common = ["evolve", "gemm:64,128,256", "--proposer", f"exchange:{folder}", *out]
    done = run.invoke(app, [*common, "--device", "none"])
    assert done.exit_code == 4 and "waiting for 2 answers" in done.output
    done = run.invoke(app, [*common, "--device", "none", "--json"])
    assert done.exit_code == 4 and json.loads(done.stdout)["waiting"] == 2
    start = json.loads((folder / "settings.json").read_text())["task"]["start"]
    (folder / "0001.answer.md").write_text(f"## Code\n{start.replace('STAGES = 4', 'STAGES = 3')}\n")
    done = run.invoke(app, [*common, "--device", "model", "--wait", "0"])
    assert done.exit_code == 4, done.output
    assert "waiting for 1 answers" in done.output
    (folder / "0002.answer.md").write_text(f"## Code\n{start.replace('int row0', 'int row1')}\n")
    done = run.invoke(app, [*common, "--device", "model", "--wait", "0"])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (folder / "transcript.jsonl").read_text().splitlines()]
    verdicts = {line["number"]: line["verdict"] for line in lines if line["kind"] == "judged"}
    assert verdicts == {0: "modelled", 1: "modelled", 2: "compile_error"}
    done = run.invoke(app, ["evolve", "gemm:64,128,256", "--proposer", f"replay:{folder}"])
    assert done.exit_code == 0 and "2 answers judged" in done.output, done.output
    done = run.invoke(app, ["evolve", "gemm:64,128,256", "--proposer", f"replay:{folder}", "--json"])
    same = run.invoke(app, ["evolve", "gemm:64,128,256", "--proposer", f"replay:{folder}", *out])
    assert same.exit_code == 0, same.output
    for words, what in (["suite:softmax"], "target"), (["gemm:64,128,256", "--seed", "2"], "seed"):
        other = run.invoke(app, ["evolve", *words, "--proposer", f"replay:{folder}"])
        assert other.exit_code == 2 and f"the run in this folder has {what} = " in other.output
    said = json.loads(done.stdout)
    assert (said["judged"], said["answered"], said["waiting"]) == (2, 0, 0) and said["best"] > 0
    other = run.invoke(app, [*common, "--device", "model", "--seed", "1"])
    assert other.exit_code == 2 and "has seed = 0, not 1" in other.output


def test_the_control_runs_alike(tmp_path: Path) -> None:
    result = evolve(
        f"gemm:{SHAPE}", device="model", folder=tmp_path / "run", whole=True,
        settings={"width": 2, "proposals": 2, "give_up": 0},
    )  # fmt: skip
    assert result.modelled and result.facts["proposals"]["proposed"] == 2 and not result.facts["waiting"]
    stands = replay_run(tmp_path / "run", f"gemm:{SHAPE}", settings={"width": 2}, seed=0, whole=True)
    assert stands.judged == 2 and stands.to_json()["modelled"]
    assert re.search(r"2 answers judged, the best at modelled \d\.\d+x as selected; ", stands.summary())
    with pytest.raises(SassafrasError, match=r"has target = gemm-source:\S+, not suite:nonsense"):
        replay_run(tmp_path / "run", "suite:nonsense")
    with pytest.raises(SassafrasError, match=r"has settings = {'width': 2}, not {'width': 3}"):
        replay_run(tmp_path / "run", settings={"width": 3})
    assert from_fields(result.baseline.meta["config"]) == plain(winner(SHAPE), SHAPE)


def test_what_is_not_for_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(SassafrasError, match="not a shape"):
        evolve("gemm:64x64", device="model", store=False)
    with pytest.raises(SassafrasError, match="leave the other one out"):
        evolve(f"gemm:{SHAPE}", proposer=f"exchange:{tmp_path / 'a'}", folder=tmp_path / "b")
    with pytest.raises(SassafrasError, match="no recorded run"):
        replay_run(tmp_path)
