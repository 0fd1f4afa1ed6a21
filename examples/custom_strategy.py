"""A search strategy of your own: late acceptance hill climbing, in some twenty lines.

python examples/custom_strategy.py                       # suite:softmax on the timing model, no GPU needed
python examples/custom_strategy.py mine.py cuda 60s      # your kernel, measured
"""

import sys
from dataclasses import dataclass

import sassafras


@dataclass
class LateAcceptance:
    """Accept what is no worse than the state of `memory` evaluations ago (Burke and Bykov, 2017)."""

    memory: int = 50
    name: str = "late_acceptance"

    def search(self, space, evaluate, session):
        state, past = session.best.state, [session.best.cost] * self.memory
        step = 0
        while session.more():
            move = space.sample(state, session.rng)
            if move is None:
                state = session.best.state
                continue
            neighbour = space.apply(state, move)
            cost = evaluate(neighbour).cost  # relative to the baseline; None when the candidate is no use
            if cost is not None and cost <= past[step % self.memory]:
                state = neighbour
                past[step % self.memory] = cost
            step += 1


if __name__ == "__main__":
    target, device, budget = (*sys.argv[1:], *("suite:softmax", "model", "200e")[len(sys.argv) - 1 :])
    result = sassafras.optimize(target, strategy=LateAcceptance(memory=20), device=device, budget=budget)
    print(result.summary())
