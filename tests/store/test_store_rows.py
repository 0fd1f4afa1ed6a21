"""Rows in, rows out: runs, evaluations, winners, cubins, pruning."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sassafras.core import Candidate, Evaluation, Interval, Kernel, Modelled, StoreError, Verdict
from sassafras.report.listing import listing, run_facts
from sassafras.store import Store

META = {
    "source_hash": "f00d", "signature": {"x": "*fp32"}, "constants": {"BLOCK": 128},
    "ptxas": "12.8.93", "options": {"num_warps": 4},
}  # fmt: skip
ORIGINAL = Kernel(b"\x7fELF original" * 50, "softmax", "sm_90a", 128, 64, meta=META)


def tuned(n: int = 0) -> Candidate:
    return Candidate(ORIGINAL.with_cubin(b"\x7fELF tuned %d" % n * 50), {"moves": [[n, n + 1]]})


def measured(candidate: Candidate, speedup: float = 1.05, **more: Any) -> Evaluation:
    return Evaluation(
        candidate.digest, Verdict.CORRECT, 10.0 / speedup, 10.0, speedup,
        Interval(speedup - 0.002, speedup + 0.002), 1.0, Interval(0.999, 1.001), 12,
        "", 0.006, {"clock_mhz": 1980}, **more,
    )  # fmt: skip


def begin(store: Store, *, modelled: bool = False, **more: Any) -> int:
    spec = {"workload": "softmax", "modelled": modelled, "seed": 0} | more.pop("spec", {})
    return store.begin_run(
        spec, kernel=ORIGINAL, workload="softmax", case="512x4096", modelled=modelled, strategy="anneal",
        seed=0,
        device="timing model of sm_90" if modelled else "NVIDIA H200", environment={"driver": "580"}, **more,
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open(tmp_path / "deep" / "store.sqlite") as opened:
        yield opened


def save(store: Store, candidate: Candidate, outcome: Evaluation, **more: Any) -> int:
    facts = {"gpu": "NVIDIA H200", "workload": "softmax", "case": "512x4096"} | more
    return store.save_winner(ORIGINAL, candidate, outcome, **facts)


def test_outcomes_come_back_exactly(store: Store) -> None:
    run_id = begin(store)
    outcomes = [
        measured(tuned(0), 1.0 + 1 / 3),
        Evaluation(tuned(1).digest, Verdict.CRASHED, detail="illegal address", seconds=0.25),
        Evaluation(tuned(2).digest, Verdict.WRONG_RESULT, samples=3, detail="out[7] is 1.0, not 2.0"),
    ]
    for n, outcome in enumerate(outcomes):
        assert store.record(run_id, tuned(n), outcome, took=0.1 * n) is outcome
    assert list(store.evaluations(run_id)) == outcomes
    assert store.known(run_id, tuned(2).digest) == (outcomes[2], 0.2)
    assert store.known(run_id, "0" * 64) is None
    modelled_run = begin(store, modelled=True)
    shown = Modelled(tuned(0).digest, None, 1234.5, 1300.25, facts={"trips": 4})
    refused = Modelled(tuned(1).digest, Verdict.ILLEGAL_SCHEDULE, detail="R4 read too early")
    store.record(modelled_run, tuned(0), shown)
    store.record(modelled_run, tuned(1), refused)
    assert list(store.evaluations(modelled_run)) == [shown, refused]


def test_numpy_figures_become_plain_ones(store: Store) -> None:
    run_id = begin(store, modelled=True)
    outcome = Modelled(tuned().digest, None, np.float32(8), np.float64(9), facts={"n": np.int64(3)})
    store.record(run_id, tuned(), outcome)
    (back,) = store.evaluations(run_id)
    assert isinstance(back, Modelled) and (back.cycles, back.baseline_cycles) == (8.0, 9.0)
    assert back.facts == {"n": 3}


def test_a_second_record_of_a_candidate_changes_nothing(store: Store) -> None:
    run_id = begin(store)
    store.record(run_id, tuned(), measured(tuned(), 1.05))
    assert store.record(run_id, tuned(), measured(tuned(), 1.50)) == measured(tuned(), 1.05)
    assert store.run(run_id).evaluations == 1


def test_the_same_spec_is_the_same_run_until_a_fresh_start(store: Store) -> None:
    first = begin(store)
    assert begin(store) == first and begin(store, spec={"seed": 1}) != first
    store.record(first, tuned(), measured(tuned()))
    second = begin(store, fresh=True)
    assert second != first and begin(store) == second
    assert store.run(first).evaluations == 1 and store.run(second).evaluations == 0
    record = store.run(first)
    assert (record.workload, record.case, record.kernel, record.arch) == (
        "softmax",
        "512x4096",
        "softmax",
        "sm_90a",
    )
    assert record.baseline == ORIGINAL.digest and record.environment == {"driver": "580"}
    store.finish_run(first, "60s", {"speedup": 1.05})
    assert store.run(first).finished_budget == "60s" and store.run(first).result == {"speedup": 1.05}


def test_modelled_and_measured_never_mix(store: Store) -> None:
    modelled = Modelled(tuned().digest, None, 90.0, 100.0)
    with pytest.raises(StoreError, match="a modelled outcome was offered to a measured run"):
        store.record(begin(store), tuned(), modelled)
    with pytest.raises(StoreError, match="a measured outcome was offered to a modelled run"):
        store.record(begin(store, modelled=True), tuned(), measured(tuned()))
    with pytest.raises(StoreError, match="only a measurement"):
        save(store, tuned(), modelled)  # type: ignore[arg-type]
    store.save_modelled_winner(
        ORIGINAL, tuned(), modelled, model="timing model of sm_90", workload="softmax", case="512x4096"
    )
    assert store.winners() == [] and store.winners(original=ORIGINAL.digest) == []
    (winner,) = store.modelled_winners(original=ORIGINAL.digest)
    assert winner.modelled and winner.modelled_ratio == pytest.approx(100 / 90)
    assert not hasattr(winner, "speedup") and winner.kernel.cubin == tuned().kernel.cubin
    # not even by hand
    with pytest.raises(sqlite3.IntegrityError), sqlite3.connect(store.path) as db:
        db.execute(
            "INSERT INTO evaluations (run, digest, modelled, speedup, detail, seconds, facts, took, recipe,"
            " recorded) VALUES (1, 'x', 1, 2.0, '', 0, '{}', 0, '', '')"
        )


def test_winners_surest_first_and_by_gpu(store: Store) -> None:
    run_id = begin(store)
    save(store, tuned(0), measured(tuned(0), 1.02), run_id=run_id, facts={"validator": "legal"})
    save(store, tuned(1), measured(tuned(1), 1.08))
    save(store, tuned(2), measured(tuned(2), 1.30), gpu="NVIDIA H100")
    found = store.winners(original=ORIGINAL.digest, gpu="NVIDIA H200")
    assert [w.speedup for w in found] == [1.08, 1.02]
    best = found[0]
    assert best.kernel == tuned(1).kernel and best.kernel.meta == META
    assert best.interval == Interval(1.08 - 0.002, 1.08 + 0.002) and best.null_interval.high == 1.001
    assert found[1].facts == {"validator": "legal"} and best.origin == "local"
    assert store.winners(original="0" * 64) == [] and len(store.winners()) == 3


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Evaluation(tuned().digest, Verdict.CHEATED), "must be correct"),
        (Evaluation(tuned().digest, Verdict.CORRECT, speedup=1.1), "intervals"),
        (measured(tuned(1)), "another candidate"),
    ],
)
def test_a_winner_needs_everything(store: Store, outcome: Evaluation, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        save(store, tuned(0), outcome)
    assert store.winners() == []


def test_a_winner_launches_like_the_original(store: Store) -> None:
    from dataclasses import replace

    other = Candidate(replace(tuned().kernel, shared_bytes=4096))
    with pytest.raises(StoreError, match="launch facts differ"):
        save(store, other, measured(other))


def test_cubins_are_checked_on_reading(store: Store) -> None:
    digest = store.put_cubin(ORIGINAL.cubin)
    assert store.put_cubin(ORIGINAL.cubin) == digest and store.cubin(digest) == ORIGINAL.cubin
    with pytest.raises(StoreError, match="holds no cubin"):
        store.cubin("0" * 64)
    import zlib

    for size, data in [
        (len(ORIGINAL.cubin), zlib.compress(b"x" * len(ORIGINAL.cubin))),
        (len(ORIGINAL.cubin), b"not zlib"),
        (10, zlib.compress(bytes(1 << 24))),
    ]:
        with sqlite3.connect(store.path) as db:
            db.execute("UPDATE cubins SET size = ?, data = ? WHERE digest = ?", (size, data, digest))
        db.close()
        with pytest.raises(StoreError, match="is damaged"):
            store.cubin(digest)


@pytest.mark.parametrize(
    ("column", "value", "read"),
    [
        ("evaluations.facts", '{"a":', lambda store: list(store.evaluations(1))),
        ("evaluations.verdict", "not yet known", lambda store: store.known(1, tuned().digest)),
        ("evaluations.recipe", b"no zlib", lambda store: store.export(store.path.with_suffix(".jsonl"))),
        ("runs.spec", "[" * 100_000, lambda store: store.runs()),
        ("runs.result", "", lambda store: store.run(1)),
        ("kernels.meta", "[" * 100_000, lambda store: store.baseline(1)),
        ("winners.facts", "[]", lambda store: store.winners()),
        ("winners.facts", '{"a":', lambda store: store.winners()),
    ],
)
def test_a_damaged_row_is_an_error_that_names_the_file(
    store: Store, column: str, value: Any, read: Any
) -> None:
    run_id = begin(store)
    store.record(run_id, tuned(), measured(tuned()))
    save(store, tuned(), measured(tuned()))
    table, _, name = column.partition(".")
    with store.transaction() as db:
        db.execute(f"UPDATE {table} SET {name} = ?", (value,))
    with pytest.raises(StoreError, match="damaged") as caught:
        read(store)
    assert str(store.path) in str(caught.value)


def test_prune_keeps_winners_and_what_they_need(store: Store) -> None:
    finished, running = begin(store), begin(store, spec={"seed": 1})
    for run_id in (finished, running):
        store.record(run_id, tuned(), measured(tuned()))
    store.finish_run(finished, "60s", {})
    save(store, tuned(), measured(tuned()), run_id=finished)
    stray = store.put_cubin(b"nobody refers to this")
    assert store.prune() == {"evaluations": 1, "runs": 1, "modelled_winners": 0, "cubins": 1}
    assert [record.id for record in store.runs()] == [running]
    assert store.winners()[0].kernel == tuned().kernel
    with pytest.raises(StoreError):
        store.cubin(stray)
    assert store.prune(older_than_days=1e7)["runs"] == store.prune(older_than_days=math.inf)["runs"] == 0
    with pytest.raises(StoreError, match="older_than_days is -1, not a number from 0 up"):
        store.prune(older_than_days=-1)
    assert store.prune(older_than_days=1)["runs"] == 0 and store.prune(older_than_days=0)["runs"] == 1


def test_default_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sassafras.store import default_path

    assert default_path().is_relative_to(tmp_path.parents[1]), "tests would fill the user's store"
    monkeypatch.setenv("SASSAFRAS_STORE", str(tmp_path / "mine.sqlite"))
    assert default_path() == tmp_path / "mine.sqlite"
    monkeypatch.delenv("SASSAFRAS_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_path() == tmp_path / "sassafras" / "store.sqlite"


def test_a_column_takes_its_own_type_alone(store: Store) -> None:
    if sqlite3.sqlite_version_info < (3, 37):
        pytest.skip("this SQLite has no typed columns")
    with store.transaction() as db, pytest.raises(sqlite3.IntegrityError):
        db.execute("INSERT INTO cubins (digest, size, data) VALUES ('d', 'many', x'00')")


def test_runs_of_strategies_that_are_gone_are_listed_and_shown(tmp_path: Path) -> None:
    """A store keeps names and settings as text: what it holds does not depend on what can be run today."""
    path = tmp_path / "store.sqlite"
    gone = {
        "beam": {"width": 8}, "exact": {"whole": 250}, "guided": {"policy": "pretrained", "heat": 1.0},
        "ppo": {"policy": "pretrained", "digest": "0123456789abcdef"},
    }  # fmt: skip
    with Store.open(path) as store:
        for strategy, settings in gone.items():
            run_id = store.begin_run(
                {"strategy": strategy, "settings": settings},
                kernel=ORIGINAL,
                workload="w",
                case="c",
                device="model",
                modelled=True,
                strategy=strategy,
                seed=0,
            )
            store.record(run_id, tuned(1), Modelled(tuned(1).digest, None, 90.0, 100.0))
    with Store.open(path, readonly=True) as store:
        assert {r.strategy: r.spec["settings"] for r in store.runs()} == gone
        assert {row["strategy"] for row in listing(store)["runs"]} == set(gone)
        for record in store.runs():
            assert run_facts(store, record.id)["verdicts"] == {"modelled": 1}
            (outcome,) = store.evaluations(record.id)
            assert outcome.cost == pytest.approx(0.9)


def test_what_sqlite_cannot_hold_is_refused(store: Store) -> None:
    wrong = Evaluation(tuned().digest, Verdict.WRONG_RESULT, detail="half of a pair: \ud800")
    with pytest.raises(StoreError, match="there is no run 9223372036854775808"):
        store.run(1 << 63)
    with pytest.raises(StoreError, match="the store cannot hold this"):
        store.record(begin(store), tuned(), wrong)
