"""From leaders to the reported figure: chosen by new looks, refused where the last look finds nothing."""

from __future__ import annotations

import random

import pytest

from sassafras.core import Candidate, DeviceError, Interval, Kernel, Modelled, Outcome, Verdict, beats
from sassafras.jobs.confirm import LEAST_LEADERS, leaders_of, remeasure, select
from sassafras.search import Found


class Chancy:
    """Costs with luck in them: a candidate's byte is its true cost in percent, each look errs by 1 %."""

    name, arch, modelled = "chance", "sm_90", True

    def __init__(self) -> None:
        self.looks = 0

    def _look(self, candidate: Candidate, seed: str) -> Modelled:
        self.looks += 1
        cost = candidate.kernel.cubin[0] / 100
        if not cost:
            return Modelled(candidate.digest, Verdict.UNSUPPORTED, detail="cannot be modelled")
        return Modelled(candidate.digest, None, cost + random.Random(seed).gauss(0, 0.01), 1.0)

    def run(self, candidate: Candidate) -> Outcome:
        return self._look(candidate, f"{candidate.digest}")

    def closer(self, candidate: Candidate, level: int) -> None:
        return None

    def look(self, candidate: Candidate, turn: int) -> Outcome:
        return self._look(candidate, f"{candidate.digest} {turn}")

    def remeasure(self, candidate: Candidate) -> Outcome:
        cost = candidate.kernel.cubin[0] / 100
        near = Interval(1 / cost - 0.004, 1 / cost + 0.004)
        return Modelled(
            candidate.digest, None, cost, 1.0, interval=near, null_interval=Interval(0.996, 1.004)
        )


def found(device: Chancy, cost: int, number: int, lucky: float) -> Found[None]:
    candidate = Candidate(Kernel(bytes([cost, number]), "k", "sm_90", 32))
    return Found(None, candidate, device.run(candidate), lucky)


def test_the_luckiest_of_the_search_is_not_the_one_that_is_chosen() -> None:
    device = Chancy()
    assert leaders_of(device) > LEAST_LEADERS  # type: ignore[arg-type]
    leaders = [found(device, 100, n, 0.95 + n / 1000) for n in range(20)]
    leaders += [found(device, 97, 99, 0.975), found(device, 0, 98, 0.94)]
    failed: list[tuple[Candidate, Outcome]] = []
    device.looks = 0
    chosen = select(device, leaders, lambda *one: failed.append(one))  # type: ignore[arg-type]
    assert chosen[0].kernel.cubin == bytes([97, 99]) and len(chosen) == 3
    assert [(c.kernel.cubin, o.verdict) for c, o in failed] == [(bytes([0, 98]), Verdict.UNSUPPORTED)]
    assert device.looks < 22 + 11 + 6 + 5 * LEAST_LEADERS  # halves left after each round
    assert beats(remeasure(device, chosen[0]))  # type: ignore[arg-type]
    assert not beats(remeasure(device, leaders[0].candidate))  # type: ignore[arg-type]


def test_a_gain_reaches_beyond_the_null_and_beyond_one() -> None:
    def row(low: float, null: float) -> Modelled:
        return Modelled("d", None, 1.0, 1.0, interval=Interval(low, 1.1), null_interval=Interval(0.9, null))

    assert beats(row(1.01, 1.005)) and not beats(row(1.01, 1.02)) and not beats(row(0.999, 0.99))
    assert not beats(Modelled("d", None, 0.9, 1.0))


def test_a_device_that_cannot_look_again_says_so() -> None:
    class Once:
        name, arch, modelled = "once", "sm_90", False

    with pytest.raises(DeviceError, match="cannot re-measure"):
        remeasure(Once(), Candidate(Kernel(b"k", "k", "sm_90", 32)))  # type: ignore[arg-type]
