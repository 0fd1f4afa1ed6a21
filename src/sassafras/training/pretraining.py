"""``python -m sassafras.training.environment pretrain``: the policy for any kernel, trained on a corpus."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sassafras.cluster.remote import interruptible
from sassafras.core import SassafrasError
from sassafras.training.corpus import HELD_OUT, VARIED, CorpusSample, Survey, open_sample, samples, survey


@dataclass(frozen=True, slots=True)
class Opener:
    """Makes a `TrainingKernel` of a sample, on the timing model; travels between processes."""

    sample: CorpusSample

    def __call__(self) -> Any:
        """The board. Raises SassafrasError where the kernel cannot be scheduled or modelled."""
        from sassafras.jobs.opening import DEFAULT_ARCH
        from sassafras.timing_model import ModelDevice
        from sassafras.training.environment import lonely, table
        from sassafras.training.random_walks import TrainingKernel

        workload, case = open_sample(self.sample)
        space, evaluate = table(workload, lonely(case), ModelDevice(DEFAULT_ARCH), DEFAULT_ARCH)
        return TrainingKernel(self.sample.name, self.sample.family, space, evaluate)


def openers(found: Survey) -> dict[str, list[Callable[[], Any]]]:
    """Makers of what a survey kept, by family."""
    return {family: [Opener(sample) for sample in members] for family, members in found.kept.items()}


def arguments(parse: argparse.ArgumentParser) -> None:
    """Options of ``pretrain``."""
    parse.add_argument("--minutes", type=float, default=40.0, help="of this sitting, the corpus included")
    parse.add_argument(
        "--out", type=Path, default=Path("policy.npz"), help="the policy, without Adam's state"
    )
    parse.add_argument("--checkpoint", type=Path, help="to resume from [default: OUT.training.npz]")
    parse.add_argument(
        "--metrics", type=Path, help="JSON lines, appended [default: metrics.txt beside --out]"
    )
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--workers", type=int, default=1, help="processes that look around; changes no result")
    parse.add_argument("--threads", type=int, default=1, help="of the network's update; changes no result")
    parse.add_argument("--boards", type=int, default=4, help="kernels an iteration; more for many workers")
    parse.add_argument("--looks", type=int, default=10, help="legal moves evaluated in each state")
    parse.add_argument("--passes", type=int, default=6, help="over an iteration's states")
    parse.add_argument("--batch", type=int, default=10, help="states of a minibatch")
    parse.add_argument("--play-share", type=float, default=0.2, help="of the time, for PPO at the end")
    parse.add_argument("--every", type=int, default=5, help="iterations between two lines of metrics")
    parse.add_argument("--most", type=int, help="samples of one kernel at most [default: all of the corpus]")
    parse.add_argument("--all-families", action="store_true", help="hold nothing out")
    parse.add_argument(
        "--compare", type=Path, nargs="+", metavar="POLICY", help="examine these policies, and train nothing"
    )
    parse.add_argument(
        "--count", action="store_true", help="compile the corpus, say how many kernels differ, and end"
    )


def pretrain(given: argparse.Namespace) -> None:
    """Train, compare or count, as the options say.

    Raises:
        SassafrasError: what is wrong with the options, the corpus or a checkpoint.
    """
    import time

    from sassafras.core import SearchError
    from sassafras.jobs.opening import DEFAULT_ARCH

    begun = time.monotonic()
    for name in ("workers", "threads", "boards", "looks", "passes", "batch", "every"):
        if getattr(given, name) < 1:
            raise SearchError(f"--{name} {getattr(given, name)} is less than 1")
    if not 0.0 <= given.play_share < 1.0:
        raise SearchError(
            f"--play-share {given.play_share} is no share of the time", hint="0 or more, below 1"
        )
    more = {} if given.most is None else {"most": given.most}
    if given.count or not given.compare:
        learnt = {**VARIED, **HELD_OUT} if given.all_families else VARIED
        found = survey(list(samples(learnt, **more)), DEFAULT_ARCH, given.workers, say)
        if given.count:
            return
    apart = survey(list(samples(HELD_OUT)), DEFAULT_ARCH, given.workers)
    from sassafras.training.holdout import Holdout, compare
    from sassafras.training.random_walks import TrainingSettings, walk
    from sassafras.training.walk_workers import WalkTable, WalkWorkers

    # what numba compiles on first use is compiled here, before many processes would do it at the same time
    table = WalkTable(openers(apart))
    first = table.first(
        [(family, n) for family in sorted(apart.kept) for n in range(len(apart.kept[family]))]
    )
    walk(first[0], TrainingSettings(moves=2, looks=4), [0])
    crew = WalkWorkers(openers(apart), given.workers, table)
    try:
        exam = Holdout.prepare(crew)
    finally:
        crew.close()
    if given.compare:
        for row in compare(exam, given.compare):
            print(json.dumps(row), flush=True)
        return
    from sassafras.training.environment import HELD_OUT as NAMES
    from sassafras.training.loop import Trainer

    kept = given.checkpoint or given.out.with_suffix(".training.npz")
    told = given.metrics or given.out.with_name("metrics.txt")
    told.parent.mkdir(parents=True, exist_ok=True)
    held = sorted(name for names in NAMES.values() for name in names)
    lessons = TrainingSettings(boards=given.boards, looks=given.looks, passes=given.passes, batch=given.batch)

    def write(line: str) -> None:
        print(line, flush=True)
        with told.open("a") as file:
            file.write(line + "\n")

    with Trainer(
        openers(found), lessons, given.seed, kept, workers=given.workers, threads=given.threads
    ) as trainer:

        def policy() -> None:
            trainer.save(
                given.out,
                optimizer=False,
                held_out=[] if given.all_families else held,
                kernels={family: len(members) for family, members in found.kept.items()},
                device="timing model of sm_90",
            )

        write(json.dumps({"iteration": trainer.iteration, **exam.sit(trainer.network, trainer.layout)}))
        left = 60.0 * given.minutes - (time.monotonic() - begun)
        with contextlib.suppress(KeyboardInterrupt), interruptible():
            trainer.train(
                seconds=max(0.0, left),
                every=given.every,
                say=write,
                play_share=given.play_share,
                exam=exam,
                saved=policy,
            )
        trainer.save()
        policy()
        told_last = {"iteration": trainer.iteration, "unusable": sorted(trainer.unusable.values())}
        write(json.dumps(told_last | exam.sit(trainer.network, trainer.layout)))
        print(f"{trainer.iteration} iterations, {trainer.evaluations} evaluations -> {given.out}", flush=True)


def say(line: str) -> None:
    """Print at once."""
    print(line, flush=True)


def main(words: list[str] | None = None) -> None:
    """``python -m sassafras.training.environment pretrain``: train the policy on the timing model."""
    parse = argparse.ArgumentParser(prog="python -m sassafras.training.environment", description=main.__doc__)
    parse.add_argument("what", choices=["pretrain"])
    arguments(parse)
    try:
        pretrain(parse.parse_args(words))
    except SassafrasError as error:
        raise SystemExit(f"error: {error}") from None
