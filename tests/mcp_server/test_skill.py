"""The skill for coding agents names tools, commands, verdicts and resources that exist."""

from __future__ import annotations

import re
from pathlib import Path

from typer.main import get_command

from sassafras.cli.app import app
from sassafras.core import Verdict
from sassafras.mcp_server import tools

SKILL = Path(__file__).parents[2] / "examples" / "agent" / "SKILL.md"


def test_what_the_skill_names_exists() -> None:
    text = SKILL.read_text(encoding="utf-8")
    head, body = re.match(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    assert set(re.findall(r"^(\w+):", head, re.MULTILINE)) == {"name", "description"}
    names = {tool.__name__ for tool in tools.TOOLS}
    assert {"doctor", "baseline", "evaluate", "judge", "profile", "optimize", "audit", "compare"} <= names
    words = set(re.findall(r"`([a-z_]+)`", body))
    verdicts = {str(verdict) for verdict in Verdict}
    other = {"source", "brief", "verdict", "decided", "faster", "detail"}
    assert words <= names | verdicts | other, words - names - verdicts - other
    assert len(words & verdicts) >= 6
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"`sassafras (\w+)", body)) <= commands
    uri = re.search(r"`sassafras://(\w+)`", body)
    assert uri is not None and (Path(tools.__file__).parent / f"{uri[1]}.md").is_file()
