"""The prompt: the task, earlier variants with their measured speed, and the last error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sassafras.core import Space

from .archive import ArchivedSource
from .proposer import Message

State = TypeVar("State")


class Promptable(Space[State, Any], Protocol[State]):
    """A `core.Space` whose states can be shown to a model and read from its answers."""

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """JSON schema of an answer; None for text in three sections."""
        ...

    @property
    def form(self) -> str:
        """What the code section must hold, where there is no schema."""
        ...

    def choices(self) -> tuple[str, ...]:
        """Every answer that can be used, where they can be listed; else none."""
        ...

    def brief(self) -> str:
        """What is to be written, what must stay as it is, and facts that may help."""
        ...

    def show(self, state: State) -> str:
        """A state as a model sees it."""
        ...

    def read(self, text: str, parent: State, origin: str = "answer") -> State:
        """The state that an answer of `origin` describes. Raises AnswerError."""
        ...


SYSTEM = (
    "You are an expert of GPU kernels on NVIDIA Hopper. You make kernels faster without changing what they "
    "compute. Every proposal is compiled, checked on fresh inputs against a reference in higher precision, "
    "and timed against the baseline. Only measured speed of correct kernels counts; what fakes it is "
    "found and refused."
)

SECTIONS = (
    "Answer in three sections with these headings:\n"
    "## Performance analysis\nWhy the faster variants are faster than the slower ones, and what limits the "
    "fastest (two or three sentences).\n"
    "## Design\nWhat you change and why it should be faster (two or three sentences).\n"
    "## Code\n{form}"
)


def messages(
    space: Promptable[Any],
    parent: str,
    variants: Sequence[ArchivedSource],
    *,
    contrastive: bool = True,
    parent_score: float | None = None,
    sections: bool = True,
) -> tuple[Message, ...]:
    """The messages that ask for one proposal.

    Args:
        space: what is searched.
        parent: the variant to change, as `Promptable.show` gives it.
        variants: earlier variants to compare, slowest first (`Archive.exemplars`).
        contrastive: show them with their scores; without, the model sees the parent alone.
        parent_score: baseline time / the parent's time.
        sections: ask for analysis and design before the code; False for models too small to gain by it.
    """
    parts = [space.brief()]
    if contrastive and variants:
        parts.append(
            "Earlier variants, slowest first. Their score is baseline time / their time: higher is faster."
        )
        parts += [_variant(number, variant) for number, variant in enumerate(variants, 1)]
    score = f" (score {parent_score:.3f})" if contrastive and parent_score is not None else ""
    parts.append(f"Change this variant{score}:\n{parent}")
    if space.schema is None:
        form = SECTIONS if sections else "Answer with the code alone. {form}"
        parts.append(form.format(form=space.form))
    else:
        parts.append("Propose a configuration that was not tried yet and should be faster.")
    return ({"role": "system", "content": SYSTEM}, {"role": "user", "content": "\n\n".join(parts)})


def _variant(number: int, variant: ArchivedSource) -> str:
    lines = [f"### Variant {number}: score {variant.score:.3f}" if variant.score else f"### Variant {number}"]
    if variant.note:
        lines.append(f"Its author said: {variant.note}")
    return "\n".join([*lines, variant.text])


def feedback(verdict: str, detail: str) -> str:
    """What is said after a proposal that could not be used, to get it repaired."""
    words = {
        "answer": "The answer cannot be used",
        "compile_error": "It does not compile",
        "cheated": "It was refused as a cheat",
        "wrong_result": "It computes something else",
        "crashed": "It crashed on the GPU",
        "timed_out": "It took too long",
        "out_of_resources": "It needs too many resources",
        "duplicate": "It compiles to a kernel that was tried already",
    }
    return f"{words.get(verdict, verdict)}:\n{detail}\n\nAnswer again, in the same form, with this repaired."
