"""A search on two Ray nodes: interrupted and resumed, and with a node that dies."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sassafras
import sassafras.cluster.pool as cluster_pool
from sassafras.cluster import Pool
from sassafras.cluster.islands import Island, IslandsJob, search_island, share
from sassafras.cluster.payload import JobSubject, describe
from sassafras.cluster.remote import failure
from sassafras.core import (
    Budget,
    Candidate,
    Case,
    DeviceError,
    Evaluation,
    Kernel,
    SassafrasError,
    Verdict,
    Workload,
    WorkloadError,
)
from sassafras.cuda.driver import CudaError
from sassafras.cuda.environment import available
from sassafras.evaluate import ApprovedFailure
from sassafras.schedule.spaces import space_of
from sassafras.search import Anneal, Finished, Found
from sassafras.store import Store
from sassafras.targets import load
from sassafras.validate import Validator
from tests.by_recipe import Bench

from .conftest import Nodes

TARGET = str(Path(__file__).parents[2] / "examples" / "softmax.py")
EVALUATIONS = 24


def optimize(nodes: Nodes, store: Path, pause: float = 0.0, **more: object) -> sassafras.Result:
    """A search that waits `pause` seconds ahead of each evaluation: what disturbs it comes in the middle."""

    class Paced(Anneal):
        """A local class travels to nodes by value."""

        def search(self, space, evaluate, session) -> None:  # type: ignore[no-untyped-def]
            def slowly(state):  # type: ignore[no-untyped-def]
                time.sleep(pause)
                return evaluate(state)

            Anneal.search(self, space, slowly, session)

    return sassafras.optimize(
        TARGET,
        strategy=Paced(),
        device="model",
        cluster=nodes.address,
        budget=f"{EVALUATIONS}e",
        seed=5,
        store=store,
        **more,
    )  # type: ignore[arg-type]


def rows(path: Path) -> dict[int, list[str]]:
    """Digests of the evaluations of every island."""
    with Store.open(path) as store:
        found = {run.id: [outcome.digest for outcome, _ in store.recorded(run.id)] for run in store.runs()}
    return {run: digests for run, digests in found.items() if digests}


@pytest.fixture(scope="module")
def calm(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> tuple[sassafras.Result, Path]:
    """The search that nothing disturbs, and its store."""
    store = tmp_path_factory.mktemp("calm") / "store.sqlite"
    return optimize(nodes, store), store


def test_a_cluster_that_is_noted_and_gone_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = pytest.importorskip("ray._private.services")
    if services.find_gcs_addresses():
        pytest.skip("Ray runs on this machine")  # and would be joined
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(_closed())
    with pytest.raises(DeviceError, match=r"no Ray cluster answers: .*forget one with `ray stop`"):
        Pool("auto", device="model")


def test_what_the_driver_raises_stops_the_workers_and_they_work_again(nodes: Nodes) -> None:
    with Pool(nodes.address, device="model") as pool:
        assert pool.size == 2

        def hear(name: str, event: object) -> None:
            raise SassafrasError(f"enough of {name}")

        payloads = {f"task {i}": dict for i in range(9)}
        with pytest.raises(SassafrasError, match="enough of task"):
            pool.run(ten_events, payloads, hear, on_lost=unexpected)
        done: Counter[str] = Counter()
        few = {name: payloads[name] for name in ("task 0", "task 1", "task 2")}
        assert pool.run(ten_events, few, lambda name, event: done.update([name]), on_lost=unexpected)
        assert done == dict.fromkeys(few, 10)
        with pytest.raises(DeviceError, match="ValueError: no event"):
            pool.run(no_event, few, hear, on_lost=unexpected)
    if not available()[0]:  # Ray finds this machine's GPUs by itself
        with pytest.raises(DeviceError, match="the cluster has no GPU"):
            Pool(nodes.address, device="cuda")


def test_ctrl_c_reaches_a_task_that_starts_after_it_and_a_second_ends_at_once(nodes: Nodes) -> None:
    def late() -> dict[str, float]:
        signal.raise_signal(signal.SIGINT)
        time.sleep(1.0)  # meanwhile the workers are told to stop
        return {"seconds": 60.0}

    def twice() -> dict[str, float]:
        for pause in (1.0, 3.0):
            threading.Timer(pause, os.kill, (os.getpid(), signal.SIGINT)).start()
        return {}

    with Pool(nodes.address, device="model", workers=1) as pool:
        begun = time.monotonic()
        assert not pool.run(until_stopped, {"task": late}, lambda name, event: None, on_lost=unexpected)
        assert time.monotonic() - begun < 30
        with pytest.raises(KeyboardInterrupt):  # the worker is deaf
            pool.run(deaf, {"task": twice}, lambda name, event: None, on_lost=unexpected)
        assert time.monotonic() - begun < 40


def test_fewer_workers_than_asked_for_are_said(nodes: Nodes) -> None:
    said: list[str] = []
    with Pool(nodes.address, device="model", workers=999, say=said.append) as pool:
        assert said[0] == f"{pool.size} workers, not 999: the cluster has room for no more"


def test_a_worker_unlike_the_others_takes_no_task(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_pool, "TRIES", 1)
    with Pool(nodes.address, device="model") as pool:
        pool.facts["name"] = "another GPU"  # as if it had been lost, and its place were taken elsewhere
        with pytest.raises(DeviceError, match="the cluster mixes another GPU and"):
            pool.run(ten_events, {"task": dict}, lambda name, event: None, on_lost=unexpected)
        monkeypatch.setattr(cluster_pool, "START_S", 2.0, raising=False)
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            for actor in pool._actors:
                pool._ray.kill(actor)  # what held the cluster ends

        with Pool(nodes.address, device="model", say=say) as waited:
            assert waited.size == 2 and said[0].startswith("waiting for 2 of 2 workers: other work may hold")
        with pytest.raises(DeviceError, match="this process has joined another cluster"):
            Pool(_closed(), device="model")


def until_stopped(payload: Any, device: object, stop: threading.Event) -> Iterator[int]:
    """A task that stops when it is told to."""
    stop.wait(payload["seconds"])
    yield 1


def deaf(payload: object, device: object, stop: object) -> Iterator[int]:
    """A task that hangs."""
    time.sleep(60.0)
    yield 1


def ten_events(payload: object, device: object, stop: object) -> Iterator[int]:
    """A task of a test's."""
    yield from range(10)


def no_event(payload: object, device: object, stop: object) -> Iterator[int]:
    """A task that fails."""
    raise ValueError("no event")
    yield


def unexpected(name: str, why: str) -> None:
    pytest.fail(f"{name} lost its worker: {why}")


@pytest.mark.timeout(600)
def test_an_interrupted_search_resumes(
    nodes: Nodes, tmp_path: Path, calm: tuple[sassafras.Result, Path]
) -> None:
    def interrupt(progress: object) -> None:
        if progress.evaluations == EVALUATIONS // 4:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    store = tmp_path / "store.sqlite"
    first = optimize(nodes, store, 0.2, progress=interrupt)
    assert first.reason == "interrupted" and EVALUATIONS // 4 <= first.evaluations < EVALUATIONS
    again = optimize(nodes, store)
    assert again.replayed == first.evaluations and again.evaluations == EVALUATIONS
    assert again.kernel.digest == calm[0].kernel.digest
    assert list(rows(store).values()) == list(rows(calm[1]).values())
    assert optimize(nodes, store).from_store


@pytest.mark.timeout(900)
def test_a_killed_node_costs_nothing(
    nodes: Nodes, tmp_path: Path, calm: tuple[sassafras.Result, Path]
) -> None:
    said: list[str] = []
    killed = []

    def watch(progress: object) -> None:
        # early: however late this is heard, the island that runs there is far from done
        if not killed and progress.evaluations > EVALUATIONS // 10:  # type: ignore[attr-defined]
            killed.append(True)
            nodes.kill()

    result, store = calm
    stormy = optimize(nodes, tmp_path / "stormy.sqlite", 0.25, progress=watch, stage=said.append)
    assert killed
    assert any("lost its worker" in line for line in said)
    assert stormy.kernel.digest == result.kernel.digest
    assert stormy.modelled_ratio == result.modelled_ratio
    assert stormy.evaluations == result.evaluations == EVALUATIONS
    before, after = rows(store), rows(tmp_path / "stormy.sqlite")
    assert list(before.values()) == list(after.values())
    for digests in after.values():
        assert len(digests) == len(set(digests)) == EVALUATIONS // 2


def test_a_budget_is_shared() -> None:
    parts = [share(Budget(evaluations=10), index, 4).evaluations for index in range(4)]
    assert parts == [3, 3, 2, 2]
    assert share(Budget(seconds=9.0), 0, 4) == Budget(seconds=9.0)
    assert share(Budget(seconds=9.0, evaluations=8), 1, 4) == Budget(seconds=9.0, evaluations=2)


@pytest.fixture(scope="module")
def subject() -> tuple[Workload, Case, Kernel]:
    workload = load(TARGET)
    return workload, workload.case(), workload.build(workload.case(), "sm_90a")


def island(subject: tuple[Workload, Case, Kernel], device: Any, stop: threading.Event) -> list[Any]:
    """What an island says that is searched here."""
    payload = {
        "subject": describe(*subject), "strategy": Anneal(), "budget": Budget(evaluations=5), "seed": 1,
        "space": space_of("swaps", Validator), "known": {},
    }  # fmt: skip
    return list(search_island(payload, device, stop))


def test_an_island_that_is_stopped_ahead_of_its_baseline_is_no_failure(
    subject: tuple[Workload, Case, Kernel],
) -> None:
    stop = threading.Event()
    stop.set()
    assert island(subject, Bench(), stop) == []


class Wrong(Bench):
    """A GPU on which the compiler's own order alone is right."""

    def run(self, candidate: Candidate) -> Evaluation:
        found = super().run(candidate)
        if candidate.digest == self.own:
            return found
        return Evaluation(candidate.digest, Verdict.WRONG_RESULT, detail="y differs")


def test_code_that_was_approved_and_failed_comes_home(subject: tuple[Workload, Case, Kernel]) -> None:
    *said, last = island(subject, Wrong(), threading.Event())
    failures = [each for each in said if isinstance(each, ApprovedFailure)]
    assert isinstance(last, Finished) and len(said) - len(failures) == last.evaluations == 5
    assert len(failures) == 4 and all(each.original == subject[2].cubin for each in failures)


def test_a_leader_keeps_its_first_place_whatever_other_islands_think_of_it(
    subject: tuple[Workload, Case, Kernel],
) -> None:
    def finished(*names: str, replayed: int = 0) -> Finished[Any]:
        leaders = []
        for rank, name in enumerate(names):
            candidate = Candidate(Kernel(name.encode(), name, "sm_90a", 32))
            cost = 0.5 + 0.1 * rank
            outcome = Evaluation(candidate.digest, Verdict.CORRECT, cost, 1.0, 1 / cost)
            leaders.append(Found(None, candidate, outcome, cost))
        return Finished(leaders[0], leaders[-1], tuple(leaders), 4, replayed, 1.0, {}, "budget")

    job = IslandsJob(*subject, Anneal(), Budget(evaluations=9), 0, Bench(), None, None, print)  # type: ignore[arg-type]
    founds = [finished("best", "a", "b", "c"), finished("d", "e", "f", "g"), finished("h", "i", "j", "best")]
    islands = [Island(n, job.budget, None, found=found) for n, found in enumerate(founds)]
    islands[0].found, islands[1].replayed = replace(founds[0], replayed=3), 2
    islands[1].found = replace(founds[1], replayed=3)
    merged = job._merge(islands, True)
    assert [one.candidate.kernel.name for one in merged.leaders] == [
        "best",
        "d",
        "h",
        "a",
        "e",
        "i",
        "b",
        "f",
    ]
    # the islands walked three outcomes again, of which two are of an earlier sitting
    assert merged.replayed == 2


def test_errors_of_every_kind_travel() -> None:
    made = failure(CudaError("cuLaunchKernel", 700, "CUDA_ERROR_ILLEGAL_ADDRESS"))
    assert type(made) is DeviceError and made.sticky and made.verdict is Verdict.CRASHED
    assert "ILLEGAL_ADDRESS" in str(pickle.loads(pickle.dumps(made)))

    class Own(WorkloadError):
        """Of a workload's file, which the driver has not loaded."""

    made = failure(Own("what", where="where", hint="hint"))
    assert type(made) is WorkloadError and str(made) == "where: what (hint)"
    assert str(failure(ValueError("odd"))).startswith("ValueError: odd")


def test_what_travels_is_what_lies_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("of_another_project.json").write_text("{}")
    workload = load("gemm:256x256x256")
    case = workload.case()
    described = describe(workload, case, Kernel(b"", "k", "sm_90a", 32))
    assert described["files"] == {}
    with JobSubject(described) as subject:
        assert subject.case.name == case.name
    mine = tmp_path / "mine.py"
    mine.write_text(Path(TARGET).read_text())
    mine.with_name("memory.json").symlink_to("/proc/self/mem")
    with pytest.raises(WorkloadError, match="cannot read what lies beside the workload"):
        describe(load(str(mine)), case, Kernel(b"", "k", "sm_90a", 32))


def test_a_file_that_was_edited_meanwhile_is_not_searched_in_its_place(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(Path(TARGET).read_text())
    workload = load(str(mine))
    mine.write_text(Path(TARGET).read_text().replace('"n_cols": cols', '"n_cols": cols // 2'))
    described = describe(workload, workload.case(), Kernel(b"", "k", "sm_90a", 32))
    with pytest.raises(WorkloadError, match="other arguments than on the driver"):
        JobSubject(described).__enter__()


def _closed() -> str:
    """An address of this machine at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_no_cluster_at_that_address(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    with pytest.raises(DeviceError, match="no device"):
        sassafras.optimize(TARGET, device="tpu", cluster="auto", budget="2e", store=False)
    for address, why in (
        ("head", "no address"),
        ("head:none", "no address"),
        ("head:\u00b2", "no address"),
        ("head:" + "9" * 5000, "no address"),
        ("head..example:6379", "no Ray cluster answers"),
        (_closed(), "no Ray cluster answers"),
    ):
        with pytest.raises(DeviceError, match=why):
            sassafras.optimize(TARGET, device="model", cluster=address, budget="2e", store=False)
    with pytest.raises(DeviceError, match="at least one worker"):
        sassafras.optimize(TARGET, device="model", cluster="auto", workers=0, budget="2e", store=False)
    with socket.create_server(("127.0.0.1", 0)) as other:  # it listens, but says nothing Ray says
        threading.Thread(target=lambda: other.accept()[0].sendall(b"HTTP/1.1 400 Bad"), daemon=True).start()
        with pytest.raises(DeviceError, match="not Ray's"):
            Pool(f"127.0.0.1:{other.getsockname()[1]}", device="model")
    monkeypatch.setenv("RAY_ADDRESS", _closed())
    with pytest.raises(DeviceError, match="no Ray cluster answers"):
        sassafras.optimize(TARGET, device="model", cluster="auto", budget="2e", store=False)
