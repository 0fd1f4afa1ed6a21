"""Training a language model to propose: prompts as the search writes them, rewards recorded or live.

`lm_grpo.train` and TRL's `GRPOTrainer` both take the rows of `training_rows` and an `AnswerReward`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sassafras.core import Evaluator, SassafrasError

from .answer import AnswerError
from .archive import Archive
from .prompt import Promptable, messages
from .reward import FAILED, reward

#: for an answer that changes nothing, or that was never measured: less than any correct one, or a model would
#: soon propose nothing
UNKNOWN = -1.0


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """One kernel or problem to train on.

    Attributes:
        name: unique; the rows' column ``task``.
        space: reads and shows answers.
        variants: what was measured: parents and examples of the prompts.
        score: a state's speed relative to the task's reference; None where it is not correct.
            Raises LookupError for a state that was not measured.
    """

    name: str
    space: Promptable[Any]
    variants: Archive
    score: Callable[[Any], float | None]


def live_task(name: str, space: Any, evaluator: Evaluator, variants: Archive) -> TrainingTask:
    """A task whose answers are judged on an open device.

    Args:
        name: see `TrainingTask`.
        space: a `core.Space` that is `Promptable`.
        evaluator: judges the space's candidates.
        variants: of an earlier search, for example `Archive.load` of what `evolve` wrote.
    """

    def score(state: Any) -> float | None:
        cost = evaluator.evaluate(space.candidate(state)).cost
        return None if cost is None else 1 / cost

    return TrainingTask(name, space, variants, score)


def recorded_task(name: str, space: Promptable[Any], variants: Archive) -> TrainingTask:
    """A task rewarded by what an earlier run measured, without a device: its variants are the only answers.

    Args:
        name: see `TrainingTask`.
        space: what the run searched.
        variants: for example `Record(folder).archive()` of a run in a folder.

    Raises:
        SassafrasError: fewer than two variants are correct.
    """
    scores = {variant.text: variant.score for variant in variants}
    if sum(score is not None for score in scores.values()) < 2:
        raise SassafrasError("training needs at least two correct variants", where=name)
    return TrainingTask(name, space, variants, lambda state: scores[space.show(state)])


def training_rows(
    tasks: Sequence[TrainingTask], count: int, *, seed: int = 0, contrastive: bool = True, shown: int = 3
) -> list[dict[str, Any]]:
    """Rows for a trainer: ``prompt`` (chat messages), ``task`` and ``parent`` (the shown variant's text).

    Args:
        tasks: drawn evenly.
        count: rows.
        seed: of the choice of tasks, parents and examples.
        contrastive: show other variants with their scores.
        shown: how many.
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
            contrastive=contrastive,
            parent_score=parent.score,
            sections=False,
        )
        rows.append({"prompt": list(prompt), "task": task.name, "parent": parent.text})
    return rows


class AnswerReward:
    """What an answer earns: read by its task's space, scored, compared with the variant that it changes.

    A reward function as `lm_grpo.train` and TRL's `GRPOTrainer` call it.

    Args:
        tasks: those of the rows.
    """

    #: what TRL logs it as
    __name__ = "sassafras_reward"

    def __init__(self, tasks: Iterable[TrainingTask]) -> None:
        self._tasks = {task.name: task for task in tasks}

    def __call__(
        self,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] = (),
        *,
        task: Sequence[str] = (),
        parent: Sequence[str] = (),
        **_: Any,
    ) -> list[float]:
        """One reward a completion (text, or a list of chat messages).

        Raises:
            SassafrasError: a column is missing, or there is no such task.
        """
        if not len(task) == len(parent) == len(completions):
            raise SassafrasError("the reward needs the columns 'task' and 'parent' in the data set")
        return [self.one(_text(c), t, p) for c, t, p in zip(completions, task, parent, strict=True)]

    def one(self, text: str, task: str, parent: str) -> float:
        """The reward of one answer to a prompt that showed `parent`."""
        known = self._tasks.get(task)
        if known is None:
            raise SassafrasError("there is no such task", where=task)
        space = known.space
        start = space.start()
        before = start if parent == space.show(start) else space.read(parent, start)
        try:
            state = space.read(text, before)
            if state == before:
                return UNKNOWN
            mine, other = known.score(state), known.score(before)
        except AnswerError:
            return FAILED
        except LookupError:
            return UNKNOWN
        return reward(None if mine is None else mine / (other or 1.0))


def _text(completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    return "".join(str(message["content"]) for message in completion)
