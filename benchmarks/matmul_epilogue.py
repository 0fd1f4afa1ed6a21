"""Layers in one kernel (bias, activation; batches) against torch; writes matmul-epilogue.json.

    python benchmarks/matmul_epilogue.py --prepare --cache .carry/gemm   # compiles only, no GPU needed
    python benchmarks/matmul_epilogue.py [--pairs] [--cache .carry/gemm] [--rounds 30]
        [--seconds 50] [--dry-run]

Contestants of a row, all on the same tensors: `torch` (addmm or baddbmm, then the activation), `torch_again`
(the same captured twice: what no difference looks like), `product` (torch's product alone, for orientation),
`sassafras` (sassafras.matmul as it chooses), `ours` (the best of our configurations with an
epilogue: the static estimate's favourites and what sassafras.matmul would take, screened first, then timed
again with the others). `--pairs`: SwiGLU's pairs of three models alone, one weight (2n x k); `torch` is then
torch.compile's program of it, and `product` its product. Everything is checked against FP64: RMS error at
most 1.1 times torch's. Each contestant's calls are captured into a CUDA graph of some 200 us; graphs are
replayed forward and backward by turns and timed by events.
Speed-ups are medians of paired ratios with a bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import command_line, geomean, write
from graph_clock import Clock

#: an RMS error this many times torch's, eager or compiled, is wrong
TOLERANCE = 1.1


@dataclass(frozen=True)
class Case:
    """activation(x (m x k) @ w (k x n) + bias), `batch` times."""

    m: int
    n: int
    k: int
    activation: str | None = None
    bias: bool = True
    batch: int = 1
    dtype: str = "fp16"
    layout: str = "tn"  # weights as torch.nn.Linear keeps them; nn: k x n

    @property
    def name(self) -> str:
        """For messages."""
        size = f"{self.m}x{self.n}x{self.k} {self.layout} {self.dtype}"
        return size + (f" batch {self.batch}" if self.batch > 1 else "") + f" {self.activation}"


#: layers of language and vision models: projections with a bias, feed-forward halves with their activation,
#: batches as attention and mixtures of experts have them, one odd shape
CASES = (
    Case(64, 4096, 4096),
    Case(64, 3072, 768, "gelu_tanh"),
    Case(128, 11008, 4096, "silu", bias=False),
    Case(256, 3072, 768, "gelu"),
    Case(256, 768, 3072),
    Case(512, 4096, 1024, "gelu_tanh"),
    Case(512, 1024, 4096),
    Case(1024, 4096, 1024, "relu"),
    Case(1576, 3072, 768, "gelu"),
    Case(2048, 8192, 2048, "gelu_tanh"),
    Case(2048, 14336, 4096, "silu", bias=False),
    Case(4096, 4096, 4096, "relu"),
    Case(8192, 5120, 1280, "gelu_tanh", dtype="bf16"),
    Case(512, 3072, 768, "gelu_tanh", dtype="bf16"),
    Case(128, 1024, 4096, "relu", dtype="bf16"),
    Case(256, 1024, 1024, "relu", layout="nn"),
    Case(128, 64, 1024, bias=False, batch=32, layout="nn"),
    Case(128, 128, 64, None, bias=False, batch=96),
    Case(64, 512, 256, "relu", batch=64),
    Case(333, 777, 999, "gelu"),
)
#: SwiGLU's pairs, rows of --pairs
PAIRS = tuple(
    Case(m, *weights, "swiglu", bias=False, dtype=dtype)
    for weights, dtypes in (
        ((28672, 4096), ("fp16", "bf16")),  # Llama-3-8B
        ((37888, 3584), ("bf16",)),  # Qwen2.5-7B
        ((16384, 2048), ("bf16",)),  # Llama-3.2-1B
    )
    for dtype in dtypes
    for m in (256, 128, 192, 384, 512, 1024, 2048, 4096)
)
#: what the rehearsal runs
SMALL = (
    Case(8, 24, 16, "gelu"),
    Case(8, 24, 16, "relu", batch=3, layout="nn"),
    Case(7, 5, 9, None, dtype="bf16"),
    Case(9, 32, 16, "swiglu"),
)


def tensors(case: Case, device: str) -> tuple[Any, Any, Any]:
    """x, w (k x n, as it lies), bias or None."""
    import torch

    dtype = torch.float16 if case.dtype == "fp16" else torch.bfloat16
    generator = torch.Generator(device=device)
    generator.manual_seed(case.m + case.n + case.k)
    leading = () if case.batch == 1 else (case.batch,)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

    x = normal(*leading, case.m, case.k)
    if case.layout == "nn":
        w = normal(*leading, case.k, case.n) * case.k**-0.5
    else:
        w = (normal(*leading, case.n, case.k) * case.k**-0.5).mT
    return x, w, normal(case.n) if case.bias else None


def contestants(case: Case, x: Any, w: Any, bias: Any, room: Any) -> dict[str, Callable[[], Any]]:
    """name -> a call that returns C."""
    import torch

    import sassafras
    from sassafras.gemm.matmul.composed import activated
    from sassafras.gemm.matmul.swiglu import gated

    if case.activation == "swiglu":
        torch._dynamo.reset()  # or from the ninth row on it would compile no more
        options = {"dynamic": False, "fullgraph": True, "backend": "inductor" if x.is_cuda else "eager"}
        made = torch.compile(lambda x: gated(torch.nn.functional.linear(x, w.mT, bias)), **options)
        return {
            "torch": lambda: made(x),
            "torch_again": lambda: made(x),
            "product": lambda: torch.matmul(x, w),
            "sassafras": lambda: sassafras.linear(x, w.mT, bias, "swiglu"),
        }

    def by_torch() -> Any:
        if bias is None:
            return activated(torch.matmul(x, w), case.activation)
        add = torch.addmm if case.batch == 1 else torch.baddbmm
        return activated(add(bias, x, w), case.activation)

    return {
        "torch": by_torch,
        "torch_again": by_torch,
        "product": lambda: torch.matmul(x, w),
        "sassafras": lambda: room.matmul(x, w, bias=bias, activation=case.activation),
    }


def rms(result: Any, exact: Any) -> float:
    """RMS error relative to the RMS of the exact result."""
    error = (result.double() - exact).square().mean().sqrt()
    return float(error / exact.square().mean().sqrt())


def wrong_of(errors: dict[str, float], bar: float) -> list[str]:
    """Contestants whose error is above the bar, or no number: they have no speed-up."""
    return [name for name, error in errors.items() if not error <= bar]


def candidates(case: Case, x: Any, w: Any, bias: Any, room: Any, most: int) -> list[Any]:
    """Our configurations to screen: what would be chosen, then the estimate's favourites, in modes."""
    from sassafras.gemm.configs import epilogue
    from sassafras.gemm.matmul.plan import epilogue_problem
    from sassafras.gemm.matmul.problem import MatmulCall, read
    from sassafras.gemm.select.epilogue_selector import flat

    found = read(MatmulCall(x, w, None, bias, epilogue.NUMBERS[case.activation]), "cuda")
    if found is None:
        return []
    problem = found.problem
    legal = epilogue.configurations(*epilogue_problem(problem), problem.pair)
    legal.sort(key=lambda c: c.estimate_us(flat(c, problem.shape, problem.batch)))
    by_instance: dict[Any, Any] = {}
    for config in legal:
        by_instance.setdefault(config.instance, config)
    served = [choice.config for choice in room._engine.served.values() if choice.config is not None]
    possible = {c.stem for c in legal}  # the last choice may be another row's, where torch was chosen here
    chosen = [c for c in served[-1:] if c.stem in possible]
    unique = list({c.stem: c for c in (*chosen, *by_instance.values(), *legal)}.values())[:most]
    return [mode for c in unique for mode in c.in_modes()[:2]]


def run(case: Case, room: Any, clock: Clock, given: argparse.Namespace) -> dict[str, Any]:
    """One row. Raises what a contestant raises."""
    from sassafras.core.statistics import bootstrap_median
    from sassafras.gemm.configs.fields import to_fields
    from sassafras.gemm.matmul.composed import activated
    from sassafras.gemm.matmul.swiglu import gated

    x, w, bias = tensors(case, "cpu" if clock.dry else "cuda")
    exact = x.double() @ w.double()
    exact = exact if bias is None else exact + bias.double()
    exact = gated(exact) if case.activation == "swiglu" else activated(exact, case.activation)
    calls = contestants(case, x, w, bias, room)
    errors = {name: rms(call(), exact) for name, call in calls.items() if name != "product"}
    room.settle()
    errors["sassafras"] = rms(calls["sassafras"](), exact)
    eager = calls["torch"]()
    if case.activation == "swiglu":  # served by torch eagerly, it rounds the product, which Inductor does not
        eager = gated(calls["product"]() if bias is None else calls["product"]() + bias)
    bar = TOLERANCE * max(errors["torch"], rms(eager, exact))
    found: dict[str, Any] = {**asdict(case), "wrong": [], "config": None}
    best = None
    if room._engine is not None and not clock.dry:
        bound: list[tuple[Any, Any]] = []
        for config in candidates(case, x, w, bias, room, given.candidates):
            call = room._engine.bind(config, x, w, None, bias, case.activation)
            error = rms(call(), exact)
            if error <= bar:  # which no NaN is
                bound.append((config, call))
            else:
                found["wrong"].append(config.name)
        if bound:
            screened = clock.times([clock.graph([call]) for _, call in bound], 4)
            best = bound[int(np.argmin(np.median(screened, axis=0)))]
            calls["ours"], found["config"] = best[1], to_fields(best[0])
            errors["ours"] = rms(best[1](), exact)
            medians = np.median(screened, axis=0)
            found["screened"] = [
                [to_fields(c), round(float(us), 3)] for (c, _), us in zip(bound, medians, strict=True)
            ]
    names = list(calls)
    table = clock.times([clock.graph([calls[name]]) for name in names], given.rounds)
    for at, name in enumerate(names):
        found[name] = round(float(np.median(table[:, at])), 3)
    torchs = table[:, names.index("torch")]
    wrong = wrong_of(errors, bar)
    for name, column in (("ours", "speedup"), ("sassafras", "sassafras_speedup"), ("torch_again", "null")):
        if name in names and name not in wrong:
            ratios = torchs / table[:, names.index(name)]
            interval = bootstrap_median(ratios)
            found[column] = round(float(np.median(ratios)), 4)
            found[f"{column}_low"], found[f"{column}_high"] = round(interval.low, 4), round(interval.high, 4)
    found["wrong"] += wrong
    found["rms_ratio"] = round(errors.get("ours", errors["sassafras"]) / max(errors["torch"], 1e-12), 4)
    if room._engine is not None and room._engine.served:
        served = list(room._engine.served.values())[-1]
        found["served"] = {**served.to_json(), "why": served.why}
    return found


def main() -> int:
    """Measure and write; 1 when anything was wrong or failed, 2 without a GPU."""
    parser = command_line(__doc__)
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--candidates", type=int, default=6, help="our configurations screened, a row")
    parser.add_argument("--seconds", type=float, default=50, help="start no row after so long")
    parser.add_argument("--pairs", action="store_true", help="SwiGLU's pairs of three models alone")
    parser.add_argument("--prepare", action="store_true", help="only compile; needs no GPU")
    parser.add_argument("--dry-run", action="store_true", help="small shapes on the CPU, torch serving")
    given = parser.parse_args()
    begin = time.monotonic()
    if given.cache:
        os.environ["SASSAFRAS_GEMM_CACHE"] = str(given.cache)
    import warnings

    warnings.simplefilter("ignore", RuntimeWarning)
    from sassafras.cuda.environment import available, environment
    from sassafras.gemm.build.cubins import build
    from sassafras.gemm.configs.registry import EPILOGUE_INSTANCES
    from sassafras.gemm.matmul import api as room

    if given.prepare:
        print(len(build(EPILOGUE_INSTANCES, given.cache)), "cubins ready", flush=True)
        return 0
    usable, reason = available()
    if not given.dry_run:
        print(reason, flush=True)
        if not usable:
            return 2
        build(EPILOGUE_INSTANCES, given.cache)
        room._set_up()
        room.settle()
        print(f"kernels and launcher there after {time.monotonic() - begin:.1f} s", flush=True)
    rows: list[dict[str, Any]] = []
    clock, cases = Clock(given.dry_run), SMALL if given.dry_run else PAIRS if given.pairs else CASES
    for case in cases:
        if time.monotonic() - begin > given.seconds:
            break
        try:
            rows.append(run(case, room, clock, given))
        except Exception as error:  # one row must not cost the others
            rows.append({**asdict(case), "error": f"{type(error).__name__}: {error}"[:300]})
        print(
            f"{case.name:>40}", json.dumps({k: v for k, v in rows[-1].items() if k != "screened"}), flush=True
        )
    summary = summarise(rows, len(cases)) | {
        "modelled": given.dry_run,
        "seconds": round(time.monotonic() - begin, 1),
    }
    name = "matmul-epilogue" + "-pairs" * given.pairs + ("-dry" if given.dry_run else "")
    path = write(name, rows, summary, environment() if usable else {}, out=given.out)
    print(*(f"{key}: {value}" for key, value in summary.items()), path.name, sep="\n", flush=True)
    return 1 if summary["failed"] or summary["wrong"] or not rows else 0


def summarise(rows: Sequence[dict[str, Any]], asked: int) -> dict[str, Any]:
    """Geometric means over the rows that have the figure; who failed or was wrong, by name."""

    def mean(column: str) -> float | None:
        return geomean((row[column] for row in rows if column in row), 4)

    def of(column: str) -> list[float]:
        return [row[column] for row in rows if column in row]

    return {
        "rows": len(of("sassafras_speedup")),
        "asked": asked,
        "geomean_vs_torch": mean("speedup"),
        "worst_vs_torch": min(of("speedup"), default=None),
        "wins_vs_torch": sum(value > 1.005 for value in of("speedup_low")),
        "sassafras_geomean_vs_torch": mean("sassafras_speedup"),
        "sassafras_worst_vs_torch": min(of("sassafras_speedup"), default=None),
        "null": mean("null"),
        "failed": [row["error"] for row in rows if "error" in row],
        "wrong": [name for row in rows for name in row.get("wrong", [])],
    }


if __name__ == "__main__":
    sys.exit(main())
