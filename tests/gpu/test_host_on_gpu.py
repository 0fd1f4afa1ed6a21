"""Python candidates in confined processes that use a GPU: the fences leave CUDA working, and the GPU idle."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from gallery import Exhibit, host

from sassafras.cuda.idle import busy
from sassafras.cuda.worker_process import WorkerProcess
from sassafras.evaluate.gpu.protocol import WORKER
from sassafras.evaluate.host import HostEvaluator, HostSource

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.fixture(scope="module")
def judging() -> Iterator[HostEvaluator]:
    with host.judge(device="cuda", call_s=30.0) as made:
        yield made


@pytest.mark.parametrize("exhibit", host.on_gpu(), ids=lambda e: e.name)
def test_every_exhibit_gets_its_verdict(judging: HostEvaluator, exhibit: Exhibit) -> None:
    outcome = judging.evaluate(HostSource(exhibit.make()))
    assert str(outcome.verdict) in exhibit.expected, outcome.detail


def test_an_idle_gpu_looks_idle_and_a_shared_one_does_not() -> None:
    first, second = WorkerProcess(WORKER), WorkerProcess(WORKER)
    try:
        for worker in (first, second):
            worker.ask("idle", 120.0)
        quiet = [first.ask("idle", 60.0)["gaps_ns"] for _ in range(10)]
        print("alone: longest jump, ns", sorted(max(gaps) for gaps in quiet))
        assert sum(busy(gaps) for gaps in quiet) <= 1
        shared = []
        for _ in range(10):  # two contexts, each with work of 12 ms at the same time
            second.send("idle")
            shared.append(first.ask("idle", 60.0)["gaps_ns"])
            second.receive(60.0)
        print("shared: longest jump, ns", sorted(max(gaps) for gaps in shared))
        assert sum(busy(gaps) for gaps in shared) >= 5
    finally:
        first.kill()
        second.kill()
