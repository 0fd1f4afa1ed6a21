"""Prompts and rewards to train a proposer with: prompts as the search writes them, answers judged alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sassafras.core import SassafrasError

from .answer import AnswerError, NothingChanged
from .archive import Archive
from .prompt import messages
from .reward import FAILED, reward

#: for an answer that changes nothing: less than any correct one, or a model would soon propose nothing
UNCHANGED = -1.0


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """One kernel or problem to train on.

    Attributes:
        name: unique; the rows' column ``task``.
        space: `prompt.Promptable`, and the `core.Evaluator` of its own candidates, as `SourceSpace` is.
        variants: what was measured: parents and examples of the prompts; at least one is correct.
    """

    name: str
    space: Any
    variants: Archive


def first_state(space: Any) -> Any:
    """The state whose text the first prompts show."""
    return getattr(space, "seed", space.start)()


def training_rows(
    tasks: Sequence[TrainingTask], count: int, *, seed: int, shown: int
) -> list[dict[str, Any]]:
    """Rows for a trainer: ``prompt`` (chat messages), ``task`` and ``parent`` (the shown variant's text).

    Args:
        tasks: drawn evenly.
        count: rows.
        seed: of the choice of tasks, parents and examples.
        shown: how many other variants a prompt shows with their scores.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        task = tasks[int(rng.integers(len(tasks)))]
        correct = [variant for variant in task.variants if variant.score is not None]
        parent = correct[int(rng.integers(len(correct)))]
        prompt = messages(
            task.space,
            parent.text,
            task.variants.exemplars(shown, rng),
            contrastive=shown > 0,
            parent_score=parent.score,
            sections=False,
        )
        rows.append({"prompt": list(prompt), "task": task.name, "parent": parent.text})
    return rows


class AnswerReward:
    """What an answer earns: read by its task's space, judged, compared with the variant that it changes.

    A reward function as TRL's `GRPOTrainer` calls it. No text of a model is executed in this process.

    Args:
        tasks: those of the rows.
    """

    #: what TRL logs it as
    __name__ = "sassafras_reward"

    def __init__(self, tasks: Iterable[TrainingTask]) -> None:
        self._tasks = {task.name: task for task in tasks}

    def __call__(
        self, completions: Sequence[Any], *, task: Sequence[str] = (), parent: Sequence[str] = (), **_: Any
    ) -> list[float]:
        """One reward a completion (text, or a list of chat messages).

        Raises:
            SassafrasError: a column is missing, or there is no such task.
            DeviceError, NotSafe: the device failed; no answer's fault.
        """
        if not len(task) == len(parent) == len(completions):
            raise SassafrasError("the reward needs the columns 'task' and 'parent' in the data set")
        return [self.one(_text(c), t, p) for c, t, p in zip(completions, task, parent, strict=True)]

    def one(self, text: str, task: str, parent: str) -> float:
        """The reward of one answer to a prompt that showed `parent`. Raises as the call does."""
        known = self._tasks.get(task)
        if known is None:
            raise SassafrasError("there is no such task", where=task)
        space = known.space
        start = first_state(space)
        before = start if parent == space.show(start) else space.read(parent, start)
        try:
            state = space.read(text, before)
            if state == before:
                return UNCHANGED
            mine, other = (space.evaluate(space.candidate(each)).cost for each in (state, before))
        except NothingChanged:
            return UNCHANGED
        except AnswerError:
            return FAILED
        return reward(None if mine is None else (other or 1.0) / mine)


def _text(completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    return "".join(str(message["content"]) for message in completion)
