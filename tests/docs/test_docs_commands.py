"""Every command line that a page prints is one that the program takes; nothing is executed."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import typer

from .pages import NAMES, ROOT, blocks, lines, spans

#: pages that must contain commands, so that an extraction that finds none fails
WITH_COMMANDS = ["README.md", "docs/tutorial.md", *(f"docs/guides/{name}.md" for name in (
    "agents", "capture-and-deploy", "cluster", "evolve", "matmul-and-models", "measuring-on-your-gpu",
    "optimise-a-kernel", "report",
))]  # fmt: skip


def ours(page: str) -> list[list[str]]:
    """Arguments of the ``sassafras`` commands of a page's code blocks."""
    return [words[1:] for words in lines(page) if words[0].rsplit("/", 1)[-1] == "sassafras"]


@lru_cache(maxsize=1)
def program() -> Any:
    from sassafras.cli.app import app

    return typer.main.get_command(app)


def leaf(words: list[str]) -> tuple[Any, str, list[str]]:
    """The command that these words name, its name, and the words left."""
    command, name = program(), "sassafras"
    while hasattr(command, "commands") and words:
        name, words = words[0], words[1:]
        assert name in command.commands, f"there is no command {name!r}"
        command = command.commands[name]
    return command, name, words


def options(command: Any) -> set[str]:
    """All options of a command, and of the commands below it."""
    found = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    for below in getattr(command, "commands", {}).values():
        found |= options(below)
    return found | {"--help", "--debug"}


@pytest.mark.parametrize("page", NAMES)
def test_no_page_names_a_triton_beside_torch(page: str) -> None:
    """torch for CUDA needs one version of Triton, which pip would replace."""
    installed = [words for words in lines(page) if words[:2] == ["pip", "install"]]
    named = {word.partition("==")[0]: word for words in installed for word in words[2:]}
    assert "torch" not in named or named.get("triton", "triton") == "triton"


@pytest.mark.parametrize("page", NAMES)
def test_commands_in_code_blocks_parse(page: str) -> None:
    for words in ours(page):
        command, name, rest = leaf(words)
        try:
            command.make_context(name, list(rest))  # raises on an unknown option or a missing argument
        except Exception as error:
            pytest.fail(f"sassafras {' '.join(words)}: {error}")


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_pages_commands_are_found(page: str) -> None:
    assert ours(page)


@pytest.mark.parametrize("page", NAMES)
def test_commands_in_the_text_exist(page: str) -> None:
    """``sassafras store check [--remove]``: the command, and its options; arguments may be left out."""
    for span in spans(page):
        if not re.match(r"sassafras [a-z]", span):
            continue
        words = [word.strip("[]") for word in span.split(" -- ")[0].split()[1:]]
        command, _, rest = leaf([words[0], *words[1:]])
        for word in rest:
            if word.startswith("--"):
                assert word.split("=")[0] in options(command), span


@pytest.mark.parametrize("page", NAMES)
def test_scripts_and_their_options_exist(page: str) -> None:
    """``python benchmarks/x.py --y``: the file is there; it, or what it imports of ours, names the option."""
    for block in blocks(page):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.search(r"\bpython3? ((?:benchmarks|examples)/[\w/]+\.py)(.*)", line.split("#")[0])
            if found is None:
                continue
            script = ROOT / found[1]
            assert script.is_file(), line
            text = _with_neighbours(script)
            for option in re.findall(r"(?<!\S)(--[a-z][\w-]*)", found[2]):
                assert f'"{option}"' in text, f"{line.strip()}: {option}"


def _with_neighbours(script: Path) -> str:
    """A script's text with that of the modules beside it and of ours that it imports."""
    text = script.read_text(encoding="utf-8")
    for module in re.findall(r"(?:from|import) (sassafras[\w.]*|\w+)", text):
        for path in (
            script.with_name(f"{module}.py"),
            ROOT / "src" / (module.replace(".", "/") + ".py"),
            ROOT / "src" / module.replace(".", "/") / "__init__.py",
        ):
            if path.is_file():
                text += path.read_text(encoding="utf-8")
    return text
