"""The prompt: the task, earlier variants with their measured speed, and the last error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sassafras.core import Space

from .archive import Archive, ArchivedSource
from .proposer import Message

State = TypeVar("State")


class Described(Protocol):
    """A task in words: a `Promptable` space, or what is kept of one (`record.Task`)."""

    @property
    def form(self) -> str:
        """What the code section must hold."""
        ...

    def brief(self) -> str:
        """What is to be written, what must stay as it is, and facts that may help."""
        ...


class Promptable(Space[State, Any], Described, Protocol[State]):
    """A `core.Space` whose states can be shown to a model and read from its answers."""

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
    space: Described,
    parent: str,
    variants: Sequence[ArchivedSource],
    *,
    contrastive: bool = True,
    parent_score: float | None = None,
    sections: bool = True,
    group: Callable[[ArchivedSource], str] | None = None,
    parts: Sequence[str] = (),
    repair: str = "",
) -> tuple[Message, ...]:
    """The messages that ask for one proposal.

    Args:
        space: what is searched.
        parent: the variant to change, as `Promptable.show` gives it.
        variants: earlier variants to compare, slowest first (`Archive.exemplars`).
        contrastive: show them with their scores; without, the model sees the parent alone.
        parent_score: reference time / the parent's time.
        sections: ask for analysis and design before the code; False for models too small to gain by it.
        group: names the group of a variant by its speed.
        parts: further sections, ahead of the variants: measurements, refusals, passages.
        repair: what was wrong with `parent`, which is then to be repaired (`feedback`).
    """
    said = [space.brief(), *parts]
    if contrastive and variants:
        said.append(
            "Earlier variants, slowest first. Their score is reference time / their time: higher is faster."
        )
        said += [_variant(number, v, group) for number, v in enumerate(variants, 1)]
    score = f" (score {parent_score:.3f})" if contrastive and parent_score is not None else ""
    said.append(f"Change this variant{score}:\n{parent}")
    if repair:
        said.append(repair)
    form = SECTIONS if sections else "Answer with the code alone. {form}"
    said.append(form.format(form=space.form))
    return ({"role": "system", "content": SYSTEM}, {"role": "user", "content": "\n\n".join(said)})


def _variant(number: int, variant: ArchivedSource, group: Callable[[ArchivedSource], str] | None) -> str:
    heading = f"### Variant {number}"
    if group is not None and variant.score:
        heading += f" ({group(variant)})"
    if variant.score:
        heading += f": score {variant.score:.3f}"
    if (us := variant.measured.get("time_us")) is not None:
        heading += f", {us:.2f} us"
    lines = [heading]
    if variant.note:
        lines.append(f"Its author said: {variant.note}")
    return "\n".join([*lines, variant.text])


def measurements(variants: Sequence[tuple[str, Mapping[str, Any] | None]]) -> str:
    """ncu's metrics of the variants that a prompt shows, as a table; in words where there are none."""
    names = [
        "duration_ns",
        "dram_read_bytes",
        "dram_write_bytes",
        "dram_percent",
        "l2_hit_percent",
        "tensor_percent",
        "occupancy_percent",
        "registers",
        "shared_bytes",
    ]
    rows, missing = [], []
    for label, found in variants:
        if not found or "unavailable" in found:
            why = (found or {}).get("unavailable", "not measured")
            missing.append(f"{label}: no profiler metrics ({why}).")
            continue
        cells = ["-" if (value := found.get(name)) is None else f"{value:.4g}" for name in names]
        stalls = ", ".join(f"{reason} {value:g}" for reason, value in found.get("stalls", {}).items())
        rows.append(f"| {label} | " + " | ".join([*cells, stalls or "-"]) + " |")
    lines = ["Measured by ncu (stalls: warps waiting at an issue, largest reasons first):"] if rows else []
    if rows:
        lines += [f"| variant | {' | '.join(names)} | stalls |", "|" + "---|" * (len(names) + 2), *rows]
    return "\n".join([*lines, *missing])


def refusals(archive: Archive, count: int = 3) -> str:
    """The latest distinct reasons why proposals were refused; empty where none was."""
    found: dict[str, str] = {}
    for variant in reversed(list(archive)):
        if variant.score is None and variant.detail and variant.verdict != "modelled":
            found.setdefault(" ".join(variant.detail.split())[:300], variant.verdict)
    lines = [f"- {verdict}: {detail}" for detail, verdict in list(found.items())[:count]]
    return "\n".join(["Refused before, for these reasons:", *lines]) if lines else ""


def cited(passages: Sequence[Mapping[str, str]]) -> str:
    """Retrieved passages with their sources; empty for none."""
    if not passages:
        return ""
    parts = [f"[{p['source']}]\n{p['text']}" for p in passages]
    return "Passages from the user's documents, found by words; they may or may not apply:\n\n" + "\n\n".join(
        parts
    )


def feedback(verdict: str, detail: str) -> str:
    """What is said after a proposal that could not be used, to get it repaired."""
    words = {
        "unreadable": "It cannot be used",
        "compile_error": "It does not compile",
        "cheated": "It was refused as a cheat",
        "wrong_result": "It computes something else",
        "crashed": "It crashed on the GPU",
        "timed_out": "It took too long",
        "out_of_resources": "It needs too many resources",
        "duplicate": "It compiles to a kernel that was tried already",
    }
    return f"{words.get(verdict, verdict)}:\n{detail[:1500]}\n\nAnswer with this repaired."
