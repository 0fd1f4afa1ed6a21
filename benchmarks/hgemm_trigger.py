"""What does it cost that a kernel lets its successor start behind its own wait, and not at once?

    python benchmarks/hgemm_trigger.py --cache .carry/trigger --prepare    # compiles; no GPU needed
    python benchmarks/hgemm_trigger.py --cache .carry/trigger              # writes hgemm-trigger.json

Shapes of every band with a fast configuration that lets its successor start early (``+o``, ``+os``): calls
back to back, as the kernel ships ("behind the wait"), once more ("again", the A/A control), with the trigger
as the first instruction ("at once"), and without overlap ("plain"). All of a shape are interleaved in one
process, and each result is checked. Ratios are times over those of the kernel as it ships.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from changed_kernel import arguments, without_gpu
from common import geomean, write

ROUNDS, LENGTH_US = 41, 400.0
#: shapes of each band
MOST = 4
_RUN = "run(const Problem &p) {\n"


@dataclass(frozen=True)
class AtOnce:
    """An instance whose trigger is its first instruction."""

    base: Any

    @property
    def name(self) -> str:
        """The entry's, as it ships."""
        return str(self.base.name)

    @property
    def parameters(self) -> Any:
        """As they ship."""
        return self.base.parameters

    @property
    def all_shared(self) -> bool:
        """As it ships."""
        return bool(getattr(self.base, "all_shared", False))

    @property
    def source(self) -> str:
        """The whole text, changed. Raises SystemExit where the kernel is written otherwise."""
        from sassafras.gemm import compile as compiling

        text = compiling.source(self.base)
        trigger = "if (!p.late) start_successors();\n"
        if trigger not in text:
            trigger = "start_successors();\n"
        changed = text.replace(f"                {trigger}", "").replace(f"        {trigger}", "")
        if changed == text or trigger in changed or _RUN not in changed:
            raise SystemExit(f"error: {self.name} has changed: its trigger is not found")
        return changed.replace(_RUN, f"{_RUN}        {trigger}")


def questions() -> list[tuple[Any, Any]]:
    """(shape, configuration)."""
    from sassafras.gemm import dataset, families

    found: dict[str, list[tuple[Any, Any]]] = {}
    for entry in dataset.shipped():
        for name, _ in entry.ranked()[:3]:
            config = families.parse(name)
            if config.mode.overlap and not config.mode.late:
                found.setdefault(entry.shape.band, []).append((entry.shape, config))
                break
    return [one for of in found.values() for one in of[:: max(1, len(of) // MOST)][:MOST]]


def answer(tools: Any, shape: Any, config: Any) -> dict[str, Any]:
    """Medians, and ratios with their intervals."""
    from sassafras.core.statistics import bootstrap_median
    from sassafras.device.cuda.timing import launches_a_block
    from sassafras.gemm.configuration import PLAIN
    from sassafras.gemm.graphs import paired, rough_us, timed

    operands = tools.operands(shape, 3)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    a, b, c = operands.addresses(config.layout)
    first, second = (b, a) if config.swapped else (a, b)

    def call(one: Any, kind: Any) -> Any:
        launch = one.launch(shape)
        addresses = {"a": first, "b": second, "c": c, **tools._scratch(launch)}
        calls = [tools._bound(kind(one.instance), launch, addresses)]
        if launch.then is not None:
            calls.append(tools._bound(kind(launch.then.instance), launch.then.launch, addresses))

        def both() -> None:
            for enqueue in calls:
                enqueue()

        return both

    def ships(instance: Any) -> Any:
        return instance

    made = {
        "behind the wait": call(config, ships), "again": call(config, ships), "at once": call(config, AtOnce),
        "plain": call(replace(config, mode=PLAIN), ships),
    }  # fmt: skip
    wrong = {name: why for name, one in made.items() if (why := operands.check(one).why)}
    guess = rough_us(tools, made["plain"])
    blocks = [tools.block(one, launches_a_block(guess, LENGTH_US)) for one in made.values()]
    table = timed(tools.gpu, tools.watch, blocks, ROUNDS, warm=2)
    for block in blocks:
        block.discard(tools.gpu)
    names = list(made)
    ratios = {}
    for name in names[1:]:
        ratio = 1 / paired(table, 0, names.index(name))
        interval = bootstrap_median(ratio)
        ratios[name] = [round(v, 4) for v in (float(np.median(ratio)), interval.low, interval.high)]
    us = {name: round(float(v), 4) for name, v in zip(names, np.median(table, axis=0), strict=True)}
    return {
        "shape": str(shape), "band": shape.band, "config": config.name, "us": us, "ratios": ratios,
        "wrong": wrong,
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of the ratios, of all shapes and by band; the extremes of "at once"."""

    def means(of: list[dict[str, Any]]) -> dict[str, Any]:
        names = of[0]["ratios"] if of else ()
        return {"shapes": len(of)} | {n: round(geomean(r["ratios"][n][0] for r in of) or 0, 4) for n in names}

    at_once = [row["ratios"]["at once"] for row in rows]
    return {
        "all": means(rows),
        "bands": {
            band: means([r for r in rows if r["band"] == band]) for band in {r["band"]: 0 for r in rows}
        },
        "at once is faster": sum(high < 1 for _, _, high in at_once),
        "at once is slower": sum(low > 1 for _, low, _ in at_once),
        "at once, extremes": [min(r for r, _, _ in at_once), max(r for r, _, _ in at_once)] if rows else [],
    }


def main() -> int:
    """Answer all questions."""
    given = arguments(__doc__).parse_args()
    from sassafras.gemm.compile import build, with_companions

    asked = questions()
    instances = with_companions(dict.fromkeys(config.instance for _, config in asked))
    needed = {i for shape, config in asked for i in (config.instance, _second(config.launch(shape)))}
    wanted = [i for i in instances if i in needed]
    build([one for i in wanted for one in (i, AtOnce(i))], given.cache)
    if given.prepare:
        print(f"{len(asked)} shapes, {len(wanted)} kernels twice")
        return 0
    if without_gpu():
        return 2
    from sassafras.device.cuda import environment
    from sassafras.gemm.stage import Stage

    begin, stage = time.perf_counter(), Stage(given.cache)
    rows: list[dict[str, Any]] = []
    for shape, config in asked:
        if time.perf_counter() - begin > given.seconds:
            break
        rows.append(answer(stage, shape, config))
        print(rows[-1]["shape"], rows[-1]["config"], rows[-1]["us"], rows[-1]["ratios"], flush=True)
    write("hgemm-trigger", rows, summary(rows), environment(), seed=3, out=given.out)
    print(summary(rows), flush=True)
    return 1 if any(row["wrong"] for row in rows) else 0


def _second(launch: Any) -> Any:
    return launch.then.instance if launch.then is not None else None


if __name__ == "__main__":
    sys.exit(main())
