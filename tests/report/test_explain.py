"""Tuned schedules taken apart, on real cubins and the timing model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sassafras
from sassafras.core import Candidate, Modelled, Redrawing, SassafrasError
from sassafras.jobs.opening import open_device
from sassafras.report.explain import MoveClass
from sassafras.report.explain.changes import Changes, heaviest_increasing, state_of
from sassafras.report.explain.reduce import Purse, essential
from sassafras.report.explain.timeline import Wait
from sassafras.report.explain.words import why
from sassafras.schedule import ScheduleSpace, ScheduleState
from sassafras.store import Store
from sassafras.validate import Validator
from tests.kernels import softmax_cubin

from .subjects import case, kernel, space, sunk, walked, workload_of

#: compiling the model and the space for the first time takes a while on a busy machine
pytestmark = pytest.mark.timeout(1500)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_cubin_gives_its_schedule_back_and_changes_rebuild_both_ends(seed: int) -> None:
    state = walked(seed, 60)
    cubin = space().emit(state)
    again = state_of(space(), cubin)
    assert again == state and space().emit(again) == cubin
    changes = Changes(space(), state)
    assert changes.all
    same = changes.without([])
    everything = changes.without(range(len(changes.all)))
    assert same is not None and same[0] == state and not same[1]
    assert everything is not None and space().emit(everything[0]) == kernel().cubin


def test_every_part_of_a_schedule_is_a_legal_schedule() -> None:
    changes = Changes(space(), walked(2, 80))
    validator = Validator(kernel().cubin, "softmax")
    rng = np.random.default_rng(3)
    asked = [{n} for n in range(len(changes.all))]
    asked += [set(np.flatnonzero(rng.random(len(changes.all)) < 0.5).tolist()) for _ in range(15)]
    seen = set()
    for undone in asked:
        made = changes.without(undone)
        assert made is not None and undone <= made[1]
        assert space().violation(made[0]) == ""
        assert validator.check(space().emit(made[0])).ok
        seen.add(made[0].digest)
    assert len(seen) > 20


def test_changes_that_cannot_stay_go_along() -> None:
    """An address computed earlier lets its load move up: without the one the other must go, too."""
    together, stuck, count = 0, 0, 0
    for seed in range(6):
        changes = Changes(space(), walked(seed, 200))
        for n in range(len(changes.all)):
            made = changes.without([n])
            count += 1
            stuck += made is None  # no stall counts will do: it is said, not forced
            together += made is not None and len(made[1]) > 1
    assert together and stuck < count / 50


def test_the_subsequence_that_stays_is_the_heaviest() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = rng.permutation(9).tolist()
        weights = rng.integers(1, 5, 9).astype(float).tolist()
        kept = heaviest_increasing(values, weights)
        weight = dict(zip(values, weights, strict=True))
        best = max(
            sum(weight[v] for v in chosen)
            for mask in range(512)
            if (chosen := [v for n, v in enumerate(values) if mask >> n & 1]) == sorted(chosen)
        )
        assert [v for v in values if v in kept] == sorted(kept)
        assert sum(weight[v] for v in kept) == best


def test_the_reduction_finds_the_changes_that_matter() -> None:
    changes = Changes(space(), walked(5, 80))
    count = len(changes.all)
    vital = {count // 3, count - 2}
    needed = {changes.all[n].instruction for n in vital}

    def cost(state: ScheduleState) -> float | None:
        """As if only two of the changes counted: those whose instructions stand or stall as tuned."""
        made = Changes(space(), state)
        kept = {c.instruction for c in made.all}
        return 1.0 - 0.1 * len(needed & kept)

    purse = Purse(cost, 500)
    undone = essential(changes, purse)
    assert not undone & vital
    assert count - len(undone) <= 6  # the vital ones and what cannot be told apart from them
    assert essential(changes, Purse(cost, 3)) <= frozenset(range(count))  # a limit ends it early


def test_it_says_that_hoisted_loads_cover_their_latency() -> None:
    slow, fast = sunk()
    found = sassafras.explain(workload_of(slow), tuned=fast.cubin, device="model", arch="sm_90a")
    assert found.modelled and found.ratio > 1.02 and found.kept >= 0.95
    # the largest gain first: of the five that were drawn again, then of the others
    for part in (found.moves[:5], found.moves[5:]):
        assert part == tuple(sorted(part, key=lambda m: -m.gain))
    assert found.moves and all((m.interval is not None) == (n < 5) for n, m in enumerate(found.moves))
    loads = [m for m in found.moves if any("LDG" in p.text for p in m.parts)]
    assert loads and loads[0] in found.moves[:2]
    assert any(m.kind in (MoveClass.HOIST_LOAD, MoveClass.PAIR_LOADS) for m in loads), [m.kind for m in loads]
    assert "LDG" in loads[0].words and "waits" in loads[0].words
    assert "modelled" in found.summary()
    # the reduced schedule is legal, keeps what it says, and its moves are its own
    assert Validator(slow.cubin, "softmax").check(found.cubin).ok
    device = open_device("model", "sm_90a")
    device.open(workload_of(slow), case(), slow)
    assert isinstance(device, Redrawing)
    outcome = device.remeasure(Candidate(slow.with_cubin(found.cubin)))
    assert isinstance(outcome, Modelled) and outcome.modelled_ratio == pytest.approx(found.reduced_ratio)
    # the figure is of fresh draws, with its interval and its null
    tuned = device.remeasure(Candidate(fast))
    assert (found.ratio, found.interval, found.null_interval, found.draws) == (
        pytest.approx(tuned.modelled_ratio), tuned.interval, tuned.null_interval, tuned.draws
    )  # fmt: skip
    assert f"{found.ratio:.3f}x {found.interval}, null" in found.summary()


def test_a_gain_within_the_null_is_not_explained() -> None:
    """One swap of two instructions: whatever the model says of it on some draws, on others it is nothing."""
    slow, _ = sunk()
    made = ScheduleSpace(slow)
    state = made.start()
    near = next(m for m in made.moves(state) if abs(m.j - m.i) == 1)
    found = sassafras.explain(
        workload_of(slow), tuned=made.emit(made.apply(state, near)), device="model", arch="sm_90a", limit=20
    )
    assert found.interval is not None and not found.gained and not found.moves
    assert "nothing was gained" in found.summary()


def test_a_kernel_that_the_model_ranks_badly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = {"kendall_tau": -0.45, "ceiling": 1.0, "schedules": 210, "date": "2026-11-21", "gpu": "NVIDIA H200"}
    monkeypatch.setattr("sassafras.report.explain.work.correlation", lambda workload, case: bad)
    slow, fast = sunk()
    found = sassafras.explain(workload_of(slow), tuned=fast.cubin, device="model", arch="sm_90a")
    assert found.summary().endswith("no evidence for this kernel: its rank correlation with NVIDIA H200 is "
                                    "-0.45, below 0.3")  # fmt: skip
    assert not found.moves and found.to_json()["refusal"] and "x [" not in found.text()


def test_json_is_complete_and_saved(tmp_path: Path) -> None:
    slow, fast = sunk()
    found = sassafras.explain(workload_of(slow), tuned=fast.cubin, device="model", limit=2)
    found.save(tmp_path / "why.json")
    read = json.loads((tmp_path / "why.json").read_text())
    assert read == json.loads(json.dumps(found.to_json()))
    assert read["format"] == 1 and read["modelled"] is True
    assert read["evaluations"] <= 2 and not read["complete"]
    kinds = {str(k) for k in MoveClass}
    for move in read["moves"]:
        assert move["kind"] in kinds and move["parts"] and move["words"] and move["gain"] > 0
    assert (tmp_path / "why.cubin").read_bytes() == found.cubin


def test_stored_runs_are_explained_without_the_users_file(tmp_path: Path) -> None:
    slow, _ = sunk()
    with Store.open(tmp_path / "store.sqlite") as store:
        result = sassafras.optimize(
            workload_of(slow), device="model", strategy="greedy", budget="100e", store=store, arch="sm_90a"
        )
        assert result.improved and result.run is not None
        _, facts = result.save(tmp_path)
        options: dict[str, Any] = {"device": "model", "store": store, "limit": 30}
        found = sassafras.explain(f"run:{result.run}", **options)
        assert found.ratio == pytest.approx(result.modelled_ratio)
        same = sassafras.explain(str(facts), **options)
        best = sassafras.explain(workload_of(slow), arch="sm_90a", **options)
        assert found.to_json() == same.to_json() == best.to_json()
        with pytest.raises(SassafrasError, match="no run 99"):
            sassafras.explain("run:99", **options)
        for target in (f"run:{result.run}", str(facts)):  # what is not that run's is not left out silently
            with pytest.raises(SassafrasError, match="--tuned is for a workload"):
                sassafras.explain(target, tuned=softmax_cubin(block=2048), **options)
            with pytest.raises(SassafrasError, match="--arch is for a workload"):
                sassafras.explain(target, arch="sm_80", **options)
            with pytest.raises(SassafrasError, match="no case 'other'"):
                sassafras.explain(target, case="other", **options)


def test_a_search_that_found_nothing_is_said_to_have(tmp_path: Path) -> None:
    slow, _ = sunk()
    with Store.open(tmp_path / "store.sqlite") as store:
        given: dict[str, Any] = {"device": "model", "store": store, "arch": "sm_90a"}
        assert not sassafras.optimize(workload_of(slow), budget="1e", **given).improved
        with pytest.raises(SassafrasError, match=r"nothing beat the baseline: .* \(a larger --budget of"):
            sassafras.explain(workload_of(slow), **given)


def test_what_cannot_be_explained_is_refused(tmp_path: Path) -> None:
    baseline = kernel()
    other = softmax_cubin(block=2048)
    with pytest.raises(SassafrasError, match=r"bytes, this one|holds an instruction"):
        sassafras.explain(workload_of(baseline), tuned=other, device="model")
    with (
        Store.open(tmp_path / "store.sqlite") as store,
        pytest.raises(SassafrasError, match="no tuned kernel"),
    ):
        sassafras.explain(workload_of(baseline), store=store, device="model")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(SassafrasError, match="not a result"):
        sassafras.explain(str(tmp_path / "x.json"), device="model")
    (tmp_path / "captured.json").write_text('{"variants": []}')
    with pytest.raises(SassafrasError, match="no sound capture"):  # a target of optimize is one of explain
        sassafras.explain(str(tmp_path / "captured.json"), device="model")
    same = sassafras.explain(workload_of(baseline), tuned=baseline.cubin, device="model")
    assert same.changes == 0 and "the same" in same.summary()


def test_a_wait_that_rounds_to_nothing_is_not_named() -> None:
    waits = {Wait(1, "stall count", -1): 1.2, Wait(2, "barrier", -1): 0.4}
    words = "a warp waits 2 cycles less in all, 1 cycle less by stall counts"
    assert why(space().function, [], waits, {}, True) == words
