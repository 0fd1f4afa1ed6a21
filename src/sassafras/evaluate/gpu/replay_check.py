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
from sassafras.cuda.timing import interleaved

from .case_on_gpu import Plan
from .random_tests import FILL, InputSteps
from .replay_rule import decision, orders, repetition

if TYPE_CHECKING:
    from .judge import KernelJudge

#: microseconds a launch, and share of the candidate's own time, that repeated inputs may save it
SAVED_US, SAVED_SHARE = 0.3, 0.15
#: what is noted of a candidate whose suspicious times could not be repeated
NOISY = "noisy: not judged"
#: seconds between two repetitions, at least and at most: what disturbed the first may be gone
PAUSE_S = (0.005, 0.03)


class ReplayCheck:
    """See the module. Holds the baseline's two graphs; `judge` adds a candidate's.

    Args:
        bench: open.
        rounds: interleaved rounds of the four graphs, each look.
    """

    def __init__(self, bench: KernelJudge, rounds: int = 12) -> None:
        self.bench, self.gpu, self.rounds = bench, bench.gpu, rounds
        #: False where no input is random: nothing can be told then
        self.possible = any(
            segment.buffer.role != "out" and type(segment.buffer.fill).__name__ != "Custom"
            for segment in bench.headline.layout.segments
        )
        self._steps = InputSteps(self.gpu, bench.checker, bench.headline.layout)
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
        scene = self.bench.headline
        live = int(scene.live.data_ptr())
        counter = 0 if fresh else 1

        def enqueue() -> None:
            for index in range(self.launches):
                self._steps.step(live, live, index if fresh else 0, FILL, counter=counter)
                scene.launch(plan, function)
            # both graphs end alike; only the fresh one's counter moves on
            self._steps.advance(self.launches if fresh else 0, counter=counter)

        return self.gpu.capture(enqueue)
