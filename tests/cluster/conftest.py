"""Two real Ray nodes on the loopback device."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.shared import without_torch

_MEMORY = 100 << 20


class Nodes:
    """A head node and others, each with one CPU."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        common: dict[str, Any] = {
            "num_cpus": 1,
            "object_store_memory": _MEMORY,
            "include_dashboard": False,
        }
        self.common = common
        self.cluster = Cluster(
            initialize_head=True, head_node_args={**common, "node_ip_address": "127.0.0.2"}
        )
        self.others: list[Any] = []
        self.join()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def join(self) -> None:
        """Another node."""
        self.others.append(
            self.cluster.add_node(**self.common, node_ip_address=f"127.0.0.{3 + len(self.others)}")
        )

    def kill(self) -> None:
        """End the last node as a power cut would: its workers do not outlive its raylet for a moment."""
        node = self.others.pop()
        raylet = node.all_processes["raylet"][0].process.pid
        for pid in [raylet, *descendants(raylet)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            fields = stat.read_text().rsplit(")", 1)[1].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = list(children.get(pid, ()))
    for child in found:  # grows meanwhile
        found += children.get(child, ())
    return found


@pytest.fixture(scope="module")
def nodes(shared: Path) -> Iterator[Nodes]:
    """Two nodes of one CPU each, for all tests of a file: starting them takes seconds."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", without_torch(shared))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # with Ray's 15 they starve beside the other tests
        try:
            made = Nodes()
        except Exception as error:  # a sandbox may forbid what Ray's servers need
            pytest.skip(f"Ray does not start here: {type(error).__name__}: {error}")
        yield made
        ray.shutdown()
        made.cluster.shutdown()
