"""The corpus builder writes cubins with an index, and the same command resumes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "benchmarks" / "corpus" / "build.py"


def build(out: Path, *options: str) -> list[dict[str, str]]:
    command = [sys.executable, str(BUILD), str(out), "--jobs", "1", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (out / "index.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_an_interrupted_build_resumes(tmp_path: Path) -> None:
    first = build(tmp_path, "--only", "triton", "--arch", "sm_90a", "--limit", "3")
    assert len(first) >= 3
    for line in first:
        data = (tmp_path / line["path"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == line["sha256"]
        assert line["arch"] == "sm_90a" and line["compiler"].startswith("triton 3")
    again = build(tmp_path, "--only", "triton", "--arch", "sm_90a", "--limit", str(len(first) + 1))
    assert again[: len(first)] == first
    assert len({line["name"] for line in again}) == len({line["sha256"] for line in again}) == len(again)
    assert len(again) > len(first)
