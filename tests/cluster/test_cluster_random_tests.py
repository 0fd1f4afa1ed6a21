"""Sampling on a cluster: parts and their sum, and what workers without a GPU say."""

from __future__ import annotations

import json
import socket
from collections import defaultdict
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sassafras.api.verify import verify
from sassafras.cli.app import app
from sassafras.cluster import Pool, Task
from sassafras.cluster.random_tests import Enough, SampleShard, SampleTally, Shard, heard, merge, plan, sample
from sassafras.core import Candidate, DeviceError, SassafrasError, Verdict
from sassafras.core.statistics import failure_bound
from sassafras.cuda.environment import available
from sassafras.evaluate.gpu.reports import SampleReport
from sassafras.targets import load

from .conftest import Nodes


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 70), st.integers(1, 2_000_000))
def test_shards_add_up_and_draw_inputs_of_their_own(cases: int, workers: int, samples: int) -> None:
    names = [f"case {index}" for index in range(cases)]
    shards = plan(names, workers, samples)
    assert sum(shard.count for shard in shards) == max(samples, cases)
    assert len({shard.seed for shard in shards}) == len({str(shard) for shard in shards}) == len(shards)
    assert all(0 < shard.seed < 1 << 31 for shard in shards), "seed << 32 is a sample's number in 64 bits"
    of_case: dict[str, list[int]] = defaultdict(list)
    for shard in shards:
        of_case[shard.case].append(shard.count)
    assert list(of_case) == names, "one case after another"
    for counts in of_case.values():
        assert 1 <= len(counts) <= workers
        assert max(counts) - min(counts) <= 1
    totals = [sum(counts) for counts in of_case.values()]
    assert max(totals) - min(totals) <= 1


def test_every_worker_has_all_seconds_of_a_case() -> None:
    shards = plan(["a", "b"], 3, 600, seconds=10.0)
    assert [(s.case, s.seed, s.count, s.seconds) for s in shards] == [
        ("a", 1, 100, 5.0), ("a", 2, 100, 5.0), ("a", 3, 100, 5.0),
        ("b", 4, 100, 5.0), ("b", 5, 100, 5.0), ("b", 6, 100, 5.0),
    ]  # fmt: skip
    for cases, workers in (([], 2), (["a"], 0)):
        with pytest.raises(DeviceError, match="nothing to sample"):
            plan(cases, workers, 10)


def _part(
    seed: int, samples: int = 100, mismatches: int = 0, seconds: float = 1.0, *, host: str = "one",
    gpu: str = "0", verdict: Verdict | None = None,
) -> SampleShard:  # fmt: skip
    found = verdict or (Verdict.WRONG_RESULT if mismatches else Verdict.CORRECT)
    report = SampleReport(
        samples, mismatches, seconds, failure_bound(samples, mismatches), "a scope", 500.0, found, "at out[3]"
    )
    return SampleShard(Shard("case", seed, samples), host, gpu, report)


PARTS = st.lists(
    st.tuples(
        st.integers(1, 10_000), st.integers(0, 3), st.integers(1, 20), st.sampled_from(["one", "two"]),
        st.sampled_from(["0", "1"]),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@settings(deadline=None)
@given(PARTS, st.randoms(use_true_random=False))
def test_parts_add_up_in_any_order(rows: list[tuple[int, int, int, str, str]], random: object) -> None:
    parts = [_part(i, n, bad, float(s), host=host, gpu=gpu) for i, (n, bad, s, host, gpu) in enumerate(rows)]
    found = merge(parts)
    shuffled = list(parts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert merge(shuffled) == found
    assert found.samples == sum(row[0] for row in rows)
    assert found.mismatches == sum(row[1] for row in rows)
    assert found.failure_bound == failure_bound(found.samples, found.mismatches)
    assert found.gpus == len({row[3:] for row in rows})
    assert max(row[2] for row in rows) <= found.seconds <= sum(row[2] for row in rows)
    assert found.per_second == found.samples / found.seconds
    assert (found.fault is None) == (found.mismatches == 0)
    facts = found.facts()
    assert sum(row["samples"] for row in facts["parts"]) == facts["samples"]


def test_the_slowest_gpu_is_the_time() -> None:
    parts = [_part(1, seconds=3.0), _part(2, seconds=3.0), _part(3, seconds=5.0, host="two")]
    found = merge(parts)
    assert (found.seconds, found.gpus, found.per_second) == (6.0, 2, 50.0)


def test_what_ends_a_part_otherwise_leaves_no_bound() -> None:
    found = merge([_part(2, verdict=Verdict.CRASHED, host="bad", gpu="3"), _part(1)])
    assert found.failure_bound == 1.0 and found.mismatches == 0
    assert found.fault is not None
    assert f"{found.fault.shard}, on {found.fault.place}" == "case, seed 2, on bad (GPU 3)"
    none = merge([SampleShard(Shard("odd", 1, 5), "one", "", None), _part(2)])
    assert none.inexact == "odd" and none.fault is None and none.samples == 100
    assert none.parts[0].place == "one"


def _event(part: SampleShard) -> dict[str, Any]:
    assert part.report is not None
    report = {**asdict(part.report), "verdict": part.report.verdict.value}
    return {"host": part.host, "gpu": part.gpu, "report": report}


def test_a_part_survives_its_way_as_plain_data() -> None:
    part = _part(4, mismatches=2)
    event = json.loads(json.dumps(_event(part)))
    assert heard(part.shard, event) == part
    assert heard(part.shard, {**event, "report": None}).report is None


def test_a_part_done_twice_counts_once() -> None:
    shards = plan(["a"], 2, 200)
    tally = SampleTally(shards)
    first, second = (str(shard) for shard in shards)
    tally.hear(first, _event(_part(1, host="lost")))
    tally.hear(first, _event(_part(1, host="other")))  # the worker was lost between its answer and its end
    tally.hear(second, _event(_part(2)))
    assert tally.merged().samples == 200
    with pytest.raises(Enough):
        tally.hear(second, _event(_part(2, mismatches=1)))
    found = tally.merged()
    assert found.samples == 200 and found.mismatches == 1
    assert found.fault is not None and found.fault.shard == shards[1]
    with pytest.raises(Enough):
        tally.hear(first, {"host": "one", "gpu": "", "report": None})


@pytest.mark.timeout(300)
def test_the_timing_model_cannot_be_sampled_and_an_ear_may_end_a_run(nodes: Nodes) -> None:
    workload = load("suite:rotary")
    case = workload.cases[0]
    original = workload.build(case, "sm_90a")
    with Pool(nodes.address, device="model") as pool:
        assert pool.size == 2
        with pytest.raises(DeviceError, match="computes no results") as caught:
            sample(pool, workload, [case.name], original, Candidate(original), samples=10)
        assert caught.value.where == socket.gethostname()

        def hear(task: Task, event: object) -> None:
            raise SassafrasError(f"enough of {task.name}")

        name = "tests.cluster.test_cluster_random_tests:ten_events"
        tasks = [Task(f"task {i}", name, dict) for i in range(9)]
        with pytest.raises(SassafrasError, match="enough of task"):
            pool.run(tasks, hear)
        # the workers are free again
        done: list[str] = []
        assert pool.run(tasks[:2], lambda task, event: done.append(task.name))
        assert sorted(set(done)) == ["task 0", "task 1"]
    if not available()[0]:  # Ray finds this machine's GPUs by itself
        with pytest.raises(DeviceError, match="the cluster has no GPU"):
            verify("suite:rotary", cluster=nodes.address)


def ten_events(payload: object, context: object) -> object:
    """A task of a test's."""
    yield from range(10)


def test_options_that_contradict_each_other() -> None:
    run = CliRunner()
    done = run.invoke(app, ["verify", "suite:rotary", "--workers", "2"])
    assert done.exit_code != 0 and "only in a cluster" in (done.output + str(done.exception))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{taken.getsockname()[1]}"
    pytest.importorskip("ray")
    for address, why in (("head", "no address"), (closed, "no Ray cluster answers")):
        done = run.invoke(app, ["verify", "suite:rotary", "--cluster", address])
        assert done.exit_code != 0 and why in (done.output + str(done.exception))
    done = run.invoke(app, ["verify", "suite:rotary", "--cluster", "auto", "--workers", "0"])
    assert done.exit_code == 2 and "--workers" in done.output
