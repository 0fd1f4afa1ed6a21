"""SourceSpace on real compilers: built confined, mutated, read from answers, hostile texts contained."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from sassafras.core import Candidate, Modelled, SassafrasError, Verdict
from sassafras.evaluate.sandbox.confine import landlock_version
from sassafras.evaluate.source import SourceEvaluator
from sassafras.frontend.cubin import workload as cubin_workload
from sassafras.llm.answer import AnswerError, read_answer, whole_source
from sassafras.llm.source_space import SourceSpace, SourceState, fenced, source_of
from sassafras.targets import load

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "evolve"
pytestmark = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")


class Unrun:
    """A device that accepts whatever was built: there is no GPU here to run it."""

    name, arch, modelled = "none", "sm_90a", True

    def run(self, candidate: Candidate) -> Modelled:
        return Modelled(candidate.digest, None, 1.0, 1.0)


def space(name: str, *, whole: bool = False) -> SourceSpace:
    workload = load(str(EXAMPLES / f"{name}.py"))
    case = workload.case()
    baseline = workload.build(case, "sm_90a")
    judge = SourceEvaluator(Unrun(), workload, case, baseline)  # type: ignore[arg-type]
    return SourceSpace(workload, case, baseline, judge, whole=whole)


def fill(made: SourceSpace, **texts: str) -> SourceState:
    return made.state({**made.texts(made.start()), **texts}, made.start(), "test", "")


@nvcc
def test_the_start_is_the_baseline_and_its_source_builds_the_same_bytes() -> None:
    made = space("rmsnorm")
    assert made.candidate(made.start()).kernel is made.baseline
    again = made.judge.candidate(made._source(made.start()))
    assert again.digest == made.baseline.digest


@nvcc
def test_a_proposal_is_read_built_and_carries_its_lineage() -> None:
    made = space("rmsnorm")
    answer = (
        "## Analysis\nscalar\n## Design\nwider loads\n## Code\n```cuda\n// hole: sum\n"
        "for (int i = threadIdx.x; i < cols / 4; i += 256) {\n"
        "    float4 v = ((const float4 *)row)[i];\n"
        "    sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;\n}\n```\n"
    )
    state = made.read(answer, made.start(), "model")
    candidate = made.candidate(state)
    assert made.evaluate(candidate).verdict is None
    assert candidate.digest != made.baseline.digest
    assert candidate.kernel.parameters == made.baseline.parameters
    recipe = candidate.recipe
    assert (recipe["parent"], recipe["origin"], recipe["note"]) == (
        made.baseline.digest,
        "model",
        "wider loads",
    )
    child = made.state({**made.texts(state), "write": "// nothing"}, state, "test", "")
    assert child.parent == candidate.digest
    with pytest.raises(AnswerError, match="nothing was changed"):
        made.read(answer, state)


@nvcc
def test_a_compile_error_comes_back_with_the_compilers_words() -> None:
    made = space("bias_gelu")
    outcome = made.evaluate(made.candidate(fill(made, body="y[0] = nonsense;")))
    assert outcome.verdict is Verdict.COMPILE_ERROR and "nonsense" in outcome.detail


@nvcc
def test_more_shared_memory_than_the_launch_gives_is_refused() -> None:
    made = space("bias_gelu")
    text = "__shared__ float s[64]; s[threadIdx.x & 63] = x[0]; __syncthreads(); y[0] = s[(count + 1) & 63];"
    assert made.evaluate(made.candidate(fill(made, body=text))).verdict in (None, Verdict.UNSUPPORTED)


@nvcc
def test_random_edits_keep_to_the_holes() -> None:
    made = space("rmsnorm")
    rng = np.random.default_rng(0)
    state, kinds = made.start(), set()
    for _ in range(40):
        move = made.sample(state, rng)
        assert move is not None
        kinds.add(move.what.split()[0])
        try:
            state = made.apply(state, move)
        except AnswerError:
            continue
        source = made.source(state)
        assert source.startswith(made.template.pieces[0]) and source.endswith(made.template.pieces[-1])
    assert len(kinds) > 5


@nvcc
def test_the_whole_source_may_be_rewritten() -> None:
    made = space("bias_gelu", whole=True)
    text = made.text.replace("0.5f * v", "v * 0.5f")
    state = made.read(f"## Code\n```cuda\n{text}```\n", made.start())
    assert made.evaluate(made.candidate(state)).verdict is None
    assert made.read(f"```\n{made.text.replace('256', '128')}```", made.start()) != state
    with pytest.raises(AnswerError, match="no code block"):
        made.read("nothing", made.start())


@nvcc
def test_another_entry_name_is_no_kernel_of_this_workload() -> None:
    made = space("bias_gelu", whole=True)
    state = made.read(f"```\n{made.text.replace('bias_gelu', 'other')}```", made.start())
    outcome = made.evaluate(made.candidate(state))
    assert outcome.verdict in (Verdict.COMPILE_ERROR, Verdict.UNSUPPORTED) and "bias_gelu" in outcome.detail


@pytest.mark.parametrize("inside", ["```\nx = 1\n```", "````python\n````"])
def test_a_source_that_holds_fences_is_shown_whole(inside: str) -> None:
    """It was read back as it stood ahead of the first one, and judged so."""
    source = f'def f():\n    """Doc.\n\n{inside}\n    """\n    return 1\n'
    assert whole_source(read_answer(fenced(source, "triton"))) == source


def test_triton_holes_build_and_equal_code_is_one_candidate() -> None:
    made = space("softmax")
    row = made.texts(made.start())["row"]
    faster = row.replace("e / tl.sum(e, axis=0)", "e * (1.0 / tl.sum(e, axis=0))")
    one = made.candidate(fill(made, row=faster))
    two = made.candidate(fill(made, row=faster.replace("e *", "e  *")))
    assert made.evaluate(one).verdict is None
    assert one.digest == two.digest  # other text, the same machine code
    broken = made.evaluate(made.candidate(fill(made, row=row.replace("mask=mask", "mask=masks"))))
    assert broken.verdict is Verdict.COMPILE_ERROR and "masks" in broken.detail


def test_the_brief_says_what_must_stay() -> None:
    made = space("softmax")
    brief = made.brief()
    for words in (
        "softmax_kernel",
        "(512, 1, 1)",
        "x_ptr: in fp32 512x4096",
        "rtol 2e-05",
        "also be right for grid (512, 1, 1) with y_ptr: out fp32 512x4000;",
        "- row: reads x_ptr",
    ):
        assert words in brief
    assert "hole: row" in made.show(made.start())


def test_kernels_without_holes_and_raw_cubins_are_refused(tmp_path: Path) -> None:
    workload = load("suite:softmax")
    case = workload.case()
    with pytest.raises(SassafrasError, match="no hole to fill"):
        SourceSpace(workload, case, workload.build(case, "sm_90a"), None)
    assert source_of(workload)[1].startswith("import triton")
    (tmp_path / "x.cubin").write_bytes(b"not read")
    raw = cubin_workload(tmp_path / "x.cubin", workload.cases, threads=32)
    with pytest.raises(SassafrasError, match="no source to rewrite"):
        source_of(raw)
