"""The result of `explain`, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sassafras.core import Interval, beats
from sassafras.core.errors import os_errors
from sassafras.core.files import write_whole
from sassafras.timing_model.evidence import ratio_words

#: raised when the JSON changes in a way that readers must know of
FORMAT = 1


@dataclass(frozen=True, slots=True)
class ExplainedPart:
    """One instruction of a move.

    Attributes:
        instruction: its original index.
        offset: byte offset in the original code.
        text: its disassembly.
        before, after: positions in the block without and with the move.
        stall_before, stall_after: stall counts without and with it.
    """

    instruction: int
    offset: int
    text: str
    before: int
    after: int
    stall_before: int
    stall_after: int


@dataclass(frozen=True, slots=True)
class Explained:
    """One move, or several that depend on each other and can only be undone together.

    Attributes:
        kind: its class; one of `MoveClass`.
        parts: its instructions, the one that gives it its class first.
        block: basic block of the first.
        in_loop: whether that block is in a loop.
        passed: opcode -> how many instructions the first one passed.
        gain: relative runtime without the move / with it; above 1, the move helps.
        alone: the original's runtime / that of the original with this move (and what it needs) alone; None
            where there is no such schedule.
        interval, null, null_interval: of `gain`, where it was re-measured in fresh processes or re-drawn.
        waits: (instruction, reason, setter, cycles before, cycles after) of the waits that shrank most, on
            the timing model: mean cycles of a traced warp over its whole path.
        words: what moved, over what, and why it helps.
    """

    kind: str
    parts: tuple[ExplainedPart, ...]
    block: int
    in_loop: bool
    passed: Mapping[str, int]
    gain: float
    alone: float | None
    waits: tuple[Mapping[str, Any], ...]
    words: str
    interval: Interval | None = None
    null: float | None = None
    null_interval: Interval | None = None


@dataclass(frozen=True)
class Explanation:
    """Which moves of a tuned schedule gave how much.

    Attributes:
        workload, case, kernel, arch: what it is a schedule of.
        device: what judged; `modelled` says whether by the timing model.
        original, tuned, reduced: sha256 of three cubins; `reduced` is the tuned one less what can be taken
            back while most of the gain stays.
        ratio: the original's runtime / the tuned schedule's.
        reduced_ratio: the same of the reduced schedule.
        changes: how many single changes lead from the original to the tuned schedule.
        evaluations: schedules judged for this.
        complete: False where the limit on evaluations ended the reduction early.
        moves: of the reduced schedule, the largest gain first; re-measured ones before the others.
        notes: what else should be known.
        assumptions: of the timing model.
        cubin: the reduced schedule's code, approved by the validator.
        interval, null, null_interval, draws: of `ratio` where it is modelled; see `core.Modelled`.
        refusal: why a modelled ratio is no evidence for this kernel, in one sentence; else empty.
    """

    workload: str
    case: str
    kernel: str
    arch: str
    device: str
    modelled: bool
    original: str
    tuned: str
    reduced: str
    ratio: float
    reduced_ratio: float
    changes: int
    evaluations: int
    complete: bool
    moves: tuple[Explained, ...]
    notes: tuple[str, ...]
    assumptions: tuple[str, ...]
    cubin: bytes = field(repr=False)
    interval: Interval | None = None
    null: float | None = None
    null_interval: Interval | None = None
    draws: int = 0
    refusal: str = ""

    @property
    def gained(self) -> bool:
        """Is there a gain to explain? A modelled one has to lie beyond the baseline's null."""
        if self.modelled and self.interval is not None:
            return beats(self)
        return self.ratio > 1.0 and not self.refusal

    @property
    def kept(self) -> float:
        """Which part of the gain the reduced schedule keeps."""
        gained = 1 - 1 / self.ratio
        return (1 - 1 / self.reduced_ratio) / gained if gained > 0 else 1.0

    def summary(self) -> str:
        """The result in one line."""
        if not self.changes:
            return f"{self.workload} {self.case}: the two schedules are the same"
        if self.refusal:
            return f"{self.workload} {self.case}: {self.refusal}"
        figure = f"measured {self.ratio:.3f}x"
        if self.modelled:
            words = ratio_words(self.ratio, self.interval, self.null, self.null_interval, self.draws)
            figure = f"modelled {words}"
        head = f"{self.workload} {self.case}: {figure} on {self.device}"
        if not self.gained:
            return f"{head}; nothing was gained, so there is nothing to explain"
        moved = sum(len(m.parts) for m in self.moves)
        kept = "all" if self.kept >= 1 else f"{100 * self.kept:.0f} %"
        return (
            f"{head}; {moved} of {self.changes} changes, in {len(self.moves)} moves, keep "
            f"{kept} of the gain ({self.reduced_ratio:.3f}x)"
        )

    def text(self, most: int = 20) -> str:
        """The summary and the moves, the largest first.

        Args:
            most: how many moves to list.
        """
        lines = [self.summary()]
        for n, move in enumerate(self.moves[:most], 1):
            figure = f"{100 * (move.gain - 1):+.2f} %"
            if move.interval is not None:
                figure = f"{move.gain:.3f}x {move.interval}, null {move.null:.3f} {move.null_interval}"
            lines.append(f"{n:3}. {figure}  [{move.kind}] {move.words}")
        if len(self.moves) > most:
            rest = self.moves[most:]
            lines.append(f"     and {len(rest)} more of at most {100 * (rest[0].gain - 1):+.2f} % each")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def to_json(self) -> dict[str, Any]:
        """Plain values by the attributes' names; the code is left out."""
        out = asdict(self)
        del out["cubin"]
        for each in (out, *out["moves"]):
            for key in ("interval", "null_interval"):
                if each[key] is not None:
                    each[key] = [each[key]["low"], each[key]["high"]]
        return {"format": FORMAT, "summary": self.summary(), "kept": self.kept, **out}

    def save(self, path: str | Path) -> None:
        """Write the JSON to `path`, and the reduced schedule's cubin beside it.

        Raises:
            SassafrasError: they cannot be written.
        """
        path = Path(path)
        with os_errors("cannot write it", path):
            write_whole(path, json.dumps(self.to_json(), indent=2, sort_keys=True) + "\n")
            write_whole(path.with_suffix(".cubin"), self.cubin)
