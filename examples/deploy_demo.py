"""Tune the kernel of a stock program, and watch the program run the tuned cubin. Needs an NVIDIA GPU.

    python examples/deploy_demo.py --budget 10s --out /tmp/deploy.json

Both autotune configurations of ``deploy_stock.py`` are tuned into a store of their own. Then the program
runs with a cold and a warm Triton cache, with and without `sassafras.install()`, and under ``sassafras run``.
What the driver was given is watched from outside (a wrap of Triton's own ``load_binary``) and compared with
what `sassafras status` says; Triton's cache is hashed after each run. Exit code 1 if anything does not fit.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "deploy_stock.py"
ROWS, COLS = 512, 2047

#: runs a program as ``python program.py ...`` would, and reports each cubin that reaches CUDA
WATCH = """
import hashlib, runpy, sys
from triton.runtime import driver
utils = driver.active.utils
load = utils.load_binary
def watched(name, cubin, *rest):
    print("LOADED", name, hashlib.sha256(cubin).hexdigest(), flush=True)
    return load(name, cubin, *rest)
utils.load_binary = watched
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

#: host time of a launch that nothing matches, with and without us, interleaved; and of one load's lookup
OVERHEAD = """
import json, runpy, statistics, sys, time
import torch, sassafras
from sassafras.deploy import triton_load
from sassafras.deploy.engine import ENGINE
program = runpy.run_path(sys.argv[1], run_name="stock")
x = torch.randn(8, 64, device="cuda")
y = torch.empty_like(x)
def launches(count=2000):
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    for _ in range(count):
        program["softmax"](x, y)
    spent = (time.perf_counter_ns() - begin) / count
    torch.cuda.synchronize()
    return spent
launches()
ratios, without, with_ = [], [], []
for n in range(40):
    pair = {}
    for installed in ((True, False) if n % 2 else (False, True)):
        sassafras.install() if installed else sassafras.uninstall()
        pair[installed] = launches()
    without.append(pair[False]); with_.append(pair[True]); ratios.append(pair[True] / pair[False])
sassafras.install()
caches = program["softmax_kernel"].fn.device_caches
kernel = next(kernel for loaded, *_ in caches.values() for kernel in loaded.values())
begin = time.perf_counter_ns()
for _ in range(1000):
    triton_load.look_up(ENGINE, kernel)
quantiles = statistics.quantiles(ratios, n=40)
print(json.dumps({"launch_ns_without": statistics.median(without), "launch_ns_with": statistics.median(with_),
    "ratio": statistics.median(ratios), "ratio_p2.5_p97.5": [quantiles[0], quantiles[-1]],
    "lookup_per_load_us": (time.perf_counter_ns() - begin) / 1e6, "cubin_bytes": len(kernel.kernel)}))
"""


def workload() -> Any:
    """The stock program's kernel with the call that the program makes, a case an autotune configuration."""
    from sassafras.core import Buffer, Case, Tolerance
    from sassafras.frontend.triton import workload as triton_workload

    spec = importlib.util.spec_from_file_location("deploy_stock", PROGRAM)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    # Triton looks its kernel's module up, and the path is part of the cubin's line information
    sys.modules["deploy_stock"] = program
    spec.loader.exec_module(program)
    cases = [
        Case(
            f"warps{config.num_warps}", (ROWS, 1, 1),
            {
                "y_ptr": Buffer("fp32", (ROWS, COLS), role="out"), "x_ptr": Buffer("fp32", (ROWS, COLS)),
                "n_cols": COLS,
            },
            constants={"BLOCK": 2048}, options=config.all_kwargs(),
        )
        for config in program.softmax_kernel.configs
    ]  # fmt: skip
    return triton_workload(
        program.softmax_kernel, cases,
        reference=lambda tensors: {"y_ptr": tensors["x_ptr"].double().softmax(-1)},
        tolerance=Tolerance(rtol=2e-5, atol=1e-7), name="stock_softmax",
    )  # fmt: skip


def sassafras(*arguments: str) -> str:
    """The command line; its stdout."""
    command = [sys.executable, "-m", "sassafras", *arguments]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if ran.returncode:  # it has said why
        sys.exit(ran.returncode)
    return ran.stdout


def run(folder: Path, name: str, *, install: bool = False, under_run: bool = False) -> dict[str, Any]:
    """One run of the stock program: what it printed, what CUDA got, what status says, the cache's hash."""
    status = folder / f"status-{name.replace(' ', '-')}"
    command = [sys.executable, "-c", WATCH, str(PROGRAM), *(["--install"] if install else [])]
    if under_run:
        command = [sys.executable, "-m", "sassafras", "run", "--", *command]
    environment = os.environ | {
        "SASSAFRAS_STORE": str(folder / "store.sqlite"), "SASSAFRAS_STATUS": str(status),
        "TRITON_CACHE_DIR": str(folder / "cache"),
    }  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout}\n{done.stderr}")
    lines = done.stdout.splitlines()
    told: list[str] = []
    if status.exists():
        shown = json.loads(sassafras("status", str(status), "--json"))
        told = [kernel["loaded"] for process in shown["processes"] for kernel in process["kernels"]]
    return {
        "run": name,
        **json.loads(lines[-1]),
        "loaded": [line.split()[2] for line in lines if line.startswith("LOADED softmax_kernel")],
        "told": told,
        "cache": {
            str(path.relative_to(folder / "cache")): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((folder / "cache").rglob("*"))
            if path.is_file()
        },
    }


def main() -> None:
    """Tune, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--budget", default="10s", help="for each of the two configurations")
    parser.add_argument("--out", type=Path, help="write all of it here as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sassafras-demo-") as made:
        problems = demonstrate(Path(made), options.budget, options.out)
    for problem in problems:
        print("PROBLEM:", problem)
    raise SystemExit(1 if problems else 0)


def demonstrate(folder: Path, budget: str, out: Path | None) -> list[str]:
    """Everything, in `folder`; what did not fit."""
    os.environ["TRITON_CACHE_DIR"] = str(folder / "tuning-cache")  # so that the program's stays cold
    pairs: dict[str, str] = {}
    for case in workload().cases:
        result = json.loads(
            sassafras(
                "optimize", f"{HERE / 'deploy_demo.py'}:workload", "--case", case.name, "--budget", budget,
                "--store", str(folder / "store.sqlite"), "--out", str(folder / "out"), "--device", "cuda",
                "--quiet", "--json",
            )
        )  # fmt: skip
        print(case.name, "improved" if result["improved"] else "unimproved", result["speedup"])
        from sassafras.store import Store

    with Store.open(folder / "store.sqlite", readonly=True) as store:
        pairs = {winner.original: winner.tuned for winner in reversed(store.winners())}
    print(f"the store has a tuned cubin for {len(pairs)} of the configurations")

    rows = [run(folder, "without, cold"), run(folder, "without, warm")]
    shutil.rmtree(folder / "cache")
    rows += [run(folder, "install, cold", install=True), run(folder, "install, warm", install=True)]
    rows += [run(folder, "sassafras run", under_run=True), run(folder, "without, after")]

    for row in rows:
        kinds = ["tuned" if digest in pairs.values() else "original" for digest in row["loaded"]]
        loaded = ", ".join(f"{d[:12]} ({k})" for d, k in zip(row["loaded"], kinds, strict=True))
        times = f"eager {row['eager_us']:6.2f} us  graph {row['graph_us']:6.2f} us"
        outputs = " ".join(digest[:8] for digest in row["outputs"].values())
        print(
            f"{row['run']:15} warps {row['chosen']}  {times}  outputs {outputs}"
            f"  {len(row['cache'])} cache files  {loaded}"
        )
    problems = list(check(rows, pairs))
    cost = overhead(folder)
    print(f"host cost where nothing matches: {json.dumps(cost)}")
    if out is not None:
        out.write_text(
            json.dumps({"pairs": pairs, "rows": rows, "cost": cost, "problems": problems}, indent=1)
        )
    return problems


def overhead(folder: Path) -> dict[str, Any]:
    """What we cost on the host while no kernel matches (an empty place for the store)."""
    done = subprocess.run(
        [sys.executable, "-c", OVERHEAD, str(PROGRAM)], capture_output=True, text=True, check=False,
        env=os.environ | {
            "SASSAFRAS_STORE": str(folder / "none.sqlite"), "TRITON_CACHE_DIR": str(folder / "cost-cache"),
        },
    )  # fmt: skip
    if done.returncode:
        return {"failed": done.stderr.splitlines()[-1:]}
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def check(rows: list[dict[str, Any]], pairs: dict[str, str]) -> Any:
    """Yield what does not fit."""
    if not pairs:
        yield "nothing beat the baseline within this budget, so that there was nothing to deploy"
    originals, launchers = set(rows[0]["loaded"]), rows[0]["cache"]
    for row in rows:
        tuned = row["run"] not in ("without, cold", "without, warm", "without, after")
        expected = {pairs.get(digest, digest) if tuned else digest for digest in originals}
        if set(row["loaded"]) != expected:
            yield f"{row['run']}: the driver got {row['loaded']}, expected {sorted(expected)}"
        if tuned and sorted(row["told"]) != sorted(row["loaded"]):
            yield f"{row['run']}: status tells of {row['told']}, the driver got {row['loaded']}"
        if not tuned and row["told"]:
            yield f"{row['run']}: a status was written without us"
        if row["outputs"] != rows[0]["outputs"] or not row["graph_equals_eager"] or row["error"] > 1e-6:
            yield f"{row['run']}: the results differ"
        if row["run"].endswith("cold"):
            launchers = row["cache"]
        # Triton's host modules hold the random folder that they were built in: compared while the cache lives
        differ = sorted(
            name
            for name in row["cache"].keys() | rows[0]["cache"].keys()
            if row["cache"].get(name) != (launchers if name.endswith(".so") else rows[0]["cache"]).get(name)
            or (name in row["cache"]) != (name in rows[0]["cache"])
        )
        if differ:
            yield f"{row['run']}: files of Triton's cache differ: {differ}"


if __name__ == "__main__":
    main()
