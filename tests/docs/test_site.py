"""The site builds without warnings, and its generated pages are complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sassafras

from .pages import ROOT
from .test_docs_commands import program

pytest.importorskip("mkdocs")


def leaves(command: object, name: str) -> list[str]:
    """The full names of a command and of those below it."""
    below = getattr(command, "commands", {})
    return [name, *(leaf for key in below for leaf in leaves(below[key], f"{name} {key}"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a strict build: broken links and anchors fail it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_the_command_reference_has_every_command(site: Path) -> None:
    page = (site / "reference" / "cli" / "index.html").read_text(encoding="utf-8")
    titles = re.findall(r"<h2[^>]*><code>([^<]+)</code>", page)
    assert titles == leaves(program(), "sassafras")[1:]
    assert page.count("Usage: sassafras ") == len(titles)


def test_the_python_reference_has_every_public_name(site: Path) -> None:
    page = (site / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    missing = [name for name in sassafras.__all__ if f'id="sassafras.{name}"' not in page]
    assert missing == ["__version__"]


def test_the_picture_is_that_of_the_result_files() -> None:
    done = subprocess.run([sys.executable, "docs/picture.py", "--check"], cwd=ROOT)
    assert done.returncode == 0, "run: python docs/picture.py"
