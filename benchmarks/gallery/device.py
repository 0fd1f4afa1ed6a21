"""Device code that must run on a GPU to be judged, its workload, and hundreds of honest candidates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from . import Exhibit, texts
from .subject import text


def exhibits() -> list[Exhibit]:
    """Device cheats and odd honest kernels, as `Source` candidates of the gallery's workload.

    The text of each is its number in cheats.cu or honest.cu, and launch settings as JSON.
    """
    from sassafras.evaluate import Source

    def source(file: str, macro: str, words: str) -> Any:
        number, _, settings = words.strip().partition(" ")
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(settings or "{}").items()}
        return Source("cuda", text(file, macro, int(number)), entry="gallery", threads=256, **given)

    files = {"gpu_cheat": ("cheats.cu", "CHEAT"), "gpu_honest": ("honest.cu", "ODD")}
    made = []
    for group, name, title, expected, by, words in texts(*files):
        kind = "honest" if expected == ("correct",) else "cheat"
        make = partial(source, *files[group], words)
        made.append(Exhibit(f"gpu_{name}", title, kind, "gpu", expected, by, make))
    return made


def schedules(name: str, count: int, seed: int = 0) -> Iterator[Any]:
    """A suite kernel as it is, then as identity rewrite, then random legal schedules of it, as candidates."""
    from sassafras.core import Candidate
    from sassafras.schedule import ScheduleSpace
    from sassafras.targets import load

    workload = load(f"suite:{name}")
    kernel = workload.build(workload.cases[0], "sm_90a")
    yield Candidate(kernel, {"honest": "original"})
    space = ScheduleSpace(kernel)
    rng = np.random.default_rng([seed, sum(name.encode())])
    state, seen = space.start(), {kernel.cubin}
    misses = 0
    while len(seen) < count and misses < 200:
        move = space.sample(state, rng)
        if move is not None:
            state = space.apply(state, move)
        candidate = space.candidate(state)
        if candidate.kernel.cubin in seen:
            misses += 1
            continue
        seen.add(candidate.kernel.cubin)
        yield Candidate(candidate.kernel, {"honest": "schedule"})


def suite_names() -> list[str]:
    """The suite's kernels."""
    from sassafras import suite

    return [str(name) for name in suite.names()]
