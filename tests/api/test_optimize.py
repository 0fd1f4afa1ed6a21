"""`optimize` with a space and a device of the user's own: what is chosen, re-measured, refused and kept.

The space lengthens stalls of a real kernel, which is always legal. The device is a stand-in for hardware: it
pays for a longer stall with a faster run, with noise, and can be told to find a candidate wrong later.
"""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import sassafras
from sassafras import Candidate, Evaluation, Interval, Kernel, SassafrasError, Store, Verdict, suite
from sassafras.sass import Program
from sassafras.sass.control import STALL_SHIFT, Control


class Stalls:
    """A state is a tuple of (instruction, extra stall cycles); a move lengthens one short stall by one."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.program = Program.parse(kernel.cubin)
        self.function = self.program.function(kernel.name)
        self.movable = [
            i.index for i in self.function.instructions if 1 <= i.control.stall <= 4 and not i.guard
        ]

    def start(self) -> tuple[int, ...]:
        return ()

    def sample(self, state: tuple[int, ...], rng: np.random.Generator) -> int | None:
        index = int(rng.choice(self.movable))
        return None if state.count(index) >= 3 else index

    def apply(self, state: tuple[int, ...], move: int) -> tuple[int, ...]:
        return tuple(sorted((*state, move)))

    def candidate(self, state: tuple[int, ...]) -> Candidate:
        high = self.function.words[:, 1].copy()
        for index in state:
            control = Control.decode(int(high[index]))
            high[index] = replace(control, stall=control.stall + 1).encode(int(high[index]))
        cubin = self.program.emit(self.function.name, np.arange(len(self.function)), high)
        return Candidate(self.kernel.with_cubin(cubin), {"longer": list(state)})


@dataclass
class Bench:
    """Every extra stall cycle makes a kernel `gain` faster, up to ten; quick looks err by `noise`."""

    gain: float = 0.002
    noise: float = 0.0
    later: Verdict = Verdict.CORRECT
    name: str = "Bench 1"
    arch: str = "sm_90a"
    modelled: bool = False
    log: list[str] = field(default_factory=list)

    def open(self, workload: Any, case: Any, baseline: Kernel) -> None:
        self.log.append("open")
        function = Program.parse(baseline.cubin).function(baseline.name)
        self.code = slice(function.text_offset, function.text_offset + 16 * len(function))
        self.base = self.stalls(baseline)
        self.rng = np.random.default_rng(5)

    def stalls(self, kernel: Kernel) -> int:
        words = np.frombuffer(kernel.cubin[self.code], dtype="<u8").reshape(-1, 2)
        return int((words[:, 1] >> np.uint64(STALL_SHIFT) & np.uint64(15)).sum())

    def true(self, candidate: Candidate) -> float:
        return 1.0 + self.gain * min(self.stalls(candidate.kernel) - self.base, 10)

    def run(self, candidate: Candidate) -> Evaluation:
        self.log.append(candidate.digest)
        speedup = self.true(candidate) * (1 + self.noise * self.rng.standard_normal())
        return self._evaluation(candidate, speedup, 0.01)

    def remeasure(self, candidate: Candidate) -> Evaluation:
        self.log.append(f"remeasure {candidate.digest}")
        if self.later is not Verdict.CORRECT and self.stalls(candidate.kernel) != self.base:
            return Evaluation(candidate.digest, self.later, detail="out[3] differs on a cold launch")
        return self._evaluation(candidate, self.true(candidate), 0.0005)

    def _evaluation(self, candidate: Candidate, speedup: float, half: float) -> Evaluation:
        interval = Interval(speedup - half, speedup + half)
        times = (10 / speedup, 10.0)
        return Evaluation(
            candidate.digest, Verdict.CORRECT, *times, speedup, interval, 1.0, Interval(0.999, 1.001), 12
        )

    def environment(self) -> dict[str, Any]:
        return {"gpu": self.name}

    def close(self) -> None:
        self.log.append("close")


def optimize(bench: Any, tmp_path: Any, budget: str = "60e", **more: Any) -> Any:
    return sassafras.optimize(
        suite.load("softmax"), device=bench, space=Stalls, budget=budget, store=tmp_path / "s.sqlite", **more
    )


def test_a_win_is_remeasured_reported_and_kept(tmp_path: Any) -> None:
    bench = Bench()
    result = optimize(bench, tmp_path, out=tmp_path / "out")
    assert result.improved and result.speedup == pytest.approx(bench.true(Candidate(result.kernel)))
    assert result.interval.high - result.interval.low == pytest.approx(0.001)  # not the search's own figure
    assert bench.log[0] == "open" and bench.log[-1] == "close"
    assert bench.log.count(f"remeasure {result.kernel.digest}") == 1
    assert "on Bench 1, null 1.000 [0.999, 1.001], 12 samples equal, validator: legal" in result.summary()
    assert (tmp_path / "out" / "softmax-512x4096-anneal-s0.cubin").read_bytes() == result.cubin
    with Store.open(tmp_path / "s.sqlite") as store:
        (winner,) = store.winners(original=result.baseline.digest, gpu="Bench 1")
        assert winner.kernel.cubin == result.cubin and winner.speedup == result.speedup
        assert winner.facts["recipe"] == result.recipe and store.modelled_winners() == []
        assert store.runs()[0].evaluations == 60
    assert "longer" in result.recipe and result.seconds > 0 and result.evaluations == 60

    quiet = Bench()
    again = optimize(quiet, tmp_path)
    assert again.from_store and again.summary() == result.summary() and quiet.log == ["close"]


def test_a_search_with_another_budget_does_not_replace_a_better_result(tmp_path: Any) -> None:
    best = optimize(Bench(), tmp_path, out=tmp_path / "out")
    for budget, low, less in (("1e", 1.0, "found nothing faster"), ("2e", 1.0005, "searched less")):
        again = optimize(Bench(), tmp_path, budget, out=tmp_path / "out")
        assert again.cubin == best.cubin and again.interval == best.interval and best.interval.low > low
        assert not again.from_store and again.summary() == best.summary()
        assert again.notes == (f"this is the result of budget 60e: budget {budget} {less}",)
    assert (tmp_path / "out" / "softmax-512x4096-anneal-s0.cubin").read_bytes() == best.cubin
    again = optimize(Bench(), tmp_path)
    assert again.from_store and again.cubin == best.cubin
    best = optimize(Bench(gain=0.01), tmp_path, "90e", fresh=True)
    assert best.budget == "90e" and best.speedup > again.speedup and best.notes == ()
    better = optimize(Bench(gain=0.02), tmp_path, "120e")
    assert better.budget == "120e" and better.speedup > best.speedup, "a better one does replace it"
    with Store.open(tmp_path / "s.sqlite") as store:
        assert [run.finished_budget for run in store.runs()] == ["60e", "120e"]


def test_noise_alone_wins_nothing(tmp_path: Any) -> None:
    bench = Bench(gain=0.0, noise=0.01)
    result = optimize(bench, tmp_path)
    assert not result.improved and result.cubin == result.baseline.cubin and result.speedup == 1.0
    assert result.summary().startswith("1.00x on Bench 1: nothing beat the baseline")
    (note,) = result.notes
    assert "the search's best re-measured 1.000x" in note and "not outside the null" in note
    remeasured = [entry for entry in bench.log if entry.startswith("remeasure")]
    assert len(remeasured) == 1, "the refused winner's null is the null experiment"
    assert result.null_interval == Interval(0.999, 1.001) and remeasured[0].endswith(result.facts["measured"])
    assert result.time_us == result.baseline_us == 10.0 and result.samples == 0
    with Store.open(tmp_path / "s.sqlite") as store:
        assert store.winners() == [] and store.runs()[0].finished_budget == "60e"


def test_leaders_are_looked_at_again_before_one_is_chosen(tmp_path: Any) -> None:
    bench = Bench(noise=0.02)
    result = optimize(bench, tmp_path)
    searched = bench.log[1:61]
    looks = [entry for entry in bench.log[61:] if not entry.startswith(("remeasure", "close"))]
    assert len(looks) == 7 * len(set(looks)) and set(looks) <= set(searched)
    assert result.improved


def test_a_leader_that_fails_later_is_named_and_not_kept(tmp_path: Any) -> None:
    bench = Bench(later=Verdict.WRONG_RESULT)
    result = optimize(bench, tmp_path)
    assert not result.improved and result.cubin == result.baseline.cubin
    assert len(result.notes) == 3 and all("wrong_result: out[3] differs" in note for note in result.notes)
    assert result.failed_after_validation == len(result.failures) == 3
    assert {failure.digest[:16] for failure in result.failures} == {note[:16] for note in result.notes}
    with Store.open(tmp_path / "s.sqlite") as store:
        assert store.winners() == []


def test_approved_candidates_that_fail_are_kept_with_their_code(tmp_path: Any) -> None:
    class Failing(Bench):
        """Every third candidate crashes."""

        def run(self, candidate: Candidate) -> Evaluation:
            outcome = super().run(candidate)
            if len(self.log) % 3:
                return outcome
            return Evaluation(candidate.digest, Verdict.CRASHED, detail="illegal address")

    result = optimize(Failing(), tmp_path, budget="60e")
    assert result.failed_after_validation > len(result.failures) == 8
    first = result.failures[0]
    assert first.verdict == "crashed" and first.detail == "illegal address"
    assert first.original == result.baseline.cubin != first.cubin
    cubin, facts = result.save(tmp_path / "out")
    kept = cubin.with_name(f"{cubin.stem}-failed-{first.digest[:16]}.cubin")
    assert kept.read_bytes() == first.cubin
    assert kept.with_name(f"{kept.stem}-of.cubin").read_bytes() == first.original
    written = json.loads(facts.read_text())
    assert written["failures"][0] == {
        "digest": first.digest, "verdict": "crashed", "detail": "illegal address"
    }  # fmt: skip
    assert type(result).from_json(written, result.baseline, result.cubin).failures == ()


def test_a_leader_that_fails_a_second_look_is_out(tmp_path: Any) -> None:
    @dataclass
    class Flaky(Bench):
        """The fastest candidate is wrong at every second look."""

        def run(self, candidate: Candidate) -> Evaluation:
            outcome = super().run(candidate)
            if self.true(candidate) == 1.02 and self.log.count(candidate.digest) % 2 == 0:
                return Evaluation(candidate.digest, Verdict.WRONG_RESULT, detail="out[0] differs")
            return outcome

    bench = Flaky()
    result = optimize(bench, tmp_path, budget="150e")
    assert 0 < result.failed_after_validation == len(result.notes)
    assert all("approved, was later wrong_result: out[0] differs" in note for note in result.notes)
    assert result.speedup is None or result.speedup < 1.02


def test_an_illegal_space_is_stopped_by_the_validator(tmp_path: Any) -> None:
    class Shorter(Stalls):
        """Shortens stalls to one cycle, which breaks the timing of any real kernel."""

        def candidate(self, state: tuple[int, ...]) -> Candidate:
            high = self.function.words[:, 1].copy()
            for index in state:
                high[index] = replace(Control.decode(int(high[index])), stall=1).encode(int(high[index]))
            cubin = self.program.emit(self.function.name, np.arange(len(self.function)), high)
            return Candidate(self.kernel.with_cubin(cubin), {"shorter": list(state)})

        def __init__(self, kernel: Kernel) -> None:
            super().__init__(kernel)
            self.movable = [i.index for i in self.function.instructions if 4 <= i.control.stall <= 8]

    bench = Bench(gain=-0.01)
    result = sassafras.optimize(
        suite.load("softmax"), device=bench, space=Shorter, budget="40e", strategy="random_walk", store=False
    )
    assert result.verdicts["illegal_schedule"] >= 20
    ran = {entry for entry in bench.log if len(entry) == 64}
    assert len(ran) == 40 - result.verdicts["illegal_schedule"], "an illegal schedule reached the device"


def test_without_a_store_nothing_is_written(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SASSAFRAS_STORE", str(tmp_path / "never.sqlite"))
    result = sassafras.optimize(
        suite.load("softmax"), device=Bench(), space=Stalls, budget="20e", store=False
    )
    assert result.run is None and list(tmp_path.iterdir()) == []


def test_a_device_that_cannot_remeasure_is_told_so(tmp_path: Any) -> None:
    bench = Bench()
    bench.remeasure = None  # type: ignore[assignment]
    with pytest.raises(SassafrasError, match="remeasure"):
        optimize(bench, tmp_path)
    assert bench.log[-1] == "close"


@dataclass
class Slow(Bench):
    """Takes a second to open, waits in each run, and says how long a confirmation takes."""

    confirmation: float = 0.0

    def run(self, candidate: Candidate) -> Evaluation:
        time.sleep(0.02)
        return super().run(candidate)

    def prepare(self, workload: Any, case: Any, baseline: Kernel) -> None:
        self.log.append("prepare")

    def open(self, workload: Any, case: Any, baseline: Kernel) -> None:
        time.sleep(1.0)
        super().open(workload, case, baseline)

    def confirmation_s(self) -> float:
        return self.confirmation


def test_a_time_budget_is_the_whole_wait(tmp_path: Any) -> None:
    heard: list[Any] = []
    bench = Slow(confirmation=1.5)
    result = optimize(bench, tmp_path, budget="6s", progress=heard.append)
    assert bench.log[:2] == ["prepare", "open"]
    with Store.open(tmp_path / "s.sqlite") as store:
        part = store.runs()[0].environment["search_seconds"]["6s"]
    # 6 s less a second of opening, compilation, and 1.5 s for what comes after; never below the half
    assert 3.0 <= part <= 3.5 and result.budget == "6s"
    assert result.seconds >= part - 0.01
    assert heard[0].left > heard[-1].left >= 1.5 and heard[-1].fraction > 0.9
    assert heard[0].elapsed + heard[0].left < 5.1


def test_what_an_interrupted_search_found_outlasts_a_smaller_one(tmp_path: Any) -> None:
    @dataclass
    class Interrupted(Bench):
        def run(self, candidate: Candidate) -> Evaluation:
            if len(self.log) == 30:
                signal.raise_signal(signal.SIGINT)
            return super().run(candidate)

    first = optimize(Interrupted(), tmp_path, "60e", out=tmp_path / "out")
    assert first.reason == "interrupted" and first.improved
    again = optimize(Bench(), tmp_path, "1e", out=tmp_path / "out")
    assert again.cubin == first.cubin and not again.from_store
    assert (tmp_path / "out" / "softmax-512x4096-anneal-s0.cubin").read_bytes() == first.cubin
    with Store.open(tmp_path / "s.sqlite") as store:
        assert [run.finished_budget for run in store.runs()] == [None]
    whole = optimize(Bench(), tmp_path, "60e")
    assert whole.reason == "budget" and whole.evaluations == 60 and not whole.from_store, "it is resumed"
    assert optimize(Bench(), tmp_path, "60e").from_store


def test_a_resumed_search_has_the_part_of_the_budget_that_it_began_with(tmp_path: Any) -> None:
    class Interrupted(Slow):
        def run(self, candidate: Candidate) -> Evaluation:
            if len(self.log) == 30:
                signal.raise_signal(signal.SIGINT)
            return super().run(candidate)

    first = optimize(Interrupted(), tmp_path, budget="4s")
    assert first.reason == "interrupted"
    with Store.open(tmp_path / "s.sqlite") as store:
        part = store.runs()[0].environment["search_seconds"]["4s"]
        assert 2.0 <= part <= 3.0
    second = optimize(Slow(confirmation=60.0), tmp_path, budget="4s")
    # 60 s more change nothing; the part is stored to hundredths
    with Store.open(tmp_path / "s.sqlite") as store:
        assert [run.environment["search_seconds"]["4s"] for run in store.runs()] == [part]
    assert second.reason == "budget" and part - 0.01 <= second.seconds < 4.0
    assert second.replayed == first.evaluations


def test_a_budget_of_evaluations_has_no_clock(tmp_path: Any) -> None:
    assert optimize(Slow(confirmation=600.0), tmp_path, budget="25e").evaluations == 25
