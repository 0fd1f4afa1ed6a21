"""What became of blind mutants, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from .blind import BlindMutant

Row = dict[str, Any]
#: samples after which a mutant may have passed
REPORTED = (10, 1_000, 100_000)
OUTCOMES = ("passed", "wrong", "stray", "crashed", "hung", "unsound")


def passes(fate: Row, samples: int) -> bool:
    """Whether a mutant passed so many samples."""
    return bool(fate["outcome"]) and fate["samples"] >= samples


def counted(fates: Sequence[Row]) -> Row:
    """Refused mutants by outcome, and how many passed so many samples of those that were tested so far."""
    outcomes = Counter(fate["outcome"] for fate in fates)
    found: Row = {"refused": len(fates), **{name: outcomes[name] for name in OUTCOMES}}
    for n in REPORTED:
        ended = [f for f in fates if f["outcome"] and (f["outcome"] != "passed" or passes(f, n))]
        found |= {f"tested_{n}": len(ended), f"passed_{n}": sum(passes(fate, n) for fate in fates)}
    return found


def grouped(refused: Sequence[BlindMutant], fates: dict[int, Row], key: Callable[[BlindMutant], str]) -> Row:
    """`counted` of each kind of mutant, the most frequent first."""
    kinds = Counter(map(key, refused))
    return {
        kind: counted([fates[m.number] for m in refused if key(m) == kind]) for kind, _ in kinds.most_common()
    }


def shown(mutant: BlindMutant, second: str, fate: Row) -> Row:
    """A mutant as a reader sees it. `second`: the second model's verdict."""
    what = {"number": mutant.number, "move": mutant.kind, "pair": list(mutant.pair), "why": mutant.why}
    return {**what, "second_model": second, **fate}


def summed(rows: Sequence[Row]) -> Row:
    """The summary."""
    totals: Counter[str] = Counter()
    groups: dict[str, dict[str, Counter[str]]] = {"by_move": {}, "by_second": {}}
    for row in rows:
        totals.update({key: value for key, value in row.items() if isinstance(value, int)})
        for name, kinds in groups.items():
            for kind, of in row[name].items():
                kinds.setdefault(kind, Counter()).update(of)
    samples = [count for row in rows for count in row["approved_samples"]]
    return {
        "kernels": len(rows), **totals, "approved_samples_least": min(samples, default=0),
        **{name: {kind: dict(of) for kind, of in kinds.items()} for name, kinds in groups.items()},
        "complete": all(row[f"tested_{n}"] == row["refused"] for row in rows for n in REPORTED),
    }  # fmt: skip
