"""What the policy is compared with: chance, annealing, the rule, a cost model, NVIDIA's heuristics."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sassafras.core import Budget, Candidate, Evaluation, Kernel, ToolMissing, Verdict
from sassafras.gemm.problem.shape import Shape

from ..gemm_json import to_fields
from .table import Problem, Table, split


def rule(problem: Problem, count: int) -> list[int]:
    """The static estimate's first choices."""
    return list(range(min(count, len(problem.names))))


def chance(problem: Problem, count: int, rng: np.random.Generator) -> list[int]:
    """Any, without repetition."""
    picks: list[int] = rng.permutation(len(problem.names))[:count].tolist()
    return picks


#: neighbours of a configuration
_NEAR = 12


class _Space:
    """A problem as a `core.Space`: a move changes as few parameters as the table allows."""

    def __init__(self, table: Table, problem: Problem) -> None:
        self.problem = problem
        every = [to_fields(table.config(name)) for name in problem.names]
        names = sorted({field for given in every for field in given})
        codes = np.array([[code_of(given.get(n)) for n in names] for given in every])
        distance = (codes[:, None, :] != codes[None, :, :]).sum(-1)
        np.fill_diagonal(distance, 1 << 20)
        # a table holds only some configurations: the nearest few are the neighbours, however far
        self._near = np.argsort(distance, axis=1, kind="stable")[:, : min(_NEAR, len(every) - 1)]

    def start(self) -> int:
        return 0

    def sample(self, state: int, rng: np.random.Generator) -> int:
        near = self._near[state]
        return int(near[int(rng.integers(len(near)))])

    def apply(self, state: int, move: int) -> int:
        return move

    def candidate(self, state: int) -> Candidate:
        return Candidate(Kernel(str(state).encode(), "", "sm_90a", 32), {"state": state})

    def evaluate(self, candidate: Candidate) -> Evaluation:
        time = float(self.problem.times[candidate.recipe["state"]])
        speedup = float(self.problem.times[0]) / time
        return Evaluation(candidate.digest, Verdict.CORRECT, time_us=time, speedup=speedup)


def code_of(value: Any) -> float:
    """A number for a field's value, the same in every process."""
    if isinstance(value, str):
        return float(int.from_bytes(value.encode()[:6].ljust(6, b"\0"), "big") + 1_000_000)
    return -1.0 if value is None else float(value)


def anneal(table: Table, problem: Problem, count: int, seed: int) -> list[int]:
    """Simulated annealing from the rule's first choice; `count` configurations are looked at."""
    from sassafras import search

    space = _Space(table, problem)
    seen: list[int] = []

    class Watched:
        def evaluate(self, candidate: Candidate) -> Evaluation:
            seen.append(int(candidate.recipe["state"]))
            return space.evaluate(candidate)

    # relative temperatures of configurations, which differ by tens of per cent, not of schedules
    strategy = search.Anneal(start=0.05, end=0.002)
    count = min(count, len(problem.names))
    search.run(strategy, space, Watched(), Budget(evaluations=count), seed=seed)
    # where a walk met nothing new, the rule's next choices make up the number
    return (seen + [i for i in range(count) if i not in seen])[:count]


class CostModel:
    """Gradient-boosted trees on log time; its first choices.

    Args:
        problems: to learn from.
        seed: of the trees.

    Raises:
        ToolMissing: scikit-learn is not installed.
    """

    def __init__(self, problems: Sequence[Problem], seed: int = 0) -> None:
        try:
            from sklearn.ensemble import HistGradientBoostingRegressor
        except ImportError as error:
            raise ToolMissing("the cost model needs scikit-learn", hint="pip install scikit-learn") from error
        self._model = HistGradientBoostingRegressor(
            max_iter=300, learning_rate=0.08, max_leaf_nodes=63, random_state=seed
        )
        features = np.concatenate([p.features for p in problems])
        # relative to the rule's choice, so that the trees need not learn how long a problem takes at all
        target = np.concatenate([np.log(p.times / p.times[0]) for p in problems])
        self._model.fit(features, target)

    def choose(self, problem: Problem, count: int) -> list[int]:
        """The fastest by prediction."""
        picks: list[int] = np.argsort(self._model.predict(problem.features), kind="stable")[:count].tolist()
        return picks


_ASK = """
import json, os, sys
from nvMatmulHeuristics import (NvMatmulHeuristicsInterface, NvMatmulHeuristicsMatmulLayout as Layout,
                                NvMatmulHeuristicsNvidiaGpu, NvMatmulHeuristicsTarget)
api = NvMatmulHeuristicsInterface(NvMatmulHeuristicsTarget.CUTLASS3, "HSH")
gpu = api.createHardwareDescriptor()
api.setHardwarePredefinedGpu(gpu, NvMatmulHeuristicsNvidiaGpu.H200_SXM)
found = {}
api.loadInternalDiscoverySet(Layout.TN_ROW_MAJOR, gpu)
for m, n, k in json.load(sys.stdin):
    rows = []
    for answer in api.get_with_mnk(m, n, k, Layout.TN_ROW_MAJOR, 16, gpu):
        kernel = answer["kernel"]
        rows.append([kernel.cta_tile_m, kernel.cta_tile_n, max(1, kernel.split_k)])
    found[f"{m}x{n}x{k}"] = rows
print(json.dumps(found), flush=True)
os._exit(0)  # its destructor crashes
"""


def nvidia_heuristics(shapes: Sequence[Shape]) -> Mapping[str, list[list[int]]]:
    """NVIDIA's own first choices by shape: (tile rows, tile columns, split of k), best first, for an H200.

    Raises:
        ToolMissing: the package ``nvidia-matmul-heuristics`` is not installed, or does not work here.
    """
    asked = json.dumps([[s.m, s.n, s.k] for s in shapes])
    done = subprocess.run(
        [sys.executable, "-c", _ASK], input=asked, capture_output=True, text=True, timeout=600, check=False
    )
    try:
        found: dict[str, list[list[int]]] = json.loads(done.stdout)
    except ValueError as error:
        raise ToolMissing(
            "nvMatmulHeuristics does not answer: " + (done.stderr.strip().splitlines() or ["no output"])[-1],
            hint="pip install nvidia-matmul-heuristics",
        ) from error
    return found


def nearest(table: Table, problem: Problem, wanted: Sequence[Sequence[int]], count: int) -> list[int]:
    """Our configurations nearest to wanted tiles and splits, one for each in order, then further ones.

    NVIDIA's heuristics name tiles of CUTLASS kernels, which ours are not; this is the fairest translation:
    the sum of the distances of tile rows, tile columns and slices, in doublings.
    """
    configs = [table.config(name) for name in problem.names]
    have = np.array([[*c.tile, split(c, problem.shape)] for c in configs], float)
    seen: list[int] = []
    for tile in wanted:
        gap = np.abs(np.log2(have) - [math.log2(extent) for extent in tile]).sum(1)
        gap[seen] = np.inf
        seen.append(int(np.argmin(gap)))
        if len(seen) == min(count, len(configs)):
            return seen
    return (seen + [i for i in range(len(configs)) if i not in seen])[:count]
