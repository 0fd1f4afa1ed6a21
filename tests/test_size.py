"""Ceilings on the length of what a reader has to read."""

from __future__ import annotations

import zlib
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: words of the README
README_WORDS = 700
#: words of the README and all pages in docs/
ALL_WORDS = 40_000
#: words of the change log of the release that comes
CHANGELOG_WORDS = 2_400
#: words of the index, the tutorial and the guides
GUIDE_WORDS = 9_664
#: lines of the package: Python, CUDA, C++, and the report's templates, scripts and styles
SOURCE_LINES = 83_072
SOURCE = (".py", ".cu", ".cuh", ".cpp", ".hpp", ".js", ".css", ".jinja")
#: lines of a source file
FILE_LINES = 450
#: places of the package that are laid out by hand
HAND_FORMATTED = 40
#: lines of Python in gemm/
GEMM_LINES = 17_816
#: lines of benchmarks: scripts, kernels, quotes
BENCHMARK_LINES = 24_240
#: bytes of the wheel, without its archive's own
WHEEL_BYTES = 3_500_000


def words(*pages: Path) -> int:
    """Words of Markdown pages, code and tables included."""
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def test_the_readme_is_short() -> None:
    assert 0 < words(ROOT / "README.md") <= README_WORDS


def test_the_change_log_is_short() -> None:
    assert words(ROOT / "CHANGELOG.md") <= CHANGELOG_WORDS


def test_the_guides_are_short() -> None:
    docs = ROOT / "docs"
    assert words(docs / "index.md", docs / "tutorial.md", *(docs / "guides").glob("*.md")) <= GUIDE_WORDS


def test_the_documentation_is_short() -> None:
    assert words(ROOT / "README.md", *(ROOT / "docs").rglob("*.md")) <= ALL_WORDS


def lines(*folders: Path, suffixes: tuple[str, ...] = SOURCE) -> int:
    """Lines of all files of these kinds."""
    return sum(len(path.read_bytes().splitlines()) for path in files(*folders, suffixes=suffixes))


def files(*folders: Path, suffixes: tuple[str, ...] = SOURCE) -> list[Path]:
    """Files of these kinds, in order."""
    return sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes)


def test_the_benchmarks_are_short() -> None:
    assert lines(ROOT / "benchmarks", suffixes=(".py", ".sh", ".cu", ".toml")) <= BENCHMARK_LINES


def test_the_source_is_short() -> None:
    assert lines(ROOT / "src") <= SOURCE_LINES


def test_gemm_is_short() -> None:
    assert lines(ROOT / "src" / "sassafras" / "gemm", suffixes=(".py",)) <= GEMM_LINES


def test_no_source_file_is_long() -> None:
    long = {path.name for path in files(ROOT / "src") if len(path.read_bytes().splitlines()) > FILE_LINES}
    assert not long


def test_few_places_are_laid_out_by_hand() -> None:
    texts = (path.read_text("utf-8") for path in files(ROOT / "src", suffixes=(".py",)))
    assert sum(text.count("# fmt: skip") for text in texts) <= HAND_FORMATTED


def test_the_wheel_is_small() -> None:
    """Compressed sizes of what the wheel holds: code, and data that the package reads."""
    packed = (
        len(zlib.compress(path.read_bytes(), 6))
        for path in (ROOT / "src" / "sassafras").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    assert sum(packed) <= WHEEL_BYTES
