"""Does a candidate profit from inputs that it has seen before? Timed in graphs, beside the baseline.

Two graphs a contestant, alike but for one number: before each launch the inputs are written, in one graph a
new sample each time, in the other the same sample again and again. Memory traffic, addresses and launch
overhead are the same, so a difference can only come from what the inputs hold: a cache keyed by contents, or
work that is skipped when nothing changed. Both leave right results, so that no comparison finds them.

One look clears almost every candidate. A suspicious one is measured again until
`replay_rule.decision` can tell.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from sassafras.cuda.driver import KernelFunction
from sassafras.cuda.params import ParameterBlock
from sassafras.cuda.timing import interleaved

from .case_on_gpu import Plan
from .random_tests import job_table
from .replay_rule import decision, orders, repetition

if TYPE_CHECKING:
    from .judge import KernelJudge

#: microseconds a launch, and share of the candidate's own time, that repeated inputs may save it
SAVED_US, SAVED_SHARE = 0.3, 0.15
#: what is noted of a candidate whose suspicious times could not be repeated
NOISY = "noisy: not judged"
#: seconds between two repetitions, at least and at most: what disturbed the first may be gone
PAUSE_S = (0.005, 0.03)
_FILL = 2


class ReplayCheck:
    """See the module. Holds the baseline's two graphs; `judge` adds a candidate's.

    Args:
        bench: open.
        rounds: interleaved rounds of the four graphs, each look.
    """

    def __init__(self, bench: KernelJudge, rounds: int = 12) -> None:
        import torch

        self.bench, self.gpu, self.rounds = bench, bench.gpu, rounds
        table, self.words, _ = job_table(bench.headline.layout)
        #: False where no input is random: nothing can be told then
        self.possible = any(
            segment.buffer.role != "out" and type(segment.buffer.fill).__name__ != "Custom"
            for segment in bench.headline.layout.segments
        )
        self._jobs = len(table) // 64
        self._table = torch.frombuffer(bytearray(table or bytes(64)), dtype=torch.uint8).to("cuda")
        #: a counter for each mode, then room for totals that filling never writes
        self._numbers = torch.zeros(16, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        self._step = bench.checker.load("sassafras_step")
        self._bump = bench.checker.load("sassafras_bump")
        self._wide = self.gpu.config(
            (max(1, min(5 * self.gpu.multiprocessors, -(-self.words // 256))), 1, 1), 256
        )
        self._single = self.gpu.config((1, 1, 1), 1)
        self._blocks: list[ParameterBlock] = []
        self.launches = int(min(48, max(2, 600.0 / (bench.launch_us + 3.0))))
        self._own: list[Any] = []

    def judge(self, plan: Plan, function: KernelFunction, candidate_us: float) -> tuple[str, dict[str, Any]]:
        """(what is wrong or ``""``, facts).

        Facts, of the suspicious alone: ``repeated_inputs_save_us`` (microseconds a launch: baseline,
        candidate) and, where the times did not repeat themselves, ``repeated_inputs``: `NOISY`.
        """
        if not self.possible:
            return "", {}
        if not self._own:
            self._own = [self._graph(self.bench.plan, self.bench.function, fresh) for fresh in (True, False)]
        mine = [self._graph(plan, function, fresh) for fresh in (True, False)]
        graphs = [*self._own, *mine]
        least = max(SAVED_US, SAVED_SHARE * candidate_us)
        try:
            saved = self._saved(graphs)
            if saved[1] - max(0.0, saved[0]) <= least:
                return "", {}
            return self._again(graphs, least, candidate_us)
        finally:
            for graph in mine:
                self.gpu.discard(graph)

    def _again(self, graphs: list[Any], least: float, candidate_us: float) -> tuple[str, dict[str, Any]]:
        """Measure a suspicious candidate until it can be told."""
        found: list[Any] = []
        while (what := decision(found, least)) == "undecided":
            rng = np.random.default_rng(len(found))
            time.sleep(float(rng.uniform(*PAUSE_S)))
            rounds = orders(self.rounds, seed=len(found))
            spent = self.bench.stopwatch.blocks(graphs, [which for order in rounds for which in order])
            found.append(repetition(rounds, spent, self.launches))
        base, mine = (float(np.median(column)) for column in zip(*(f.saved for f in found), strict=True))
        facts: dict[str, Any] = {"repeated_inputs_save_us": [base, mine]}
        if what == "noisy":
            return "", {**facts, "repeated_inputs": NOISY}
        text = (
            f"with inputs that it has seen before it takes {mine:.2f} us less a launch "
            f"({candidate_us:.2f} us), the baseline {base:.2f} us less, {len(found)} "
            f"times of {len(found)}: it skips or remembers work"
        )
        return text, facts

    def _saved(self, graphs: list[Any]) -> tuple[float, float]:
        """Microseconds a launch that the same inputs save: baseline, candidate."""
        order = interleaved(4, self.rounds)
        columns: list[list[float]] = [[], [], [], []]
        for which, spent in zip(order, self.bench.stopwatch.blocks(graphs, order), strict=True):
            columns[which].append(spent)
        fresh, same, mine_fresh, mine_same = (float(np.median(column)) for column in columns)
        return (fresh - same) / self.launches, (mine_fresh - mine_same) / self.launches

    def _graph(self, plan: Plan, function: KernelFunction, fresh: bool) -> Any:
        numbers = int(self._numbers.data_ptr())
        counter = numbers if fresh else numbers + 8

        def enqueue() -> None:
            for index in range(self.launches):
                block = ParameterBlock(
                    [
                        ("first", int(self.bench.headline.live.data_ptr()), "*"),
                        ("second", int(self.bench.headline.live.data_ptr()), "*"),
                        ("jobs", int(self._table.data_ptr()), "*"),
                        ("count", self._jobs, "u32"),
                        ("words", self.words, "u64"),
                        ("counter", counter, "*"),
                        ("index", index if fresh else 0, "u64"),
                        ("what", _FILL, "u32"),
                        ("special_every", 0, "u32"),
                        ("totals", numbers + 32, "*"),
                        ("seen", numbers + 96, "*"),
                    ],
                    self._step.sizes,
                )
                self._blocks.append(block)
                self.gpu.launch(self._wide, self._step, block.address)
                self.bench.headline.launch(plan, function)
            # both graphs end alike; only the fresh one's counter moves on
            by = self.launches if fresh else 0
            block = ParameterBlock([("counter", counter, "*"), ("by", by, "u64")], self._bump.sizes)
            self._blocks.append(block)
            self.gpu.launch(self._single, self._bump, block.address)

        return self.gpu.capture(enqueue)
