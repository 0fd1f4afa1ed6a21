"""Folders of sources and documents as rows to train a language model on: instruction, context, code."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError, ToolMissing
from sassafras.core.errors import reason
from sassafras.core.files import write_whole

from .kernels import FoundKernel, kernels_of
from .retrieve import Passages, readable, text_of

#: files whose passages are context; in the others kernels are looked for
DOCUMENTS = (".md", ".rst", ".txt")
UNKNOWN = "unknown"
#: two kernels are near duplicates if they share this part of their distinct runs of `RUN` tokens
NEAR, RUN = 0.85, 5
_SPDX = re.compile(r"SPDX-License-Identifier:[ \t]*(\w[\w.+() -]*)")
_LICENCE_FILE = re.compile(r"(licen[cs]e|copying)([-.].*)?", re.IGNORECASE)
_INSTALL = "in the checkout: pip install -e '.[llm-train]'"


@dataclass(frozen=True, slots=True)
class Corpus:
    """What became of folders.

    Attributes:
        rows: one a kernel: ``instruction``, ``context`` (passages with ``source``, ``licence``, ``text``),
            ``code``, ``language``, ``name``, ``source`` (file and line), ``licence``.
        files: files that hold a kernel.
        exact, near: duplicates that were left out.
        refused: kernels left out for their licence.
        unread: Python files with a syntax error.
    """

    rows: list[dict[str, Any]]
    files: int
    exact: int
    near: int
    refused: int
    unread: list[str]

    def summary(self) -> str:
        """One line."""
        licences = Counter(row["licence"] for row in self.rows)
        return (
            f"{len(self.rows)} kernels of {self.files} files; left out: {self.exact} exact and {self.near} "
            f"near duplicates, {self.refused} for their licence; licences: "
            + ", ".join(f"{licence} {count}" for licence, count in licences.most_common())
        )


def write_corpus(
    folders: Sequence[str | Path], out: str | Path, *, licences: Sequence[str] = (), passages: int = 2
) -> Corpus:
    """Write the corpus of folders, a JSON object a line; the file is whole or not there.

    Args:
        folders: searched through, hidden files left out; their last names must differ.
        out: the file.
        licences: SPDX identifiers; files under others, or of unknown licence, are left out, documents too.
        passages: most passages of documents in a row's context.

    Raises:
        SassafrasError: a folder cannot be read, or no kernel is left.
        ToolMissing: a package of the extra ``llm-train`` is not installed.
    """
    corpus = _read(folders, licences, passages)
    try:
        write_whole(Path(out), "".join(json.dumps(row, sort_keys=True) + "\n" for row in corpus.rows))
    except OSError as error:
        raise SassafrasError(reason(error), where=str(out)) from error
    return corpus


def _read(folders: Sequence[str | Path], licences: Sequence[str], passages: int) -> Corpus:
    roots = [Path(folder).expanduser() for folder in folders]
    if len({root.resolve().name for root in roots}) < len(roots):
        raise SassafrasError("two folders have the same last name", hint="name the folder above them")
    files = [(name, path, root) for root in roots for name, path in readable(root)]
    licence_in = cache(_licence_in)
    licence = {name: _licence_of(path, root, licence_in) for name, path, root in files}
    allowed = [name for name, _, _ in files if not licences or _allows(licences, licence[name])]
    found: list[tuple[str, FoundKernel]] = []
    refused: list[tuple[str, FoundKernel]] = []
    unread: list[str] = []
    for name, path, _ in files:
        if path.suffix not in DOCUMENTS:
            try:
                kernels = kernels_of(text_of(path), path.suffix)
            except (SyntaxError, ValueError):
                unread.append(name)
                continue
            (found if name in allowed else refused).extend((name, kernel) for kernel in kernels)
    if not found:
        others = ", ".join(sorted({licence[name] for name, _ in refused}))
        what = (
            f"all kernels are under other licences: {others}"
            if others
            else "there is no CUDA or Triton kernel"
        )
        raise SassafrasError(what, where=", ".join(map(str, folders)))
    distinct, exact, near = _distinct(found)
    documents = {path for name, path, _ in files if path.suffix in DOCUMENTS and name in allowed}
    index = Passages(roots, documents.__contains__) if documents and passages else None
    rows = [_row(name, kernel, index, passages, licence) for name, kernel in distinct]
    return Corpus(rows, len({name for name, _ in distinct}), exact, near, len(refused), unread)


def _row(
    name: str, kernel: FoundKernel, index: Passages | None, passages: int, licence: dict[str, str]
) -> dict[str, Any]:
    kind = "CUDA C++" if kernel.language == "cuda" else "Triton"
    about = f"\n{kernel.about}" if kernel.about else ""
    shown = [] if index is None else index.find(f"{kernel.name.replace('_', ' ')}\n{kernel.about}", passages)
    return {
        "instruction": f"Write the {kind} kernel `{kernel.name}`.{about}\nSignature: {kernel.signature}",
        "context": [
            {"source": each.source, "licence": licence[each.source.rpartition(":")[0]], "text": each.text}
            for each in shown
        ],
        "code": kernel.code,
        "language": kernel.language,
        "name": kernel.name,
        "source": f"{name}:{kernel.line}",
        "licence": licence[name],
    }


# -- duplicates ----------------------------------------------------------------------------------------------


def _distinct(
    found: Iterable[tuple[str, FoundKernel]],
) -> tuple[list[tuple[str, FoundKernel]], int, int]:
    """The first of each group of duplicates; how many exact and near ones were left out.

    Exact: the same tokens without comments. Near: see `NEAR`; MinHash finds the pairs to compare.
    """
    try:
        from datasketch import MinHash, MinHashLSH
    except ImportError as error:
        raise ToolMissing("near duplicates are found by datasketch", hint=_INSTALL) from error
    index = MinHashLSH(threshold=NEAR - 0.1, num_perm=128)
    seen: set[tuple[str, ...]] = set()
    kept: list[tuple[str, FoundKernel]] = []
    runs_of: list[set[str]] = []
    exact = near = 0
    for name, kernel in found:
        tokens = kernel.tokens
        if tokens in seen:
            exact += 1
            continue
        seen.add(tokens)
        runs = {" ".join(tokens[i : i + RUN]) for i in range(max(1, len(tokens) - RUN + 1))}
        sketch = MinHash(num_perm=128)
        sketch.update_batch([run.encode() for run in sorted(runs)])
        others = (runs_of[place] for place in index.query(sketch))
        if any(len(runs & other) >= NEAR * len(runs | other) for other in others):
            near += 1
            continue
        index.insert(len(kept), sketch)
        kept.append((name, kernel))
        runs_of.append(runs)
    return kept, exact, near


# -- licences ------------------------------------------------------------------------------------------------


def _licence_of(path: Path, root: Path, licence_in: Callable[[Path], str | None]) -> str:
    """SPDX expression of a file: its own line, else the nearest licence file's up to `root`, else unknown."""
    if own := _SPDX.search(text_of(path)[:4000]):
        return own[1].rstrip(" -")
    for folder in _upwards(path.parent, root):
        if (licence := licence_in(folder)) is not None:
            return licence
    return UNKNOWN


def _upwards(folder: Path, root: Path) -> Iterator[Path]:
    yield folder
    while folder != root:
        folder = folder.parent
        yield folder


def _licence_in(folder: Path) -> str | None:
    """Of a folder's licence file; None where it has none."""
    try:
        import ukkonen  # noqa: F401  (identify compares texts with it)
        from identify.identify import license_id
    except ImportError as error:
        raise ToolMissing("licences are told by identify[license]", hint=_INSTALL) from error
    names = sorted(path for path in folder.iterdir() if _LICENCE_FILE.fullmatch(path.name) and path.is_file())
    for path in names:
        if own := _SPDX.search(text_of(path)):
            return own[1].rstrip(" -")
        try:
            if (found := license_id(str(path))) is not None:
                return str(found)
        except UnicodeDecodeError:
            continue
    return UNKNOWN if names else None


def _allows(licences: Sequence[str], expression: str) -> bool:
    """Whether an SPDX expression is satisfied by these identifiers; one in brackets must be named whole."""
    known = {licence.strip().lower() for licence in licences}
    if "(" in expression or expression.lower() in known:
        return expression.lower() in known
    choices = re.split(r"\s+OR\s+", expression, flags=re.IGNORECASE)
    parts = [re.split(r"\s+AND\s+", choice, flags=re.IGNORECASE) for choice in choices]
    return any(all(part.strip().lower() in known for part in choice) for choice in parts)
