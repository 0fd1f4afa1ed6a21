"""A real worker process of a search on call, with a stand-in where it meets the GPU.

The stand-in finds every schedule but the baseline faster. Files in ``$ON_CALL_TEST``: ``busy`` says that
others use the GPU, ``hang`` stops the next candidate for a minute; ``searches`` gets a line a search.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from sassafras.core import Candidate, Case, Evaluation, Interval, Kernel, Verdict, Workload
from sassafras.cuda.worker_loop import serve
from sassafras.on_call.worker import CallWorker

FOLDER = Path(os.environ["ON_CALL_TEST"])


class Gpu:
    """Judges without running anything; implements `core.Device`."""

    name, arch, modelled = "NVIDIA H200", "sm_90a", False

    def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
        self._baseline = baseline
        with (FOLDER / "searches").open("a") as file:
            file.write(f"{os.getpid()} {workload.meta['function']} {case.grid} {baseline.digest}\n")

    def run(self, candidate: Candidate) -> Evaluation:
        if (FOLDER / "hang").exists():
            (FOLDER / "hangs").touch()
            time.sleep(60)
        ratio = 1.0 if candidate.digest == self._baseline.digest else 1.1
        near = Interval(ratio - 0.002, ratio + 0.002)
        return Evaluation(
            candidate.digest, Verdict.CORRECT, 10 / ratio, 10.0, ratio, near, 1.0, Interval(0.999, 1.001), 60
        )

    def remeasure(self, candidate: Candidate, **_: Any) -> Evaluation:
        return self.run(candidate)

    def environment(self) -> dict[str, Any]:
        return {"gpu": self.name}

    def close(self) -> None:
        pass


if __name__ == "__main__":
    sys.exit(serve(CallWorker(Gpu, lambda: not (FOLDER / "busy").exists()).handlers))
