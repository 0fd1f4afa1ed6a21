"""Prompts and rewards of a training, and a local model that answers, on a tiny random model."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from sassafras import search
from sassafras.api.evolve import subject
from sassafras.core import Budget, SassafrasError
from sassafras.evaluate.sandbox.confine import landlock_version
from sassafras.jobs.opening import load_workload
from sassafras.llm.archive import Archive
from sassafras.llm.evolve import Evolve
from sassafras.llm.program_model import ProgramModel
from sassafras.llm.reward import FAILED
from sassafras.llm.training import UNCHANGED, AnswerReward, TrainingTask, training_rows

from .test_evolve import Dice, Numbers
from .tiny_model import save_tiny


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[TrainingTask]:
    """The variants of two searches."""
    found = []
    for seed in (1, 2):
        space, strategy = Numbers(), Evolve(Dice())
        search.run(strategy, space, space, Budget(evaluations=60), seed=seed)
        path = tmp_path_factory.mktemp("runs") / "archive.jsonl"
        strategy.archive.save(path)
        found.append(TrainingTask(f"numbers {seed}", Numbers(), Archive.load(path)))
    return found


def test_answers_are_judged_and_compared_with_their_parent(tasks: list[TrainingTask]) -> None:
    task = tasks[0]
    earns = AnswerReward(tasks)
    answers = ['{"n": 40}', '{"n": 2}', "no", [{"content": '{"n": 40}'}], '{"n": 41}', '{"n": 20}']
    earned = earns(answers, task=[task.name] * 6, parent=['{"n": 20}'] * 6)
    assert earned[0] == earned[3] > 0 > earned[1] > UNCHANGED > FAILED
    assert earned[2] == earned[4] == FAILED and earned[5] == UNCHANGED
    assert earns.one('{"n": 40}', task.name, '{"n": 38}') < earned[0], "a small step earns less"
    with pytest.raises(SassafrasError, match="columns 'task' and 'parent'"):
        earns(completions=["x"])
    with pytest.raises(SassafrasError, match="no such task"):
        earns(completions=["x"], task=["1x1x1"], parent=['{"n": 20}'])


def test_rows_are_the_prompts_of_the_search(tasks: list[TrainingTask]) -> None:
    rows = training_rows(tasks, 30, seed=1, shown=3)
    assert rows == training_rows(tasks, 30, seed=1, shown=3) != training_rows(tasks, 30, seed=2, shown=3)
    assert {row["task"] for row in rows} == {task.name for task in tasks}
    for row in rows:
        said = row["prompt"][1]["content"]
        assert "Earlier variants" in said and "Change this variant (score" in said and row["parent"] in said
    earns = AnswerReward(tasks)
    row = rows[0]
    assert earns.one(row["parent"], row["task"], row["parent"]) == UNCHANGED
    plain = training_rows(tasks, 1, seed=1, shown=0)[0]["prompt"][1]["content"]
    assert "score" not in plain


@pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
def test_answers_are_built_in_confinement_and_modelled(tmp_path: Path) -> None:
    """A kernel's source earns what the model says; code for the host is refused and never runs here."""
    with closing(ProgramModel("sm_90a")) as device:
        workload, case, baseline, space = subject(
            load_workload("suite:softmax"), device, None, None, True, lambda _: None
        )
        device.open(workload, case, baseline)
        shown = space.show(space.start())
        task = TrainingTask("softmax", space, Archive())
        assert "tl.exp(" in shown
        edited = shown.replace("tl.exp(", "tl.exp2(1.4426950408889634 * ")
        stolen = tmp_path / "stolen"
        hostile = shown.replace(
            "import triton\n", f"import triton\nopen({str(stolen)!r}, 'w').write('x')\n", 1
        )
        answers = [edited, hostile, shown.replace("tl.exp(", "tl.no_such("), shown]
        earned = AnswerReward([task])(answers, task=["softmax"] * 4, parent=[shown] * 4)
    assert -1 < earned[0] < 1 and earned[1:] == [FAILED, FAILED, UNCHANGED]
    assert hostile != shown and not stolen.exists()


@pytest.mark.slow
def test_a_local_model_answers_reproducibly(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    from sassafras.llm.journal import Remembered
    from sassafras.llm.local import LocalModel, LocalSettings
    from sassafras.llm.proposer import ProposerError, Request, SpendingCap
    from sassafras.llm.spending import Meter

    local = Remembered(LocalModel(LocalSettings(str(tmp_path), context=200)), Meter(tokens_cap=300))
    ask = Request(({"role": "user", "content": "hello"},), max_tokens=12, seed=5)
    first = local.propose(ask)
    assert first.answer_tokens <= 12 and first.prompt_tokens >= 5
    assert local.propose(ask).text == first.text
    with pytest.raises(ProposerError, match="the context of 200"):
        local.propose(Request(({"role": "user", "content": "x" * 220},), max_tokens=12))
    with pytest.raises(SpendingCap):
        local.propose(Request(ask.messages, max_tokens=299))
    with pytest.raises(ProposerError, match="no such model"):
        LocalModel(LocalSettings(str(tmp_path / "none")))
