"""What probes of the hardware share (`hgemm_order`, `hgemm_outside`, `hgemm_launch`).

A kernel of ours with its text changed, and contestants timed beside each other.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT


@dataclass(frozen=True)
class Changed:
    """An instance whose text is edited; what `tools.Tools` and `compile.build` ask an instance for.

    Attributes:
        base: the instance as it ships.
        edits: (text, what it is replaced by); each stands there once.
    """

    base: Any
    edits: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The entry's, as it ships."""
        return str(self.base.name)

    @property
    def parameters(self) -> Any:
        """As they ship."""
        return self.base.parameters

    @property
    def source(self) -> str:
        """The whole text, changed. Raises SystemExit where the kernel is written otherwise by now."""
        from sassafras.gemm import compile as compiling

        text = compiling.source(self.base)
        for before, after in self.edits:
            if text.count(before) != 1:
                raise SystemExit(
                    f"error: {self.name} has changed: {before.strip()!r} does not stand there once"
                )
            text = text.replace(before, after)
        return text


def algorithms(stage: Any, shape: Any, operands: Any) -> list[tuple[tuple[str, Any], Any]]:
    """cuBLASLt's of both layouts that work: ((layout, algorithm), what enqueues one call)."""
    from sassafras.gemm.cublas import LAYOUTS, CublasError

    usable = []
    for layout in LAYOUTS:
        problem = stage.lt.problem(shape, layout)
        for algorithm in stage.lt.candidates(problem):
            enqueue = stage.lt_call(problem, algorithm, operands)
            try:
                enqueue()
                stage.gpu.sync()
            except CublasError:
                continue
            usable.append(((layout, algorithm), enqueue))
    return usable


def in_orders(instance: Any, shape: Any, orders: Sequence[str]) -> Iterator[Any]:
    """A persistent kernel's configurations with whole k, as far as they are legal and bands within C.

    Args:
        orders: ``g4``: bands of four rows, ``v4``: of four columns.
    """
    from sassafras.gemm.warp_specialized import WarpSpecializedConfig

    for order in orders:
        config = WarpSpecializedConfig(instance, int(order[1:]) * (1 if order[0] == "g" else -1), 1)
        if config.reject(shape) is None and abs(config.group) <= max(config.tiles(shape)):
            yield config


def bound(tools: Any, instance: Any, launch: Any, layout: str, operands: Any, words: int = 0) -> Any:
    """What enqueues a launch, by an instance or a `Changed` one.

    Args:
        words: device address that stands in for the workspace, which kernels without split k do not touch.
    """
    a, b, c = operands.addresses(layout)
    return tools._bound(instance, launch, {"a": a, "b": b, "c": c, "workspace": words, "counters": 0})


def interleaved(
    tools: Any, made: Sequence[tuple[str, Any]], rounds: int, length: float = 300.0, digits: int = 3
) -> dict[str, float]:
    """Microseconds of each contestant: medians over rounds in which all take turns.

    Args:
        made: (name, what enqueues one launch).
        length: microseconds of a contestant's block in a round.
        digits: of the result.
    """
    from sassafras.device.cuda.timing import launches_a_block
    from sassafras.gemm.graphs import rough_us, timed

    guess = rough_us(tools, made[0][1])
    blocks = [tools.block(enqueue, launches_a_block(guess, length)) for _, enqueue in made]
    times = np.median(timed(tools.gpu, tools.watch, blocks, rounds, warm=2), axis=0)
    for block in blocks:
        block.discard(tools.gpu)
    return {tag: round(float(t), digits) for (tag, _), t in zip(made, times, strict=True)}


def arguments(
    description: str | None, *, prepare: bool = True, seconds: bool = True
) -> argparse.ArgumentParser:
    """What probes take: --cache, --out, --prepare where they compile, --seconds where they stop."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    if prepare:
        parser.add_argument("--prepare", action="store_true", help="compile, and do nothing else")
    if seconds:
        parser.add_argument("--seconds", type=float, default=60, help="begin no shape after so long")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    )
    return parser


def without_gpu() -> bool:
    """Whether there is no GPU to ask; says so."""
    from sassafras.device.cuda import available

    usable, reason = available()
    print(reason, flush=True)
    return not usable
