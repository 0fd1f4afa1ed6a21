"""Archive of variants with scores and parents, and a contrasting selection of them for prompts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.core import SassafrasError
from sassafras.core.files import write_whole

#: width of a performance bucket, in the logarithm of the speed-up (0.02: two per cent)
BUCKET = 0.02


@dataclass(frozen=True, slots=True)
class ArchivedSource:
    """One candidate that was judged.

    Attributes:
        digest: sha256 of its compiled binary (of its source where it did not compile).
        parent: digest of the variant that it was made from; empty for the baseline.
        text: its code or configuration, as it is shown to a model.
        score: baseline time / its time; None for anything that is not `correct`.
        verdict: what became of it; ``modelled`` for a figure of the timing model.
        detail: the compiler's message, the check that failed, ...
        origin: what proposed it.
        note: the proposer's own words on its design, shortened.
        number, generation: of its prompt; 0 for where the search began.
        repairs: number of the failed proposal that it repairs, 0 for none.
        answer: sha256 of the answer; empty for what no answer gave.
        measured: speed-up with ``low`` and ``high``, the A/A control (``null``), microseconds, errors.
        reward: see `reward`.
        metrics: ncu's (`evaluate.gpu.profile`); None where they were not measured.
    """

    digest: str
    parent: str
    text: str
    score: float | None
    verdict: str
    detail: str = ""
    origin: str = ""
    note: str = ""
    number: int = 0
    generation: int = 0
    repairs: int = 0
    answer: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)
    reward: float | None = None
    metrics: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:  # files of runs and archives are read into it
        texts = (self.digest, self.parent, self.text, self.verdict, self.detail, self.answer)
        numbers = (self.number, self.generation, self.repairs)
        if not all(isinstance(one, str) for one in texts) or not all(isinstance(one, int) for one in numbers):
            raise TypeError("a text or a number")
        if self.score is not None and not 0 < self.score < math.inf:
            raise ValueError(f"a score of {self.score}")

    @property
    def worth(self) -> float:
        """What it is ranked by: its reward, or the logarithm of its score."""
        if self.reward is not None:
            return self.reward
        return -math.inf if self.score is None else math.log(self.score)


class Archive:
    """Variants by compiled binary, in the order in which they were found."""

    def __init__(self) -> None:
        self._variants: dict[str, ArchivedSource] = {}

    def __len__(self) -> int:
        return len(self._variants)

    def __iter__(self) -> Iterator[ArchivedSource]:
        return iter(self._variants.values())

    def __contains__(self, digest: object) -> bool:
        return digest in self._variants

    def get(self, digest: str) -> ArchivedSource | None:
        """The variant of this binary, if it was tried."""
        return self._variants.get(digest)

    def add(self, variant: ArchivedSource) -> bool:
        """Keep a variant; False (and the first one stays) when its binary is known."""
        if variant.digest in self._variants:
            return False
        self._variants[variant.digest] = variant
        return True

    @property
    def best(self) -> ArchivedSource | None:
        """The correct variant of the highest worth."""
        return max((v for v in self if v.score is not None), key=lambda v: v.worth, default=None)

    def buckets(self) -> dict[int, list[ArchivedSource]]:
        """Correct variants by performance, slowest bucket first."""
        found: dict[int, list[ArchivedSource]] = {}
        for variant in self:
            if variant.score is not None:
                place = math.floor(math.log(variant.score) / BUCKET + 1e-9)
                found.setdefault(place, []).append(variant)
        return dict(sorted(found.items()))

    def exemplars(
        self, count: int, rng: np.random.Generator, *, temperature: float = 1.0
    ) -> list[ArchivedSource]:
        """A contrasting choice: variants of distinct buckets, faster buckets likelier, slowest first.

        Buckets are drawn without replacement, with a probability that grows exponentially in their
        standardised mean score; then one variant of each is drawn evenly. What is shown differs in speed, and
        what is fast is shown often (the idea of CUDA-L1's exemplar selection, arXiv 2507.14111).

        Args:
            count: how many at most.
            rng: source of chance.
            temperature: high for an even choice of buckets, low for the fastest.
        """
        groups = list(self.buckets().values())
        if not groups or count < 1:
            return []
        means = np.array([np.mean([math.log(v.score or 1.0) for v in group]) for group in groups])
        spread = float(means.std()) or 1.0
        # Gumbel's trick: the largest of these is a draw from the softmax, the next ones without replacement
        keys = (means - means.mean()) / spread / temperature + rng.gumbel(size=len(groups))
        chosen = sorted(np.argsort(-keys, kind="stable")[:count].tolist())
        return [groups[i][int(rng.integers(len(groups[i])))] for i in chosen]

    def group(self, variant: ArchivedSource) -> str:
        """``slow``, ``middle`` or ``fast``: the third of the correct variants' scores that it lies in."""
        scores = sorted(v.score for v in self if v.score is not None)
        place = sum(score < (variant.score or 0.0) for score in scores) / max(len(scores) - 1, 1)
        return ("slow", "middle", "fast")[min(int(3 * place), 2)]

    def save(self, path: str | Path) -> None:
        """Write one JSON object a line, replacing the file atomically."""
        write_whole(Path(path), "".join(json.dumps(asdict(v)) + "\n" for v in self))

    @classmethod
    def load(cls, path: str | Path) -> Archive:
        """Read what `save` wrote.

        Raises:
            SassafrasError: the file is no archive.
        """
        archive = cls()
        known = {each.name for each in fields(ArchivedSource)}
        for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
            try:
                value: dict[str, Any] = json.loads(line)
                archive.add(ArchivedSource(**{k: v for k, v in value.items() if k in known}))
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise SassafrasError(f"not an archive: {error}", where=f"{path}:{number}") from error
        return archive
