"""``python -m sassafras.training``: the policy for any kernel, trained on a corpus."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import Any

from sassafras import suite
from sassafras.cluster.remote import interruptible
from sassafras.core import SassafrasError, SearchError
from sassafras.jobs.opening import DEFAULT_ARCH

from .corpus import HELD_OUT, VARIED, Survey, samples, survey
from .holdout import Holdout, compare
from .loop import Trainer
from .random_walks import TrainingSettings, walk
from .walk_workers import KernelMaker, Makers, WalkTable, WalkWorkers


def main(words: list[str] | None = None) -> None:
    """Train the kernel-independent policy of ppo on the timing model."""
    parse = argparse.ArgumentParser(prog="python -m sassafras.training", description=main.__doc__)
    arguments(parse)
    try:
        pretrain(parse.parse_args(words))
    except SassafrasError as error:
        raise SystemExit(f"error: {error}") from None


def arguments(parse: argparse.ArgumentParser) -> None:
    """Options of the command."""
    usual = TrainingSettings()
    options: dict[str, tuple[Any, str]] = {
        "--minutes": (40.0, "Length of this sitting, the corpus included."),
        "--seed": (0, "Seed of everything random."),
        "--workers": (1, "Number of processes that walk; changes no result."),
        "--threads": (1, "Number of threads of the network's update; changes no result."),
        "--kernels": (usual.kernels, "Number of kernels an iteration; more for many workers."),
        "--samples-per-state": (usual.samples_per_state, "Number of legal moves evaluated in each state."),
        "--passes": (usual.passes, "Number of passes over an iteration's states."),
        "--batch": (usual.batch, "Number of states of a minibatch."),
        "--every": (5, "Number of iterations between two lines of metrics."),
    }
    for name, (default, text) in options.items():
        parse.add_argument(name, type=type(default), default=default, help=f"{text} [{default}]")
    parse.add_argument("--out", type=Path, default=Path("policy.npz"), help="File for the policy.")
    parse.add_argument("--checkpoint", type=Path, help="File to resume from [OUT.training.npz].")
    parse.add_argument("--metrics", type=Path, help="File for JSON lines [metrics.txt beside --out].")
    parse.add_argument("--most", type=int, help="Largest number of samples of one kernel [all].")
    parse.add_argument("--all-families", action="store_true", help="Hold nothing out.")
    parse.add_argument(
        "--compare", type=Path, nargs="+", metavar="POLICY", help="Score these policies; train nothing."
    )
    parse.add_argument(
        "--count", action="store_true", help="Count the kernels of the corpus that differ; train nothing."
    )


def pretrain(given: argparse.Namespace) -> None:
    """Train, compare or count, as the options say.

    Raises:
        SassafrasError: what is wrong with the options, the corpus or a checkpoint.
    """
    begun = time.monotonic()
    for name in ("workers", "threads", "kernels", "samples_per_state", "passes", "batch", "every"):
        if getattr(given, name) < 1:
            raise SearchError(f"--{name.replace('_', '-')} {getattr(given, name)} is less than 1")
    more = {} if given.most is None else {"most": given.most}
    if given.count or not given.compare:
        learnt = {**VARIED, **HELD_OUT} if given.all_families else VARIED
        found = survey(list(samples(learnt, **more)), DEFAULT_ARCH, given.workers, say)
        if given.count:
            return
    holdout = held_out(given.workers)
    if given.compare:
        for row in compare(holdout, given.compare):
            say(json.dumps(row))
        return
    checkpoint = given.checkpoint or given.out.with_suffix(".training.npz")
    metrics = given.metrics or given.out.with_name("metrics.txt")
    metrics.parent.mkdir(parents=True, exist_ok=True)
    settings = TrainingSettings(
        kernels=given.kernels,
        samples_per_state=given.samples_per_state,
        passes=given.passes,
        batch=given.batch,
    )

    def write(line: str) -> None:
        say(line)
        with metrics.open("a") as file:
            file.write(line + "\n")

    with Trainer(makers(found), settings, given.seed, checkpoint, given.workers, given.threads) as trainer:

        def policy() -> None:
            trained = {name.removeprefix("suite:") for kernels in learnt.values() for name in kernels}
            trainer.save(
                given.out,
                optimizer=False,
                held_out=sorted(set(suite.names()) - trained),
                kernels={family: len(members) for family, members in found.kept.items()},
                device="timing model of sm_90",
            )

        def scored(**facts: Any) -> str:
            return json.dumps(facts | holdout.score(trainer.network, trainer.layout))

        write(scored(iteration=trainer.iteration))
        left = 60.0 * given.minutes - (time.monotonic() - begun)
        with contextlib.suppress(KeyboardInterrupt), interruptible():
            trainer.train(seconds=max(0.0, left), every=given.every, say=write, holdout=holdout, saved=policy)
        trainer.save()
        policy()
        write(scored(iteration=trainer.iteration, unusable=sorted(trainer.unusable.values())))
        say(f"{trainer.iteration} iterations, {trainer.evaluations} evaluations -> {given.out}")


def held_out(workers: int) -> Holdout:
    """The states of held-out kernels that policies are scored on."""
    apart = makers(survey(list(samples(HELD_OUT)), DEFAULT_ARCH, workers))
    # what numba compiles on first use is compiled here, before many processes would do it at the same time
    table = WalkTable(apart)
    first = table.first([(family, n) for family in sorted(apart) for n in range(len(apart[family]))])
    walk(first[0], TrainingSettings(moves=2, samples_per_state=4), [0])
    walking = WalkWorkers(apart, workers, table)
    try:
        return Holdout.prepare(walking)
    finally:
        walking.close()


def makers(found: Survey) -> Makers:
    """Makers of what a survey kept, by family."""
    return {family: [KernelMaker(sample) for sample in members] for family, members in found.kept.items()}


def say(line: str) -> None:
    """Print at once."""
    print(line, flush=True)
