"""A few launches of each kernel on fresh inputs, and nothing else: what compute-sanitizer and ncu are given.

``python -m sassafras.evaluate.gpu.sanitizer_target SOURCE CASE LAUNCHES FACTS.json KERNEL.cubin ...``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(source: str, case_name: str, launches: str, *files: str) -> int:
    """Launch on inputs made as the evaluator makes them; `files`: facts and cubin of each kernel, in turn.

    Returns: 0 when the driver saw nothing wrong; 3, and a line that begins with `LAUNCH_FAILED`, when a
        launch failed. Other failures raise.
    """
    import torch

    from sassafras.core import Tolerance
    from sassafras.cuda.driver import CudaError, Gpu
    from sassafras.targets import load

    from .case_on_gpu import CaseOnGpu, Image
    from .compare import Checker
    from .guarded_buffers import make_image
    from .protocol import kernel_from_facts
    from .sanitizer import LAUNCH_FAILED

    workload = load(source)
    case = workload.case(case_name)
    torch.zeros(1, device="cuda")
    gpu = Gpu()
    scene = CaseOnGpu(gpu, Checker(gpu), case, None, Tolerance())
    for facts, cubin in zip(files[::2], files[1::2], strict=True):
        kernel = kernel_from_facts(json.loads(Path(facts).read_text()), Path(cubin).read_bytes())
        function = gpu.load_kernel(kernel)
        plan = scene.plan(kernel, function)
        for seed in range(int(launches)):
            image = Image(f"seed {seed}", make_image(scene.layout, seed=seed))
            torch.cuda.synchronize()
            scene.restore(image)
            try:
                scene.launch(plan, function)
                gpu.sync()
            except CudaError as error:
                print(f"{LAUNCH_FAILED}{error}", flush=True)
                return 3
        print(f"{launches} launches of {kernel.name} on {case.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
