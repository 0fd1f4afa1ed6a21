"""Training of a language model on kernels: the evaluator's targets as tasks of `llm.trainers`."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError
from sassafras.jobs.opening import load_workload
from sassafras.llm.archive import Archive, ArchivedSource
from sassafras.llm.record import Record
from sassafras.llm.source_space import SourceSpace
from sassafras.llm.train_config import EvaluatorConfig, TrainingTarget, read_config
from sassafras.llm.trainers import Trained, train
from sassafras.llm.training import TrainingTask, first_state

from .evolve import device_named, source_target, subject


def train_model(config: str | Path, *, resume: bool = False) -> list[Trained]:
    """Train a language model as a YAML file says: supervised on a corpus, then rewarded by the evaluator.

    Args:
        config: the file (docs/guides/evolve.md).
        resume: go on from the last checkpoint in its output folder, if there is one.

    Returns: what became of each stage.

    Raises:
        SassafrasError: one of its subclasses; `ConfigError` for what is wrong with the file.
    """
    given = read_config(config)
    with ExitStack() as stack:

        def tasks() -> list[TrainingTask]:
            assert given.evaluator is not None
            return [_task(each, given.evaluator, stack) for each in given.evaluator.targets]

        return train(given, tasks, resume=resume)


def _task(given: TrainingTarget, evaluator: EvaluatorConfig, stack: ExitStack) -> TrainingTask:
    """A target on a device of its own, opened; its first variant is judged."""
    target, _ = source_target(given.target)
    device = stack.enter_context(closing(device_named(evaluator.device, evaluator.arch or None)))
    workload, case, baseline, space = subject(
        load_workload(target), device, given.case or None, evaluator.arch or None, given.whole, lambda _: None
    )
    device.open(workload, case, baseline)
    if given.folder:
        variants = _recorded(given, {"target": str(target), "case": case.name, "whole": given.whole}, space)
    else:
        start = first_state(space)
        outcome = space.evaluate(space.candidate(start))
        score = None if outcome.cost is None else 1 / outcome.cost
        variants = Archive()
        variants.add(ArchivedSource(outcome.digest, "", space.show(start), score, "", outcome.detail))
    if not any(variant.score for variant in variants):
        detail = next((variant.detail for variant in variants if variant.detail), "")
        raise SassafrasError(f"no variant of this target is correct: {detail}", where=given.target)
    return TrainingTask(f"{target} {case.name}", space, variants)


def _recorded(given: TrainingTarget, run: dict[str, Any], space: SourceSpace) -> Archive:
    """The variants of a run of `evolve` on the same target, all readable."""
    record = Record(given.folder)
    recorded = {name: record.settings.get(name) for name in run}
    if recorded != run:
        raise SassafrasError(f"the run in this folder has {recorded}, not {run}", where=given.folder)
    variants, start = record.archive(), first_state(space)
    for variant in variants:
        if variant.score and variant.text != space.show(start):
            space.read(variant.text, start)  # raises where the target's source changed since
    return variants
