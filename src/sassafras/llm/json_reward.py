"""For training language models that choose configurations: a reward function for TRL, and prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sassafras.core import SassafrasError
from sassafras.gemm.configs import registry
from sassafras.gemm.problem.shape import Shape

from .answer import AnswerError
from .gemm_json import JsonConfigs, to_fields
from .policy.table import Problem, Table
from .reward import RewardSettings, reward

#: for an edit that changes nothing, or a legal configuration that the table does not know: worse than any
#: that it does. Were nothing changed worth 0, a model would soon propose nothing
UNKNOWN = -1.0


class JsonReward:
    """What an answer in JSON earns, replayed from a table. A reward function as TRL's `GRPOTrainer` takes it.

    Each prompt's dataset row needs a column ``shape`` (``"64x128x2048"``) and may have ``parent``, the name
    of the configuration that an edit changes.

    Args:
        table: measured times (or a stand-in) by shape and configuration.
        settings: form of the reward.
    """

    #: what TRL logs it as
    __name__ = "sassafras_reward"

    def __init__(self, table: Table, settings: RewardSettings | None = None) -> None:
        self._settings = settings or RewardSettings()
        self._problems = {str(problem.shape): problem for problem in table.problems}
        self._json: dict[str, JsonConfigs[Any]] = {}

    def __call__(
        self,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] = (),
        *,
        shape: Sequence[str] = (),
        parent: Sequence[str] | None = None,
        **_: Any,
    ) -> list[float]:
        """One reward a completion (text, or a list of chat messages).

        Raises:
            SassafrasError: no shape for a completion, or one that the table does not have.
        """
        if len(shape) != len(completions):
            raise SassafrasError("the reward needs a column 'shape' in the data set")
        parents = parent or [""] * len(completions)
        return [self.one(_text(c), s, p) for c, s, p in zip(completions, shape, parents, strict=True)]

    def one(self, text: str, shape: str, parent: str = "") -> float:
        """The reward of one answer."""
        problem = self._problems.get(shape)
        if problem is None:
            raise SassafrasError("the table does not have this shape", where=shape)
        base = registry.parse(parent) if parent else None
        try:
            config = self._configs(problem).read(text, base)
        except AnswerError:
            return self._settings.failed
        if config.name == parent or config.name not in problem.names:
            return UNKNOWN
        reference = (
            problem.times[problem.names.index(parent)] if parent in problem.names else problem.times[0]
        )
        ratio = float(reference / problem.times[problem.names.index(config.name)])
        return reward(ratio, settings=self._settings)

    def _configs(self, problem: Problem) -> JsonConfigs[Any]:
        key = str(problem.shape)
        if key not in self._json:
            self._json[key] = JsonConfigs(registry.legal(problem.shape))
        return self._json[key]


def _text(completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    return "".join(str(message["content"]) for message in completion)


def training_prompts(
    table: Table, count: int, *, seed: int = 0, contrastive: bool = True, shown: int = 3
) -> list[dict[str, Any]]:
    """Rows for a trainer: ``prompt`` (chat messages), ``shape``, ``parent``.

    Args:
        table: where shapes and times come from.
        count: rows.
        seed: of the choice of shapes and parents.
        contrastive: show other configurations with their scores.
        shown: how many.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        problem = table.problems[int(rng.integers(len(table.problems)))]
        order = rng.permutation(len(problem.names))
        parent = int(order[0])
        lines = [_task(problem.shape)]
        if contrastive:
            others = sorted(order[1 : 1 + shown].tolist(), key=lambda i: -problem.times[i])
            lines.append("Others that were measured, slowest first (score: time of yours / their time):")
            lines += [
                f"score {problem.times[parent] / problem.times[i]:.2f}: {_fields(table, problem, i)}"
                for i in others
            ]
        lines.append(f"Yours: {_fields(table, problem, parent)}")
        lines.append('Answer with the change only, as JSON, for example {"cluster": 2}.')
        prompt: list[Mapping[str, str]] = [{"role": "user", "content": "\n".join(lines)}]
        rows.append({"prompt": prompt, "shape": str(problem.shape), "parent": problem.names[parent]})
    return rows


def _task(shape: Shape) -> str:
    return (
        f"Make this HGEMM configuration faster (M={shape.m}, N={shape.n}, K={shape.k}, H200, 132 SMs): "
        "change one or two of its fields."
    )


def _fields(table: Table, problem: Problem, index: int) -> str:
    return json.dumps(to_fields(table.config(problem.names[index])))
