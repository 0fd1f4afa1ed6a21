"""Does a table mined from one half of a corpus let the other half pass?

``python -m sassafras.sass.latency.holdout CORPUS --arch sm_90`` splits a corpus at random many times, mines
one half, and counts the pairs of the other half that are closer than the table allows. Variants of one
kernel (optimisation levels, block sizes) always stay in one half.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from sassafras.core.errors import LatencyTableError, SassafrasError

from .. import archs
from ..program import Program
from .mining import DistanceSample, Miner
from .table import KINDS, Key


@dataclass(frozen=True, slots=True)
class Split:
    """One split, counted over the half that was not mined.

    Attributes:
        pairs: pairs by kind.
        unknown: those of them of which the table says None.
        below: those closer than the table allows: false rejections.
        rows: rows that were missed: (key, the mined minimum, the smaller distance met).
    """

    pairs: Counter[str]
    unknown: Counter[str]
    below: Counter[str]
    rows: tuple[tuple[Key, int, int], ...]


def family(name: str) -> str:
    """``cuda-transpose`` of ``cuda-transpose-O3-sm_90a``: the part that variants share."""
    return "-".join(name.split("-")[:2])


def read(
    files: Iterable[Path], table: str, family: Callable[[str], str] = family
) -> dict[str, list[DistanceSample]]:
    """Every pair of a corpus, by family. Cubins for other architectures are left out."""
    miner, found = Miner(table), dict[str, list[DistanceSample]]()
    for file in files:
        program = Program.parse(file.read_bytes())
        if program.arch in archs.ARCHS and archs.ARCHS[program.arch].table == table:
            for function in program.functions.values():
                found.setdefault(family(file.stem), []).extend(miner.samples(function, file.stem))
    return found


def split(samples: dict[str, list[DistanceSample]], table: str, rng: random.Random) -> Split:
    """Mine a random half of the families and hold the others against it.

    Raises:
        LatencyTableError: there are not two families.
    """
    if len(samples) < 2:
        raise LatencyTableError("a corpus needs two families of kernels to be split", where=table)
    names = sorted(samples)
    rng.shuffle(names)
    half = len(names) // 2
    miner = Miner(table)
    for name in names[:half]:
        for sample in samples[name]:
            miner.count(sample)
    mined = miner.table()
    pairs, unknown, below = Counter[str](), Counter[str](), Counter[str]()
    rows: dict[Key, tuple[int, int]] = {}
    known = {key: mined.distance(*key) for key in mined.rows}
    for name in names[half:]:
        for sample in samples[name]:
            kind = sample.key[0]
            pairs[kind] += 1
            floor = known.get(sample.key)
            if floor is None:
                unknown[kind] += 1
            elif sample.cycles < floor.cycles:
                below[kind] += 1
                least = min(sample.cycles, rows.get(sample.key, (0, sample.cycles))[1])
                rows[sample.key] = (floor.cycles, least)
    return Split(pairs, unknown, below, tuple((key, *numbers) for key, numbers in sorted(rows.items())))


def report(splits: list[Split]) -> str:
    """A table of the splits' means, and the rows that were missed."""
    lines = ["kind     pairs a split   unknown   false rejections a split (of a million known pairs)"]
    for kind in KINDS:
        pairs = sum(s.pairs[kind] for s in splits)
        unknown, below = sum(s.unknown[kind] for s in splits), sum(s.below[kind] for s in splits)
        if not pairs:
            continue
        rate = f"({1e6 * below / max(1, pairs - unknown):.0f})"
        count = len(splits)
        lines.append(f"{kind:6}{pairs / count:16.0f}{unknown / pairs:10.1%}{below / count:14.2f} {rate}")
    missed: Counter[tuple[Key, int, int]] = Counter(row for s in splits for row in s.rows)
    for (key, mined, met), count in missed.most_common(20):
        lines.append(f"in {count} of {len(splits)} splits: {' '.join(key)}: mined {mined}, met {met}")
    return "\n".join(lines)


def main() -> None:
    """Entry point of ``python -m``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="folder of cubins")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    table = archs.get(given.arch).table
    rng = random.Random(given.seed)
    samples = read(sorted(given.corpus.rglob("*.cubin")), table)
    print(f"{table}: {len(samples)} families, {sum(map(len, samples.values()))} pairs, seed {given.seed}")
    print(report([split(samples, table, rng) for _ in range(given.splits)]))


if __name__ == "__main__":
    try:
        main()
    except SassafrasError as error:
        raise SystemExit(str(error)) from None
