"""A search in a process of its own, to be killed: ``tour_search.py STORE STRATEGY BUDGET SEED DELAY LOG``.

Prints one JSON line with what it found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tour import Lengths, Tours

from sassafras import search
from sassafras.core import Budget
from sassafras.jobs.job import StoreRecorder
from sassafras.store import Store


def main(store_path: str, strategy: str, budget: str, seed: str, delay: str, log: str) -> None:
    space = Tours()
    start = space.candidate(space.start())
    with Store.open(store_path) as store:
        run_id = store.begin_run(
            {"what": "tour", "strategy": strategy, "seed": int(seed)},
            kernel=start.kernel, workload="tour", case="14", device="exact", modelled=True,
            strategy=strategy, seed=int(seed),
        )  # fmt: skip
        found = search.run(
            search.get(strategy), space, Lengths(space, float(delay), Path(log)), Budget.parse(budget),
            seed=int(seed), recorder=StoreRecorder(store, run_id),
        )  # fmt: skip
    best = {"digest": found.best.candidate.digest, "cost": found.best.cost}
    print(json.dumps(best | {"evaluations": found.evaluations, "reason": found.reason}))


if __name__ == "__main__":
    main(*sys.argv[1:])
