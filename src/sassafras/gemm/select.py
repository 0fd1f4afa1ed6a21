"""Choose, for one shape: our best configuration, and cuBLASLt's best algorithm of either layout."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sassafras.core import SassafrasError
from sassafras.device.cuda.driver import CudaError
from sassafras.device.cuda.timing import launches_a_block

from . import families
from .cublas import LAYOUTS, CublasError, LtAlgorithm
from .estimate import estimate_us
from .families import Config
from .graphs import Block, Enqueue, timed
from .operands import Operands
from .shapes import Shape
from .staged import StagedConfig
from .tools import Tools

#: graphs alive at once while screening
_BATCH = 64


@dataclass(frozen=True, slots=True)
class Options:
    """How thorough a run is.

    Attributes:
        configs: of our legal configurations, how many to screen (those that the static estimate likes best).
        finalists: how many of the screened go to the final, on either side.
        seconds: GPU time for the measurement of a shape, roughly.
        block_us: length of a timed block.
        ours_up_to: FLOP above which ours are not tried (these families are for small problems).
        seed: of inputs.
    """

    configs: int = 256
    finalists: int = 8
    seconds: float = 0.1
    block_us: float = 200.0
    ours_up_to: float = 1e10
    seed: int = 0


class Screen:
    """Rough times of many contestants, then careful ones of the few best."""

    def __init__(self, tools: Tools, rounds: int = 3) -> None:
        self.tools, self.rounds = tools, rounds

    def rough(
        self, contestants: list[tuple[Any, Enqueue]], guess_us: float
    ) -> list[tuple[float, Any, Enqueue]]:
        """(microseconds, key, enqueue), fastest first. Those that cannot be launched are left out."""
        gpu, found = self.tools.gpu, []
        launches = int(min(16, max(1, 40 // max(guess_us, 0.1))))
        for start in range(0, len(contestants), _BATCH):
            alive: list[tuple[Any, Enqueue, Block]] = []
            for key, enqueue in contestants[start : start + _BATCH]:
                try:
                    alive.append((key, enqueue, Block(gpu, enqueue, launches)))
                except CudaError as error:
                    if error.sticky:
                        raise
                except CublasError:
                    continue
            if not alive:
                continue
            table = timed(gpu, self.tools.watch, [block for _, _, block in alive], self.rounds)
            for (key, enqueue, block), microseconds in zip(alive, np.median(table, axis=0), strict=True):
                found.append((float(microseconds), key, enqueue))
                block.discard(gpu)
        return sorted(found, key=lambda row: row[0])

    def final(
        self, finalists: list[tuple[float, Any, Enqueue]], seconds: float, block_us: float
    ) -> list[tuple[float, Any]]:
        """(microseconds, key), fastest first, from longer blocks."""
        if not finalists:
            return []
        gpu = self.tools.gpu
        blocks = [Block(gpu, e, launches_a_block(us, block_us)) for us, _, e in finalists]
        rounds = rounds_for([us for us, _, _ in finalists], seconds, block_us, least=3, most=15)
        medians = np.median(timed(gpu, self.tools.watch, blocks, rounds), axis=0)
        for block in blocks:
            block.discard(gpu)
        rows = [(float(us), key) for us, (_, key, _) in zip(medians, finalists, strict=True)]
        return sorted(rows, key=lambda row: row[0])


def rounds_for(
    times_us: list[float], seconds: float, block_us: float, *, least: int = 5, most: int = 41
) -> int:
    """Rounds that fit into `seconds` when every contestant runs one block a round."""
    one_round = sum(max(us, min(block_us, us * 400)) for us in times_us)
    return int(min(most, max(least, seconds * 1e6 // one_round)))


def choose(tools: Tools, shape: Shape, options: Options) -> dict[str, Any]:
    """A JSON-able record: ``ours`` (configuration, or None), ``lt`` and ``heuristic`` by layout, with times.

    Raises:
        CudaError: the context is lost.
        SassafrasError: no baseline works.
    """
    operands = Operands(shape, options.seed)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    screen = Screen(tools)
    record: dict[str, Any] = {"shape": str(shape), "options": asdict(options)}
    record |= _choose_lt(tools, operands, screen, options)
    record |= _choose_ours(tools, operands, screen, options, record["baseline_us"])
    return record


def _choose_lt(tools: Tools, operands: Operands, screen: Screen, options: Options) -> dict[str, Any]:
    best: dict[str, Any] = {}
    heuristic: dict[str, Any] = {}
    counts, rejected = {}, []
    for layout in LAYOUTS:
        problem = tools.lt.problem(operands.shape, layout)
        addresses = operands.addresses(layout)
        found = tools.lt.candidates(problem)
        counts[layout] = len(found)
        usable: list[tuple[LtAlgorithm, Enqueue]] = []
        for algorithm in found:
            enqueue = tools.lt.bind(problem, algorithm, *addresses)
            try:
                enqueue()
                tools.gpu.sync()
            except CublasError as error:
                rejected.append(str(error))
                continue
            usable.append((algorithm, enqueue))
        if usable:
            heuristic[layout] = next(
                (a.to_json() for a in tools.lt.heuristics(problem, 32 << 20)), usable[0][0].to_json()
            )
            once = min(tools.watch.one(enqueue) for _, enqueue in usable[:2])
            ranked = screen.rough(list(usable), once)[: options.finalists]
            for us, algorithm in screen.final(ranked, options.seconds / 2, options.block_us):
                check = operands.check(tools.lt.bind(problem, algorithm, *addresses), limit=10.0)
                if check.why:
                    rejected.append(check.why)
                    continue
                best[layout] = {**algorithm.to_json(), "us": us, "rms_ratio": check.rms_ratio}
                break
        problem.close()
    if not best:
        raise SassafrasError("cuBLASLt has no algorithm that works", where=str(operands.shape))
    return {
        "lt": best, "heuristic": heuristic, "lt_candidates": counts, "lt_rejected": rejected[:8],
        "baseline_us": min(entry["us"] for entry in best.values()),
    }  # fmt: skip


def _choose_ours(
    tools: Tools, operands: Operands, screen: Screen, options: Options, baseline_us: float
) -> dict[str, Any]:
    shape = operands.shape
    if shape.flop > options.ours_up_to:
        return {"ours": None, "why_not": f"more than {options.ours_up_to:.0e} FLOP"}
    configs = sorted(families.legal(shape), key=lambda c: (estimate_us(c, shape), c.name))
    if not configs:
        return {"ours": None, "why_not": "no legal configuration"}
    # the estimate ranks within a family; the staged one is small and goes in whole
    staged = [c for c in configs if isinstance(c, StagedConfig)]
    lean = [c for c in configs if not isinstance(c, StagedConfig)]
    chosen = staged + lean[: max(0, options.configs - len(staged))]
    contestants: list[tuple[Config, Enqueue]] = []
    wrong: list[str] = []
    for config in chosen:
        try:
            contestants.append((config, tools.ours(config, operands)))
        except CudaError as error:
            if error.sticky:
                raise
            wrong.append(f"{config.name}: {error}")
    ranked = screen.rough(list(contestants), baseline_us)
    finalists: list[tuple[float, Any, Enqueue]] = []
    for us, config, enqueue in ranked[: 2 * options.finalists]:
        check = operands.check(enqueue)
        if check.why:
            wrong.append(f"{config.name}: {check.why}")
        elif len(finalists) < options.finalists:
            finalists.append((us, config, enqueue))
    final = screen.final(finalists, options.seconds / 2, options.block_us)
    top = [
        {"config": c.name, "us": round(us, 4), "estimate_us": round(estimate_us(c, shape), 3)}
        for us, c, _ in ranked[:24]
    ]
    return {
        "ours": final[0][1].name if final else None,
        "ours_us": final[0][0] if final else None,
        "legal": len(configs),
        "screened": len(ranked),
        "unlaunchable": len(chosen) - len(ranked),
        "wrong": wrong[:16],
        "final": [{"config": c.name, "us": round(us, 4)} for us, c in final],
        "rough": top,
    }
