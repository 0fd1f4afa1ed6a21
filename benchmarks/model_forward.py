"""Forward passes of models with and without Sassafras, each in one CUDA graph; writes model-forward.json.

    python benchmarks/model_forward.py [--models llama-3-8b ...] [--tokens 1 16 ...] [--dtypes fp16 bf16]
        [--processes 5] [--limit-s 560] [--max-autotune]
        [--share 1/4] [--resume JOURNAL ...] [--dry-run]

Random weights, four layers (more where four lie below four times the L2), plain torch (`decoder`; models
called -apart have queries, keys, values, gate and up in layers of their own, as transformers has; -static its
cache of 4,096 rows and a mask, too; of one kind alone it writes model-forward-apart.json or -static.json).
Up to 256 tokens are as many sequences that decode one token after
--context cached ones; more are the prefill of one sequence. Contestants of a row run interleaved in one
process on the same weights: `eager`, `compile` (torch.compile), `max_autotune` (by its option, 1 to 64
tokens), `sassafras_eager`, `sassafras_compile` (`with_sassafras` applied before), `null` (a second graph of
`compile`), and the linear layers alone (`linears`, `sassafras_linears`). Outputs are compared with FP32
before and after the timing; a contestant whose RMS deviation exceeds 1.1 times eager torch's is wrong and
has no speed-up. From --long tokens on, blocks of --sustained seconds are timed, too, and the lower speed-up
counts.

A row of a process is a line of model-forward.jsonl in --out; the same command goes on after it. Rows that
matter most come first. Intervals are over processes where there are several, else over blocks of one.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from common import ROOT, code_digest, command_line, journal_options, journal_path, shared, write
from graph_clock import Clock
from program_rows import Row, forward_rows, forward_summary

#: rows in the order in which they are measured; prefill from the second on
DECODE, PREFILL = (1, 16, 64, 4, 128, 256), (1024, 4096)
AUTOTUNED = (1, 16, 64)
#: an RMS deviation this many times eager torch's is wrong
TOLERANCE = 1.1
#: milliseconds of a block, rounds of blocks
BLOCK_MS, LEAST, MOST = 2.0, 9, 61


def wanted(given: argparse.Namespace) -> list[Row]:
    """The rows that the options ask for, most important first."""
    decoders = [model for model in given.models if not model.startswith("vit")]

    def each(tokens: int, models: Iterable[str], head: bool = False) -> list[Row]:
        autotune = given.max_autotune and tokens in AUTOTUNED and not head
        return [Row(model, dtype, tokens, head, autotune) for model in models for dtype in given.dtypes]

    found = [row for tokens in DECODE if tokens in given.tokens for row in each(tokens, decoders)]
    found += each(1, decoders, head=True) if 1 in given.tokens else []
    vision = each(1024, [m for m in given.models if m.startswith("vit")]) if 1024 in given.tokens else []
    return found + [r for t in PREFILL if t in given.tokens for r in each(t, decoders)] + vision


def with_sassafras(model: Any, tokens: int) -> Any:
    """The model with its linear layers served by Sassafras; kernels for so many rows are compiled."""
    import sassafras

    return sassafras.accelerate(model, wait=True, tokens=[tokens])


class Graph:
    """A contestant: its call, captured once."""

    def __init__(self, call: Callable[[], Any], dry: bool) -> None:
        import torch

        self.call, self.dry = call, dry
        if dry:
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = call()

    def result(self) -> Any:
        """Of a replay whose output held NaN before."""
        if self.dry:
            return self.call()
        self.output.fill_(float("nan"))
        self.graph.replay()
        return self.output


class Bench:
    """One process: a device, and rows one after the other."""

    def __init__(self, given: argparse.Namespace) -> None:
        import torch

        self.given, self.dry = given, given.dry_run
        self.device = "cpu" if self.dry else "cuda"
        self.clock = Clock(self.dry)
        self.gpu, self.l2 = "none", 0
        if self.dry:
            torch.set_num_threads(1)
        else:
            found = torch.cuda.get_device_properties(0)
            self.gpu, self.l2 = found.name, found.L2_cache_size
        self.options = {"backend": "aot_eager"} if self.dry else {}
        #: the conditions under which rows belong together
        self.header = {"gpu": self.gpu, "torch": torch.__version__, "sassafras": code_digest("gemm")[:16]}
        conditions = ("context", "long", "sustained", "dry_run")
        self.header |= {key: getattr(given, key) for key in conditions}

    def measure(self, row: Row) -> dict[str, Any]:
        """A record of the journal. Raises what torch or Sassafras raise for eager and compiled models."""
        import torch
        from decoder import MODELS, SMALL, made

        from sassafras.gemm.matmul import api

        torch._dynamo.utils.counters.clear()
        dims = (SMALL if self.dry else MODELS)[row.model]
        layers = max(2 if self.dry else 4, -(-4 * self.l2 // (2 * dims.layer_elements)))
        context = self.given.context if row.tokens <= DECODE[-1] else 0
        dtype = torch.float16 if row.dtype == "fp16" else torch.bfloat16
        tokens = row.tokens // 64 if self.dry and not context else row.tokens
        plain, x = made(dims, layers, tokens, context, row.vocabulary, dtype, self.device)
        names = [name for name, module in plain.named_modules() if isinstance(module, torch.nn.Linear)]
        exact = copy.deepcopy(plain).float()(x.float())
        begun = time.monotonic()
        ours = with_sassafras(plain.shared(), tokens)
        calls = self._calls(row, plain, ours, x)
        widths = {name: plain.get_submodule(name).in_features for name in names}
        inputs = {k: torch.randn(*x.shape[:-1], k).to(x) for k in set(widths.values())}
        for name, model in (("linears", plain), ("sassafras_linears", ours)):
            calls[name] = _one_by_one([(model.get_submodule(n), inputs[k]) for n, k in widths.items()])
        graphs: dict[str, Graph] = {}
        failed: dict[str, str] = {}
        for name, call in calls.items():
            try:
                call()
                api.settle()
                graphs[name] = Graph(call, self.dry)
            except Exception as error:  # one contestant must not cost the row
                if not name.startswith(("max_", "sassafras_")):
                    raise
                failed[name] = f"{type(error).__name__}: {error}"[:300]
        built = time.monotonic() - begun
        whole = [name for name in graphs if not name.endswith("linears")]
        deviations = {name: deviation(graphs[name].result(), exact) for name in whole}
        times, long = self._times(graphs, row.tokens)
        after = {name: deviation(graphs[name].result(), exact) for name in whole}
        wrong = wrong_of(deviations, after)
        weights = sum(p.numel() for p in plain.parameters())
        caches = [b for n, b in plain.named_buffers() if n.endswith(("keys", "values"))]
        cached = sum(b[:, :, :context].numel() for b in caches)  # a static one is longer
        return {
            "shape": row.name,
            "row": row._asdict(),
            "layers": layers,
            "context": context,
            "us": {name: [round(float(v), 2) for v in times[:, i]] for i, name in enumerate(graphs)},
            "sustained": long,
            "deviations": {name: [float(f"{v:.4g}") for v in pair] for name, pair in deviations.items()},
            "wrong": wrong,
            "failed": failed,
            "bytes": 2 * (weights + cached) + 2 * (x.numel() + exact.numel()),
            "served": _served(ours, tokens),
            "graph_breaks": sum(torch._dynamo.utils.counters["graph_break"].values()),
            "build_s": round(built, 1),
        }

    def _calls(self, row: Row, plain: Any, ours: Any, x: Any) -> dict[str, Callable[[], Any]]:
        import torch

        compiled = torch.compile(plain, **self.options)
        found = {"eager": plain, "compile": compiled, "null": compiled}
        found |= {"sassafras_eager": ours, "sassafras_compile": torch.compile(ours, **self.options)}
        if row.autotune:
            # without graphs of its own: the whole forward is captured
            mode = {} if self.dry else {"mode": "max-autotune-no-cudagraphs"}
            found["max_autotune"] = torch.compile(plain, **self.options, **mode)
        return {name: lambda model=model: model(x) for name, model in found.items()}

    def _times(self, graphs: dict[str, Graph], tokens: int) -> tuple[np.ndarray, dict[str, list[float]]]:
        """Microseconds a forward (rounds, graphs), and of long blocks by name."""
        entries = [(graph.call if self.dry else graph.graph, 1) for graph in graphs.values()]
        rough = np.median(self.clock.times(entries, 1 if self.dry else 3), axis=0)
        replays = [max(1, round(1e3 * BLOCK_MS / us)) for us in rough]
        spent = float(np.dot(rough, replays))
        rounds = 2 if self.dry else int(min(MOST, max(LEAST, 1e6 * self.given.seconds // spent)))
        times = self.clock.times(entries, rounds, replays)
        names = [n for n in graphs if n != "null" and not n.endswith("linears")]
        if tokens < self.given.long or not self.given.sustained:
            return times, {}
        places = [list(graphs).index(name) for name in names]
        counts = [max(1, round(1e6 * self.given.sustained / rough[i])) for i in places]
        long = self.clock.times([entries[i] for i in places], 3, counts, seed=1)
        return times, {name: [round(float(v), 2) for v in long[:, i]] for i, name in enumerate(names)}


def _one_by_one(pairs: Sequence[tuple[Any, Any]]) -> Callable[[], Any]:
    def call() -> Any:
        for module, x in pairs:
            result = module(x)
        return result

    return call


def _served(model: Any, tokens: int) -> dict[str, Any]:
    """member -> how many of the model's products it serves, and why torch serves its own."""
    from sassafras.gemm.matmul import api, layers

    found = layers.layers(model)
    members = Counter(layer.served.get(tokens, "torch") for layer in found)
    shapes = {f"{tokens}x{layer.n}x{layer.k}" for layer in found}
    problems = api.status()["problems"]
    why = {p["why"] for p in problems if p["shape"] in shapes and p["member"] == "torch"}
    return {**members, "why_torch": sorted(why | {layer.why_not for layer in found} - {""})[:4]}


def deviation(result: Any, exact: Any) -> tuple[float, float]:
    """RMS and largest deviation, relative to the RMS and the largest magnitude of the exact result."""
    error = result.float() - exact
    rms = error.square().mean().sqrt() / exact.square().mean().sqrt()
    return float(rms), float(error.abs().max() / exact.abs().max())


def wrong_of(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> list[str]:
    """Contestants whose RMS deviation was above the limit, or no number, before the timing or after it."""
    limit = TOLERANCE * before["eager"][0]
    return [name for name in before if not all(of[name][0] <= limit for of in (before, after))]


# -- the process that measures, and the one that starts it -----------------------------------------------


def measure(given: argparse.Namespace, process: int, until: float) -> int:
    """Rows of one process that the journal does not have; 3 when the context may be lost.

    Raises:
        SassafrasError: the journal is of other conditions.
    """
    import torch

    from sassafras.gemm.bench.journal import Journal

    bench = Bench(given)
    journal = Journal(given.path, bench.header)
    done, longest = set(journal.done()), 0.0
    with torch.no_grad():
        for row in shared(wanted(given), given):
            key = f"{row.name} #{process}"
            if key in done or time.time() + longest > until:
                continue
            begun = time.monotonic()
            journal.add({"trying": key})
            try:
                record = bench.measure(row)
            except Exception as error:
                record = {"row": row._asdict(), "error": f"{type(error).__name__}: {error}"[:500]}
            journal.add({**record, "shape": key, "process": process})
            longest = max(longest, time.monotonic() - begun)
            print(f"{key:>44} {time.monotonic() - begun:5.1f} s  {line(record)}", flush=True)
            if "CUDA error" in record.get("error", ""):
                return 3
            torch._dynamo.reset()  # it holds the models
            gc.collect()
            if not given.dry_run:
                torch.cuda.empty_cache()
    return 0


def line(record: dict[str, Any]) -> str:
    """A record in short: median microseconds, who served, what went wrong."""
    if "error" in record:
        return str(record["error"])
    medians = {name: round(float(np.median(us)), 1) for name, us in record["us"].items()}
    over = medians["compile"] / medians.get("sassafras_compile", float("nan"))
    kept = {k: record[k] for k in ("served", "wrong", "failed", "graph_breaks", "build_s") if record[k]}
    return f"over_compile {over:.3f} {json.dumps(medians | kept)}"


def supervise(given: argparse.Namespace, until: float) -> None:
    """One fresh process after another; a row that ends its process is journaled as an error."""
    from sassafras.gemm.bench.journal import read

    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / ".carry" / "inductor"))
    for process in range(given.processes):
        for _ in range(4):  # a lost context costs one row
            asked = [sys.executable, *sys.argv, "--process", str(process), "--until", str(until)]
            try:
                code = subprocess.run(asked, timeout=max(1, until + 20 - time.time()), check=False).returncode
            except subprocess.TimeoutExpired:
                return
            if code in (0, 1):
                break
            last = read(given.path)[-1] if given.path.exists() else {}
            if "trying" in last:
                lost = {
                    "shape": last["trying"],
                    "process": process,
                    "error": f"the process ended with {code}",
                }
                with given.path.open("a") as file:
                    file.write(json.dumps(lost) + "\n")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__)
    models, every = ("llama-3.2-1b", "llama-3-8b", "qwen2.5-7b", "vit-l"), DECODE + PREFILL
    more = ("llama-3-8b-apart", "qwen2.5-7b-apart", "llama-3-8b-static", "qwen3-8b", "starcoder2-7b")
    parser.add_argument("--models", nargs="+", choices=models + more, default=models)
    parser.add_argument("--tokens", nargs="+", type=int, choices=every, default=every)
    parser.add_argument("--context", type=int, default=512, help="cached tokens of each decoding sequence")
    parser.add_argument("--max-autotune", action="store_true", help="a contestant at 1, 16 and 64 tokens")
    parser.add_argument("--seconds", type=float, default=2.0, help="GPU time of a row's blocks")
    parser.add_argument("--long", type=int, default=1024, help="tokens from which --sustained matters")
    parser.add_argument("--sustained", type=float, default=1.0, help="seconds of a long block; 0: none")
    parser.add_argument("--processes", type=int, default=1, help="fresh processes, one after the other")
    journal_options(parser, "fp16", "bf16")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    kinds = {next((kind for kind in ("-apart", "-static") if m.endswith(kind)), "") for m in given.models}
    given.name = "model-forward" + (kinds.pop() if len(kinds) == 1 else "") + "-dry" * given.dry_run
    given.path = journal_path(given, given.name)
    return given


def main() -> int:
    """Measure and write; 1 when anything was wrong or failed, 2 without a GPU."""
    given = arguments()
    from sassafras.core import SassafrasError

    if given.process is not None:
        warnings.filterwarnings("ignore", "sassafras", RuntimeWarning)  # `served` says it
        try:
            return measure(given, given.process, given.until)
        except SassafrasError as error:
            raise SystemExit(f"error: {error}") from None
    from sassafras.cuda.environment import available, environment
    from sassafras.gemm.bench.journal import read

    usable, reason = available()
    print(reason, flush=True)
    if not usable and not given.dry_run:
        return 2
    supervise(given, time.time() + given.limit_s)
    lines = read(given.path) if given.path.exists() else [{"header": {"gpu": "none"}}]
    header = lines[0]["header"]
    last = {r["shape"]: {**r, "gpu": header["gpu"]} for r in lines[1:] if "shape" in r}
    rows = forward_rows(records := list(last.values()))
    summary = forward_summary(rows, records) | {"modelled": given.dry_run, "conditions": header}
    have = {shape.rpartition(" #")[0] for shape in last}
    summary["not_reached"] = [row.name for row in wanted(given) if row.name not in have]
    path = write(given.name, rows, summary, environment(), out=given.out)
    print(*(f"{key}: {value}" for key, value in summary.items()), path.name, sep="\n", flush=True)
    return 1 if summary["wrong"] or summary["failed"] or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
