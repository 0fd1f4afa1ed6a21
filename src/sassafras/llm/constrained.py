"""Sampling one of many given texts from a language model: at every token only what some text goes on with.

So an answer in JSON is always one that is legal, whatever the model's size. Where all remaining texts agree
on the next tokens the model is not asked, which makes long answers of few choices cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sassafras.core import SassafrasError


def choose(
    model: Any,
    prompt: Any,
    texts: Sequence[Sequence[int]],
    *,
    temperature: float,
    generator: Any,
    past: Any = None,
) -> tuple[int, int]:
    """Which of `texts` the model writes, and how many tokens it was asked for.

    Args:
        model: of transformers, causal.
        prompt: token ids, (1, n).
        texts: the tokens of every text; none is the beginning of another.
        temperature: of sampling; 0 takes the likeliest at every turn.
        generator: a `torch.Generator`.
        past: the model's cache of what comes before `prompt`; it is changed.

    Raises:
        SassafrasError: no texts, or one is the beginning of another.
    """
    import torch

    alive = list(range(len(texts)))
    if not alive or not all(texts):
        raise SassafrasError("there is nothing to choose from")
    pending = prompt
    place = asked = 0
    with torch.no_grad():
        while True:
            ended = [index for index in alive if len(texts[index]) == place]
            if ended:
                if len(alive) > 1 and any(tuple(texts[i]) != tuple(texts[ended[0]]) for i in alive):
                    raise SassafrasError("one of the texts is the beginning of another")
                return ended[0], asked
            allowed = sorted({texts[index][place] for index in alive})
            token = allowed[0]
            if len(allowed) > 1:
                out = model(input_ids=pending, past_key_values=past, use_cache=True)
                past, asked = out.past_key_values, asked + 1
                pending = pending[:, :0]
                token = allowed[_drawn(out.logits[0, -1, allowed], temperature, generator)]
                alive = [index for index in alive if texts[index][place] == token]
            more = torch.tensor([[token]], dtype=prompt.dtype, device=prompt.device)
            pending = torch.cat([pending, more], dim=1)
            place += 1


def _drawn(logits: Any, temperature: float, generator: Any) -> int:
    import torch

    if temperature <= 0:
        return int(torch.argmax(logits))
    weights = torch.softmax(logits.double() / temperature, dim=-1).cpu()
    return int(torch.multinomial(weights, 1, generator=generator))
