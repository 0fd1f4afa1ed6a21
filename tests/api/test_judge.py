"""One calculation judged through every door: Python, the command line, TRL and verifiers."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from sassafras import Interval, Judge, judge
from sassafras.api.judge import Judgement
from sassafras.core import DeviceError, Evaluation, Verdict, WorkloadError
from sassafras.evaluate.sandbox.confine import landlock_version
from sassafras.formats import load
from sassafras.store import Store
from tests.cli.in_process import sassafras
from tests.formats import problems

needs_fences = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
EXAMPLES = Path(__file__).parents[2] / "examples" / "judge"
WORKLOADS = ["--workloads", "workloads.jsonl", "definition.json"]
QUICK: dict[str, Any] = {"device": "cpu", "rounds": 2, "call_s": 60.0}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return problems.write(tmp_path_factory.mktemp("judge"))


@pytest.fixture(scope="module")
def kernelbench(here: Path) -> Iterator[Judge]:
    with Judge(here / "7_chain.py", store=here / "store.sqlite", **QUICK) as made:
        yield made


@pytest.fixture(scope="module")
def flashinfer(here: Path) -> Iterator[Judge]:
    files = here / "definition.json", here / "workloads.jsonl"
    with Judge(*files, case="small", store=here / "store.sqlite", **QUICK) as made:
        yield made


@needs_fences
@pytest.mark.parametrize(
    ("name", "verdict", "words"),
    [
        ("honest", Verdict.CORRECT, ""),
        ("inline", Verdict.CORRECT, ""),
        ("wrong", Verdict.WRONG_RESULT, "elements of out differ"),
        ("first", Verdict.WRONG_RESULT, "on its very first call"),
        ("cached", Verdict.CHEATED, "repeated inputs"),
        ("patched", Verdict.CHEATED, "patches time.perf_counter"),
    ],
)
def test_solutions_of_kernelbench(
    kernelbench: Judge, here: Path, name: str, verdict: Verdict, words: str
) -> None:
    if name == "inline" and not (shutil.which("ninja") and shutil.which("c++")):
        pytest.skip("needs ninja and a C++ compiler")
    found = kernelbench(here / f"{name}.py")
    outcome = found.outcomes["inputs"]
    assert found.verdict is verdict, outcome.detail
    assert words in outcome.detail
    assert (found.reward > 0) == verdict.ok
    (row,) = found.theirs()
    assert row["correctness"] == verdict.ok
    assert (row["runtime"] > 0) == verdict.ok
    assert row["metadata"]["sassafras"]["verdict"] == verdict
    if verdict.ok:
        assert outcome.null is not None
    with Store.open(here / "store.sqlite") as store:
        kept = store.known(found.run["inputs"], outcome.digest)
        assert kept is not None and kept[0].verdict is verdict


@needs_fences
@pytest.mark.parametrize(
    ("name", "verdict", "status"),
    [
        ("honest", Verdict.CORRECT, "PASSED"),
        ("into", Verdict.CORRECT, "PASSED"),
        ("ffi", Verdict.CORRECT, "PASSED"),
        ("wrong", Verdict.WRONG_RESULT, "INCORRECT_NUMERICAL"),
        ("zeros", Verdict.WRONG_RESULT, "INCORRECT_NUMERICAL"),
        ("typed", Verdict.WRONG_RESULT, "INCORRECT_DTYPE"),
        ("patched", Verdict.CHEATED, "RUNTIME_ERROR"),
    ],
)
def test_solutions_of_flashinfer_bench(
    flashinfer: Judge, here: Path, name: str, verdict: Verdict, status: str
) -> None:
    if name == "ffi":
        pytest.importorskip("tvm_ffi")
    found = flashinfer(here / f"{name}.json")
    assert found.verdict is verdict, found.summary()
    (trace,) = found.theirs()
    assert trace["solution"] == name
    assert trace["evaluation"]["status"] == status
    assert trace["workload"] == problems.workload(64, "small")["workload"]
    assert ("performance" in trace["evaluation"]) == verdict.ok


@needs_fences
def test_a_solution_runs_in_no_process_of_ours(kernelbench: Judge, here: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = problems.HONEST.replace("import torch\n", f"import torch\nopen({str(mark)!r}, 'w').close()\n", 1)
    (tmp_path / "writes.py").write_text(text)
    found = kernelbench(tmp_path / "writes.py")
    assert found.verdict is Verdict.CHEATED
    assert not mark.exists()


@needs_fences
def test_the_command_line_says_the_same_and_writes_their_formats(here: Path) -> None:
    out, store = here / "eval_results.json", here / "cli.sqlite"
    words = ["--device", "cpu", "--rounds", "2", "--call-seconds", "60", "--out"]
    paths = [here / "7_chain.py", here / "honest.py", here / "wrong.py"]
    status, printed, _ = sassafras("judge", *paths, *words, out, store=store)
    assert status == 1
    first, second = printed.splitlines()
    assert "honest.py [inputs]: correct, " in first and "null" in first
    assert "wrong.py [inputs]: wrong_result: " in second
    (rows,) = json.loads(out.read_text()).values()
    assert [row["correctness"] for row in rows] == [True, False]
    assert list(json.loads(out.read_text())) == ["7"]
    (here / "one.jsonl").write_text(json.dumps(problems.workload(64, "small")))
    paths = [here / "definition.json", here / "honest.json", "--workloads", here / "one.jsonl"]
    traces = here / "traces.jsonl"
    status, printed, _ = sassafras("judge", *paths, *words, traces, "--json", store=store)
    assert status == 0
    (found,) = json.loads(printed)
    assert found["verdict"] == "correct" and set(found["cases"]) == {"small"}
    assert found["cases"]["small"]["null_interval"] is not None
    (line,) = traces.read_text().splitlines()
    assert json.loads(line)["evaluation"]["status"] == "PASSED"
    with Store.open(store) as kept:
        assert {run.workload for run in kept.runs()} == {"7_chain", "softmax_chain"}
        kept.export(here / "cli.jsonl")
    with Store.open(here / "other.sqlite") as other:
        assert other.import_(here / "cli.jsonl")["runs"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["absent.py", "honest.py"], "absent.py: cannot read the file: No such file"),
        (["honest.txt", "honest.py"], "honest.txt: cannot "),
        (["honest.py", "honest.py"], "honest.py: it defines no class 'Model' (a KernelBench problem defines"),
        (["7_chain.py", "7_chain.py"], "7_chain.py: it defines no class 'ModelNew'"),
        (["7_chain.py", "honest.json"], "a solution of a kernelbench problem is a .py file"),
        (["7_chain.py", "honest.py", "--case", "x"], "has one set of inputs"),
        (["7_chain.py", "honest.py", "--device", "tpu"], "there is no device 'tpu' (auto, cuda or cpu)"),
        (["7_chain.py", "honest.py", "--out", "no/where.json"], "its folder does not exist"),
        (["definition.json", "honest.json"], "axis 'rows' has no value"),
        (["cut.json", "honest.json"], "cut.json: it is no JSON"),
        ([*WORKLOADS, "cut.json"], "cut.json: it is no JSON"),
        ([*WORKLOADS, "honest.json", "--case", "x"], "no workload 'x'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_status_2(
    here: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(here)
    Path("cut.json").write_text(Path("definition.json").read_text()[:50])
    status, printed, errors = sassafras("judge", *words, store=here / "none.sqlite")
    assert (status, printed) == (2, "")
    (line,) = errors.splitlines()
    assert line.startswith("error: ") and said in line


def test_the_reward_counts_only_gains_beyond_the_control(here: Path) -> None:
    problem = load(here / "7_chain.py")
    gain = Evaluation("d", Verdict.CORRECT, 1.0, 2.0, 2.0, Interval(1.8, 2.2), 1.0, Interval(0.9, 1.1))

    def of(*outcomes: Evaluation) -> float:
        return Judgement(problem, "s", "cpu", dict(enumerate(outcomes)), {}).reward  # type: ignore[arg-type]

    within = replace(gain, null_interval=Interval(0.5, 2.0))
    assert of(gain) == pytest.approx(1 + log2(1.8))
    assert of(within) == of(replace(gain, interval=Interval(0.3, 0.4))) == 1.0
    assert of(gain, within) == pytest.approx(1 + log2(1.8) / 2)
    assert of(gain, Evaluation("d", Verdict.CHEATED)) == 0.0


def _answer(text: str) -> str:
    return f"<think>hm</think>\n## Design\nShort.\n\n```python\n{text}```\nDone."


def test_errors_that_are_no_numbers_are_json_all_the_same(here: Path) -> None:
    wrong = Evaluation("d", Verdict.WRONG_RESULT, facts={"error": [float("nan"), float("inf")]})
    files = here / "definition.json", here / "workloads.jsonl"
    for problem, case in ((load(here / "7_chain.py"), "inputs"), (load(*files, case="small"), "small")):
        found = Judgement(problem, "mine", "cpu", {case: wrong}, {})
        for said in (found.to_json(), found.theirs()):
            assert '["NaN", "Infinity"]' in json.dumps(said, allow_nan=False)


@needs_fences
def test_a_models_answer_is_judged_by_its_code(kernelbench: Judge) -> None:
    assert kernelbench.reward([{"role": "assistant", "content": _answer(problems.HONEST)}]) >= 1.0
    assert kernelbench.reward("I cannot.") == kernelbench.reward(_answer("x = 3\n")) == 0.0


def test_a_gpu_that_is_not_there_and_a_foreign_device_are_said(here: Path) -> None:
    with pytest.raises(DeviceError, match="there is no device 'npu'"):
        judge(here / "7_chain.py", here / "honest.py", device="npu")
    with pytest.raises(WorkloadError, match="cannot tell what this is"):
        load(here / "workloads.jsonl")


@pytest.fixture
def example(kernelbench: Judge, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An example's names; its judges are the standing one."""

    def run(name: str) -> Any:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        module = __import__(name)
        monkeypatch.setattr(module, "judge_of", lambda path: kernelbench)
        monkeypatch.delitem(sys.modules, name)
        return module

    return run


@needs_fences
def test_trl_trains_on_the_reward(example: Any, here: Path, tmp_path: Path) -> None:
    """The trainer itself calls it, and a tiny model learns nothing from answers that are no solutions."""
    pytest.importorskip("trl")
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    reward = example("trl_reward").reward
    problem = str(here / "7_chain.py")
    right, wrong = reward([_answer(problems.HONEST), _answer(problems.WRONG)], [problem, problem])
    assert right >= 1.0 and wrong == 0.0
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "write": 2, "code": 3}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=4, **size))
    rows = Dataset.from_list([{"prompt": "write code", "problem": problem}] * 2)
    settings = GRPOConfig(
        str(tmp_path), max_steps=1, per_device_train_batch_size=2, num_generations=2, use_cpu=True,
        max_completion_length=4, report_to=[], save_strategy="no", logging_steps=1, bf16=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model, reward_funcs=reward, args=settings, train_dataset=rows, processing_class=tokens
    )
    trainer.train()
    assert trainer.state.log_history[0]["rewards/reward/mean"] == 0.0


@needs_fences
def test_verifiers_scores_a_trace(example: Any, here: Path, tmp_path: Path) -> None:
    vf = pytest.importorskip("verifiers.v1")
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.trace import AgentInfo, TraceTask
    from verifiers.v1.types import AssistantMessage

    module = example("verifiers_taskset")
    (tmp_path / "7_chain.py").write_text(problems.PROBLEM)
    (task,) = module.Kernels(module.KernelsConfig(folder=tmp_path))
    assert problems.PROBLEM in task.data.prompt
    for text, right in ((problems.HONEST, True), (problems.WRONG, False)):
        trace = vf.Trace(
            task=TraceTask(type="KernelTask", data=task.data),
            agent=AgentInfo(config=vf.AgentConfig()),
            nodes=[MessageNode(message=AssistantMessage(content=_answer(text)), sampled=True)],
        )
        asyncio.run(task.score(trace))
        assert (trace.reward >= 1.0) == right and (trace.reward == 0.0) != right
