"""A coding agent without a model: replays the tool calls of a transcript over stdio, and prints the verdicts.

python examples/agent/client.py [--device model] [--store FILE]

`transcript.json` holds the calls that get one kernel judged: two sources that are refused, then one that is
accepted. An `edit` changes the source that the tool `baseline` returned.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path

import anyio
from mcp import Client, StdioServerParameters, stdio_client

HERE = Path(__file__).parent


async def replay(client: Client, calls: list[dict], device: str) -> None:
    source = ""
    for call in calls:
        arguments = {**call["arguments"], "device": device}
        if "edit" in call:  # what the agent changed in the source that it was shown
            old, new = call["edit"]
            assert old in source, f"the transcript edits {old!r}, which is not in the source"
            arguments["source"] = source.replace(old, new)
        print(f"> {call['tool']} {call['says']}")
        answer = await client.call_tool(call["tool"], arguments)
        if answer.is_error:
            print(f"  {answer.content[0].text}")
            return
        found = answer.structured_content
        if block := re.search(r"```\w+\n(.*?)```", found["brief"], re.S):
            source = block[1]
        verdict = found["verdict"] or "modelled, nothing ran"
        ratio, null = found.get("speedup") or found.get("modelled_ratio"), found["null"]
        figures = f"; ratio {ratio:.3f}, control {null:.3f}" if ratio and null else ""
        print(f"  {verdict}: {found['decided']}{figures} {found['detail'][:200]}".rstrip())


async def main(device: str, store: str | None) -> None:
    command = ["-m", "sassafras", "mcp", "--root", str(HERE), *(["--store", store] if store else [])]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        await replay(client, json.loads((HERE / "transcript.json").read_text()), device)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "model"], default="cuda")
    parser.add_argument("--store")
    given = parser.parse_args()
    anyio.run(main, given.device, given.store)
