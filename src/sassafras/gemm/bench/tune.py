"""Choose, for one shape and each layout: our best configuration, and cuBLASLt's best algorithm.

Ours go through successive halving: all candidates briefly, the better quarter longer, the best few longest,
interleaved with cuBLASLt's and torch. Every time is recorded: the journals of a run are the dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from sassafras.core import SassafrasError
from sassafras.cuda.cublas import RECOMMENDED_WORKSPACE, CublasError, LtAlgorithm, both_ways
from sassafras.cuda.driver import CudaError

from ..configs.base import PLAIN
from ..configs.fields import to_fields
from ..configs.registry import Config, with_dtype
from ..problem.shape import Shape
from .candidates import candidates_for, carried, changed, ranked, recorded, recorded_algorithm
from .faults import FaultTracker
from .operands import BASELINE_RMS_LIMIT
from .options import Options
from .timing import Enqueue, Isolated, TimedBlock, contest, order_seed, timed

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


def screen(
    stage: Any, contestants: Sequence[tuple[Any, Enqueue]], guess_us: float, block_us: float, rounds: int
) -> list[Finalist]:
    """(microseconds, key, enqueue), fastest first. Those that cannot be launched are left out."""
    found: list[Finalist] = []
    launches = int(min(16, max(1, block_us // max(guess_us, 0.1))))
    for start in range(0, len(contestants), _BATCH):
        alive: list[tuple[Any, Enqueue, TimedBlock]] = []
        for key, enqueue in contestants[start : start + _BATCH]:
            try:
                alive.append((key, enqueue, stage.block(enqueue, launches)))
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


def choose(stage: Any, shape: Shape, options: Options, trials: FaultTracker | None = None) -> dict[str, Any]:
    """A JSON-able record.

    ``ours``: the best configuration of any layout, or None; ``best``: layout -> [configuration, us];
    ``rungs``: [configuration, us, rung] each; ``lt``, ``heuristic``: cuBLASLt's, ``torch``: us, by layout.

    Args:
        trials: which candidates have lost a context before, and are not tried.

    Raises:
        CudaError: the context is lost.
        SassafrasError: no baseline works.
    """
    operands = stage.operands(shape, options.seed, options.layouts, options.dtype)
    operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
    problems = {layout: stage.lt.problem(shape, layout, options.dtype) for layout in options.layouts}
    lt, heuristic = lt_finalists(stage, operands, problems, options)
    halving = _Halving(stage, operands, options, trials or FaultTracker(), min(us for us, _, _ in lt))
    ours = [finalist for layout in options.layouts for finalist in halving.finalists(layout)]
    record: dict[str, Any] = {"shape": str(shape), "options": asdict(options), "heuristic": heuristic}
    record |= halving.final([*lt, *ours])
    for problem in problems.values():
        problem.close()
    record["rungs"] = [[to_fields(c), round(us, 4), rung] for c, (us, rung) in halving.rungs.items()]
    record["wrong"] = halving.wrong[:16]
    if not ours:
        record["why_not"] = "none right" if halving.rungs or halving.wrong else "no legal configuration"
    return record


def lt_finalists(
    stage: Any, operands: Any, problems: dict[str, Any], options: Options
) -> tuple[list[Finalist], dict[str, Any]]:
    """cuBLASLt's best candidates of all layouts, checked; and layout -> its heuristic's first."""
    finalists: list[Finalist] = []
    heuristic: dict[str, Any] = {}
    rejected: list[str] = []
    for layout, problem in problems.items():
        usable: list[tuple[Any, Enqueue]] = []
        for algorithm in lt_candidates(stage, problem, options):
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
            check = operands.check(enqueue, limit=BASELINE_RMS_LIMIT)
            if check.why:
                rejected.append(check.why)
            elif kept < options.finalists:
                kept += 1
                finalists.append((us, algorithm, enqueue))
    if not finalists:
        why = f": {rejected[0]}" if rejected else ""
        raise SassafrasError(f"cuBLASLt has no algorithm that works{why}", where=str(operands.shape))
    return finalists, heuristic


def lt_candidates(stage: Any, problem: Any, options: Options) -> list[Any]:
    """All of cuBLASLt's; with `Options.only` or `known` the dataset's best and the first proposals."""
    best = None
    if (options.only or options.known) and options.dtype == "fp16":
        best = recorded_algorithm(problem.shape, problem.layout, stage.lt.version)
    if best is None:
        return list(stage.lt.candidates(problem))
    first = [a for size in (32 << 20, 128 << 20) for a in stage.lt.heuristics(problem, size, _PROPOSALS)]
    return both_ways([best, *first])


class _Halving:
    """Successive halving of our configurations for one shape.

    Attributes:
        rungs: configuration -> (microseconds, the last rung that it was timed in).
        wrong: lines about configurations that failed.
    """

    def __init__(
        self, stage: Any, operands: Any, options: Options, trials: FaultTracker, baseline_us: float
    ) -> None:
        self.stage, self.operands, self.options = stage, operands, options
        self.trials, self.baseline_us = trials, baseline_us
        self.rungs: dict[Config, tuple[float, int]] = {}
        self.wrong = trials.wrong(str(operands.shape))

    def finalists(self, layout: str) -> list[Finalist]:
        """A probe of every family, two rungs, the leaders in every mode; survivors are checked."""
        options, known, climbed = self.options, list[Config](), list(enumerate(_RUNGS))
        shape = self.operands.shape
        if options.source:
            known = carried(shape, layout, options.source, options.recorded, options.exclude)
        elif options.only or options.known:
            known = recorded(shape, layout, options.recorded, options.exclude)
        if options.only or known:
            new = []
            if options.only:
                new = changed(shape, layout, options.only, options.configs, options.exclude)
            contestants = self._bound(dict.fromkeys(replace(c, mode=PLAIN) for c in (*known, *new)))
            if len(contestants) <= 2 * options.finalists:
                climbed = climbed[1:]  # the first would leave none out
        else:
            contestants = self._probed(layout)
        survivors: list[Finalist] = []
        for rung, (block_us, repeats) in climbed:
            survivors = self._timed(contestants, block_us, repeats, rung)
            keep = max(2 * options.finalists, int(_KEEP * len(survivors)))
            contestants = [(config, enqueue) for _, config, enqueue in survivors[:keep]]
        # which of them lead when launches overlap is seen only in those modes
        leaders = survivors[: 2 * options.finalists]
        overlapping = [mode for _, config, _ in leaders for mode in config.in_modes()[1:]]
        modes = self._bound(dict.fromkeys([*(c for c in known if c.mode != PLAIN), *overlapping]))
        survivors += self._timed(modes, _RUNGS[1][0], 3, 1)
        # two of the plain launches stay: calls far apart gain nothing by overlapping
        plain = leaders[:2]
        rest = sorted((row for row in survivors if row not in plain), key=lambda row: row[0])
        right: list[Finalist] = []
        for us, config, enqueue in (*plain, *rest):
            if len(right) == options.finalists + len(plain):
                break
            check = self.operands.check(enqueue)
            if check.why:
                self.wrong.append(f"{config.name}: {check.why}")
                self.rungs.pop(config, None)
            else:
                right.append((us, config, enqueue))
        return right

    def _timed(
        self, contestants: Sequence[tuple[Config, Enqueue]], block_us: float, rounds: int, rung: int
    ) -> list[Finalist]:
        """`screen`, on record."""
        found = screen(self.stage, contestants, self.baseline_us, block_us, rounds)
        self.rungs |= {config: (us, rung) for us, config, _ in found}
        return found

    def _bound(self, configs: Iterable[Config]) -> list[tuple[Config, Enqueue]]:
        """Those that may be launched, and how; each for the type of this run, where that is compiled."""
        found: list[tuple[Config, Enqueue]] = []
        typed = (with_dtype(config, self.options.dtype) for config in configs)
        for config in filter(self.trials.allows, (c for c in typed if c is not None)):
            try:
                enqueue = self.stage.ours(config, self.operands)
                self.trials.alone(self.stage, config, enqueue)
                found.append((config, enqueue))
            except CudaError as error:
                if error.sticky:
                    raise
                self.wrong.append(f"{config.name}: {error}")
        self.trials.done()
        return found

    def _probed(self, layout: str) -> list[tuple[Config, Enqueue]]:
        """Candidates of the first rung: neighbours' winners, and the estimate's favourites.

        A family whose favourites are hopeless here does not take the others' places, nor their time.
        """
        options, shape = self.options, self.operands.shape
        kinds = {c.FAMILY for c in ranked(shape, layout)}
        favourites = candidates_for(shape, layout, _PROBES * len(kinds), exclude=options.exclude)
        probes = self._timed(self._bound(favourites), _RUNGS[0][0], 1, 0)
        fastest = min([self.baseline_us, *(us for us, _, _ in probes)])
        alive = {config.FAMILY for us, config, _ in probes if us < _HOPELESS * fastest}
        rounds = _RUNGS[0][1] + 1
        affordable = int(options.screen_seconds / 2 * 1e6 / (rounds * max(self.baseline_us, _RUNGS[0][0])))
        count = max(12, min(options.configs, affordable))
        return self._bound(candidates_for(shape, layout, count, frozenset(kinds - alive), options.exclude))

    def final(self, entries: list[Finalist]) -> dict[str, Any]:
        """The last rung: ours, cuBLASLt's and torch, interleaved. What the record says of the winners."""
        stage, operands, options = self.stage, self.operands, self.options
        # torch takes about as long as cuBLASLt's best. What its first call takes, launched from Python (a
        # capture needs one before it), would give blocks of one call: a graph's launch would count as torch's
        length = min(us for us, _, _ in entries)
        for layout in options.layouts:
            enqueue = stage.torch_matmul(layout, operands)
            stage.watch.one(enqueue)
            entries.append((length, f"torch_{layout}", enqueue))
        rough, keys, calls = zip(*entries, strict=True)
        if options.isolated and operands.shape.flop >= _ISOLATED_FROM:
            isolated = Isolated(stage, [[call] for call in calls])
            table, _, _ = isolated.calls(_ISOLATED_CALLS, options.rate, np.random.default_rng(options.seed))
            isolated.close()
        else:
            block_us, seconds, clear = options.block_us, options.final_seconds, options.apart
            seed = order_seed(operands.shape, options.seed)
            table = contest(stage, calls, rough, block_us, seconds, least=3, most=15, clear=clear, seed=seed)
        lt: dict[str, dict[str, Any]] = {}
        best: dict[str, tuple[dict[str, Any], float]] = {}
        torch_us: dict[str, float] = {}
        medians = zip(np.median(table, axis=0).tolist(), keys, strict=True)
        for us, key in sorted(medians, key=lambda row: row[0]):
            if isinstance(key, LtAlgorithm):
                lt.setdefault(key.layout, {**key.to_json(), "us": us})
            elif isinstance(key, str):
                torch_us[key[-2:]] = us
            else:
                self.rungs[key] = (us, len(_RUNGS))
                best.setdefault(key.layout, (to_fields(key), us))
        ours, us = min(best.values(), key=lambda pair: pair[1]) if best else (None, None)
        baseline_us = min(entry["us"] for entry in lt.values())
        record = {"lt": lt, "torch": torch_us, "best": best, "baseline_us": baseline_us}
        return {**record, "ours": ours, "ours_us": us}
