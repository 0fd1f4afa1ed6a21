"""The measured table: every (shape, configuration) pair that a sweep timed.

JSON Lines, gzip-compressed when the name ends in ``.gz``. The first line is the header: ``sassafras_hgemm``
(format version), ``gpu``, ``kernels`` (digest of our sources), ``cublaslt``, ``torch``, ``commit``, ``date``,
``command``, ``modelled`` (true: written by a dry run, not measured), ``configurations`` (`configs.fields`).
Each further line is a shape:

    {"m": 64, "n": 64, "k": 4096, "ours": [[0, 3.2, 2], ...],
     "baselines": {"torch": {"nn": 5.6, "tn": 5.6}, ...}, "lt": {"nn": {...}, ...}}

``ours`` lists: the place of a configuration among the header's, microseconds (GPU time, CUDA graph, warm L2,
median) and the rung of successive halving that it reached: higher rungs were timed longer, negative ones in
an earlier run than the rest of the line (`merge`). Files of earlier versions (1) have names, not places.
Configurations that no kernel of this version has are passed over. ``lt`` holds cuBLASLt's fastest algorithm
of each layout.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError
from sassafras.core.files import write_whole

from ..configs import names
from ..configs.fields import ConfigurationList, read_list
from ..configs.registry import Config
from ..problem.shape import Shape

FORMAT = 2
#: taken from the rung of a time that is of an earlier run (`merge`)
EARLIER = 10
#: folder of the tables and selectors that come with the package
DATA = Path(__file__).resolve().parent / "data"
#: folder of the recorded datasets: of the repository, the package does without
DATASETS = Path(__file__).resolve().parents[4] / "benchmarks" / "data"


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """What is known of one shape. Raises ValueError: a time is none.

    Attributes:
        shape: the problem (FP16, row-major A, no gaps).
        ours: configuration -> (microseconds, rung).
        baselines: contestant -> layout -> microseconds.
        lt: layout -> cuBLASLt's fastest algorithm (`cublas.LtAlgorithm.to_json`).
    """

    shape: Shape
    ours: dict[Config, tuple[float, int]]
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    lt: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        times = [us for us, _ in self.ours.values()]
        times += [us for by in self.baselines.values() for us in by.values()]
        if not all(0 < us < 1e9 for us in times):
            raise ValueError("a time is not positive")

    def us(self, config: Config) -> float | None:
        """Microseconds of a configuration, None when it was not timed."""
        found = self.ours.get(config)
        return found[0] if found else None

    def ranked(self, layout: str | None = None) -> list[tuple[Config, float]]:
        """(configuration, microseconds) of a layout (None: any), fastest first; longer timed ones first."""
        rows = [(c, us, rung) for c, (us, rung) in self.ours.items() if layout in (None, c.layout)]
        return [(c, us) for c, us, rung in sorted(rows, key=lambda row: (-row[2], row[1], row[0].rank))]

    def baseline_us(self, name: str = "lt_autotune", layout: str | None = None) -> float | None:
        """Microseconds of a baseline; the faster layout for None."""
        by_layout = self.baselines.get(name, {})
        if layout is not None:
            return by_layout.get(layout)
        return min(by_layout.values()) if by_layout else None

    def to_json(self, listed: ConfigurationList) -> dict[str, Any]:
        """A line of the file, whose configurations are listed."""
        shape = self.shape
        line: dict[str, Any] = {"m": shape.m, "n": shape.n, "k": shape.k}
        line["ours"] = sorted([listed.place(c), round(us, 3), rung] for c, (us, rung) in self.ours.items())
        line["baselines"] = {
            name: {layout: round(us, 3) for layout, us in sorted(by.items())}
            for name, by in sorted(self.baselines.items())
        }
        if self.lt:
            line["lt"] = self.lt
        return line

    @classmethod
    def from_json(cls, line: dict[str, Any], listed: Sequence[Config | None]) -> DatasetEntry:
        """The reverse. Raises SassafrasError on anything malformed."""
        try:
            shape = Shape(int(line["m"]), int(line["n"]), int(line["k"]))
            if isinstance(line["ours"], dict):
                timed = _by_names(line["ours"])
            else:
                timed = [(listed[place], us, rung) for place, us, rung in line["ours"]]
            ours = {config: (float(us), int(rung)) for config, us, rung in timed if config is not None}
            baselines = {
                str(name): {str(layout): float(us) for layout, us in by.items()}
                for name, by in line.get("baselines", {}).items()
            }
            return cls(shape, ours, baselines, dict(line.get("lt", {})))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise SassafrasError(f"not a line of a dataset: {error}", where=json.dumps(line)[:80]) from error


def _by_names(timed: dict[str, Any]) -> list[tuple[Config | None, Any, Any]]:
    """Times of a file of an earlier version; a kernel's own count more than those of the one before it."""
    ordered = sorted(timed, key=lambda name: not names.is_approximate(name))
    return [(names.known(name), *timed[name]) for name in ordered]


class Dataset:
    """Entries by shape, with the header that says where they come from."""

    def __init__(self, header: dict[str, Any], entries: Iterable[DatasetEntry]) -> None:
        self.header = {"sassafras_hgemm": FORMAT, **header}
        self.entries = {entry.shape: entry for entry in entries}

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[DatasetEntry]:
        return iter(self.entries.values())

    def __getitem__(self, shape: Shape) -> DatasetEntry:
        return self.entries[shape]

    @property
    def pairs(self) -> int:
        """(shape, configuration) pairs."""
        return sum(len(entry.ours) for entry in self)

    @property
    def modelled(self) -> bool:
        """Written by a dry run: nothing in it was measured."""
        return bool(self.header.get("modelled"))

    def save(self, path: Path) -> None:
        """Write it; equal contents give equal bytes."""
        ordered = sorted(self, key=lambda entry: (entry.shape.flop, entry.shape))
        every = {config for entry in ordered for config in entry.ours}
        listed = ConfigurationList(sorted(every, key=lambda config: config.name))
        header = {**self.header, "sassafras_hgemm": FORMAT, "configurations": listed.to_json()}
        lines = [json.dumps(header, sort_keys=True)]
        lines += [json.dumps(entry.to_json(listed), separators=(",", ":")) for entry in ordered]
        data = ("\n".join(lines) + "\n").encode()
        if path.suffix == ".gz":
            packed = io.BytesIO()
            with gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0, compresslevel=9) as file:
                file.write(data)
            data = packed.getvalue()
        write_whole(path, data)

    @classmethod
    def load(cls, path: Path) -> Dataset:
        """Read it. Raises SassafrasError when it is missing, foreign, of another format or damaged."""
        try:
            data = path.read_bytes()
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
            lines = [json.loads(line) for line in text.splitlines() if line]
        except (OSError, ValueError, EOFError, zlib.error) as error:
            raise SassafrasError(f"the dataset cannot be read: {error}", where=path.name) from error
        header = lines[0] if lines and isinstance(lines[0], dict) else {}
        if header.get("sassafras_hgemm") not in (1, FORMAT):
            raise SassafrasError(
                "not a dataset of this version",
                where=path.name,
                hint=f"its first line should have sassafras_hgemm {FORMAT}",
            )
        listed = read_list(header.pop("configurations", ()))
        return cls(header, (DatasetEntry.from_json(line, listed) for line in lines[1:]))


def merge(old: Dataset, new: Dataset, changed: str) -> Dataset:
    """`old` with the shapes of `new` re-tuned: their winners and baselines are of the new run alone.

    Old times of such a shape stay as negative rungs (what is learnt from a dataset may use them, selection
    does not), but for configurations timed again or whose name `changed` (a regular expression) finds:
    those were other kernels. Shapes that are not in `new` stay as they are.

    Raises:
        SassafrasError: either was modelled, or they are of different GPUs.
    """
    _of_one_kind(old, new)
    other = re.compile(changed)
    entries = dict(old.entries)
    for shape, entry in new.entries.items():
        before = old.entries[shape].ours if shape in old.entries else {}
        kept = {
            config: (us, rung if rung < 0 else rung - EARLIER)
            for config, (us, rung) in before.items()
            if config not in entry.ours and not other.search(config.name)
        }
        entries[shape] = DatasetEntry(shape, {**kept, **entry.ours}, entry.baselines, entry.lt)
    header = {**new.header, "retuned": len(new), "changed": changed, "earlier": _origin(old)}
    return Dataset(header, entries.values())


def _of_one_kind(old: Dataset, new: Dataset) -> None:
    """Raises SassafrasError where the two cannot be put together."""
    if old.modelled or new.modelled:
        raise SassafrasError("a dataset that was modelled cannot be merged")
    if old.header.get("gpu") != new.header.get("gpu"):
        raise SassafrasError(f"datasets of {old.header.get('gpu')} and {new.header.get('gpu')}")


def _origin(of: Dataset) -> dict[str, Any]:
    """Which run a dataset comes from."""
    keys = ("kernels", "cublaslt", "torch", "commit", "date", "command", "options")
    return {key: of.header[key] for key in keys if key in of.header}


def slug(gpu: str) -> str:
    """``NVIDIA H200`` -> ``nvidia-h200``."""
    return "-".join(gpu.lower().split())


def stem(gpu: str, part: str = "") -> str:
    """What a GPU's files begin with: ``nvidia-h200``, or ``nvidia-h200.backward`` (`backward.part`)."""
    return slug(gpu) + (f".{part}" if part else "")


def recorded_path(gpu: str = "NVIDIA H200", part: str = "") -> Path:
    """The file of a GPU's dataset in the repository. Raises SassafrasError when it is not there."""
    path = DATASETS / f"{stem(gpu, part)}.jsonl.gz"
    if not path.is_file():
        raise SassafrasError(
            "no dataset of this GPU is here",
            where=f"{gpu} {part}".strip(),
            hint="datasets come with a checkout of the repository (benchmarks/data), not with the package",
        )
    return path


def shipped(gpu: str = "NVIDIA H200", part: str = "") -> Dataset:
    """The dataset that the shipped table was made from. Raises SassafrasError when it is not there."""
    return Dataset.load(recorded_path(gpu, part))
