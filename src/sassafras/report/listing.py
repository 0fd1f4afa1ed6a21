"""Contents of a store as plain rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sassafras.core import Outcome
from sassafras.store import Store
from sassafras.store.records import TunedKernel
from sassafras.timing_model.evidence import correlation, ratio_words, refusal

#: of a run
_RUN = ("workload", "case", "arch", "device", "strategy", "seed", "evaluations")


def listing(store: Store) -> dict[str, list[dict[str, Any]]]:
    """Winners, modelled winners and runs, each a list of rows ready to print."""
    measured = [
        _tuned(
            w,
            gpu=w.gpu,
            speedup=f"{w.speedup:.3f}x {w.interval}",
            null=f"{w.null:.3f} {w.null_interval}",
            samples=w.samples,
        )
        for w in store.winners()
    ]
    modelled = [
        _tuned(
            w,
            model=w.model,
            modelled=refusal(correlation(w.workload, w.case))
            or ratio_words(w.modelled_ratio, w.interval, w.null, w.null_interval, w.draws),
        )
        for w in store.modelled_winners()
    ]
    runs = [
        {
            "run": r.id,
            **{name: getattr(r, name) for name in _RUN},
            "state": f"finished {r.finished_budget}" if r.finished_budget else "can be resumed",
            "created": r.created[:19],
        }
        for r in store.runs()
    ]
    return {"tuned kernels (measured)": measured, "modelled only (not measured)": modelled, "runs": runs}


def _tuned(w: TunedKernel, **own: Any) -> dict[str, Any]:
    of = {"workload": w.workload, "case": w.case, "kernel": w.kernel.name}
    return {**of, **own, "original": w.original[:16], "tuned": w.tuned[:16], "origin": w.origin}


def run_facts(store: Store, run_id: int) -> dict[str, Any]:
    """Everything about one run, with its outcomes counted by verdict."""
    facts = asdict(store.run(run_id))
    facts["verdicts"] = dict(
        Counter("modelled" if o.verdict is None else o.verdict.value for o in store.evaluations(run_id))
    )
    return facts


def evaluation_lines(store: Store, run_id: int) -> Iterator[str]:
    """Every evaluation of a run as a line of JSON, in order."""
    for outcome in store.evaluations(run_id):
        yield json.dumps(outcome_json(outcome), sort_keys=True, default=str)


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as a JSON object; ``modelled`` says which kind it is."""
    return {"modelled": outcome.modelled, **asdict(outcome)}
