"""A server in a process of its own, the official client on it, and files to judge."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from sassafras.sass import Program
from tests.report.subjects import sunk

TOML = """
name = "softmax"
cubin = "slow.cubin"
threads = 128
shared_bytes = 32
[[case]]
name = "512x1024"
grid = [512, 1, 1]
[case.args]
y_ptr = { dtype = "fp32", shape = [512, 1024], role = "out" }
x_ptr = { dtype = "fp32", shape = [512, 1024] }
n = 1024
stride = 1024
scratch = { dtype = "fp32", shape = [4] }  # Triton's own
profile = { dtype = "fp32", shape = [4] }
"""


def fill(folder: Path) -> None:
    """A workload whose loads were sunk (``slow.toml``), the schedule that hoists them, and damaged copies."""
    slow, fast = sunk()
    (folder / "slow.toml").write_text(TOML)
    (folder / "slow.cubin").write_bytes(slow.cubin)
    (folder / "fast.cubin").write_bytes(fast.cubin)
    code = next(iter(Program.parse(slow.cubin).functions.values())).text_offset
    for number in range(4):  # one instruction is replaced by the next one
        damaged, at = bytearray(slow.cubin), code + 16 * (10 + 3 * number)
        damaged[at : at + 16] = damaged[at + 16 : at + 32]
        (folder / f"damaged{number}.cubin").write_bytes(damaged)


def command(root: Path, *more: str) -> list[str]:
    return ["-m", "sassafras", "mcp", "--root", str(root), "--store", str(root / "st.sqlite"), *more]


@asynccontextmanager
async def over_stdio(root: Path, *more: str) -> AsyncIterator[Any]:
    from mcp import Client, StdioServerParameters, stdio_client

    server = StdioServerParameters(command=sys.executable, args=command(root, *more), env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        yield client


@contextmanager
def over_http(root: Path, *more: str) -> Iterator[tuple[int, int]]:
    """(port, process id) of a server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, *command(root, "--http", str(port), *more)])
    try:
        deadline = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None and time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(20)


def descendants(pid: int) -> set[int]:
    """Processes below one that live now."""
    found: set[int] = set()
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found |= {int(child)} | descendants(int(child))
    except OSError:
        pass
    return found


def said(answer: Any) -> str:
    """What an error says."""
    assert answer.is_error, answer.structured_content
    return str(answer.content[0].text)
