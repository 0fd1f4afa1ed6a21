"""Random shapes and configurations of ours against FP64; writes hgemm-random.json.

    python benchmarks/hgemm_random.py [--count N] [--minutes 4] [--most 4096] [--exclude REGEX] [--dry-run]
        [--only REGEX] [--odd]

Extents are log-uniform from 1 to --most, most of n and k rounded to what a family accepts. For every shape
one legal configuration of ours is drawn, launched on a C filled with NaN between guard bands, and compared
with FP64: RMS error at most 1.1 times that of cuBLAS with FP32 reductions, and every element within the
rounding to FP16 and 2e-4 sqrt(k) (a single wrong one hides in an RMS of millions). Then it is launched once
more: equal bit for bit. Configurations are launched by name, so no library serves in their place.
One process and one GPU; what is done when the minutes are over, or the context is lost, is reported.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import command_line, write


def drawn(rng: Any, most: int, odd: bool = False) -> Any:
    """A shape; `odd`: rows are what they are."""
    import numpy as np

    from sassafras.gemm.problem.shape import Shape

    m, n, k = (int(2 ** rng.uniform(0, np.log2(most))) for _ in range(3))
    if not odd and rng.integers(8):
        n, k = max(8, n // 8 * 8), max(8, k // 8 * 8)
    return Shape(m, n, k)


def checked(stage: Any, shape: Any, config: Any, seed: int) -> tuple[str, float]:
    """(what is wrong or nothing, RMS error over cuBLAS's)."""
    from sassafras.core import DeviceError

    operands = stage.operands(shape, seed)
    try:
        operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
    except DeviceError as error:
        if getattr(error, "sticky", False):
            raise
        operands.poison()
        stage.ours(config, operands)()
        outside = elements_outside(operands.c, operands.reference, shape.k)
        return f"{outside} elements outside the bound" if outside else f"yardstick: {error}", 0.0
    enqueue = stage.ours(config, operands)
    check = operands.check(enqueue)
    if check.why or stage.modelled:
        return check.why, check.rms_ratio
    import torch

    if outside := elements_outside(operands.c, operands.reference, shape.k):
        return f"{outside} elements outside the bound", check.rms_ratio
    first = operands.c.clone()
    operands.check(enqueue)
    if not torch.equal(first.view(torch.int16), operands.c.view(torch.int16)):
        return "two launches differ", check.rms_ratio
    return "", check.rms_ratio


def elements_outside(result: Any, reference: Any, k: int) -> int:
    """Elements further from the reference than twice FP16's rounding and 2e-4 sqrt(k); NaN is outside.

    Args:
        result, reference: (m, n), FP16 and FP64, on the same device.
    """
    allowed = 2.0**-10 * reference.abs() + 2e-4 * k**0.5
    return int((~((result.double() - reference).abs() <= allowed)).sum())


def main() -> int:
    """Check and write; 1 when anything was wrong."""
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--most", type=int, default=4096)
    parser.add_argument("--exclude", default="", help="regular expression: configurations not to try")
    parser.add_argument("--only", default="", help="regular expression: configurations to try, no others")
    parser.add_argument("--odd", action="store_true", help="no extent is rounded to a multiple of 8")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU, on a modelled clock")
    given = parser.parse_args()
    import numpy as np

    from sassafras.cuda.environment import environment
    from sassafras.gemm.bench.worker import _stage
    from sassafras.gemm.configs import registry
    from sassafras.gemm.configs.fields import to_fields

    plan = {"dry": given.dry_run, "cache": str(given.cache) if given.cache else None, "options": {"seed": 0}}
    stage = _stage(plan)
    rng = np.random.default_rng(given.seed)
    everything = list(registry.configurations())
    if given.only:
        everything = [c for c in everything if re.search(given.only, c.name)]
    if given.exclude:
        everything = [c for c in everything if not re.search(given.exclude, c.name)]
    if not everything:
        parser.error("--only and --exclude leave no configuration")
    by_instance: dict[Any, list[Any]] = {}
    for config in everything:
        by_instance.setdefault(config.instance, []).append(config)
    instances = list(by_instance)
    counts: Counter[str] = Counter()
    faults: list[dict[str, Any]] = []  # of ours, and of the yardstick
    worst, checks, without, lost = 0.0, 0, 0, False
    begin = time.monotonic()
    while checks < given.count and time.monotonic() - begin < 60 * given.minutes:
        shape = drawn(rng, given.most, given.odd)
        # an instance first, so that families with few configurations are drawn as often as those with many
        legal: list[Any] = []
        for _ in range(8):
            members = by_instance[instances[int(rng.integers(len(instances)))]]
            legal = [c for c in members if c.why_illegal(shape) is None]
            if legal:
                break
        if not legal:
            without += 1
            continue
        config = legal[int(rng.integers(len(legal)))]
        checks += 1
        counts[config.FAMILY] += 1
        try:
            why, ratio = checked(stage, shape, config, given.seed + checks)
        except Exception as error:
            if not (getattr(error, "sticky", False) or "CUDA error" in str(error)):
                raise
            why, ratio, lost = f"the context is lost: {error}".splitlines()[0], 0.0, True
        worst = max(worst, ratio)
        if why:
            faults.append({"shape": str(shape), "config": to_fields(config), "why": why})
            print(json.dumps(faults[-1]), flush=True)
        if lost:  # nothing more can be done in this process
            break
        if checks % 1000 == 0:
            print(f"{checks} checks, {len(faults)} wrong, {time.monotonic() - begin:.0f} s", flush=True)
    summary = {
        "checks": checks,
        "wrong": sum(not f["why"].startswith("yardstick") for f in faults),
        "yardstick_off": sum(f["why"].startswith("yardstick") for f in faults),
        "worst_rms_ratio": worst,
        "by_family": dict(counts),
        "shapes_without_a_configuration": without,
        "context_lost": lost,
        "modelled": given.dry_run,
    }
    name = "hgemm-random" + ("-dry" if given.dry_run else "")
    path = write(name, faults, summary, environment(), seed=given.seed, out=given.out)
    print(json.dumps(summary), path.name)
    return 1 if faults or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
