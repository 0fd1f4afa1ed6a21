"""Choose, for one shape and either layout: our best configuration, and cuBLASLt's best algorithm.

Ours go through successive halving: all candidates briefly, the better quarter longer, the best few longest,
interleaved with cuBLASLt's and torch. Every time is recorded: the journals of a run are the dataset.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from sassafras.core import SassafrasError
from sassafras.cuda.cublas import RECOMMENDED_WORKSPACE, CublasError, LtAlgorithm, both_ways
from sassafras.cuda.driver import CudaError
from sassafras.cuda.timing import launches_a_block

from ..configs import registry
from ..configs.base import PLAIN
from ..configs.registry import Config
from ..problem.shape import Shape
from .candidates import candidates_for, changed, ranked, recorded, recorded_algorithm
from .faults import FaultTracker
from .options import Options
from .timing import Enqueue, Isolated, TimedBlock, apart, timed

#: graphs alive at once while screening
_BATCH = 64
#: blocks of the first two rungs, microseconds, and their rounds
_RUNGS = ((40.0, 2), (100.0, 5))
#: FLOP from which `Options.isolated` matters, and calls of each contestant of its last rung
_ISOLATED_FROM, _ISOLATED_CALLS = 1e10, 5
#: of the configurations of a rung, the part that goes on
_KEEP = 0.25
#: probes of each family before the first rung; so many times the fastest is hopeless
_PROBES, _HOPELESS = 3, 2.5
#: of cuBLASLt beside the one that the dataset knows, for each of two workspaces
_PROPOSALS = 3
#: microseconds so far, what it is, how to call it
Finalist = tuple[float, Any, Enqueue]


def rounds_for(
    times_us: list[float], seconds: float, block_us: float, *, least: int = 5, most: int = 41
) -> int:
    """Rounds that fit into `seconds` when every contestant runs one block a round."""
    one_round = sum(max(us, min(block_us, us * 400)) for us in times_us)
    return int(min(most, max(least, seconds * 1e6 // one_round)))


def drawn(shape: Shape, seed: int) -> int:
    """The seed of a shape's order of contestants: few rounds favour somebody, not the same for all shapes."""
    return zlib.crc32(f"{shape} {seed}".encode())


def screen(
    stage: Any, contestants: list[tuple[Any, Enqueue]], guess_us: float, block_us: float, rounds: int
) -> list[tuple[float, Any, Enqueue]]:
    """(microseconds, key, enqueue), fastest first. Those that cannot be launched are left out."""
    found: list[tuple[float, Any, Enqueue]] = []
    launches = int(min(16, max(1, block_us // max(guess_us, 0.1))))
    for start in range(0, len(contestants), _BATCH):
        alive: list[tuple[Any, Enqueue, TimedBlock]] = []
        for key, enqueue in contestants[start : start + _BATCH]:
            try:
                alive.append((key, enqueue, _block(stage, enqueue, launches)))
            except CudaError as error:
                if error.sticky:
                    raise
            except CublasError:
                continue
        if not alive:
            continue
        table = timed(stage.gpu, stage.watch, [block for _, _, block in alive], rounds)
        for (key, enqueue, block), microseconds in zip(alive, np.median(table, axis=0), strict=True):
            found.append((float(microseconds), key, enqueue))
            block.discard(stage.gpu)
    return sorted(found, key=lambda row: row[0])


class Screen:
    """`screen` and a longer last round on a `Tools` of one's own, for other sweeps.

    Args:
        tools: `tools.Tools` or a `stage.Stage`.
        rounds: of `rough`.
    """

    def __init__(self, tools: Any, rounds: int = 3) -> None:
        self.tools, self.rounds = tools, rounds

    def rough(self, contestants: list[tuple[Any, Enqueue]], guess_us: float) -> list[Finalist]:
        """(microseconds, key, enqueue), fastest first. Those that cannot be launched are left out."""
        return screen(self.tools, contestants, guess_us, _RUNGS[0][0], self.rounds)

    def final(self, finalists: list[Finalist], seconds: float, block_us: float) -> list[tuple[float, Any]]:
        """(microseconds, key), fastest first, from longer blocks."""
        if not finalists:
            return []
        tools = self.tools
        blocks = [_block(tools, e, launches_a_block(us, block_us)) for us, _, e in finalists]
        rounds = rounds_for([us for us, _, _ in finalists], seconds, block_us, least=3, most=15)
        medians = np.median(timed(tools.gpu, tools.watch, blocks, rounds), axis=0)
        for block in blocks:
            block.discard(tools.gpu)
        return sorted(
            ((float(us), key) for us, (_, key, _) in zip(medians, finalists, strict=True)),
            key=lambda row: row[0],
        )


def _block(tools: Any, enqueue: Enqueue, launches: int) -> TimedBlock:
    """A stage's block keeps what torch allocates while it is captured; plain `Tools` need none of that."""
    make = getattr(tools, "block", None)
    return make(enqueue, launches) if make else TimedBlock(tools.gpu, enqueue, launches)


def choose(stage: Any, shape: Shape, options: Options, trials: FaultTracker | None = None) -> dict[str, Any]:
    """A JSON-able record.

    ``ours``: the best configuration of any of the layouts, or None; ``best``: layout -> [configuration, us];
    ``rungs``: configuration -> [us, rung]; ``lt``, ``heuristic``: cuBLASLt's by layout; ``torch``: layout
    -> us.

    Args:
        trials: which candidates have lost a context before, and are not tried.

    Raises:
        CudaError: the context is lost.
        SassafrasError: no baseline works.
    """
    operands = stage.operands(shape, options.seed, options.layouts)
    operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
    record: dict[str, Any] = {"shape": str(shape), "options": asdict(options)}
    problems = {layout: stage.lt.problem(shape, layout) for layout in options.layouts}
    lt_finalists, facts = _lt_finalists(stage, operands, problems, options)
    record |= facts
    rungs: dict[str, tuple[float, int]] = {}
    trials = trials or FaultTracker()
    wrong = trials.wrong(str(shape))
    ours: list[tuple[float, Any, Enqueue]] = []
    why_not = None
    if shape.flop > options.ours_up_to:
        why_not = f"more than {options.ours_up_to:.0e} FLOP"
    else:
        for layout in options.layouts:
            ours += _our_finalists(
                stage, operands, layout, options, facts["baseline_us"], rungs, wrong, trials
            )
        if not ours:
            why_not = "no legal configuration" if not rungs and not wrong else "none right"
    record |= _final(stage, operands, options, lt_finalists, ours, rungs)
    for problem in problems.values():
        problem.close()
    record["rungs"] = {name: [round(us, 4), rung] for name, (us, rung) in rungs.items()}
    record["wrong"] = wrong[:16]
    if why_not:
        record["why_not"] = why_not
    return record


def _lt_finalists(
    stage: Any, operands: Any, problems: dict[str, Any], options: Options
) -> tuple[list[Finalist], dict[str, Any]]:
    """cuBLASLt's candidates of both layouts, the best few of each, checked."""
    finalists: list[Finalist] = []
    heuristic: dict[str, Any] = {}
    counts: dict[str, int] = {}
    rejected: list[str] = []
    for layout, problem in problems.items():
        found = _lt_candidates(stage, problem, options)
        counts[layout] = len(found)
        usable: list[tuple[Any, Enqueue]] = []
        for algorithm in found:
            enqueue = stage.lt_call(problem, algorithm, operands)
            try:
                enqueue()
                stage.gpu.sync()
            except CublasError as error:
                rejected.append(str(error))
                continue
            usable.append((algorithm, enqueue))
        if not usable:
            continue
        # as a user who follows NVIDIA's advice calls it: the first proposal, given all of the workspace
        first = next(iter(stage.lt.heuristics(problem, RECOMMENDED_WORKSPACE)), usable[0][0])
        heuristic[layout] = replace(first, workspace=max(first.workspace, RECOMMENDED_WORKSPACE)).to_json()
        once = min(stage.watch.one(enqueue) for _, enqueue in usable[:2])
        kept = 0
        for us, algorithm, enqueue in screen(stage, usable, once, _RUNGS[1][0], 3):
            check = operands.check(enqueue, limit=10.0)
            if check.why:
                rejected.append(check.why)
            elif kept < options.finalists:
                kept += 1
                finalists.append((us, algorithm, enqueue))
    if not finalists:
        raise SassafrasError("cuBLASLt has no algorithm that works", where=str(operands.shape))
    return finalists, {
        "heuristic": heuristic,
        "lt_candidates": counts,
        "lt_rejected": rejected[:8],
        "baseline_us": min(us for us, _, _ in finalists),
    }


def _lt_candidates(stage: Any, problem: Any, options: Options) -> list[Any]:
    """All of cuBLASLt's; with `Options.only` or `known` the dataset's best and the first proposals."""
    best = None
    if options.only or options.known:
        best = recorded_algorithm(problem.shape, problem.layout, stage.lt.version)
    if best is None:
        return list(stage.lt.candidates(problem))
    first = [a for size in (32 << 20, 128 << 20) for a in stage.lt.heuristics(problem, size, _PROPOSALS)]
    return both_ways([best, *first])


def _our_finalists(
    stage: Any,
    operands: Any,
    layout: str,
    options: Options,
    baseline_us: float,
    rungs: dict[str, tuple[float, int]],
    wrong: list[str],
    trials: FaultTracker,
) -> list[Finalist]:
    """A probe of every family, two rungs, the leaders in every mode; survivors are checked against FP64."""

    def bound(configs: list[Config]) -> list[tuple[Any, Enqueue]]:
        found: list[tuple[Any, Enqueue]] = []
        for config in filter(trials.allows, configs):
            try:
                enqueue = stage.ours(config, operands)
                trials.alone(stage, config, enqueue)
                found.append((config, enqueue))
            except CudaError as error:
                if error.sticky:
                    raise
                wrong.append(f"{config.name}: {error}")
        trials.done()
        return found

    known: list[Config] = []
    rungs_to_climb = list(enumerate(_RUNGS))
    if options.only or options.known:
        known = recorded(operands.shape, layout, options.recorded, options.exclude)
    if options.only or known:
        new: list[Config] = []
        if options.only:
            new = changed(operands.shape, layout, options.only, options.configs, options.exclude)
        contestants = bound(list(dict.fromkeys(replace(c, mode=PLAIN) for c in (*known, *new))))
        if len(contestants) <= 2 * options.finalists:
            rungs_to_climb = rungs_to_climb[1:]  # the first would send nobody home
    else:
        contestants = _probed(stage, operands, layout, options, baseline_us, rungs, bound)
    survivors: list[Finalist] = []
    for rung, (block_us, repeats) in rungs_to_climb:
        survivors = screen(stage, contestants, baseline_us, block_us, repeats)
        for us, config, _ in survivors:
            rungs[config.name] = (us, rung)
        keep = max(2 * options.finalists, int(_KEEP * len(survivors)))
        contestants = [(config, enqueue) for _, config, enqueue in survivors[:keep]]
    # which of them lead when launches overlap is seen only in those modes
    leaders = [config for _, config, _ in survivors[: 2 * options.finalists]]
    plain = {config.name: (us, config, enqueue) for us, config, enqueue in survivors}
    overlapping = [mode for config in leaders for mode in config.in_modes()[1:]]
    modes = bound(list(dict.fromkeys([*(c for c in known if c.mode != PLAIN), *overlapping])))
    for us, config, enqueue in screen(stage, modes, baseline_us, _RUNGS[1][0], 3):
        rungs[config.name] = (us, 1)
        survivors.append((us, config, enqueue))
    survivors.sort(key=lambda row: row[0])
    # two of the plain launches stay: calls far apart gain nothing by overlapping
    best_plain = [plain[config.name] for config in leaders[:2]]
    chosen = [row for row in survivors if row not in best_plain]
    right: list[Finalist] = []
    for us, config, enqueue in (*best_plain, *chosen):
        if len(right) == options.finalists + len(best_plain):
            break
        check = operands.check(enqueue)
        if check.why:
            wrong.append(f"{config.name}: {check.why}")
            rungs.pop(config.name, None)
        else:
            right.append((us, config, enqueue))
    return right


def _probed(
    stage: Any,
    operands: Any,
    layout: str,
    options: Options,
    baseline_us: float,
    rungs: dict[str, tuple[float, int]],
    bound: Callable[[list[Config]], list[tuple[Any, Enqueue]]],
) -> list[tuple[Any, Enqueue]]:
    """Who enters the first rung: neighbours' winners, the estimate's favourites of families with a chance."""
    # a family whose favourites are hopeless here does not take the others' places, nor their time
    kinds = {registry.kind(c) for c in ranked(operands.shape, layout)}
    favourites = candidates_for(operands.shape, layout, _PROBES * len(kinds), exclude=options.exclude)
    probes = screen(stage, bound(favourites), baseline_us, _RUNGS[0][0], 1)
    fastest = min([baseline_us, *(us for us, _, _ in probes)])
    alive = {registry.kind(config) for us, config, _ in probes if us < _HOPELESS * fastest}
    for us, config, _ in probes:
        rungs[config.name] = (us, 0)
    rounds = _RUNGS[0][1] + 1
    affordable = int(options.screen_seconds / 2 * 1e6 / (rounds * max(baseline_us, _RUNGS[0][0])))
    count = max(12, min(options.configs, affordable))
    hopeless = frozenset(kinds - alive)
    return bound(candidates_for(operands.shape, layout, count, hopeless, options.exclude))


def _final(
    stage: Any,
    operands: Any,
    options: Options,
    lt: list[Finalist],
    ours: list[Finalist],
    rungs: dict[str, tuple[float, int]],
) -> dict[str, Any]:
    """The last rung: ours, cuBLASLt's and torch, interleaved."""
    entries: list[Finalist] = [*lt, *ours]
    # torch takes about as long as cuBLASLt's best. What its first call takes, launched from Python (a capture
    # needs one before it), would give blocks of one call: a graph's launch would count as torch's
    length = min(us for us, _, _ in entries)
    for layout in options.layouts:
        enqueue = stage.torch_matmul(layout, operands)
        stage.watch.one(enqueue)
        entries.append((length, f"torch_{layout}", enqueue))
    if options.isolated and operands.shape.flop >= _ISOLATED_FROM:
        contest = Isolated(stage, [[enqueue] for _, _, enqueue in entries])
        table, _, _ = contest.calls(_ISOLATED_CALLS, options.rate, np.random.default_rng(options.seed))
        contest.close()
    else:
        blocks = [stage.block(enqueue, launches_a_block(us, options.block_us)) for us, _, enqueue in entries]
        rounds = rounds_for(
            [us for us, _, _ in entries], options.final_seconds, options.block_us, least=3, most=15
        )
        before = apart(stage, [enqueue for _, _, enqueue in entries]) if options.apart else None
        seed = drawn(operands.shape, options.seed)
        table = timed(stage.gpu, stage.watch, blocks, rounds, before=before, seed=seed)
        for block in blocks:
            block.discard(stage.gpu)
    medians = np.median(table, axis=0)
    best_lt: dict[str, dict[str, Any]] = {}
    best: dict[str, list[Any]] = {}
    torch_us: dict[str, float] = {}
    last = len(_RUNGS)
    for us, (_, key, _) in sorted(zip(medians.tolist(), entries, strict=True), key=lambda row: row[0]):
        if isinstance(key, LtAlgorithm):
            best_lt.setdefault(key.layout, {**key.to_json(), "us": us})
        elif isinstance(key, str):
            torch_us[key[-2:]] = us
        else:
            rungs[key.name] = (us, last)
            best.setdefault(key.layout, [key.name, us])
    winner = min(best.values(), key=lambda pair: float(pair[1])) if best else None
    return {
        "lt": best_lt,
        "torch": torch_us,
        "best": best,
        "baseline_us": min(e["us"] for e in best_lt.values()),
        "ours": winner[0] if winner else None,
        "ours_us": winner[1] if winner else None,
    }
