"""Training language models: the reward function, our short GRPO and TRL's, on a tiny random model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sassafras import search
from sassafras.core import Budget, SassafrasError
from sassafras.llm.archive import Archive
from sassafras.llm.evolve import Evolve
from sassafras.llm.reward import FAILED
from sassafras.llm.training import (
    UNKNOWN,
    AnswerReward,
    TrainingTask,
    live_task,
    recorded_task,
    training_rows,
)

from .test_evolve import Dice, Numbers


@pytest.fixture(scope="module")
def tasks() -> list[TrainingTask]:
    """What two searches recorded."""
    found = []
    for seed in (1, 2):
        space, strategy = Numbers(), Evolve(Dice())
        search.run(strategy, space, space, Budget(evaluations=60), seed=seed)
        found.append(recorded_task(f"numbers {seed}", space, strategy.archive))
    return found


def test_answers_earn_what_the_record_says(tasks: list[TrainingTask]) -> None:
    task = tasks[0]
    earns = AnswerReward(tasks)
    ranked = sorted((v for v in task.variants if v.score), key=lambda variant: variant.score or 0)
    slow, middle, fast = ranked[0].text, ranked[len(ranked) // 2].text, ranked[-1].text
    answers = [fast, slow, "no", [{"content": fast}]]
    earned = earns(completions=answers, task=[task.name] * 4, parent=[middle] * 4)
    assert earned[0] == earned[3] > 0 > earned[1] and earned[2] == FAILED
    with pytest.raises(SassafrasError, match="columns 'task' and 'parent'"):
        earns(completions=["x"])
    with pytest.raises(SassafrasError, match="no such task"):
        earns(completions=["x"], task=["1x1x1"], parent=[slow])
    with pytest.raises(SassafrasError, match="at least two correct variants"):
        recorded_task("nothing", task.space, Archive())


def test_rows_are_the_prompts_of_the_search(tasks: list[TrainingTask]) -> None:
    earns = AnswerReward(tasks)
    rows = training_rows(tasks, 30, seed=1)
    assert rows == training_rows(tasks, 30, seed=1)
    assert all("Change this variant (score" in row["prompt"][1]["content"] for row in rows)
    earned = [earns.one('{"n": 2}', row["task"], row["parent"]) for row in rows]
    assert {FAILED, UNKNOWN} & set(earned) and all(FAILED <= value <= 1 for value in earned)
    # an edit of nothing earns no more than what was never measured
    row = rows[0]
    assert earns.one(row["parent"], row["task"], row["parent"]) == UNKNOWN
    plain = training_rows(tasks, 1, contrastive=False)[0]["prompt"][1]["content"]
    assert "score" not in plain


def test_a_live_reward_judges_each_answer(tmp_path: Path) -> None:
    """Rewards of an evaluator, prompts from the variants of an earlier search."""
    space, strategy = Numbers(), Evolve(Dice())
    search.run(strategy, space, space, Budget(evaluations=30), seed=1)
    strategy.archive.save(tmp_path / "variants.jsonl")
    task = live_task("numbers", space, space, Archive.load(tmp_path / "variants.jsonl"))
    (row,) = training_rows([task], 1, seed=2)
    earns = AnswerReward([task])
    answers = ['{"n": 40}', '{"n": 41}', "nothing"]
    earned = [earns.one(answer, "numbers", row["parent"]) for answer in answers]
    assert earned[0] > 0 and earned[1:] == [FAILED, FAILED]


def tiny() -> tuple[Any, Any]:
    """A language model of a few thousand weights and a tokenizer of single characters, made here."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = [chr(i) for i in range(32, 127)] + ["<end>", "\n"]
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=" ")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<end>", pad_token="<end>", unk_token=" "
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=None,
        eos_token_id=95, pad_token_id=95,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), tokenizer


def letters(completions: Any, **_: Any) -> list[float]:
    """More for answers with more of the letter e."""
    return [text.count("e") / max(1, len(text)) for text in completions]


@pytest.mark.slow
def test_our_grpo_raises_the_reward_and_the_shuffled_control_does_not() -> None:
    model, tokenizer = tiny()
    from sassafras.llm.lm_grpo import LmGrpoSettings, train

    rows = [{"prompt": [{"role": "user", "content": "say"}]}]
    gain = {}
    for shuffled in (False, True):
        model, tokenizer = tiny()
        settings = LmGrpoSettings(
            steps=40, group=16, max_tokens=12, learning_rate=2e-2, lora_rank=0, shuffled=shuffled, prefill="e"
        )
        _, steps = train(model, tokenizer, rows, letters, settings, seed=0)
        gain[shuffled] = steps[-1].reward - steps[0].reward
        assert steps[0].example.startswith("e")
    assert gain[False] > 0.3 > gain[True]


@pytest.mark.slow
def test_our_reward_plugs_into_trl(tasks: list[TrainingTask], tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    model, tokenizer = tiny()
    rows = datasets.Dataset.from_list(training_rows(tasks, 4, shown=1))
    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path), max_steps=1, num_generations=2, per_device_train_batch_size=2, use_cpu=True,
        max_completion_length=8, report_to=[], logging_steps=1, save_strategy="no",
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=AnswerReward(tasks),
        args=arguments,
        train_dataset=rows,
        processing_class=tokenizer,
    )
    trainer.train()
    assert trainer.state.log_history[0]["rewards/sassafras_reward/mean"] == FAILED


@pytest.mark.slow
def test_a_local_model_answers_reproducibly(tmp_path: Path) -> None:
    model, tokenizer = tiny()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
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
