"""Confirmation: chooses the winner among a search's leaders and re-measures it for the report.

Measured or modelled, the steps are the same. The leaders are evaluated several more times, which chooses the
winner. The winner is then re-measured together with the A/A control: in fresh processes on a GPU, with fresh
draws of start times on the timing model.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from sassafras.core import Candidate, Device, DeviceError, Evaluation, Modelled, Outcome, Redrawing, Verdict
from sassafras.search import Found

#: how many of the search's leaders are looked at again, and how often, before one is chosen: the best of
#: thousands of noisy figures owes its place to luck
SELECTION_LEADERS, SELECTION_ROUNDS = 8, 7
#: the same of leaders that are modelled: the worse half of them leaves after each round, down to so many
MODELLED_LEADERS, LEAST_LEADERS = 32, 4


def leaders_of(device: Device) -> int:
    """How many leaders a search on this device keeps."""
    return MODELLED_LEADERS if isinstance(device, Redrawing) and device.modelled else SELECTION_LEADERS


def select(
    device: Device, contenders: Sequence[Found[Any]], failed: Callable[[Candidate, Outcome], None]
) -> list[Candidate]:
    """The best three by new evaluations, which the search did not select on, best first.

    Args:
        device: open.
        contenders: leaders, best first.
        failed: called with candidates that turn out to be wrong.
    """
    costs = {c.candidate.digest: c.cost for c in contenders}
    able = {c.candidate.digest: c.candidate for c in contenders}
    looks: dict[str, list[float]] = {digest: [] for digest in able}
    middle = statistics.fmean if device.modelled else statistics.median
    for turn in range(SELECTION_ROUNDS if len(contenders) > 1 else 0):
        for digest, candidate in list(able.items()):
            outcome = device.look(candidate, turn) if isinstance(device, Redrawing) else device.run(candidate)
            if outcome.cost is not None:
                looks[digest].append(outcome.cost)
            elif outcome.verdict is not Verdict.UNSTABLE_BASELINE:
                del able[digest]  # once wrong is wrong
                failed(candidate, outcome)
        if device.modelled and len(able) > LEAST_LEADERS:
            best = sorted(able, key=lambda digest: middle(looks[digest]))
            able = {digest: able[digest] for digest in best[: max(LEAST_LEADERS, len(best) // 2)]}
    ranked = sorted(able, key=lambda digest: middle(looks[digest] or [costs[digest]]))
    return [able[digest] for digest in ranked[:3]]


def remeasure(device: Device, candidate: Candidate) -> Evaluation | Modelled:
    """The figure of a frozen candidate that is reported.

    Raises:
        DeviceError: the device cannot take it, or gives a figure of the other kind.
    """
    again: Callable[[Candidate], Outcome] | None = getattr(device, "remeasure", None)
    if again is None:
        raise DeviceError(
            "the device cannot re-measure a winner in fresh processes",
            where=device.name,
            hint="a device that measures needs `remeasure(candidate) -> Evaluation`",
        )
    outcome = again(candidate)
    if not isinstance(outcome, Modelled if device.modelled else Evaluation):
        raise DeviceError("re-measuring gave no measurement", where=device.name)
    return outcome
