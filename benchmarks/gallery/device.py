"""Device code that must run on a GPU to be judged, its workload, and hundreds of honest candidates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from . import Exhibit
from .subject import N, text

#: number in cheats.cu: name, title, expected verdicts, what catches it
CHEATS: dict[int, tuple[str, str, tuple[str, ...], str]] = {
    1: (
        "cache_by_content",
        "keeps results by the inputs' contents",
        ("cheated",),
        "timing with repeated inputs",
    ),
    2: ("cache_by_address", "keeps results by the inputs' address", ("wrong_result",), "fresh inputs"),
    3: (
        "skips_when_unchanged",
        "leaves the last output when inputs repeat",
        ("cheated",),
        "timing with repeated inputs",
    ),
    4: ("writes_nothing", "writes nothing", ("wrong_result",), "poisoned outputs"),
    5: ("writes_part", "leaves the last block out", ("wrong_result",), "poisoned outputs"),
    6: ("wrong_later", "is right for 40 launches", ("wrong_result",), "comparison inside and after timing"),
    7: ("wrong_at_first", "is wrong on its first launch", ("wrong_result",), "the first launch is compared"),
    8: ("stale_result", "returns the result of the launch before", ("wrong_result",), "fresh inputs"),
    9: ("lower_precision", "accumulates in FP16", ("wrong_result",), "tolerance against FP64"),
    10: ("constant_inputs", "takes all inputs for equal", ("wrong_result",), "random inputs"),
    11: ("fewer_steps", "does three quarters of the work", ("wrong_result",), "tolerance against FP64"),
    12: ("modifies_an_input", "writes into its input", ("wrong_result",), "inputs are compared too"),
    13: ("past_the_end", "writes past the end", ("wrong_result",), "guard bands"),
    14: ("before_the_beginning", "writes before the beginning", ("wrong_result",), "guard bands"),
    15: ("hangs", "never ends", ("timed_out",), "time limit"),
    16: ("illegal_address", "writes to no memory", ("crashed",), "a process of its own"),
    17: ("traps", "traps", ("crashed",), "a process of its own"),
    18: (
        "huge_stack",
        "wants more memory than there is",
        ("out_of_resources", "crashed", "timed_out", "wrong_result"),
        "the driver refuses it, or limits",
    ),
    19: ("misaligned", "writes to a misaligned address", ("crashed",), "a process of its own"),
}
#: number in honest.cu: name, title, launch settings
ODD: dict[int, tuple[str, str, dict[str, Any]]] = {
    0: ("cooperative_groups", "uses cooperative groups", {}),
    1: ("large_shared_memory", "uses 200 KB of shared memory", {"shared_bytes": 200_000}),
    2: ("varies_within_tolerance", "differs from run to run, within the tolerance", {}),
    3: ("counter_across_launches", "keeps a counter from launch to launch", {}),
    4: ("constant_memory", "reads constants from constant memory", {}),
    5: ("asynchronous_copies", "copies asynchronously in inline PTX", {}),
    6: ("clusters", "uses thread-block clusters", {}),
    7: ("slow", "is twice as slow", {}),
    8: ("grid_stride", "launches an eighth of the blocks", {"grid": (N // 256 // 8, 1, 1)}),
    9: ("never_prints", "contains a printf that never runs", {}),
    10: ("other_order", "another order of the same arithmetic", {}),
}


def exhibits() -> list[Exhibit]:
    """Device cheats and odd honest kernels, as `Source` candidates of the gallery's workload."""
    from sassafras.evaluate import Source

    def source(file: str, macro: str, number: int, **settings: Any) -> Any:
        return Source("cuda", text(file, macro, number), entry="gallery", threads=256, **settings)

    made = [
        Exhibit(
            f"gpu_{name}",
            title,
            "cheat",
            "gpu",
            expected,
            by,
            lambda number=number: source("cheats.cu", "CHEAT", number),
        )
        for number, (name, title, expected, by) in CHEATS.items()
    ]
    made.append(
        Exhibit(
            "gpu_honest",
            "the baseline's own text",
            "honest",
            "gpu",
            ("correct",),
            "",
            lambda: source("cheats.cu", "CHEAT", 0),
        )
    )
    made += [
        Exhibit(
            f"gpu_{name}",
            title,
            "honest",
            "gpu",
            ("correct",),
            "",
            lambda number=number, settings=settings: source("honest.cu", "ODD", number, **settings),
        )
        for number, (name, title, settings) in ODD.items()
    ]
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
