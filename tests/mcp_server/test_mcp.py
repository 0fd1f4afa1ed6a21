"""The MCP server in processes of its own, with the official client, over stdio and HTTP; no GPU."""

from __future__ import annotations

import http.client
import io
import json
import math
import os
import re
import runpy
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.shared import needs, without_torch

needs("anyio", "mcp")  # a second to import: where these tests run, not where they are collected

import anyio  # noqa: E402

from sassafras.cuda.environment import available  # noqa: E402
from sassafras.mcp_server.tools import TOOLS, Call  # noqa: E402
from sassafras.mcp_server.worker import _call  # noqa: E402
from sassafras.store import Store  # noqa: E402
from tests.cli.in_process import sassafras as command_line  # noqa: E402
from tests.processes import alive  # noqa: E402

from .serving import descendants, fill, over_http, over_stdio, said  # noqa: E402

MODEL = {"device": "model"}
EXAMPLE = Path(__file__).parents[2] / "examples" / "agent"
SLOW = {"workload": "slow.toml", **MODEL}


@pytest.fixture
def root(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", without_torch(shared))
    fill(tmp_path)
    (tmp_path.parent / "outside.toml").write_text("threads = 1\n")
    (tmp_path / "link.toml").symlink_to(tmp_path.parent / "outside.toml")
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    return tmp_path


def test_every_tool_over_stdio(root: Path) -> None:
    async def main() -> None:
        async with over_stdio(root) as client:
            assert 'device="model"' in client.instructions
            assert {tool.name for tool in (await client.list_tools()).tools} == {t.__name__ for t in TOOLS}
            for resource in (await client.list_resources()).resources:
                assert len((await client.read_resource(str(resource.uri))).contents[0].text) > 300
            news: list[str | None] = []

            async def hear(progress: float, total: float | None, message: str | None) -> None:
                news.append(message)

            async def call(tool: str, **arguments: Any) -> dict[str, Any]:
                answer = await client.call_tool(tool, arguments, progress_callback=hear)
                assert not answer.is_error, answer.content[0].text
                return dict(answer.structured_content)

            found = await call("doctor")
            assert found["abilities"][0]["ready"]

            base = await call("baseline", **SLOW)
            assert (base["modelled"], base["verdict"], base["modelled_ratio"]) == (True, None, 1.0)

            good = await call("evaluate", **SLOW, cubin="fast.cubin")
            assert good["decided"] == "modelled faster" and good["interval"][0] > 1.0
            assert good["null_interval"][1] < good["interval"][0] and "judging the candidate" in news
            bad = await call("evaluate", **SLOW, cubin="damaged0.cubin")
            assert (bad["verdict"], bad["decided"]) == ("illegal_schedule", "not comparable") and bad[
                "detail"
            ]

            example = runpy.run_path(str(EXAMPLE / "client.py"))
            calls = json.loads((EXAMPLE / "transcript.json").read_text())
            with redirect_stdout(io.StringIO()) as printed:
                await example["replay"](client, calls, "model")
            verdicts = re.findall(r"^  ([\w, ]+):", printed.getvalue(), re.M)
            ran = "modelled, nothing ran"
            assert verdicts == [ran, "compile_error", "cheated", ran], printed.getvalue()

            legal = await call("validate", original="slow.cubin", candidate="fast.cubin")
            assert legal["ok"]
            clean = await call("audit", path="fast.cubin")
            assert clean["ok"] and clean["kernels"][0]["hazards"] == [] and not clean["not_audited"]

            best = await call("optimize", **SLOW, budget="15e")
            assert best["modelled"] and best["evaluations"] == 15 and "15e" in best["budget"]
            assert any("evaluations" in str(one) for one in news)
            listed = await call("store_search", text="512x1024")
            counts = {row["strategy"]: row["evaluations"] for row in listed["runs"]}
            assert counts == {"guided": 15, "evaluate": 3}
            assert all(not rows for rows in (await call("store_search", text="absent")).values())

            why = await call("explain", **SLOW, tuned="fast.cubin", limit=30)
            assert why["moves"] and why["ratio"] > 1.0

            if not available()[0]:
                for tool, more, hint in (
                    ("compare", {"a": "slow.cubin", "b": "fast.cubin"}, "(this tool needs one)"),
                    ("profile", {}, "(this tool needs one)"),
                    ("evaluate", {"cubin": "fast.cubin"}, '(device="model" asks the timing model)'),
                ):
                    answer = await client.call_tool(tool, {"workload": "slow.toml", **more})
                    assert "no usable GPU" in said(answer) and said(answer).endswith(hint)

            for tool, arguments, part in (
                ("evaluate", {"workload": "suite:absent", **MODEL, "source": "x"}, "no kernel 'absent'"),
                ("evaluate", {**SLOW, "source": "x"}, "no source to rewrite"),
                ("evaluate", {**SLOW}, "give source or cubin"),
                (
                    "evaluate",
                    {"workload": "suite:softmax", **MODEL, "source": "x" * 3_000_000},
                    "1 to 1048576",
                ),
                ("baseline", {"workload": "../outside.toml", **MODEL}, "outside of the server's folder"),
                ("baseline", {"workload": "/etc/passwd.py:x", **MODEL}, "outside of the server's folder"),
                ("baseline", {"workload": "link.toml", **MODEL}, "outside of the server's folder"),
                ("baseline", {"workload": "a\0b.toml", **MODEL}, "this is no path"),
                ("baseline", {"workload": "loop.toml", **MODEL}, "this is no path"),
                ("audit", {"path": "x" * 5000}, "this is no path"),
                ("validate", {"original": "slow.cubin", "candidate": "../st"}, "outside of the server's"),
                ("audit", {"path": ".."}, "outside of the server's folder"),
                ("evaluate", {**SLOW, "cubin": "0" * 64}, "0000"),
                ("optimize", {**SLOW, "budget": "30"}, "no unit"),
                ("baseline", {"workload": "slow.toml", "device": "abacus"}, "device"),
            ):
                assert part in said(await client.call_tool(tool, arguments)), (tool, arguments)

    anyio.run(main)


def test_http_answers_callers_in_parallel_and_a_cancelled_search_leaves_nothing(root: Path) -> None:
    from mcp import Client

    with over_http(root) as (port, pid):
        refused_elsewhere(port)
        status, _, told = command_line("mcp", "--http", str(port), "--root", root)
        assert (status, told.count("\n")) == (2, 1)
        assert f"127.0.0.1:{port}: cannot serve HTTP: Address already in use" in told

        async def main() -> None:
            url = f"http://127.0.0.1:{port}/mcp"
            async with Client(url) as client, anyio.create_task_group() as group:
                searching, gone = anyio.Event(), anyio.CancelScope()

                async def hear(progress: float, total: float | None, message: str | None) -> None:
                    if message and message.endswith("evaluations"):
                        searching.set()

                async def search() -> None:
                    with gone:
                        arguments = {**SLOW, "budget": "60s"}
                        await client.call_tool("optimize", arguments, progress_callback=hear)

                group.start_soon(search)
                await searching.wait()
                below = descendants(pid)
                gone.cancel()
                # the fork server stays for the calls to come
                deadline = time.monotonic() + 10
                while sum(map(alive, below)) > 1 and time.monotonic() < deadline:
                    await anyio.sleep(0.05)
                assert len(below) > 1 and sum(map(alive, below)) == 1
                with Store.open(root / "st.sqlite") as store:
                    (run,) = store.runs()
                    assert run.finished_budget is None and run.evaluations > 0
                    assert len(list(store.evaluations(run.id))) == run.evaluations
                with closing(sqlite3.connect(root / "st.sqlite")) as file:
                    assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)

            answers: dict[int, bool] = {}

            async def caller(number: int) -> None:
                async with Client(url) as client:
                    name = "fast.cubin" if number % 2 else f"damaged{number // 2}.cubin"
                    answer = await client.call_tool("validate", {"original": "slow.cubin", "candidate": name})
                    answers[number] = answer.structured_content["ok"]

            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(caller, number)
            assert answers == {number: bool(number % 2) for number in range(8)}

        anyio.run(main)
        below = descendants(pid)
    deadline = time.monotonic() + 10
    while any(map(alive, below)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert below and not any(map(alive, below))  # the server's end is theirs


def refused_elsewhere(port: int) -> None:
    """Only 127.0.0.1 listens, and only to requests that name it."""
    for host, origin, wanted in (
        ("evil.example", None, 421),
        (f"127.0.0.1:{port}", "http://evil.example", 403),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        headers = {"Host": host, "Content-Type": "application/json", "Accept": "application/json"}
        connection.request("POST", "/mcp", b"{}", headers | ({"Origin": origin} if origin else {}))
        assert connection.getresponse().status == wanted
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.2", port)) != 0


def test_a_call_ends_at_its_time_limit(root: Path) -> None:
    from mcp import Client

    from sassafras.mcp_server.server import Calls, server

    async def main() -> str:
        with closing(Calls(root, root / "st.sqlite", 0.5)) as calls:
            async with Client(server(calls)) as client:
                return said(await client.call_tool("optimize", {**SLOW, "budget": "60s"}))

    assert "optimize took longer than 0.5 s" in anyio.run(main)


def test_numbers_that_are_none_are_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Strict JSON has no NaN, which stood in the text of an answer."""

    def none(call: Call) -> dict[str, Any]:
        return {"ratios": [math.nan, -math.inf, 1.5]}

    monkeypatch.setitem(TOOLS, none, 1.0)
    message = {"tool": "none", "arguments": {}, "root": str(tmp_path), "store": None}
    assert _call(message, []) == {"result": {"ratios": ["NaN", "-Infinity", 1.5]}}


def test_without_the_sdk_the_command_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ModuleNotFoundError('no mcp', name='mcp')\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "sassafras", "mcp"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and "pip install -e '.[mcp]'" in done.stderr.replace("\n", " ")
