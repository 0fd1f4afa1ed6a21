"""Ceilings on the length of what a reader has to read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
#: words of the README
README_WORDS = 700
#: words of the README and all pages in docs/
ALL_WORDS = 40_000
#: words of the index, the tutorial and the guides
GUIDE_WORDS = 9_000


def words(*pages: Path) -> int:
    """Words of Markdown pages, code and tables included."""
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def test_the_readme_is_short() -> None:
    assert 0 < words(ROOT / "README.md") <= README_WORDS


def test_the_guides_are_short() -> None:
    docs = ROOT / "docs"
    assert words(docs / "index.md", docs / "tutorial.md", *(docs / "guides").glob("*.md")) <= GUIDE_WORDS


def test_the_documentation_is_short() -> None:
    assert words(ROOT / "README.md", *(ROOT / "docs").rglob("*.md")) <= ALL_WORDS
