"""GRPO for a small local language model, short enough to read: where TRL is not at hand, or too much.

One update: for each prompt a group of answers, their rewards relative to the group, and one step along the
answers' log-probabilities. With LoRA the base model stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .reward import FAILED

#: ``reward(completions=[...], task=[...], ...) -> [float]``, as TRL calls it
RewardFunction = Callable[..., Sequence[float]]


@dataclass(frozen=True, slots=True)
class LmGrpoSettings:
    """How a language model is trained.

    Attributes:
        steps: updates.
        prompts: groups an update.
        group: answers a prompt.
        max_tokens: longest answer.
        temperature: of sampling.
        learning_rate: of AdamW.
        lora_rank: rank of the adapters; 0 trains all weights.
        shuffled: exchange rewards within each group: the control, which can learn nothing of them.
        prefill: how every answer begins, for example ``{"``: a model too small to begin with JSON by itself
            would otherwise earn the same for every answer, and learn nothing.
    """

    steps: int = 30
    prompts: int = 1
    group: int = 8
    max_tokens: int = 48
    temperature: float = 1.0
    learning_rate: float = 1e-4
    lora_rank: int = 8
    shuffled: bool = False
    prefill: str = ""


@dataclass(frozen=True, slots=True)
class LmStep:
    """What an update saw: mean reward, best reward, share of answers that were not refused, an example."""

    step: int
    reward: float
    best: float
    usable: float
    example: str


def adapters(model: Any, rank: int) -> Any:
    """The model with LoRA adapters on all of its linear layers. Raises ImportError without peft."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(
        model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    )


def train(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    reward: RewardFunction,
    settings: LmGrpoSettings | None = None,
    *,
    seed: int = 0,
    report: Callable[[LmStep], None] | None = None,
) -> tuple[Any, list[LmStep]]:
    """Train; (the model, with adapters if asked for, and what each update saw).

    Args:
        model, tokenizer: of transformers; the tokenizer needs a chat template.
        rows: ``prompt`` (chat messages) and the reward's columns (`training.training_rows`).
        reward: see `RewardFunction`.
        settings: see `LmGrpoSettings`.
        seed: of everything random.
        report: called after each update.
    """
    import torch

    chosen = settings or LmGrpoSettings()
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if chosen.lora_rank:
            model = adapters(model, chosen.lora_rank)
        weights = [p for p in model.parameters() if p.requires_grad]
        optimiser = torch.optim.AdamW(weights, chosen.learning_rate, weight_decay=0.0)
        seen = []
        for step in range(chosen.steps):
            optimiser.zero_grad()
            found: list[tuple[float, str]] = []
            for index in rng.integers(len(rows), size=chosen.prompts):
                found += _group(model, tokenizer, rows[int(index)], reward, chosen, rng)
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimiser.step()
            earned = np.array([value for value, _ in found])
            best, example = max(found)
            usable = float((earned > FAILED).mean())
            seen.append(LmStep(step, float(earned.mean()), best, usable, example[:200]))
            if report is not None:
                report(seen[-1])
    return model, seen


def _group(
    model: Any,
    tokenizer: Any,
    row: Mapping[str, Any],
    reward: RewardFunction,
    settings: LmGrpoSettings,
    rng: np.random.Generator,
) -> list[tuple[float, str]]:
    """Sample a group, add its gradient; (reward, answer) of each."""
    import torch

    prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
    begun = tokenizer(settings.prefill, add_special_tokens=False)["input_ids"] if settings.prefill else []
    ids = torch.tensor([[*prompt, *begun]], device=model.device)
    model.eval()
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_return_sequences=settings.group,
            do_sample=True,
            temperature=settings.temperature,
            top_k=0,
            max_new_tokens=settings.max_tokens,
            pad_token_id=tokenizer.pad_token_id,
        )
    length = ids.shape[1]
    new = out[:, length:]
    texts = [settings.prefill + t for t in tokenizer.batch_decode(new, skip_special_tokens=True)]
    columns = {name: [value] * settings.group for name, value in row.items() if name != "prompt"}
    earned = np.array(reward(completions=texts, **columns), float)
    used = rng.permutation(earned) if settings.shuffled else earned
    if used.std() > 1e-9:
        advantage = torch.as_tensor((used - used.mean()) / (used.std() + 1e-4), dtype=torch.float32)
        model.train()
        mask = _until_end(new, tokenizer.eos_token_id)
        logits = model(out).logits[:, length - 1 : -1].float() / settings.temperature
        log = torch.log_softmax(logits, -1).gather(-1, new[..., None]).squeeze(-1)
        loss = -(advantage[:, None].to(log.device) * log * mask).sum() / mask.sum() / settings.prompts
        loss.backward()
    return list(zip(earned.tolist(), texts, strict=True))


def _until_end(tokens: Any, end: int | None) -> Any:
    """1 for each token up to and including the first end token, 0 after it."""
    import torch

    if end is None:
        return torch.ones_like(tokens, dtype=torch.float32)
    ended = (tokens == end).long().cumsum(1)
    return ((ended == 0) | ((ended == 1) & (tokens == end))).float()
