"""Whatever a page points at is there: links, headings, files and names of ours."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

from .pages import NAMES, ROOT, prose, spans

#: pages that a command makes once there is something to say (result files are announced before they are
#: there, so that JSON is left to the test of figures)
MADE = {"docs/concepts/search-space.md"}
#: where a page may leave the beginning of a path out
BASES = (ROOT, ROOT / "src" / "sassafras", ROOT / "benchmarks", ROOT / "examples")
_PATH = re.compile(r"(?:[\w.-]+/)+[\w.-]+\.(?:py|md|toml|cuh|cu|cpp|sh)|(?:[\w-]+/){2,}")


def slugs(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", NAMES)
def test_links_lead_somewhere(page: str) -> None:
    here = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        place = (here.parent / path).resolve() if path else here
        assert place.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in slugs(place), f"{page}: {target}"


@pytest.mark.parametrize("page", [name for name in NAMES if name != "CHANGELOG.md"])  # it names what is gone
def test_files_that_are_named_exist(page: str) -> None:
    for span in spans(page):
        if _PATH.fullmatch(span) and span not in MADE:
            assert any((base / span).exists() for base in BASES), f"{page}: {span}"


@pytest.mark.parametrize("page", NAMES)
def test_names_of_ours_exist(page: str) -> None:
    """``sassafras.report.explain.MoveClass``, ``sassafras.install()``"""
    for span in spans(page):
        name = re.fullmatch(r"(?:python -m )?(sassafras(?:\.\w+)+)(?:\(.*\))?", span)
        if name is None:
            continue
        try:
            pkgutil.resolve_name(name[1])
        except ImportError as error:
            if (error.name or "").startswith("sassafras"):
                raise AssertionError(f"{page}: {span}") from error
            pytest.skip(f"{error.name} is not installed")
