"""What a whole program gains from tuned code: its own runs, without and with it, in turn."""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sassafras.core import Interval, SassafrasError
from sassafras.core.statistics import bootstrap_median, paired_ratios

#: what is compared where the program names no time of its own
SECONDS = "seconds of the whole program"


@dataclass(frozen=True)
class EndToEnd:
    """A program's runs.

    Attributes:
        what: the times that are compared: `SECONDS`, or the pattern of what the program prints.
        rounds: of each round three runs' times: without, with, and without tuned code.
        speedup, interval: without / with, the median over rounds; each round's is of the mean of its two runs
            without.
        null, null_interval: the first run without / the second: the A/A control.
        deployed: names of the kernels that ran with tuned code.
        last: the last line that the program printed without, and with tuned code.
    """

    what: str
    rounds: tuple[tuple[float, float, float], ...]
    speedup: float
    interval: Interval
    null: float
    null_interval: Interval
    deployed: tuple[str, ...]
    last: tuple[str, str]

    def __str__(self) -> str:
        def said(value: float, interval: Interval) -> str:
            return f"{value:.3f}x [{interval.low:.3f}, {interval.high:.3f}]"

        times = (
            f"{np.median([r[::2] for r in self.rounds]):.6g} -> {np.median([r[1] for r in self.rounds]):.6g}"
        )
        counts = f"{len(self.rounds)} rounds, {len(self.deployed)} kernels with tuned code"
        null = f"A/A {said(self.null, self.null_interval)}"
        return f"program: {said(self.speedup, self.interval)}, {null}, {self.what}: {times}; {counts}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def end_to_end(
    command: Sequence[str],
    tuned: Mapping[str, str],
    plain: Mapping[str, str],
    deployed: Callable[[], Sequence[str]],
    *,
    rounds: int,
    metric: str = "",
    progress: Callable[[str], None] = lambda text: None,
) -> EndToEnd:
    """Run a program without, with and without tuned code, so many times.

    One run with it comes before them and is not counted: it compiles what other code makes necessary.

    Args:
        command: the program and its arguments.
        tuned, plain: environment variables with which it runs with tuned code, and without.
        deployed: asked after the first run for the names of the kernels that had tuned code.
        rounds: at least 1.
        metric: regular expression with one group, a time in what the program prints (of several lines the
            median counts); empty: `SECONDS`.

    Raises:
        SassafrasError: the program fails, or prints no such time.
    """
    pattern = metric_pattern(metric)

    def run(environment: Mapping[str, str], how: str) -> tuple[float, str]:
        progress(f"{how} tuned code")
        begin = time.perf_counter()
        done = subprocess.run(
            list(command),
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        seconds = time.perf_counter() - begin
        if done.returncode:
            words = done.stderr.strip().splitlines()
            raise SassafrasError(
                f"the program ended with {done.returncode} {how} tuned code",
                where=words[-1] if words else None,
            )
        last = done.stdout.strip().rpartition("\n")[2]
        return (seconds if pattern is None else _time(pattern, done.stdout)), last

    last_tuned = run(tuned, "with")[1]
    names = tuple(deployed())
    found = []
    for number in range(rounds):
        first, last = run(plain, f"round {number + 1} of {rounds}: without")
        with_it, last_tuned = run(tuned, f"round {number + 1} of {rounds}: with")
        found.append((first, with_it, run(plain, f"round {number + 1} of {rounds}: without")[0]))
    before, after, again = np.array(found).T
    ratios, nulls = paired_ratios((before + again) / 2, after), paired_ratios(before, again)
    return EndToEnd(
        metric or SECONDS,
        tuple(found),
        float(np.median(ratios)),
        bootstrap_median(ratios),
        float(np.median(nulls)),
        bootstrap_median(nulls),
        names,
        (last, last_tuned),
    )


def metric_pattern(metric: str) -> re.Pattern[str] | None:
    """The pattern that `end_to_end` reads times by; None for no metric. Raises SassafrasError."""
    if not metric:
        return None
    try:
        pattern = re.compile(metric)
    except re.error as error:
        raise SassafrasError(f"--metric is no regular expression: {error}", where=metric) from error
    if pattern.groups != 1:
        raise SassafrasError(
            f"--metric needs one group, it has {pattern.groups}", where=metric, hint="'step ([0-9.]+) us'"
        )
    return pattern


def _time(pattern: re.Pattern[str], text: str) -> float:
    """The median of the times in the text."""
    try:
        times = [float(value) for value in pattern.findall(text)]
    except ValueError as error:
        raise SassafrasError(f"what --metric finds is no number: {error}", where=pattern.pattern) from error
    if not times or not all(0 < value < math.inf for value in times):
        raise SassafrasError("the program printed no time that --metric finds", where=pattern.pattern)
    return float(np.median(times))
