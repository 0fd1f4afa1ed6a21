"""MCP tools on a GPU: the verdicts of the command line, 8 callers in turn, and calls that end badly."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.shared import needs

needs("anyio", "mcp")

import anyio  # noqa: E402

from sassafras.llm.source_space import source_of  # noqa: E402
from sassafras.schedule import ScheduleSpace  # noqa: E402
from sassafras.store import Store  # noqa: E402
from sassafras.targets import load  # noqa: E402
from tests.mcp_server.serving import over_stdio, said  # noqa: E402
from tests.report.subjects import shifted  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
TARGET = "suite:softmax"
#: the gallery's device code as a workload with a source
HONEST = """
from sassafras.frontend.cuda import workload as cuda_workload
from subject import CASE, text, workload as subject

workload = cuda_workload(
    text("cheats.cu", "CHEAT", 0), [CASE], name="gallery", entry="gallery", threads=256,
    reference=subject.reference, tolerance=subject.tolerance, meta=subject.meta,
)
"""
GALLERY = Path(__file__).parents[2] / "benchmarks" / "gallery"


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


def test_calls_that_hang_crash_or_are_cancelled_leave_the_gpu_to_the_next(tmp_path: Path) -> None:
    """What hangs is ended by the judge, by a cancelled call, and by the server's limit."""
    for name in ("subject.py", "cheats.cu"):
        shutil.copy(GALLERY / name, tmp_path)
    (tmp_path / "honest.py").write_text(HONEST)
    code = (GALLERY / "cheats.cu").read_text()
    honest, hangs, crashes = (f"#define CHEAT {number}\n{code}" for number in (0, 15, 16))

    async def main(*more: str) -> None:
        async with over_stdio(tmp_path, *more) as client:

            async def call(source: str, **how: Any) -> Any:
                given = {"workload": "honest.py:workload", "source": source}
                return await client.call_tool("evaluate", given, **how)

            if more:  # the server's limit, far below the judge's
                assert "evaluate took longer than 2 s" in said(await call(hangs))
                return
            running, gone = anyio.Event(), anyio.CancelScope()

            async def hear(progress: float, total: float | None, message: str | None) -> None:
                if message == "judging the candidate":
                    running.set()

            async def cancelled() -> None:
                with gone:
                    answer = await call(hangs, progress_callback=hear)
                    raise AssertionError(f"it was not cancelled: {answer}")

            verdicts: dict[str, str] = {}

            async def caller(name: str, source: str) -> None:
                begin = time.monotonic()
                answer = await call(source)
                assert not answer.is_error, said(answer)
                verdicts[name] = answer.structured_content["verdict"]
                print(f"{name}: {verdicts[name]} after {time.monotonic() - begin:.1f} s")

            async with anyio.create_task_group() as group:
                group.start_soon(cancelled)
                await running.wait()
                for name, source in (("hangs", hangs), ("crashes", crashes), ("honest", honest)):
                    group.start_soon(caller, name, source)
                await anyio.sleep(1.5)  # it is on the GPU, whose judge ends it after 5 s, and the others wait
                assert not verdicts
                gone.cancel()
            wanted = {"hangs": "timed_out", "crashes": "crashed", "honest": "correct"}
            assert verdicts == wanted

    anyio.run(main)
    anyio.run(main, "--limit", "2")


def test_a_server_whose_gpu_is_gone_says_so_and_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    async def main() -> None:
        async with over_stdio(tmp_path) as client:
            for tool, more in (("evaluate", {"source": "x"}), ("compare", {"a": "x", "b": "x"})):
                text = said(await client.call_tool(tool, {"workload": TARGET, **more}))
                assert "no usable GPU" in text and "model" in text
            answer = await client.call_tool("baseline", {"workload": TARGET, "device": "model"})
            assert answer.structured_content["modelled"]

    anyio.run(main)
