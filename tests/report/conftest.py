"""A store with a modelled search, a measured one, and one whose candidates name their parents."""

from __future__ import annotations

from pathlib import Path

import pytest

import sassafras
from sassafras.core import Candidate, Evaluation, Interval, Kernel, Verdict
from sassafras.store import Store

from .subjects import case, kernel, space, sunk, walked, workload_of

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "schedule-suite.json"
HOSTILE = "</script><img src=https://example.invalid/x onerror=alert(1)>"


def correct(candidate: Candidate, speedup: float) -> Evaluation:
    near = Interval(speedup - 0.004, speedup + 0.003)
    null = Interval(0.998, 1.001)
    return Evaluation(
        candidate.digest, Verdict.CORRECT, 10 / speedup, 10.0, speedup, near, 1.0, null, 60, seconds=0.1
    )


def begin(store: Store, baseline: Kernel, name: str, strategy: str) -> int:
    from sassafras.frontend.description import describe

    return store.begin_run(
        {"workload": name, "strategy": strategy}, kernel=baseline, workload=name, case=case().name,
        device="NVIDIA H200", modelled=False, strategy=strategy, seed=7,
        environment={"gpu": "NVIDIA H200", "driver": "580", "case": describe(case())},
    )  # fmt: skip


def measured(store: Store) -> int:
    """A finished run as a GPU would leave it."""
    slow, fast = sunk()
    run = begin(store, slow, HOSTILE, "anneal")
    for seed, speedup in ((1, 0.97), (2, 1.01), (3, 1.031)):
        state = walked(seed, 5)
        candidate = Candidate(kernel().with_cubin(space().emit(state)), {"space": "schedule"})
        store.record(run, candidate, correct(candidate, speedup), took=0.5)
    wrong = Candidate(kernel().with_cubin(space().emit(walked(4, 5))), {})
    store.record(run, wrong, Evaluation(wrong.digest, Verdict.TIMED_OUT, detail="2 s"), took=2.0)
    result = {
        "improved": True, "speedup": 1.031, "interval": [1.027, 1.034], "null": 1.0,
        "null_interval": [0.998, 1.001], "baseline_us": 10.0,
        "kernel": {"digest": store.put_cubin(fast.cubin)}, "failed_after_validation": 0,
    }  # fmt: skip
    store.finish_run(run, "60s", result)
    return run


def family(store: Store) -> int:
    """Candidates made from one another."""
    run = begin(store, kernel(), "family", "evolve")
    parent = "seed-source"
    for seed, speedup in ((11, 1.01), (12, 1.02), (13, 1.015)):
        candidate = Candidate(
            kernel().with_cubin(space().emit(walked(seed, 4))), {"parent": parent, "label": f"edit {seed}"}
        )
        store.record(run, candidate, correct(candidate, speedup), took=1.0)
        if seed == 11:
            parent = candidate.digest
    return run


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store's path. Read only."""
    path = tmp_path_factory.mktemp("filled") / "filled.sqlite"
    slow, _ = sunk()
    with Store.open(path) as store:
        sassafras.optimize(
            workload_of(slow), device="model", strategy="greedy", budget="100e", store=store, arch="sm_90a"
        )
        measured(store)
        family(store)
    return path


@pytest.fixture(scope="session")
def page(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page made of the store and the committed results. Read only."""
    from sassafras.report.page import write_report

    return write_report(tmp_path_factory.mktemp("page") / "r" / "page.html", [filled, RESULTS], explain=20)
