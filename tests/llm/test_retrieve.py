"""Passages of the user's folders: found, cited, and never asked for again by a replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from sassafras.core import SassafrasError
from sassafras.llm.prompt import cited
from tests.shared import needs

needs("bm25s")

from sassafras.llm.retrieve import Passages  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    docs = tmp_path / "docs"
    (docs / "deep").mkdir(parents=True)
    (docs / "a.md").write_text("# Barriers\n\nAn mbarrier counts arrivals.\n" + "Filler line.\n\n" * 80)
    (docs / "deep" / "b.cuh").write_text("// a swizzle of 128 bytes avoids bank conflicts\n")
    (docs / ".hidden.md").write_text("a swizzle of secrets")
    (docs / "c.bin").write_text("a swizzle of bytes")
    return docs


def test_what_is_found_names_file_and_line(folder: Path) -> None:
    passages = Passages([folder])
    (best, *_) = passages.find("swizzle and bank conflicts", 1)
    assert best.source == "docs/deep/b.cuh:1" and "128 bytes" in best.text
    assert passages.find("mbarrier arrivals")[0].source == "docs/a.md:1"
    assert passages.find("zebra") == []
    shown = cited([{"source": best.source, "text": best.text}])
    assert "[docs/deep/b.cuh:1]" in shown and cited([]) == ""


def test_a_folder_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SassafrasError, match="there is no such folder"):
        Passages([tmp_path / "none"])
    with pytest.raises(SassafrasError, match="nothing in this folder"):
        Passages([tmp_path])
