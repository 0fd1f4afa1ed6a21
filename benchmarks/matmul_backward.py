"""A training step's three products, forward, dA and dW, of layers: sassafras.matmul against torch.matmul;
writes matmul-backward.json.

    python benchmarks/matmul_backward.py --prepare --cache .carry/gemm   # compiles only, no GPU needed
    python benchmarks/matmul_backward.py [--cache .carry/gemm] [--gpus 1] [--seconds 60] [--dry-run]

A layer is y = x @ w of `tokens` rows. `linear` keeps its weight as outputs x inputs, as torch.nn.Linear does:
forward in tn, dA in nn, dW in nt; `conv1d` as inputs x outputs, as GPT-2 does: nn, tn, nt. `step` is all
three through autograd. Contestants of each: `torch`, `torch_again` (the same captured twice: what no
difference looks like), `sassafras`. Every call of a block has fresh buffers, over more than twice the L2 in
all. A contestant's calls are captured into a CUDA graph of some 200 us; graphs are replayed forward and
backward by turns and timed by events. Speed-ups are medians of paired ratios with a bootstrap interval.
Results are checked against FP64 before and after timing: RMS error at most 1.1 times torch's.

The same command goes on where it was stopped (a journal beside the result); --fresh starts over. Without
gemm/select/data/*.backward.table.json torch serves dW: copy what `hgemm.py sweep --layouts nt,tt` wrote
there, or name it with --table.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, geomean, per_gpu, write
from graph_clock import Clock

#: an RMS error this many times torch's is wrong
TOLERANCE = 1.1
#: sets of buffers at most
SETS = 40
GPU = "NVIDIA H200"
PRODUCTS = ("forward", "dA", "dW", "step")


@dataclass(frozen=True)
class Layer:
    """y (tokens x outputs) = x (tokens x inputs) @ w."""

    tokens: int
    outputs: int
    inputs: int
    weight: str = "linear"  # outputs x inputs; conv1d: inputs x outputs
    dtype: str = "fp16"

    @property
    def name(self) -> str:
        """For messages and the journal."""
        return f"{self.tokens}x{self.outputs}x{self.inputs} {self.weight} {self.dtype}"


#: layers of GPT-2, BERT and models of 1B to 13B, in what a GPU has of tokens at a time; some of the numbers
#: of tokens are in no sweep
LAYERS = (
    Layer(1024, 2304, 768, "conv1d"), Layer(8192, 3072, 768, "conv1d"), Layer(8192, 768, 3072, "conv1d"),
    Layer(4096, 768, 768), Layer(4096, 1024, 1024), Layer(8192, 4096, 1024), Layer(8192, 1024, 4096),
    Layer(2048, 5120, 1280, "conv1d"), Layer(2048, 2048, 2048), Layer(4096, 8192, 2048),
    Layer(4096, 2048, 8192), Layer(2560, 2560, 2560), Layer(1024, 3072, 3072), Layer(4096, 8192, 3072),
    Layer(512, 4096, 4096), Layer(2048, 4096, 4096), Layer(8192, 4096, 4096), Layer(2048, 6144, 4096),
    Layer(2048, 14336, 4096), Layer(4096, 4096, 14336), Layer(1000, 4096, 4096), Layer(3001, 2048, 2048),
    Layer(4096, 5120, 5120), Layer(2048, 13824, 5120), Layer(4096, 4096, 4096, dtype="bf16"),
    Layer(8192, 4096, 1024, dtype="bf16"),
)  # fmt: skip
#: what the rehearsal runs
SMALL = (Layer(24, 40, 16), Layer(16, 24, 32, "conv1d"), Layer(9, 16, 8, dtype="bf16"))

Call = Callable[[], Any]


class Buffers:
    """x, w (as it is kept) and dC of a call, and what each product makes of them."""

    def __init__(self, layer: Layer, device: str, seed: int) -> None:
        import torch

        dtype = torch.float16 if layer.dtype == "fp16" else torch.bfloat16
        generator = torch.Generator(device=device)
        generator.manual_seed(seed)

        def normal(*shape: int) -> Any:
            return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

        self.layer = layer
        linear = layer.weight == "linear"
        self.x, self.grad = normal(layer.tokens, layer.inputs), normal(layer.tokens, layer.outputs)
        self.w = normal(*((layer.outputs, layer.inputs) if linear else (layer.inputs, layer.outputs)))
        #: leaves, for `step`
        self.leaves = [self.x.detach().requires_grad_(), self.w.detach().requires_grad_()]

    def factors(self, product: str) -> tuple[Any, Any]:
        """The two matrices of a product, as autograd hands them over."""
        linear = self.layer.weight == "linear"
        if product == "forward":
            return self.x, self.w.t() if linear else self.w
        if product == "dA":
            return self.grad, self.w if linear else self.w.t()
        return (self.grad.t(), self.x) if linear else (self.x.t(), self.grad)

    def call(self, product: str, matmul: Any) -> Call:
        """One call, which returns its result; of `step` a tuple of gradients."""
        import torch

        if product != "step":
            a, b = self.factors(product)
            return lambda: matmul(a, b)
        x, w = self.leaves
        linear = self.layer.weight == "linear"

        def step() -> Any:
            with torch.enable_grad():
                y = matmul(x, w.t() if linear else w)
                return torch.autograd.grad(y, (x, w), self.grad)

        return step


def rms(result: Any, exact: Any) -> float:
    """RMS error relative to the RMS of the exact result."""
    error = (result.double() - exact).square().mean().sqrt()
    return float(error / exact.square().mean().sqrt())


def product_row(
    product: str, sets: Sequence[Buffers], room: Any, clock: Clock, rounds: int
) -> dict[str, Any]:
    """Columns of one product, without its name before them. Raises what a contestant raises."""
    import torch

    from sassafras.core.statistics import bootstrap_median

    contestants = {"torch": torch.matmul, "torch_again": torch.matmul, "sassafras": room.matmul}
    calls = {name: [s.call(product, function) for s in sets] for name, function in contestants.items()}
    parts = ("dA", "dW") if product == "step" else (product,)
    exact = []
    for part in parts:
        a, b = sets[0].factors(part)
        exact.append(a.double() @ b.double())
    if product == "step" and sets[0].layer.weight == "conv1d":
        assert exact[1].shape == sets[0].w.shape

    def errors(name: str) -> list[float]:
        result = calls[name][0]()
        found = result if isinstance(result, tuple) else (result,)
        return [rms(one, of) for one, of in zip(found, exact, strict=True)]

    for call in calls["sassafras"]:  # kernels and plans for all buffers
        call()
    room.settle()
    before = {name: errors(name) for name in calls}
    names = list(calls)
    graphs = [clock.graph(calls[name]) for name in names]
    table = clock.times(graphs, rounds)
    after = {name: errors(name) for name in calls}
    found: dict[str, Any] = {name: round(float(np.median(table[:, i])), 3) for i, name in enumerate(names)}
    for name, column in (("sassafras", "speedup"), ("torch_again", "null")):
        ratios = table[:, 0] / table[:, names.index(name)]
        interval = bootstrap_median(ratios)
        found[column] = round(float(np.median(ratios)), 4)
        found[f"{column}_low"], found[f"{column}_high"] = round(interval.low, 4), round(interval.high, 4)
    worst = max(
        mine / max(torchs, 1e-12)
        for seen in (before, after)
        for mine, torchs in zip(seen["sassafras"], seen["torch"], strict=True)
    )
    found["rms_ratio"] = round(worst, 4)
    found["wrong"] = worst > TOLERANCE
    return found


def served(room: Any, a: Any, b: Any) -> dict[str, Any] | None:
    """Who serves a product, by the engine's own account."""
    shape, dtype = f"{a.shape[0]}x{b.shape[1]}x{a.shape[1]}", "bf16" if "bfloat" in str(a.dtype) else "fp16"
    layout = "".join("n" if factor.is_contiguous() else "t" for factor in (b, a))
    for p in reversed(room.status()["problems"]):
        if (p["shape"], p["layout"], p["dtype"]) == (shape, layout, dtype):
            return {key: p[key] for key in ("layout", "member", "config", "why")}
    return None


def run(layer: Layer, room: Any, clock: Clock, rounds: int) -> dict[str, Any]:
    """One row. A product that fails has its error in its place and does not cost the others theirs."""
    import torch

    device, l2 = "cpu", 1 << 12
    if not clock.dry:
        device, l2 = "cuda", int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 50 << 20))
    nbytes = 2 * (layer.tokens * (layer.inputs + layer.outputs) + layer.inputs * layer.outputs)
    sets = [Buffers(layer, device, seed) for seed in range(int(min(SETS, max(2, 2 * l2 // nbytes + 1))))]
    found: dict[str, Any] = {**asdict(layer), "sets": len(sets), "wrong": [], "failed": []}
    for product in PRODUCTS:
        try:
            columns = product_row(product, sets, room, clock, rounds)
        except Exception as error:
            found["failed"].append(f"{product}: {type(error).__name__}: {error}"[:300])
            if "CUDA error" in str(error):
                break
            continue
        if columns.pop("wrong"):
            found["wrong"].append(product)
        found |= {f"{product}_{name}": value for name, value in columns.items()}
        if product != "step":
            found[f"{product}_served"] = served(room, *sets[0].factors(product))
    return found


def work(layer: Layer, settings: dict[str, Any]) -> dict[str, Any] | None:
    """In a process of its own on a GPU of its own: one row; None when time is up."""
    if time.time() > settings["deadline"]:
        return None
    import warnings

    warnings.simplefilter("ignore", RuntimeWarning)
    if settings["cache"]:
        os.environ["SASSAFRAS_GEMM_CACHE"] = settings["cache"]
    if settings["table"]:
        os.environ["SASSAFRAS_GEMM_TABLE"] = settings["table"]
    from sassafras.cuda.environment import environment
    from sassafras.gemm.matmul import api as room

    if not settings["dry"] and room._engine is None:
        room._set_up()
        room.settle()
    row = run(layer, room, Clock(settings["dry"]), settings["rounds"])
    return {**row, "environment": environment() if not settings["dry"] else {}}


def merged_table(extra: Path, folder: Path) -> Path:
    """The shipped tables with another's rows, as one file that dispatch reads.

    Raises:
        SassafrasError: a table cannot be read, or none is shipped.
    """
    from sassafras.gemm.matmul.planner import load_table
    from sassafras.gemm.select.table import TunedTable

    more = TunedTable.load(extra)
    shipped = load_table(str(more.header.get("gpu")))
    path = folder / "matmul-backward.table.json"
    (more.merged(shipped) if shipped else more).save(path)
    return path


def main() -> int:
    """Measure and write; 1 when anything was wrong or failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--table", type=Path, help="a table of nt and tt that is not shipped")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60, help="start no layer after so long")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    )
    parser.add_argument("--fresh", action="store_true", help="start over instead of going on")
    parser.add_argument("--prepare", action="store_true", help="only compile; needs no GPU")
    parser.add_argument("--dry-run", action="store_true", help="small layers on the CPU, torch serving")
    given = parser.parse_args()
    from sassafras.cuda.environment import available
    from sassafras.gemm.bench.journal import Journal
    from sassafras.gemm.bench.worker import kernels_digest
    from sassafras.gemm.build.cubins import build
    from sassafras.gemm.configs.backward import PART
    from sassafras.gemm.configs.registry import INSTANCES, OTHER_INSTANCES
    from sassafras.gemm.select.table import shipped_path

    begin = time.time()
    if given.prepare:
        print(len(build((*INSTANCES, *OTHER_INSTANCES), given.cache)), "cubins ready", flush=True)
        return 0
    if not given.dry_run:
        usable, reason = available()
        print(reason, flush=True)
        if not usable:
            return 2
        build((*INSTANCES, *OTHER_INSTANCES), given.cache)
    given.out.mkdir(parents=True, exist_ok=True)
    name = "matmul-backward" + ("-dry" if given.dry_run else "")
    path = given.out / f"{name}.jsonl"
    if given.fresh:
        path.unlink(missing_ok=True)
    table = merged_table(given.table, given.out) if given.table else None
    tables = [table] if table else [shipped_path(GPU), shipped_path(GPU, PART)]
    journal = Journal(path, {
        "kernels": kernels_digest(), "backward": kernels_digest(("nt", "tt")), "rounds": given.rounds,
        "tables": [hashlib.sha256(t.read_bytes()).hexdigest()[:16] for t in tables if t.is_file()],
    })  # fmt: skip
    layers, done = SMALL if given.dry_run else LAYERS, journal.done()
    left = [layer for layer in layers if layer.name not in done]
    settings = {
        "deadline": begin + given.seconds, "dry": given.dry_run, "rounds": given.rounds,
        "cache": str(given.cache) if given.cache else None, "table": str(table) if table else None,
    }  # fmt: skip
    crashed: list[str] = []
    for index, row in per_gpu(work, [(layer, settings) for layer in left], given.gpus) if left else ():
        if isinstance(row, BaseException):
            crashed.append(f"{left[index].name}: {type(row).__name__}: {row}"[:300])
            print("FAILED", crashed[-1], flush=True)
        elif row is not None:
            journal.add({"shape": left[index].name, **row})
            print(line(row), flush=True)
    done = journal.done()
    rows = [
        {k: v for k, v in done[layer.name].items() if k not in ("shape", "environment")}
        for layer in layers
        if layer.name in done
    ]
    facts: dict[str, Any] = next((r["environment"] for r in done.values() if r.get("environment")), {})
    summary = summarise(rows, len(layers), crashed) | {
        "modelled": given.dry_run, "seconds": round(time.time() - begin, 1),
    }  # fmt: skip
    result = write(name, rows, summary, facts, out=given.out)
    print(*(f"{key}: {value}" for key, value in summary.items()), result.name, sep="\n", flush=True)
    return 1 if summary["failed"] or summary["wrong"] or not rows else 0


def line(row: dict[str, Any]) -> str:
    """A row for the screen."""
    parts = []
    for product in PRODUCTS:
        if f"{product}_speedup" in row:
            who = (row.get(f"{product}_served") or {}).get("config") or ""
            parts.append(f"{product} {row[f'{product}_torch']:.1f} us {row[f'{product}_speedup']:.3f} {who}")
    name = Layer(*(row[key] for key in ("tokens", "outputs", "inputs", "weight", "dtype"))).name
    return f"{name:>32}: " + ", ".join([*parts, *row["failed"], *(f"WRONG {p}" for p in row["wrong"])])


def summarise(rows: Sequence[dict[str, Any]], asked: int, crashed: Sequence[str]) -> dict[str, Any]:
    """Geometric mean, worst and wins of each product over the rows that have it; who failed or was wrong."""
    found: dict[str, Any] = {"rows": len(rows), "asked": asked, "pending": asked - len(rows)}
    for product in PRODUCTS:
        ratios = [row[f"{product}_speedup"] for row in rows if f"{product}_speedup" in row]
        if not ratios:
            continue
        mean = geomean(ratios)
        found[product] = {
            "geomean_vs_torch": round(mean, 4) if mean else None, "worst_vs_torch": min(ratios),
            "wins": sum(row.get(f"{product}_speedup_low", 0) > 1.005 for row in rows),
            "null": [min(row[f"{product}_null"] for row in rows if f"{product}_null" in row),
                     max(row[f"{product}_null"] for row in rows if f"{product}_null" in row)],
            "ours": sum((row.get(f"{product}_served") or {}).get("member") == "ours" for row in rows),
        }  # fmt: skip
    three = [
        sum(row[f"{p}_torch"] for p in PRODUCTS[:3]) / sum(row[f"{p}_sassafras"] for p in PRODUCTS[:3])
        for row in rows
        if all(f"{p}_sassafras" in row for p in PRODUCTS[:3])
    ]
    found["three_products_geomean"] = round(geomean(three) or 0.0, 4) if three else None
    found["failed"] = [*crashed, *(text for row in rows for text in row["failed"])]
    found["wrong"] = [
        f"{row['tokens']}x{row['outputs']}x{row['inputs']} {p}" for row in rows for p in row["wrong"]
    ]
    return found


if __name__ == "__main__":
    sys.exit(main())
