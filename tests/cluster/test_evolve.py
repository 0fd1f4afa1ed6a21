"""`evolve` on two Ray nodes, one of which dies: real builds on the cluster's CPUs, the timing model."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

import sassafras.cluster.evolve as room
from sassafras.api.evolve import evolve
from sassafras.evaluate.sandbox.confine import landlock_version
from sassafras.jobs.result import Result
from sassafras.llm.journal import Remembered
from sassafras.llm.proposer import Reply, Request, SpendingCap
from sassafras.llm.spending import Meter

from .conftest import Nodes
from .test_islands import rows

TARGET = Path(__file__).parents[2] / "examples" / "evolve" / "bias_gelu.py"
#: three an island
EVALUATIONS = 6


BODY = """```cuda
hole: body
#pragma unroll {unroll}
for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {{
    float v = x[i] + bias[i % cols];
    float t = tanhf(0.7978845608f * (v + 0.044715f * v * v * v));
    y[i] = 0.5f * v * (1.0f + t) * gate[i];
}}
```"""


class Bodies:
    """A proposer whose answers all compile, so that every one of them needs a worker."""

    name = "bodies"

    def propose(self, request: Request) -> Reply:
        """An answer that the request's seed decides."""
        return Reply(BODY.format(unroll=1 + request.seed % 16), self.name, 50, 50)


def run(nodes: Nodes, store: Path, **more: object) -> Result:
    return evolve(
        TARGET, proposer=Bodies(), device="model", cluster=nodes.address, budget=f"{EVALUATIONS}e", seed=3,
        store=store, **more,
    )  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.skipif(landlock_version() < 1 or shutil.which("nvcc") is None, reason="cannot build confined")
def test_a_killed_node_costs_nothing(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PATIENCE", 1.0)
    calm = run(nodes, tmp_path / "calm.sqlite")
    said: list[str] = []
    killed = []

    def watch(progress: object) -> None:
        # after the first outcome: each island has two to come, and the one heard waits for this to return
        if not killed:
            killed.append(True)
            nodes.kill()

    stormy = run(nodes, tmp_path / "stormy.sqlite", progress=watch, stage=said.append)
    assert killed and any("was lost" in line or "does not answer" in line for line in said), said
    assert stormy.kernel.digest == calm.kernel.digest
    assert stormy.modelled_ratio == calm.modelled_ratio and stormy.modelled
    assert stormy.evaluations == calm.evaluations == EVALUATIONS
    assert stormy.facts["proposals"] == calm.facts["proposals"]
    before, after = rows(tmp_path / "calm.sqlite"), rows(tmp_path / "stormy.sqlite")
    assert list(before.values()) == list(after.values()) and len(after) == 2
    for digests in after.values():
        assert len(digests) == len(set(digests)) == EVALUATIONS // 2
    assert stormy.verdicts == {"modelled": EVALUATIONS}
    asked = stormy.facts["spent"]["requests"]
    journals = (tmp_path / "proposals").glob("*.jsonl")
    assert sum(len(path.read_text().splitlines()) for path in journals) == asked, "each was paid once"


def test_caps_hold_for_several_at_once() -> None:
    """Requests that fit alone, but not together, wait; one that does not fit is refused."""
    meter = Meter(tokens_cap=1000)
    request = Request(({"role": "user", "content": "x" * 100},), max_tokens=300)  # 366 at worst
    most, under_way, refused = [0], [0], []
    guard = threading.Lock()

    def ask() -> None:
        try:
            with meter.asking(request):
                with guard:
                    under_way[0] += 1
                    most[0] = max(most[0], under_way[0])
                time.sleep(0.01)
                meter.charge(Reply("", prompt_tokens=50, answer_tokens=150))
                with guard:
                    under_way[0] -= 1
        except SpendingCap as cap:
            refused.append(cap)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most[0] <= 2, "three at once could take 1,098 tokens"
    assert meter.tokens == 800 and meter.requests == 4 and len(refused) == 4


def test_a_proposer_that_is_asked_by_threads() -> None:
    inside, overlaps = [0], []

    class Counting:
        name = "counting"

        def propose(self, request: Request) -> Reply:
            inside[0] += 1
            overlaps.append(inside[0])
            time.sleep(0.01)
            inside[0] -= 1
            return Reply("")

    proposer, turn = Counting(), threading.Lock()
    shared = [Remembered(proposer, Meter(), turn=turn) for _ in range(6)]  # an island each
    threads = [threading.Thread(target=one.propose, args=(Request(()),)) for one in shared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert shared[0].name == "counting" and overlaps == [1] * 6
