"""Calls of products for ncu to look at: ours and cuBLASLt's, each behind a launch of `MARKER`.

    python benchmarks/hgemm_launches.py PLAN.json

The plan has ``products``: shape, ``config`` (fields) and ``algorithm`` (`LtAlgorithm.to_json`); ``seed``,
``calls`` of each, ``cache`` and ``dry``. C is checked and two calls warm the L2; then the profiler is on for
a marker and one call at a time: a call may be several kernels, of names that are not known beforehand.
PLAN.nodes gets the nodes of each call's graph, kernels and memsets, PLAN.error what ended the process. A dry
run prints the names of kernels, of which a stand-in for ncu makes rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: a kernel of the evaluator's that does next to nothing
MARKER = "sassafras_bump"
#: contestants, in order
CONTESTANTS = ("ours", "lt")
#: calls ahead of a profiled one
_WARM = 2


def marker(stage: Any) -> Callable[[], None]:
    """What launches `MARKER`."""
    import torch

    from sassafras.cuda.params import ParameterBlock
    from sassafras.evaluate.gpu.compare import Checker

    gpu = stage.gpu
    function = Checker(gpu).load(MARKER)
    counter = torch.zeros(1, dtype=torch.int64, device="cuda")
    block = ParameterBlock([("counter", int(counter.data_ptr()), "*"), ("by", 0, "u64")], function.sizes)
    config = gpu.config((1, 1, 1), 1)

    def mark(keep: Any = (counter, block)) -> None:
        gpu.launch(config, function, block.address)

    return mark


def profiled(stage: Any, mark: Callable[[], None], call: Callable[[], None]) -> None:
    """One marked call with the profiler on."""
    import torch

    for _ in range(_WARM):
        call()
    stage.gpu.sync()
    torch.cuda.profiler.start()
    mark()
    call()
    stage.gpu.sync()
    torch.cuda.profiler.stop()


def run(path: Path) -> None:
    """See the module. Raises what `Contestants` raises, and DeviceError for a wrong C."""
    from sassafras.cuda.cublas import LtAlgorithm
    from sassafras.gemm.bench.operands import required
    from sassafras.gemm.bench.worker import _stage
    from sassafras.gemm.configs.fields import from_fields
    from sassafras.gemm.problem.shape import Shape

    plan = json.loads(path.read_text(encoding="utf-8"))
    stage = _stage({**plan, "options": {"seed": plan["seed"]}})
    mark = None if stage.modelled else marker(stage)
    nodes = []
    for product in plan["products"]:
        shape, config = Shape.parse(product["shape"]), from_fields(product["config"])
        algorithm = LtAlgorithm.from_json(product["algorithm"])
        operands = stage.operands(shape, plan["seed"])
        operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
        problem = stage.lt.problem(shape, algorithm.layout)
        stage.lt.check(problem, algorithm)
        calls = (stage.ours(config, operands), stage.lt_call(problem, algorithm, operands))
        for name, call in zip(CONTESTANTS, calls, strict=True):
            required(operands, name, call, name == "ours")
            graph, count = stage.gpu.capture_counted(call)
            stage.gpu.discard(graph)
            nodes.append(count)
            for _ in range(plan["calls"]):
                if mark is not None:
                    profiled(stage, mark, call)
                    continue
                kernels = [i.name for i in config.instances] if name == "ours" else ["lt_kernel"]
                print(*(f"launch {kernel}" for kernel in (MARKER, *kernels)), sep="\n")
        problem.close()
        path.with_suffix(".nodes").write_text(json.dumps(nodes))


if __name__ == "__main__":
    plan_file = Path(sys.argv[1])
    try:
        run(plan_file)
    except Exception as error:  # ncu keeps what it saw before, and the program's words to itself
        plan_file.with_suffix(".error").write_text(f"{type(error).__name__}: {error}"[:300])
        raise
