"""One search of the comparison: run, cut, taken up again, looked at once more. See `strategies.py`."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import os
import time
import traceback
import zlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from turns import Turns

from sassafras.core import Redrawing
from sassafras.core.files import write_whole
from sassafras.jobs.confirm import select

Row = dict[str, Any]
#: best few of a search that are looked at again
LEADERS = 4
#: seconds between two writings of a search that is under way
SAVE_S = 20.0
#: columns of a `Record`'s rows (`store.records.outcome_row`) on a GPU
VERDICT_OF_ROW, SPEEDUP_OF_ROW = 2, 5
#: threads of CuAsmRL's network, whose 27 million weights are updated after every other step
THREADS = 4
_FRESH: Row = {"policy": "fresh", "threads": THREADS}
STRATEGIES: dict[str, tuple[str, Row]] = {
    "random_walk": ("random_walk", {}),
    "greedy": ("greedy", {}),
    "anneal": ("anneal", {}),
    "guided_experience": ("guided", {}),
    "ppo_fresh": ("ppo", _FRESH),
    "ppo_pretrained": ("ppo", {"policy": "pretrained"}),
    "ppo_twin": ("ppo", {"policy": "untrained"}),
    # not of the comparison itself
    "fresh_as_it_is": ("ppo", _FRESH),
    "fresh_no_mask": ("ppo", _FRESH | {"mask": False}),
    "fresh_all_features": ("ppo", _FRESH | {"view": "all"}),
    "fresh_all_moves": ("ppo", _FRESH | {"moves": "all"}),
    "fresh_noisy_reward": ("ppo", _FRESH | {"reward_noise": 0.002}),
    # (nobody learns: what the preset's set of moves holds, played by chance for as many moves, and by greed)
    "walk_memory_moves": ("random_walk", {"length": 32, "space": {"moves": "memory"}}),
    "greedy_memory_moves": ("greedy", {"space": {"moves": "memory"}}),
    "twin_paper_features": ("ppo", {"policy": "untrained", "view": "paper"}),
    "twin_memory_moves": ("ppo", {"policy": "untrained", "moves": "memory"}),
    "fresh_alone": ("ppo", _FRESH | {"threads": 12}),
    "fresh_alone_gpu": ("ppo", _FRESH),
}
DEFAULT = tuple(STRATEGIES)[:7]
#: one change each to CuAsmRL's preset, beside the preset itself with the same evaluations, and who plays its
#: set of moves without learning
ABLATIONS = (
    "fresh_as_it_is", "fresh_no_mask", "fresh_all_features", "fresh_all_moves", "fresh_noisy_reward",
    "walk_memory_moves", "greedy_memory_moves",
)  # fmt: skip


class Unit(NamedTuple):
    """A search to run: `evaluations` long, or `cap` seconds of GPU and processor where that is shorter."""

    kernel: str
    strategy: str
    seed: int
    evaluations: int
    cap: float = math.inf

    def path(self, folder: Path) -> Path:
        """Where its row is kept."""
        return folder / f"{self.kernel.replace('/', '-')}--{self.strategy}--{self.seed}.json"


def read(folder: Path) -> list[Row]:
    """All units that are done, and the last errors of those that failed."""
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*--*--*.json"))]
    done = {(r["kernel"], r["strategy"], r["seed"]) for r in rows}
    failed = [json.loads(path.read_text()) for path in sorted(folder.glob("*--*--*.error"))]
    for row in rows:  # (searches of the first sitting with turns do not say it themselves)
        row.setdefault("turns", "--turns" in row.get("environment", {}).get("command", ""))
    return rows + [r for r in failed if (r["kernel"], r["strategy"], r["seed"]) not in done]


def restore(published: Row, folder: Path) -> int:
    """Write a unit's file for every search of a published strategies.json that is over and has none here; how
    many. Their curves are thinned, and their winners' cubins are not known any more. Searches by strategies
    that are gone (pre-ranking, guided's network) are left out.

    Raises:
        SystemExit: a row is no search's.
    """
    count = 0
    for row in published["rows"]:
        if row.get("cut") or "error" in row or row.get("strategy", "anneal") not in STRATEGIES:
            continue
        try:
            path = Unit(row["kernel"], row["strategy"], row["seed"], 0).path(folder)
            # its last point is the best, which curves round more than rows do: it would never be reached
            curve = [
                *row["curve"][:-1],
                [*row["curve"][-1][:2], row["believed_speedup"], *row["curve"][-1][3:]],
            ]
        except (KeyError, IndexError, TypeError) as error:
            raise SystemExit(f"error: a row of the published results is no search: {error!r}") from None
        if path.exists():
            continue
        write_whole(path, json.dumps(row | {"curve": curve, "environment": published["environment"]}))
        count += 1
    return count


def recorded(path: Path) -> list[Any]:
    """The rows of a search under way. Raises SystemExit, saying what to do, where the file is damaged."""
    try:
        return list(json.loads(zlib.decompress(path.read_bytes())))
    except (zlib.error, ValueError, OSError) as error:
        raise SystemExit(f"{path} cannot be read ({error}): without it that search begins anew") from error


def cut(folder: Path) -> list[Row]:
    """Searches that are under way: how far they are, and their curves (without seconds of thought)."""
    found: list[Row] = []
    names = {r["kernel"].replace("/", "-"): r["kernel"] for r in read(folder)}
    for path in sorted(folder.glob("*--*--*.part")):
        kernel, strategy, seed = path.stem.rsplit("--", 2)
        name = names.get(kernel, kernel)
        curve: list[tuple[int, float, float]] = []
        spent, rows = 0.0, recorded(path)
        for n, row in enumerate(rows, 1):
            speedup, spent = row[SPEEDUP_OF_ROW], spent + row[-1]
            if speedup and row[VERDICT_OF_ROW] == "correct" and (not curve or speedup > curve[-1][2]):
                curve.append((n, round(spent, 4), speedup))
        if curve:
            found.append({
                "kernel": name, "strategy": strategy, "seed": int(seed), "cut": True,
                "evaluations": len(rows), "gpu_seconds": spent, "curve": curve,
            })  # fmt: skip
    return found


class Record:
    """The outcomes of a search so far, on disk every `SAVE_S` seconds: what `search.run` takes as recorder.

    Seconds of the budget are the GPU's on this search, whoever else used it in between.
    """

    def __init__(self, path: Path, device: Any) -> None:
        self.path, self.device = path, device
        self.rows: dict[str, Any] = {}
        self.gpu = 0.0
        self._saved = time.monotonic()
        if path.exists():
            self.rows = {row[0]: row for row in recorded(path)}

    def known(self, digest: str) -> Any:
        """See `search.contract.Recorder`."""
        from sassafras.search.contract import Recorded
        from sassafras.store.records import row_outcome

        if (row := self.rows.get(digest)) is None:
            return None
        self.gpu += row[-1]
        return Recorded(row_outcome(tuple(row[:-1])), row[-1])

    def record(self, candidate: Any, outcome: Any, took: float) -> Any:
        """See `search.contract.Recorder`."""
        from sassafras.search.contract import Recorded
        from sassafras.store.records import outcome_row, row_outcome

        spent, self.device.last = self.device.last, 0.0
        row = [*outcome_row(outcome), spent]
        self.rows[row[0]] = row
        self.gpu += spent
        if time.monotonic() - self._saved > SAVE_S:
            self.save()
        # what a search that is taken up again would be told
        return Recorded(row_outcome(tuple(row[:-1])), spent)

    def save(self) -> None:
        """Write it all."""
        self._saved = time.monotonic()
        part = self.path.with_suffix(f".{os.getpid()}")
        part.write_bytes(zlib.compress(json.dumps(list(self.rows.values())).encode(), 6))
        part.replace(self.path)


class Counting:
    """A space that counts how often an agent looked for its legal moves: its steps."""

    def __init__(self, space: Any) -> None:
        self.space, self.steps = space, 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "space":
            raise AttributeError(name)
        return getattr(self.space, name)

    def legal(self, state: Any) -> Any:
        """See `core.Playable`."""
        self.steps += 1
        return self.space.legal(state)


def play(
    unit: Unit, device: Any, folder: Path, lonely: bool, looks: int, deadline: float, on: str = "cpu",
    turns: Turns | None = None,
) -> bool:  # fmt: skip
    """Run a unit, or go on with it; True when it is done. An error is kept as a row that says so.

    Args:
        on: where an agent's network is (`search.ppo.Ppo.on`).
        turns: that the network takes with the GPU's owner.
    """
    path = unit.path(folder)
    row: Row = {
        "kernel": unit.kernel, "strategy": unit.strategy, "seed": unit.seed, "modelled": device.modelled,
        "lonely": lonely, "pairs": getattr(device, "pairs", None), "environment": device.environment(),
        "turns": turns is not None,
    }  # fmt: skip
    record = Record(path.with_suffix(".part"), device)
    try:
        found = one(unit, device, record, looks, deadline, on, turns)
    except EOFError:  # the GPU's owner is gone, with the sitting
        record.save()
        raise
    except Exception as error:  # one unit's failure is a row that says so
        traceback.print_exc()
        write_whole(
            path.with_suffix(".error"), json.dumps(row | {"error": f"{type(error).__name__}: {error}"})
        )
        return False
    if found is None:
        record.save()
        return False
    write_whole(path, json.dumps(row | found))
    record.path.unlink(missing_ok=True)
    path.with_suffix(".error").unlink(missing_ok=True)
    print(
        f"{unit.kernel} {unit.strategy} {unit.seed}: {found['final_speedup']:.4f} ({found['evaluations']} "
        f"evaluations, {found['gpu_seconds']:.1f} s of GPU, {found['cpu_seconds']:.1f} s of thought, "
        f"{found['wall_seconds']:.0f} s)", flush=True,
    )  # fmt: skip
    return True


def taking(turns: Turns, strategy: Any) -> Any:
    """The strategy ``ppo``, the same but for when its network works: in `turns`."""
    from sassafras.search.ppo import Ppo

    class Taking(Ppo):
        __slots__ = ()

        def turn(self) -> AbstractContextManager[Any]:
            return turns.turn()

    return Taking(**{own.name: getattr(strategy, own.name) for own in dataclasses.fields(strategy)})


def one(
    unit: Unit, device: Any, record: Record, looks: int, deadline: float, on: str = "cpu",
    turns: Turns | None = None,
) -> Row | None:  # fmt: skip
    """One search and an honest figure for what it found; None when the deadline cut it."""
    from sassafras import search
    from sassafras.core import Budget
    from sassafras.evaluate import KernelEvaluator
    from sassafras.schedule import ScheduleSpace
    from sassafras.validate import Validator

    name, settings = STRATEGIES[unit.strategy]
    settings = dict(settings)
    narrowed = settings.pop("space", {})
    if name == "ppo" and on != "cpu":
        settings |= {"on": on, "threads": 1}
    made = search.get(name, settings)
    if name == "ppo" and turns is not None:
        made = taking(turns, made)
    baseline = device.baseline
    space = Counting(ScheduleSpace(baseline, **(getattr(made, "space_options", {}) | narrowed)))
    validator = Validator(baseline.cubin, baseline.name)
    judge = KernelEvaluator(device, lambda _, cubin: validator.check(cubin), baseline)
    curve: list[tuple[int, float, float, float]] = []
    begun, wall, inside = time.process_time(), time.monotonic(), device.inside
    capped, before = False, turns.waited if turns else 0.0

    def cpu() -> float:
        """Seconds of thinking: the processor's, or with several threads, or a network on a GPU, those outside
        of the device, less those that it waited for its turn (alone it would not have)."""
        if settings.get("threads", 1) == 1 and "on" not in settings:
            return time.process_time() - begun
        waited = turns.waited - before if turns else 0.0
        return max(0.0, time.monotonic() - wall - (device.inside - inside) - waited)

    def stop() -> bool:
        nonlocal capped
        capped = record.gpu + cpu() > unit.cap
        return capped or time.time() > deadline

    def note(p: Any) -> None:
        best = 1.0 / p.best.cost
        if not curve or best > curve[-1][2]:
            curve.append((p.evaluations, round(record.gpu, 4), best, round(record.gpu + cpu(), 4)))

    try:
        found = search.run(
            made, space, judge, Budget(evaluations=unit.evaluations), seed=unit.seed, recorder=record,
            progress=note, keep=LEADERS, stop=stop,
        )  # fmt: skip
    except KeyboardInterrupt:  # it was over before the first evaluation
        return None
    spent, took = cpu(), time.monotonic() - wall
    if found.reason == "interrupted" and not capped:
        return None
    final, cubin = look_again(device, found, looks)
    seconds = record.gpu + spent
    return {
        "evaluations": found.evaluations, "replayed": found.replayed, "steps": space.steps,
        "gpu_seconds": record.gpu, "cpu_seconds": spent, "seconds": seconds, "wall_seconds": took,
        "reason": "cap" if found.reason == "interrupted" else found.reason,
        "believed_speedup": 1.0 / found.best.cost, "final_speedup": final,
        "area_under_curve": area(curve, found.evaluations), "curve": curve,
        "verdicts": dict(found.verdicts), "settings": search.settings_of(made),
        "evaluations_per_second": found.evaluations / max(seconds, 1e-9), "winner": cubin,
    }  # fmt: skip


def look_again(device: Any, found: Any, looks: int) -> tuple[float, str]:
    """A figure that no luck of the search's has a part in, and the winner's cubin (base64 of zlib)."""
    leaders = [leader.candidate for leader in found.leaders]
    if device.modelled and isinstance(device, Redrawing):  # other draws choose, others again are reported
        best = [*select(device, found.leaders, lambda outcome: None), leaders[0]][0]
        final = device.remeasure(best).modelled_ratio or 1.0
    elif device.modelled:  # behind a queue there are no other draws: this is what the search selected on
        best, final = leaders[0], 1.0 / found.best.cost
    else:
        seen: list[list[float]] = [[] for _ in leaders]
        for _ in range(max(looks, 2)):
            for n, candidate in enumerate(leaders):
                outcome = device.run(candidate)
                if outcome.cost is not None:
                    seen[n].append(1.0 / outcome.cost)
        # the first half chooses, the second is reported
        halves = [(s[: len(s) // 2], s[len(s) // 2 :]) for s in seen]
        able = [n for n, (a, b) in enumerate(halves) if a and b]
        if not able:
            return 1.0, ""
        top = max(able, key=lambda n: np.median(halves[n][0]))
        best, final = leaders[top], float(np.median(halves[top][1]))
    return float(final), base64.b64encode(zlib.compress(best.kernel.cubin, 9)).decode()


def area(curve: list[Any], evaluations: int) -> float:
    """Mean over evaluations of the log of the best speed-up so far, in percent."""
    total = 0.0
    for point, nxt in zip(curve, [*curve[1:], (evaluations + 1,)], strict=True):
        total += 100.0 * math.log(max(point[2], 1e-9)) * (nxt[0] - point[0])
    return total / max(evaluations, 1)
