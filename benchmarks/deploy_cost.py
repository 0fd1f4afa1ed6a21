"""What deployment costs where the store has nothing: per launch, per kernel load, at `install()`.

    python benchmarks/deploy_cost.py                  # on a GPU machine: about two minutes
    python benchmarks/deploy_cost.py --dry-run        # anywhere: Triton on a driver that launches nothing

Processes with and without `sassafras.install()` alternate (A B B A ...); within one, launches of a tiny
kernel are timed in rounds, and kernels of different constants are loaded from a warm Triton cache. The store
holds winners of other kernels, so that every load is looked up in vain. CPU time of the launching thread is
the figure of a launch, wall time that of a load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import ROOT, write

sys.path.insert(0, str(ROOT))

PROGRAM = """
import json, statistics, sys, time
if "dry" in sys.argv:
    from triton.runtime import driver
    from tests.deploy.boundary import Driver, Tensor
    driver.set_active(Driver())
    x = y = Tensor()
else:
    import torch
    x, y = torch.zeros(4096, device="cuda"), torch.zeros(4096, device="cuda")
import triton, triton.language as tl

@triton.jit
def tiny(x, y, n, K: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + K, mask=i < n)

installing = 0.0
if "install" in sys.argv:
    begin = time.perf_counter()
    import sassafras
    status = sassafras.install()
    installing = time.perf_counter() - begin
    assert status.active, status
tiny[(1,)](x, y, 128, K=0, BLOCK=128)
loads = []
for k in range(1, 21):
    begin = time.perf_counter()
    tiny[(1,)](x, y, 128, K=k, BLOCK=128)
    loads.append(time.perf_counter() - begin)
rounds, many = [], int(sys.argv[1])
for _ in range(20):
    begin = time.thread_time()
    for _ in range(many):
        tiny[(1,)](x, y, 128, K=0, BLOCK=128)
    rounds.append((time.thread_time() - begin) / many)
    if "dry" not in sys.argv:
        torch.cuda.synchronize()
if "install" in sys.argv:
    assert len(sassafras.status().kernels) == 21 and not sassafras.status().tuned
print(json.dumps({"launch_us": 1e6 * statistics.median(rounds), "load_us": 1e6 * statistics.median(loads),
                  "install_us": 1e6 * installing}))
"""


def store(path: Path) -> None:
    """A store with a winner that never matches."""
    from sassafras.core import Kernel
    from tests.deploy.conftest import retuned, save
    from tests.kernels import softmax_cubin

    kernel = Kernel(softmax_cubin(), "softmax", "sm_90a", 128, 32, meta={"source_hash": "s"})
    save(path, kernel, retuned(kernel.cubin))


def run(folder: Path, installed: bool, launches: int, dry: bool) -> dict[str, Any]:
    """One process."""
    arguments = [str(launches), *(["install"] if installed else []), *(["dry"] if dry else [])]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(folder / "program.py"), *arguments], capture_output=True, text=True, timeout=300,
        check=True, env={
            **os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(folder / "cache"),
            "SASSAFRAS_STORE": str(folder / "store.sqlite"),
        },
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"installed": installed}


def main() -> None:
    """Alternate processes, write medians and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=6, help="pairs of processes")
    parser.add_argument("--launches", type=int, default=2000, help="launches a round")
    parser.add_argument("--dry-run", action="store_true", help="no GPU: a driver that launches nothing")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        store(folder / "store.sqlite")
        run(folder, False, 10, options.dry_run)  # fills Triton's cache
        for pair in range(options.pairs):
            for installed in (False, True) if pair % 2 == 0 else (True, False):
                rows.append({"pair": pair, **run(folder, installed, options.launches, options.dry_run)})
    summary: dict[str, Any] = {"dry_run": options.dry_run, "pairs": options.pairs}
    for figure in ("launch_us", "load_us"):
        ratios = []
        for pair in range(options.pairs):
            value = {row["installed"]: row[figure] for row in rows if row["pair"] == pair}
            ratios.append(value[True] / value[False])
        summary[figure.replace("_us", "_ratio")] = statistics.median(ratios)
        summary[figure.replace("_us", "_ratio_range")] = [min(ratios), max(ratios)]
        for installed in (False, True):
            key = f"{figure}_{'installed' if installed else 'without'}"
            summary[key] = statistics.median(row[figure] for row in rows if row["installed"] is installed)
    summary["install_us"] = statistics.median(row["install_us"] for row in rows if row["installed"])
    environment: dict[str, Any] = {"gpu": None}
    if not options.dry_run:
        from sassafras.evaluate.gpu import CudaDevice

        environment = CudaDevice().environment()
    path = write("deploy-cost", rows, summary, environment, out=options.out)
    print(
        f"launch {summary['launch_ratio']:.3f}x, load {summary['load_ratio']:.3f}x of without; wrote {path}"
    )


if __name__ == "__main__":
    main()
