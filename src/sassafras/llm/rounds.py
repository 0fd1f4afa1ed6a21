"""The prompts of a run, generation by generation: which are open, from which variants, in which words.

A prompt follows from the run's settings, its number and what earlier generations gave, and from nothing else:
a run goes on from its record alone, and `replay` writes every prompt again without a model or a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from sassafras.core import Verdict

from .archive import Archive, ArchivedSource
from .exchange import Replay
from .prompt import cited, feedback, measurements, messages, refusals
from .proposer import NoAnswerYet, Proposer, Request
from .record import DUPLICATE, UNREADABLE, Record, RecordError, Task, digest_of

#: verdicts after which the author is asked to repair the proposal
REPAIRABLE = frozenset(
    {
        Verdict.COMPILE_ERROR.value,
        Verdict.WRONG_RESULT.value,
        Verdict.UNSUPPORTED.value,
        Verdict.OUT_OF_RESOURCES.value,
        Verdict.CRASHED.value,
        Verdict.CHEATED.value,
        UNREADABLE,
        DUPLICATE,
    }
)
#: finds passages for a query
Retrieve = Callable[[str], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one prompt is made.

    Attributes:
        number, generation: of the prompt.
        parent: digest of the variant to change; empty for the start, of which nothing is known yet.
        shown: digests of the variants to compare with.
        repairs: number of the failed proposal that is to be repaired; 0 for none.
        seed: of the proposer.
        passages: ``source`` and ``text`` of what was retrieved.
    """

    number: int
    generation: int
    parent: str
    shown: tuple[str, ...]
    repairs: int
    seed: int
    passages: tuple[Mapping[str, str], ...] = ()


class Rounds:
    """See the module.

    Args:
        settings: an `evolve.Evolve`, whose settings they are.
        task: what is asked for.
        record: what happened so far.
        seed: of every choice.
        retrieve: finds passages; None for none.
    """

    def __init__(
        self, settings: Any, task: Task, record: Record, seed: int, retrieve: Retrieve | None = None
    ) -> None:
        self.settings, self.task, self.record, self._seed = settings, task, record, seed
        self._retrieve = retrieve if settings.retrieval else None
        self._archive, self._next = Archive(), 0

    def open(self) -> list[int]:
        """Numbers of the present generation's prompts that are not judged; none when the run is over."""
        width, last = self.settings.width, self.settings.proposals
        begin = 1
        while begin <= last or not last:
            numbers = range(begin, min(begin + width, last + 1) if last else begin + width)
            if left := [number for number in numbers if number not in self.record.judged]:
                return left
            begin += width
        return []

    def archive(self, number: int) -> Archive:
        """The variants of the generations before that of a prompt."""
        through = number - 1 - (number - 1) % self.settings.width
        if through or 0 in self.record.judged:  # where a run begins without a device, the start comes later
            for earlier in range(self._next, through + 1):
                variant = self.record.judged.get(earlier)
                if variant is not None and variant.verdict not in (UNREADABLE, DUPLICATE):
                    self._archive.add(variant)
            self._next = max(self._next, through + 1)
        return self._archive

    def plan(self, number: int) -> Plan:
        """How a prompt is made: as it was recorded, or from the archive."""
        known = self.record.prompts.get(number)
        return self._draw(number) if known is None else plan_of(known)

    def _draw(self, number: int) -> Plan:
        generation = (number - 1) // self.settings.width + 1
        rng = np.random.default_rng((self._seed, number))
        archive = self.archive(number)
        seed = int(rng.integers(1 << 31))
        shown = archive.exemplars(self.settings.exemplars, rng)
        best = archive.best or next(iter(archive), None)
        parent = "" if best is None else best.digest
        if shown and rng.random() < self.settings.explore:
            parent = shown[int(rng.integers(len(shown)))].digest
        failed = self._to_repair(number, generation)
        if failed is not None:
            parent = failed.digest if failed.digest in archive else failed.parent
        names = tuple(variant.digest for variant in shown)
        return Plan(number, generation, parent, names, failed.number if failed else 0, seed)

    def _to_repair(self, number: int, generation: int) -> ArchivedSource | None:
        """The failed proposal of the generation before that this prompt's place is for."""
        width, judged = self.settings.width, self.record.judged
        before = range(max(1, (generation - 2) * width + 1), (generation - 1) * width + 1)
        failed = [
            variant
            for n in before
            if (variant := judged.get(n)) is not None
            and variant.verdict in REPAIRABLE
            and self._tries(variant) < self.settings.repairs
        ]
        place = (number - 1) % width
        return failed[place] if place < len(failed) else None

    def _tries(self, variant: ArchivedSource) -> int:
        count = 0
        while variant.repairs and (earlier := self.record.judged.get(variant.repairs)) is not None:
            variant, count = earlier, count + 1
        return count

    def request(self, plan: Plan) -> Request:
        """The request of a plan, in the words that the record allows now."""
        settings, archive = self.settings, self.archive(plan.number)
        known = archive.get(plan.parent)
        parent = self.task.start if known is None else known.text
        shown = [variant for digest in plan.shown if (variant := archive.get(digest)) is not None]
        parts = [self._standing()]
        if settings.metrics and self.record.references:
            labels = [(f"Variant {i}", v) for i, v in enumerate(shown, 1)] if settings.contrastive else []
            labels += [("The variant to change", known)] if known is not None and known.score else []
            parts.append(measurements([(label, self.record.metrics.get(v.digest)) for label, v in labels]))
        elif settings.metrics:
            parts.append("No variant was run yet, so there are no profiler metrics.")
        parts += [refusals(archive), cited(plan.passages)]
        if settings.width > 1 and not plan.repairs:
            place = (plan.number - 1) % settings.width + 1
            parts.append(
                f"{settings.width} authors are asked alike, you are number {place}: take another way."
            )
        repair = ""
        if plan.repairs and (failed := self.record.judged.get(plan.repairs)):
            repair = feedback(failed.verdict, failed.detail)
            parent = failed.text or parent
        said = messages(
            self.task,
            parent,
            shown,
            contrastive=settings.contrastive,
            parent_score=known.score if known else None,
            sections=settings.sections,
            group=archive.group,
            parts=[part for part in parts if part],
            repair=repair,
        )
        return Request(
            said,
            settings.max_tokens,
            settings.temperature,
            plan.seed,
            plan.number,
            parent,
        )

    def _standing(self) -> str:
        """The reference times, measured in the latest sitting."""
        if not self.record.references:
            return ""
        said = self.record.references[-1]
        if said.get("baseline_us") is None:
            return ""
        lines = [f"Measured on {said.get('device')}: the baseline takes {said['baseline_us']:.2f} us."]
        if rival := said.get("rival"):
            lines.append(
                f"{rival['name']} takes {rival['ratio']:.3f} of the baseline's time. "
                "Scores are relative to the faster of both."
            )
        return " ".join(lines)

    def ask(self, number: int) -> tuple[Plan, Request]:
        """A prompt's plan and request, both recorded; the prompt is a file from then on."""
        known = self.record.prompts.get(number)
        plan = self.plan(number)
        if known is None and self._retrieve is not None:
            found = self._retrieve(self._query(plan))
            passages = tuple({"source": p.source, "text": p.text} for p in found)
            plan = replace(plan, passages=passages)
        request = self.request(plan)
        if known is None:
            self.record.append("prompt", **asdict(plan), sha256=digest_of(request.text))
        elif digest_of(request.text) != known["sha256"] and self.record.folder is not None:
            # measured since: what was sent stays what is asked
            path = self.record.path(number, "prompt")
            text = path.read_text(encoding="utf-8") if path.exists() else request.text
            request = replace(request, messages=({"role": "user", "content": text.rstrip("\n")},))
        self.record.write(number, "prompt", request.text)
        return plan, request

    def _query(self, plan: Plan) -> str:
        """What is looked for: the task's words, the last failure's, what the parent waits for."""
        found = self.record.metrics.get(plan.parent, {})
        failed = self.record.judged.get(plan.repairs) if plan.repairs else None
        words = [self.task.text[:600], *found.get("stalls", {}), failed.detail[:300] if failed else ""]
        return " ".join(words).replace("_", " ")


def prompt_seed(seed: int) -> int:
    """What a search with this seed draws its prompts from: its generator's first number."""
    return int(np.random.default_rng(seed).integers(1 << 31))


def plan_of(event: Mapping[str, Any]) -> Plan:
    """The plan that a ``prompt`` event holds."""
    try:
        values: dict[str, Any] = {each.name: event[each.name] for each in fields(Plan)}
        values |= {name: tuple(values[name]) for name in ("shown", "passages")}
        return Plan(**values)
    except (KeyError, TypeError) as error:
        raise RecordError(f"a prompt's event lacks {error}") from error


def replay(recorded: Record, settings: Any, task: Task, seed: int) -> Record:
    """Walk a recorded run again, without a model or a GPU: every prompt is made and compared bitwise.

    Args:
        recorded: the run in its folder.
        settings, task, seed: of the run.

    Returns: a record in memory with the same variants.

    Raises:
        ProposerError, RecordError: a prompt, a choice or an answer is not the recorded one.
    """
    made = Record()
    rounds = Rounds(settings, task, made, seed)
    proposer: Proposer = Replay(recorded)
    answers: dict[int, str] = {}
    for event in recorded.events():
        if event["kind"] == "prompt":
            plan, said = rounds.plan(int(event["number"])), plan_of(event)
            if replace(plan, passages=said.passages) != said:
                raise RecordError(
                    f"prompt {plan.number} was made of other variants", where=str(recorded.folder)
                )
            with suppress(NoAnswerYet):
                answers[plan.number] = digest_of(proposer.propose(rounds.request(said)).text)
        number = event.get("number")
        if event["kind"] == "judged" and number and answers.get(number) != event["answer"]:
            what = f"the answer to prompt {number} is not the judged one"
            raise RecordError(what, where=str(recorded.folder))
        made.take(event)
    return made
