"""`optimize(space="ptx")`: search, result, store, the way back as a baseline; what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sassafras
from sassafras.api.ptx_search import PtxJudge
from sassafras.api.ptxas_options import load as load_choice
from sassafras.api.verify import PROOF, verify
from sassafras.core import Candidate, Kernel, SassafrasError, SearchError, Verdict
from sassafras.deploy.check import LaunchFacts, other_code, refusal, resident_blocks
from sassafras.frontend import ptx
from sassafras.frontend.ptx import PtxState
from sassafras.frontend.ptx.rewrites import Cache, Registers
from sassafras.frontend.ptxas_options import PtxasOptions, available
from sassafras.sass import Cubin
from sassafras.sass.eiattr import KPARAM_INFO
from sassafras.targets import load
from tests.by_recipe import Bench

#: small, so that the timing model is quick
KERNEL = "suite:kv_append"


def test_a_search_is_judged_by_results_and_kept(tmp_path: Path) -> None:
    bench, store = Bench(), tmp_path / "s.sqlite"
    given: dict[str, Any] = {"space": "ptx", "budget": "12e", "store": store}
    result = sassafras.optimize(KERNEL, device=bench, out=tmp_path, **given)
    assert result.strategy == "guided" and result.improved and 1 < len(set(bench.ran)) <= 12
    assert result.recipe["space"] == "ptx" and "nothing is proved" in result.summary()
    assert result.kernel.name == result.baseline.name and result.failed_after_validation == 0
    (file,) = tmp_path.glob("*.json")
    workload = load(KERNEL)

    def space_of(tools: Any) -> ptx.PtxSpace:
        return ptx.of(workload, workload.case(), "sm_90a", tools)

    made, note = load_choice(file, space_of)  # the baseline of a schedule search
    assert made.digest == result.kernel.digest and note.startswith("baseline: ptxas")
    again = sassafras.optimize(KERNEL, device=Bench(), **given)
    assert again.from_store or again.replayed == again.evaluations == 12, "a seed gives the same search"
    assert again.kernel.digest == result.kernel.digest


def test_what_a_program_may_load_is_kept_with_its_grounds(tmp_path: Path) -> None:
    class Wide(Bench):
        """The more registers, the faster."""

        def speed(self, candidate: Candidate) -> float:
            return 1 + Cubin.parse(candidate.kernel.cubin).entries[candidate.kernel.name].registers / 1000

    def registers(kernel: Kernel) -> int:
        return Cubin.parse(kernel.cubin).entries[kernel.name].registers

    store, fewer = tmp_path / "s.sqlite", 0
    for kernel, bench in ((KERNEL, Bench()), ("suite:rotary", Wide())):
        result = sassafras.optimize(kernel, device=bench, space="ptx", budget="30e", store=store)
        with sassafras.Store.open(store) as kept:
            found = [one for one in kept.winners() if one.kernel.digest == result.kernel.digest]
        assert result.improved and found and not any("keep the original" in note for note in result.notes)
        assert found[0].facts["polls"] is False
        blocks = [resident_blocks(registers(k), k.threads) for k in (result.kernel, result.baseline)]
        fewer += blocks[0] < blocks[1]
        # where blocks may wait for one another, as many have to fit
        facts = {**found[0].facts, "polls": True}
        why = refusal(replace(found[0], facts=facts), result.baseline.cubin, LaunchFacts())
        assert bool(why) is (blocks[0] < blocks[1]) and (why is None or "leave" in why)
        assert refusal(found[0], result.baseline.cubin, LaunchFacts()) is None
    assert fewer, "one of them had fewer blocks"
    with sassafras.Store.open(store) as kept:
        assert all(one.facts["validator"].startswith("none against the original") for one in kept.winners())
    step = verify(KERNEL, store=store).steps[0]
    assert (step.name, step.status) == (PROOF, "not done") and "judged by results" in step.detail


@pytest.mark.parametrize("name", ["softmax", "gemv_int4", "paged_decode"])
def test_another_output_of_ptxas_stands_in_where_a_launch_relies_on_nothing_else(name: str) -> None:
    """Stack sizes, a cap on registers, another layout of the file: the driver reads them from the file."""
    workload = load(f"suite:{name}")
    kernel = workload.build(workload.case(), "sm_90a")
    space = ptx.of(workload, workload.case(), kernel.arch, None, (), kernel)
    capped = [PtxState(rewrites=(Registers("maxnreg", most),)) for most in (48, 64)]
    others = [PtxState(PtxasOptions(path)) for path in space.tools.values() if path]
    for state in (*capped, *others):
        made, facts = space.build(state).kernel, LaunchFacts(name=kernel.name)
        assert other_code(made, kernel.cubin, facts) is None
        # of a schedule every attribute is equal
        same = Cubin.parse(made.cubin).data[7] == Cubin.parse(kernel.cubin).data[7]
        assert same or "of another layout" in str(other_code(made, kernel.cubin, facts, schedule=True))
        parameter = next(
            r for r in Cubin.parse(made.cubin).entries[kernel.name].info if r.attribute == KPARAM_INFO
        )
        at = parameter.offset + 6
        moved = made.cubin[:at] + bytes([made.cubin[at] ^ 1]) + made.cubin[at + 1 :]
        assert "parameters" in str(other_code(made.with_cubin(moved), kernel.cubin, facts))


def test_the_timing_model_takes_candidates_for_programs(tmp_path: Path) -> None:
    result = sassafras.optimize(
        KERNEL, device="model", space="ptx", strategy="anneal", budget="3e", store=False, check=False
    )
    assert result.modelled and result.evaluations == 3 and result.device.endswith("between programs")
    assert set(result.verdicts) <= {"modelled", "compile_error"} and result.verdicts["modelled"] >= 1
    assert any("nothing was run or checked" in text for text in result.notes)


def test_a_refused_candidate_costs_no_run() -> None:
    workload = load(KERNEL)
    space = ptx.of(workload, workload.case(), "sm_90a", available()[:1])
    bench = Bench()
    bench.open(workload, workload.case(), space.kernel)
    outcome = PtxJudge(bench, space.kernel).evaluate(space.candidate(PtxState(rewrites=(Cache(0, "lu"),))))
    assert outcome.verdict is Verdict.COMPILE_ERROR and "lu does not go" in outcome.detail and not bench.ran


def test_a_changed_file_for_ptxas_is_noticed(tmp_path: Path) -> None:
    workload = load(KERNEL)
    file = tmp_path / "user.options"
    file.write_text("--opt-level=1")
    space = ptx.of(workload, workload.case(), "sm_90a", available()[:1], [f"--options-file={file}"])
    state = space.apply(space.start(), ptx.PtxMove("controls", 1))
    saved = tmp_path / "x.json"
    saved.write_text(json.dumps({"recipe": dict(space.build(state).recipe)}))
    assert load_choice(saved, lambda tools: space)[0].digest == space.build(state).digest
    file.write_text("--opt-level=2")
    with pytest.raises(SassafrasError, match="has changed"):
        load_choice(saved, lambda tools: space)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"space": "ptx", "ptxas_options": "x.json"}, "contains the options of ptxas"),
        ({"space": "ptx", "cluster": "auto"}, "searched on one machine"),
        ({"space": "swaps", "ptxas_controls": ["--a=b"]}, "controls are for --space ptx"),
        ({"space": "ptxx"}, "there is no space 'ptxx'"),
    ],
)
def test_what_does_not_go_together_is_refused(more: dict[str, Any], what: str) -> None:
    with pytest.raises(SearchError, match=what):
        sassafras.optimize(KERNEL, device=Bench(), store=False, **more)
