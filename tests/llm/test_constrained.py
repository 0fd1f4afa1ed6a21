"""Sampling one of given texts: whatever the model says, the answer is one of them."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from sassafras.core import SassafrasError

torch = pytest.importorskip("torch")
from sassafras.llm.constrained import choose  # noqa: E402

TEXTS = [(5, 1, 9), (5, 1, 8), (5, 2, 7, 7, 9), (6, 6, 6)]


class Table:
    """A model whose next token depends on the last one alone; it counts what it is fed."""

    def __init__(self) -> None:
        self.logits = torch.randn(10, 10, generator=torch.Generator().manual_seed(0))
        self.fed: list[int] = []

    def __call__(self, input_ids: Any, past_key_values: Any, use_cache: bool) -> Any:
        self.fed += input_ids[0].tolist()
        return SimpleNamespace(logits=self.logits[input_ids], past_key_values=len(self.fed))


def pick(seed: int, temperature: float = 1.0, texts: Any = TEXTS) -> tuple[int, int, list[int]]:
    model = Table()
    prompt = torch.tensor([[3, 4]])
    generator = torch.Generator().manual_seed(seed)
    which, asked = choose(model, prompt, texts, temperature=temperature, generator=generator)
    return which, asked, model.fed


def test_every_answer_is_one_of_the_texts_and_reproducible() -> None:
    found = [pick(seed) for seed in range(200)]
    assert {which for which, _, _ in found} == {0, 1, 2, 3}
    assert found[:20] == [pick(seed) for seed in range(20)]
    for which, asked, fed in found:
        # only where texts part is the model asked; what it is fed is the prompt and the answer, in order
        assert asked == {0: 3, 1: 3, 2: 2, 3: 1}[which]
        assert fed == [3, 4, *TEXTS[which]][: len(fed)]


def test_it_samples_as_the_model_likes() -> None:
    model = Table()
    weights = torch.softmax(model.logits[4, [5, 6]], dim=0)
    counts = Counter(TEXTS[pick(seed)[0]][0] for seed in range(600))
    assert counts[5] / 600 == pytest.approx(float(weights[0]), abs=0.08)
    likeliest = {pick(seed, temperature=0.0)[0] for seed in range(5)}
    assert len(likeliest) == 1


def test_texts_that_cannot_be_told_apart() -> None:
    with pytest.raises(SassafrasError, match="nothing to choose"):
        pick(0, texts=[])
    with pytest.raises(SassafrasError, match="beginning of another"):
        pick(0, texts=[(1,), (1, 2)])
    assert pick(0, texts=[(1, 2), (1, 2)])[:2] == (0, 0)
