"""Fit the timing model's free constants to H200 measurements; write timing-model-fit.json. Needs no GPU.

    python benchmarks/timing_model_fit.py [--raw benchmarks/results/timing-model-raw.json] [--schedules 60]

Absolute runtimes of the suite's kernels (raw file, baseline_us; the highest SM clock) are fitted by
coordinate descent over the constants in GRID, from the published values, on mean |log(modelled / measured)|
with a small price for every constant that is changed. Leave one family out: the constants that a kernel
is judged with were fitted without any kernel of its family. Kendall's tau over the recorded schedules
(--schedules a kernel, the same for all) stands beside it, with the published constants and with the held-out
ones, and the ceiling that the two halves of the measurements set.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, read_result, write
from timing_model import ARCH, unpack

Row = dict[str, Any]
#: kernels of one family share a mechanism; they are held out together
FAMILIES = {
    "gemm": ("gemm_leakyrelu", "batched_gemm", "feed_forward"),
    "attention": ("attention", "attention_causal", "paged_decode"),
    "softmax": ("softmax",), "norm": ("rmsnorm", "layernorm"), "rotary": ("rotary",),
    "swiglu": ("swiglu",), "loss": ("cross_entropy",), "gemv": ("gemv_int8", "gemv_int4"),
    "gating": ("topk_gating",), "append": ("kv_append",), "quantise": ("quantise_fp8",),
}  # fmt: skip
#: constants that are assumptions or of another GPU, and the values that a fit may give them
GRID: dict[str, tuple[float, ...]] = {
    "launch": (600, 1200, 1800, 2500, 3200, 4000),
    "hmma_busy": (2, 3, 4, 6, 8),
    "chip_dram_bytes": (1500, 1700, 1900, 2100, 2450),
    "chip_l2_bytes": (2600, 3300, 4200, 5500, 7000),
    "sm_l2_bytes": (32, 48, 64),
    "l2_latency": (200, 263, 330, 420),
    "dram_latency": (450, 560, 700, 900),
    "cta_turnaround": (0, 150, 400, 800, 1200),
    "agu_interval": (2, 4, 6),
    "lsu_interval": (1, 2, 3),
    "ldgsts_extra": (0, 12, 60),
    "shared_latency": (23, 29, 35),
    "bar_latency": (8, 14, 30),
    "branch_taken": (0, 6, 15),
    "alu_busy": (1, 2),
    "mem_queue": (5, 8, 12),
    "hgmma_cycles_per_n": (0.4, 0.5, 0.65),
    "xu_busy": (4, 8),
    "cta_stagger": (5, 40, 120),
}
#: what a changed constant must win in mean |log error|
PRICE = 0.002


class Measured:
    """A recorded kernel, parsed once, to be modelled with many sets of constants."""

    def __init__(self, raw: Row) -> None:
        from sassafras.core import Buffer, Case, Kernel
        from sassafras.sass import Program

        self.raw, self.name = raw, raw["kernel"]
        self.family = next(f for f, names in FAMILIES.items() if self.name in names)
        self.kernel = Kernel(
            unpack(raw["cubin"]).tobytes(), raw["kernel_name"], ARCH, raw["threads"], raw["shared_bytes"]
        )
        buffers = {f"buffer{n}": Buffer("u8", (size,)) for n, size in enumerate(raw["buffer_bytes"])}
        self.case = Case(raw["case"], tuple(raw["grid"]), buffers, loop_trips=raw["loop_trips"])
        self.program = Program.parse(self.kernel.cubin)
        # (the clock that was read between two kernels may be an idle one)
        self.clock = raw["environment"]["clocks_mhz"]["sm_max"]
        self.measured = raw["baseline_us"]
        self._known: dict[tuple[tuple[str, float], ...], float] = {}

    def _model(self, changes: dict[str, float]) -> Any:
        from sassafras.timing_model import H200
        from sassafras.timing_model.kernel_model import KernelModel

        return KernelModel(self.program, self.kernel, self.case, H200.replace(**changes))

    def modelled(self, changes: dict[str, float]) -> float:
        """Modelled microseconds of the baseline."""
        from sassafras.timing_model import simulate

        key = tuple(sorted(changes.items()))
        if key not in self._known:
            model = self._model(changes)
            steps = model.steps(model.words, model.order(model.words))
            self._known[key] = simulate.cycles(model, steps)[0] / self.clock
        return self._known[key]

    def error(self, changes: dict[str, float]) -> float:
        """log(modelled / measured)."""
        return float(np.log(self.modelled(changes) / self.measured))

    def schedules(self, changes: dict[str, float], chosen: np.ndarray) -> np.ndarray:
        """Modelled baseline / schedule ratios of some recorded schedules."""
        from sassafras.timing_model import simulate

        model = self._model(changes)
        words = model.words
        base = simulate.cycles(model, model.steps(words, model.order(words)))[0]
        orders, controls = unpack(self.raw["order"]), unpack(self.raw["control"])
        ratios = []
        for n in chosen.tolist():
            mine = words[np.arange(len(words)) + orders[n]]
            mine[:, 1] ^= controls[n].astype(np.uint64) << np.uint64(41)
            ratios.append(base / simulate.cycles(model, model.steps(mine, model.order(mine)))[0])
        return np.array(ratios)


def fit(kernels: list[Measured], passes: int = 2) -> tuple[dict[str, float], float]:
    """Constants by coordinate descent from the published ones: (changes, loss)."""
    from sassafras.timing_model import H200

    def loss(changes: dict[str, float]) -> float:
        # every family counts as much as any other
        families: dict[str, list[float]] = {}
        for k in kernels:
            families.setdefault(k.family, []).append(abs(k.error(changes)))
        return float(np.mean([np.mean(v) for v in families.values()])) + PRICE * len(changes)

    best: dict[str, float] = {}
    lowest = loss(best)
    for _ in range(passes):
        before = lowest
        for name, values in GRID.items():
            for value in values:
                tried = {k: v for k, v in best.items() if k != name}
                if value != getattr(H200, name):
                    tried[name] = value
                if (found := loss(tried)) < lowest - 1e-9:
                    best, lowest = tried, found
        if lowest == before:
            break
    return best, lowest


def rank(kernel: Measured, changes: dict[str, float], chosen: np.ndarray) -> Row:
    """Kendall's tau of model and GPU over some recorded schedules, and the ceiling between the halves."""
    from sassafras.core.statistics import bootstrap_median
    from sassafras.timing_model.rank import distinguishable, kendall_tau

    halves = [kernel.raw["halves"][n] for n in chosen.tolist()]
    first, second = (np.array([np.median(h[i]) for h in halves]) for i in (0, 1))
    whole = np.array([np.median(a + b) for a, b in halves])
    bands = [bootstrap_median(a + b, seed=0, draws=200) for a, b in halves]
    apart = distinguishable(np.array([i.low for i in bands]), np.array([i.high for i in bands]))
    return {
        "tau": kendall_tau(kernel.schedules(changes, chosen), whole, apart),
        "tau_published": kendall_tau(kernel.schedules({}, chosen), whole, apart),
        "ceiling": kendall_tau(first, second, apart), "pairs": int(np.triu(apart, 1).sum()),
    }  # fmt: skip


def chosen_of(kernel: Measured, count: int) -> np.ndarray:
    """Indices of the schedules looked at: usable ones, evenly spread over walk lengths."""
    usable = np.array([n for n, (a, b) in enumerate(kernel.raw["halves"]) if a and b])
    return usable[np.linspace(0, len(usable) - 1, min(count, len(usable))).astype(int)]


def main() -> None:
    """Command line."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--raw", type=Path, default=ROOT / "benchmarks" / "results" / "timing-model-raw.json")
    parse.add_argument("--schedules", type=int, default=60, help="a kernel, for Kendall's tau; 0: none")
    parse.add_argument("--passes", type=int, default=2)
    parse.add_argument("--out")
    given = parse.parse_args()
    kernels = [Measured(raw) for raw in read_result(given.raw, of="timing-model")["rows"]]
    environment = kernels[0].raw["environment"]
    begun = time.time()
    everything, _ = fit(kernels, given.passes)
    print("all:", everything, f"{time.time() - begun:.0f} s", flush=True)
    rows, folds = [], {}
    for family in FAMILIES:
        changes, _ = fit([k for k in kernels if k.family != family], given.passes)
        folds[family] = changes
        print(family, changes, f"{time.time() - begun:.0f} s", flush=True)
        for k in kernels:
            if k.family != family:
                continue
            row = {
                "kernel": k.name, "shape": k.raw["case"], "family": family, "measured_us": k.measured,
                "published_us": k.modelled({}), "held_out_us": k.modelled(changes),
                "fitted_us": k.modelled(everything),
            }  # fmt: skip
            for what in ("published", "held_out", "fitted"):
                row[f"ape_{what}"] = abs(row[f"{what}_us"] / k.measured - 1)
            if given.schedules:
                row |= rank(k, changes, chosen_of(k, given.schedules))
            rows.append(row)
            print(json.dumps(row), flush=True)
    summary = {
        "mape_published": float(np.mean([r["ape_published"] for r in rows])),
        "held_out_mape": float(np.mean([r["ape_held_out"] for r in rows])),
        "median_held_out_ape": float(np.median([r["ape_held_out"] for r in rows])),
        "mape_fitted_on_all": float(np.mean([r["ape_fitted"] for r in rows])),
        "constants_by_held_out_family": folds, "constants_of_all": everything,
    }  # fmt: skip
    if given.schedules:
        for name in ("tau", "tau_published", "ceiling"):
            summary[f"median_{name}"] = float(np.median([r[name] for r in rows if r[name] is not None]))
    print(write("timing-model-fit", rows, summary, environment, out=given.out))
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
