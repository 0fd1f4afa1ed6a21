"""The pytest plugin of `gpu_tests.py`: what became of each test is in a file as soon as the test has ended.

$SASSAFRAS_GPU_RECORDS names the file, a JSON object a line. Tests that have ended are not run again, so a run
that was cut goes on where it was, and says which tests it was cut in.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from common import Lines

RECORDS = "SASSAFRAS_GPU_RECORDS"
#: outcome of a test that has begun
BEGUN = "begun"


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """One record a test: file, test, outcome ("passed", "failed", "skipped", or `BEGUN`), seconds, and the
    first line of what went wrong.

    Raises:
        SystemExit: a file cannot be read, or a whole line is no record.
    """
    records = (record for path in paths for record in Lines(path).rows)
    return list({(record["file"], record["test"]): record for record in records}.values())


def pytest_configure(config: pytest.Config) -> None:
    """One process hears of all tests; workers of xdist are told by it what has ended."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(_Rest(config.workerinput.get("ended", ())))
    elif path := os.environ.get(RECORDS):
        try:
            config.pluginmanager.register(_Records(Path(path)))
        except SystemExit as error:
            raise pytest.UsageError(str(error)) from None


class _Rest:
    """Leaves out the tests that had ended when the run began."""

    def __init__(self, ended: Iterable[str]) -> None:
        self.ended = frozenset(ended)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if gone := [item for item in items if item.nodeid in self.ended]:
            config.hook.pytest_deselected(items=gone)
            items[:] = [item for item in items if item.nodeid not in self.ended]


class _Records(_Rest):
    """Writes down what becomes of each test."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{r['file']}::{r['test']}" for r in read([path]) if r["outcome"] != BEGUN)
        self.lines = Lines(path)
        self.phases: dict[str, list[pytest.TestReport]] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["ended"] = sorted(self.ended)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:  # a file that cannot be imported is a test that failed
            self._add(report.nodeid, "failed", why=_why(report))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._add(nodeid, BEGUN)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        phases = self.phases.setdefault(report.nodeid, [])
        phases.append(report)
        if report.when in ("setup", "call"):  # else the teardown, or "???" of a worker that crashed
            return
        del self.phases[report.nodeid]
        wrong = next((each for each in phases if each.failed), None)
        outcome = "failed" if wrong else "skipped" if any(each.skipped for each in phases) else "passed"
        self._add(report.nodeid, outcome, sum(p.duration for p in phases), _why(wrong) if wrong else "")

    def _add(self, node: str, outcome: str, seconds: float = 0.0, why: str = "") -> None:
        file, _, test = node.partition("::")
        record = {"file": file, "test": test, "outcome": outcome, "seconds": round(seconds, 3), "why": why}
        self.lines.add(record)


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    said = str(crash.message if crash else report.longrepr).strip().split("\n")
    return (said[0] if crash else said[-1])[:300]  # without reprcrash it is a traceback's text
