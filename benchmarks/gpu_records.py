"""The pytest plugin of `gpu_tests.py`: what became of each test is in a file as soon as the test has ended.

$SASSAFRAS_GPU_RECORDS names the file, a JSON object a line. Tests that have ended are not run again, so a run
that was cut goes on where it was, and says which tests it was cut in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

RECORDS = "SASSAFRAS_GPU_RECORDS"
#: outcome of a test that has begun
BEGUN = "begun"

_phases: dict[str, list[pytest.TestReport]] = {}


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """One record a test: file, test, outcome ("passed", "failed", "skipped", or `BEGUN`), seconds, and the
    first line of what went wrong. A line that was cut off is left out."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            found[record["file"], record["test"]] = record
    return list(found.values())


def _write(node: str, outcome: str, seconds: float = 0.0, why: str = "") -> None:
    if RECORDS not in os.environ or "PYTEST_XDIST_WORKER" in os.environ:  # the workers' reports reach us
        return
    file, _, test = node.partition("::")
    record = {"file": file, "test": test, "outcome": outcome, "seconds": round(seconds, 3), "why": why}
    with Path(os.environ[RECORDS]).open("a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    said = str(crash.message if crash else report.longrepr).strip().split("\n")
    return (said[0] if crash else said[-1])[:300]  # without reprcrash it is a traceback's text


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those that have ended are left out."""
    if not (path := Path(os.environ.get(RECORDS, ""))).is_file():
        return
    ended = {f"{r['file']}::{r['test']}" for r in read([path]) if r["outcome"] != BEGUN}
    if gone := [item for item in items if item.nodeid in ended]:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item.nodeid not in ended]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported is a test that failed."""
    if report.failed:
        _write(report.nodeid, "failed", why=_why(report))


def pytest_runtest_logstart(nodeid: str) -> None:
    """The test has begun."""
    _write(nodeid, BEGUN)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The test has ended with its teardown, or with the xdist worker that ran it ("???")."""
    phases = _phases.setdefault(report.nodeid, [])
    phases.append(report)
    if report.when in ("setup", "call"):
        return
    del _phases[report.nodeid]
    wrong = next((each for each in phases if each.failed), None)
    outcome = "failed" if wrong else "skipped" if any(each.skipped for each in phases) else "passed"
    _write(report.nodeid, outcome, sum(each.duration for each in phases), _why(wrong) if wrong else "")
