"""`CudaDevice`'s processes, on a worker that pretends to have a GPU: forked, fresh, replaced and ended."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sassafras
from sassafras import Candidate, Case, Evaluation, Kernel, Verdict, Workload
from sassafras.cuda import ahead
from sassafras.evaluate.gpu import CudaDevice
from sassafras.evaluate.gpu.device import Limits
from tests.processes import gone
from tests.shared import python_path

ROOT = Path(__file__).parents[2]
KERNEL = Kernel(b"baseline", "k", "sm_90a", 32)
FASTER = Candidate(Kernel(b"faster", "k", "sm_90a", 32))


class Pretended(CudaDevice):
    """No GPU is looked for; all else is as it is."""

    worker = "tests.evaluate.pretended_gpu"

    def __init__(self, **more: Any) -> None:
        # below pytest's own limit, so that a worker that hangs says where
        super().__init__(limits=Limits(open_s=60.0), **more)

    def _find(self) -> tuple[str, str]:
        return "a pretended GPU", "sm_90a"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", python_path(ROOT))
    monkeypatch.setenv("PRETEND_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


@pytest.fixture
def device(log: Path) -> Iterator[Pretended]:
    with Pretended() as opened:
        yield opened


def subject() -> tuple[Workload, Case, Kernel]:
    workload = sassafras.load("suite:softmax")
    return workload, workload.case(None), KERNEL


def said(log: Path, do: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in lines if line["do"] == do]


def test_a_remeasurement_is_made_in_fresh_processes_of_one_import(device: Pretended, log: Path) -> None:
    device.open(*subject())
    assert device.run(FASTER).verdict is Verdict.CORRECT
    searching = device.last_answer["pid"]
    outcome = device.remeasure(FASTER)
    assert isinstance(outcome, Evaluation) and outcome.verdict is Verdict.CORRECT
    assert len(outcome.facts["processes"]) == outcome.facts["processes_asked"] == 5
    opened, measured = said(log, "open"), said(log, "measure")
    assert {line["pid"] for line in measured} == {line["pid"] for line in opened[1:]}
    assert len({line["pid"] for line in opened}) == 6 and opened[0]["pid"] == searching
    assert [line["cold"] for line in opened] == [False] + [True] * 5
    assert len({line["seed"] for line in opened}) == 6
    assert len(said(log, "preload")) == 1 and len({line["parent"] for line in opened}) == 1
    assert all(gone(line["pid"]) for line in measured)
    assert device.run(FASTER).verdict is Verdict.CORRECT and device.last_answer["pid"] == searching


@pytest.mark.parametrize(("free", "together"), [(3 << 30, 2), (1 << 20, 1)])
def test_processes_open_together_as_far_as_the_memory_goes(
    log: Path, monkeypatch: pytest.MonkeyPatch, free: int, together: int
) -> None:
    monkeypatch.setenv("PRETEND_FREE", str(free))
    with Pretended() as device:
        device.open(*subject())
        outcome = device.remeasure(FASTER)
    assert outcome.verdict is Verdict.CORRECT and len(outcome.facts["processes"]) == 5
    done = [json.loads(line)["do"] for line in log.read_text().splitlines()]
    order = "".join(do[0] for do in done if do in ("open", "measure"))
    whole, rest = divmod(5, together)
    assert order == "o" + ("o" * together + "m" * together) * whole + "om" * rest


@pytest.mark.parametrize("loads", ["", "fails"])
def test_processes_are_forked_ahead_of_a_remeasurement(
    log: Path, monkeypatch: pytest.MonkeyPatch, loads: str
) -> None:
    monkeypatch.setenv("PRETEND_LOAD", loads)
    with Pretended() as device:
        device.open(*subject())
        device.prefork()
        device.prefork()  # those that wait are enough
        assert device.run(FASTER).verdict is Verdict.CORRECT  # a search goes on meanwhile
        assert len(said(log, "open")) == 1
        first = device.remeasure(FASTER)
        assert first.verdict is Verdict.CORRECT and len(first.facts["processes"]) == 5
        loaded, measured = said(log, "load"), said(log, "measure")
        ahead = {line["pid"] for line in loaded} == {line["pid"] for line in measured}
        assert len(loaded) == 5 and ahead != bool(loads)  # what cannot load ahead is replaced
        device.remeasure(FASTER)
        measured = said(log, "measure")
        assert len({line["pid"] for line in measured}) == len(measured) == 10
        device.prefork()
        deadline = time.monotonic() + 30
        while len(said(log, "load")) < 10 and time.monotonic() < deadline:
            time.sleep(0.02)
    assert all(gone(line["pid"]) for line in said(log, "load"))


@pytest.mark.parametrize("loads", ["", "fails"])
def test_the_worker_is_begun_while_the_caller_compiles(
    log: Path, monkeypatch: pytest.MonkeyPatch, loads: str
) -> None:
    monkeypatch.setenv("PRETEND_LOAD", loads)
    workload, case, baseline = subject()
    with Pretended() as device:
        device.begin(workload, case)
        device.begin(workload, case)
        device.open(workload, case, baseline)
        assert device.run(FASTER).verdict is Verdict.CORRECT
        begun, opened = said(log, "load"), said(log, "open")
        assert len(begun) == len(opened) == 1
        assert (begun[0]["pid"] == opened[0]["pid"]) != bool(loads)
    with Pretended() as device:
        device.begin(workload, case)  # what was compiled was refused, say
        deadline = time.monotonic() + 30
        while len(said(log, "load")) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    assert gone(said(log, "load")[1]["pid"])


def test_a_server_that_was_started_ahead_is_used(log: Path) -> None:
    ahead.start_server(Pretended.worker)
    ahead.start_server(Pretended.worker)
    deadline = time.monotonic() + 30
    while not (log.exists() and said(log, "preload")) and time.monotonic() < deadline:
        time.sleep(0.02)
    with Pretended() as device, Pretended() as another:
        device.open(*subject())
        assert said(log, "open")[0]["parent"] == said(log, "preload")[0]["pid"]
        another.open(*subject())
        assert len(said(log, "preload")) == 2 and len({line["parent"] for line in said(log, "open")}) == 2


def test_a_server_that_nobody_takes_is_gone(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "GPU_WORKER", Pretended.worker)
    monkeypatch.setattr(ahead, "_SIGNS", ("/nowhere",))
    ahead.begin("auto")
    assert ahead._waiting == {}  # there is no driver
    monkeypatch.setattr(ahead, "_SIGNS", ("/nowhere", "/"))
    ahead.begin("model")
    assert ahead._waiting == {}
    ahead.begin("auto")
    process = ahead._waiting[Pretended.worker]._process
    ahead.drop()
    assert process.poll() is not None and ahead._waiting == {}


def test_opening_goes_on_while_the_caller_works(device: Pretended, log: Path) -> None:
    what = subject()
    device.prepare(*what)
    device.open(*what)
    assert len(said(log, "open")) == 1  # what was prepared is not opened a second time
    device.open(*what)
    assert len(said(log, "open")) == 2
    device.prepare(*what)
    device.open(what[0], what[1], Kernel(b"another", "another", "sm_90a", 32))
    assert device.facts["baseline"] == "another"


def test_the_confirmation_is_expected_to_take_as_long_as_the_opening(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = []
    for opening in ("0", "0.5"):
        monkeypatch.setenv("PRETEND_OPEN_S", opening)
        with Pretended() as device:
            device.open(*subject())
            seconds.append(device.confirmation_s())
    assert 0.55 < seconds[1] - seconds[0] < 3.0


def test_a_crash_costs_a_fork_and_no_import(device: Pretended, log: Path) -> None:
    device.open(*subject())
    outcome = device.run(Candidate(Kernel(b"crash", "k", "sm_90a", 32)))
    assert outcome.verdict is Verdict.CRASHED and "signal 6" in outcome.detail
    assert device.run(FASTER).verdict is Verdict.CORRECT and device.restarts == 1
    assert len(said(log, "preload")) == 1


def test_without_its_fork_server_a_device_starts_its_workers(device: Pretended, log: Path) -> None:
    device.open(*subject())
    assert device._server is not None
    device._server._process.send_signal(signal.SIGKILL)
    device._server._process.wait()
    assert gone(said(log, "open")[0]["pid"])
    assert device.run(FASTER).verdict is Verdict.CORRECT
    outcome = device.remeasure(FASTER, processes=2)
    assert outcome.verdict is Verdict.CORRECT and len(outcome.facts["processes"]) == 2


def test_a_server_whose_imports_fail_is_done_without(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETEND_PRELOAD", "fails")
    with Pretended() as device:
        device.open(*subject())
        device.prefork()
        outcome = device.remeasure(FASTER)
        assert outcome.verdict is Verdict.CORRECT and len(outcome.facts["processes"]) == 5
    assert len(said(log, "preload")) == 1 and len(said(log, "open")) == 6
    assert all(gone(line["pid"]) for line in said(log, "open"))


def test_closing_ends_the_worker_and_the_server(log: Path) -> None:
    with Pretended() as device:
        device.open(*subject())
        assert device._server is not None
        server = device._server._process.pid
        found = device.environment()
    assert found == device.environment() and "python" in found
    assert gone(said(log, "open")[0]["pid"]) and gone(server)
    device.close()
    device.open(*subject())  # as several searches with one device do
    assert device.run(FASTER).verdict is Verdict.CORRECT and len(said(log, "preload")) == 2
    device.close()
    assert gone(said(log, "open")[1]["pid"])
