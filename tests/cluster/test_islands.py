"""A search on two Ray nodes, one of which dies."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

import sassafras
from sassafras.cluster.islands import share
from sassafras.core import Budget, DeviceError
from sassafras.search import Anneal
from sassafras.store import Store

from .conftest import Nodes

TARGET = str(Path(__file__).parents[2] / "examples" / "softmax.py")
EVALUATIONS = 80


def optimize(nodes: Nodes, store: Path, **more: object) -> sassafras.Result:
    class Paced(Anneal):
        """Slow, so that the node dies in the middle; a local class, which travels to nodes by value."""

        def search(self, space, evaluate, session) -> None:  # type: ignore[no-untyped-def]
            def slowly(state):  # type: ignore[no-untyped-def]
                time.sleep(0.15)
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


@pytest.mark.timeout(900)
def test_a_killed_node_costs_nothing(nodes: Nodes, tmp_path: Path) -> None:
    calm = optimize(nodes, tmp_path / "calm.sqlite")
    said: list[str] = []
    killed = []

    def watch(progress: object) -> None:
        # early: however late this is heard, the island that runs there is far from done
        if not killed and progress.evaluations > EVALUATIONS // 10:  # type: ignore[attr-defined]
            killed.append(True)
            nodes.kill()

    stormy = optimize(nodes, tmp_path / "stormy.sqlite", progress=watch, stage=said.append)
    assert killed
    assert any("lost its worker" in line for line in said)
    assert stormy.kernel.digest == calm.kernel.digest
    assert stormy.modelled_ratio == calm.modelled_ratio
    assert stormy.evaluations == calm.evaluations == EVALUATIONS
    before, after = rows(tmp_path / "calm.sqlite"), rows(tmp_path / "stormy.sqlite")
    assert list(before.values()) == list(after.values())
    for digests in after.values():
        assert len(digests) == len(set(digests)) == EVALUATIONS // 2


def test_a_budget_is_shared() -> None:
    parts = [share(Budget(evaluations=10), index, 4).evaluations for index in range(4)]
    assert parts == [3, 3, 2, 2]
    assert share(Budget(seconds=9.0), 0, 4) == Budget(seconds=9.0)
    assert share(Budget(seconds=9.0, evaluations=8), 1, 4) == Budget(seconds=9.0, evaluations=2)


def _closed() -> str:
    """An address of this machine at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_no_cluster_at_that_address() -> None:
    pytest.importorskip("ray")
    with pytest.raises(DeviceError, match="no device"):
        sassafras.optimize(TARGET, device="tpu", cluster="auto", budget="2e", store=False)
    for address, why in (
        ("head", "no address"),
        ("head:none", "no address"),
        (_closed(), "no Ray cluster answers"),
    ):
        with pytest.raises(DeviceError, match=why):
            sassafras.optimize(TARGET, device="model", cluster=address, budget="2e", store=False)
    with pytest.raises(DeviceError, match="at least one worker"):
        sassafras.optimize(TARGET, device="model", cluster="auto", workers=0, budget="2e", store=False)
