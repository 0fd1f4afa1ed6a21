"""MCP tools on a GPU: the verdicts of the command line, and 8 callers in turn; printed with -s."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

anyio = pytest.importorskip("anyio")
pytest.importorskip("mcp.server.mcpserver", reason="needs the extra mcp")

from sassafras.llm.source_space import source_of  # noqa: E402
from sassafras.schedule import ScheduleSpace  # noqa: E402
from sassafras.store import Store  # noqa: E402
from sassafras.targets import load  # noqa: E402
from tests.mcp_server.serving import over_stdio  # noqa: E402
from tests.report.subjects import shifted  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
TARGET = "suite:softmax"


def test_verdicts_are_those_of_the_command_line_and_callers_take_turns(tmp_path: Path) -> None:
    workload = load(TARGET)
    original = workload.build(workload.case(None), "sm_90a")
    (tmp_path / "a.cubin").write_bytes(original.cubin)
    (tmp_path / "b.cubin").write_bytes(shifted(ScheduleSpace(original), up=False).cubin)
    text = source_of(workload)[1]
    wrong = text.replace("e / tl.sum(e, axis=0)", "e")
    assert wrong != text
    command = [sys.executable, "-m", "sassafras", "compare", TARGET, "a.cubin", "b.cubin", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    cli = json.loads(done.stdout)

    async def main() -> None:
        async with over_stdio(tmp_path) as client:

            async def call(tool: str, **arguments: Any) -> dict[str, Any]:
                answer = await client.call_tool(tool, {"workload": TARGET, **arguments})
                assert not answer.is_error, answer.content[0].text
                return dict(answer.structured_content)

            mine, other = (
                await call("evaluate", cubin="b.cubin"),
                await call("compare", a="a.cubin", b="b.cubin"),
            )
            print(cli, mine["decided"], mine["speedup"], mine["interval"], mine["null_interval"])
            assert mine["verdict"] == other["verdict"] == cli["verdict"] == "correct"
            low, high = mine["interval"]
            for their in (cli, other):
                assert low <= 1.01 * their["interval"][1] and their["interval"][0] <= 1.01 * high
            base = await call("baseline")
            assert (
                base["decided"] == "no difference" and base["time_us"] > 0 and text.strip() in base["brief"]
            )

            answers: dict[int, dict[str, Any]] = {}

            async def caller(number: int) -> None:
                answers[number] = await call("evaluate", source=(text, wrong)[number % 2] + f"\n# {number}\n")

            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(caller, number)
            print([(one["verdict"], one["speedup"], one["null"]) for _, one in sorted(answers.items())])
            assert [answers[n]["verdict"] for n in range(8)] == ["correct", "wrong_result"] * 4
            metrics = (await call("profile"))["metrics"]
            print(metrics)
            assert set(metrics) == {"baseline", "candidate"} and all(metrics.values())

    anyio.run(main)
    with Store.open(tmp_path / "st.sqlite") as store:
        assert sum(run.evaluations for run in store.runs()) >= 4
