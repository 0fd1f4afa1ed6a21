"""Batch invariance: bits of rows, what it costs, whole decoders; writes batch-invariant.json.

    python benchmarks/batch_invariant.py {bits,times,models,all} [--dtypes fp16 bf16] [--process 0]
        [--seconds 0.01] [--limit-s 540] [--share 1/4] [--resume JOURNAL ...]

`bits`: (n, k) of `SHAPES`: rows of products of 1 to 3333 rows are compared with the same rows of one of
4096: at other places, padded, among other rows, with gaps between rows, in a CUDA graph, compiled; digests
are compared between processes (--process 0 and 1). The control, torch.mm in the same check, has to fail.
`times`: interleaved in one process, weights from memory (rotating through twice the L2), in CUDA graphs:
sassafras.matmul with and without invariant=True, torch, cuBLASLt's fastest algorithm that does not split k,
and a persistent Triton kernel as vLLM and batch_invariant_ops have it (`row_kernels.product`), in their
tiling and in the fastest of `TILINGS` that gives the same bits.
`models`: decoders that decode a token after --context cached ones: logits of a sequence alone and in
batches of 2, 8, 64 and 256 and, in CUDA graphs, tokens a second by torch, by `batch_invariant()` and by the
Triton kernels. Attention is torch's memory-efficient one for all.

A row is a line of batch-invariant.jsonl in --out; the same command goes on after it. `all` does the three one
after the other; --warm compiles the Triton kernels in parallel first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from common import code_digest, command_line, journal_of, journal_options, shared, write
from invariant_models import MODELS, model
from invariant_rows import rows_of, summary_of

#: (n, k) of layers: qkv, o, gate and up, down of Qwen3 8B, 4B, 1.7B, 0.6B, 14B and Llama 3 8B, 70B, 1B, 3B
SHAPES = (
    (6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (28672, 4096), (4096, 14336), (10240, 8192),
    (8192, 8192), (8192, 28672), (2048, 2048), (2048, 8192), (1024, 2048), (6144, 2560), (2560, 4096),
    (19456, 2560), (2560, 9728), (57344, 8192), (4096, 2048), (12288, 2048), (2048, 6144), (4096, 1024),
    (6144, 1024), (1024, 3072), (7168, 5120), (5120, 5120), (34816, 5120), (5120, 17408), (3072, 2048),
    (16384, 2048), (5120, 3072), (3072, 3072), (16384, 3072), (3072, 8192),
)  # fmt: skip
MOST = 4096
#: rows of the products of `bits`; of `times`, first ones and others
COUNTS = (*range(1, 129), 129, 144, 160, 191, 192, 256, 257, 320, 500, 512, 777, 1000, 1024, 2000, 2048, 3333)
FIRST, OTHERS = (1, 16, 64, 256, 1024, 4), (8, 32, 128, 4096, 512)


def kind_of(dtype: str) -> Any:
    """The type of torch."""
    import torch

    return {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]


def drawn(rows: int, k: int, dtype: str, seed: int) -> Any:
    """Random normal, the same in every process."""
    import torch

    made = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(rows, k, device="cuda", generator=made).to(kind_of(dtype))


# -- bits --------------------------------------------------------------------------------------------------


class Check:
    """Rows compared with those of one large product; what differs is counted on the GPU."""

    def __init__(self, product: Callable[[Any, Any], Any], a: Any, w: Any) -> None:
        import torch

        self.product, self.a, self.w = product, a, w
        self.whole = product(a, w.t()).clone()
        self.unequal = torch.zeros((), dtype=torch.int64, device="cuda")
        self.rows = 0

    def see(self, got: Any, rows: Any) -> None:
        """Compare a product's rows with those of these numbers."""
        import torch

        differ = (got.view(torch.int16) != self.whole[rows].view(torch.int16)).any(-1)
        self.unequal += differ.sum()
        self.rows += len(got)

    def counts(self, rng: np.random.Generator) -> None:
        """Products of `COUNTS` rows, from anywhere."""
        for count in COUNTS:
            first = int(rng.integers(0, MOST - count + 1))
            here = slice(first, first + count)
            self.see(self.product(self.a[here].clone(), self.w.t()), here)

    def ways(self, rng: np.random.Generator) -> None:
        """Permuted, padded, among infinities, with gaps, stored by columns, at an odd address, in a graph."""
        import torch

        a, w, call = self.a, self.w, self.product
        order = torch.from_numpy(rng.permutation(MOST)[:333]).cuda()
        self.see(call(a[order], w.t()), order)
        for count in (1, 5, 17, 100):
            rows = order[:count]
            for padding in (0.0, float("inf"), float("nan"), 1e4):
                padded = torch.full((128, a.shape[1]), padding, device="cuda", dtype=a.dtype)
                padded[64 : 64 + min(count, 64)] = a[rows[:64]]
                self.see(call(padded, w.t())[64 : 64 + min(count, 64)], rows[:64])
            gaps = torch.empty(count, a.shape[1] + 8, device="cuda", dtype=a.dtype)[:, : a.shape[1]]
            self.see(call(gaps.copy_(a[rows]), w.t()), rows)
            self.see(call(a[rows].t().contiguous().t(), w.t()), rows)
            odd = torch.empty(count * a.shape[1] + 1, device="cuda", dtype=a.dtype)[1:].view(count, -1)
            self.see(call(odd.copy_(a[rows]), w.t()), rows)
            self.see(call(a[rows].view(1, count, -1).expand(3, -1, -1), w.t())[2], rows)
            given = a[rows].clone()
            call(given, w.t())
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                got = call(given, w.t())
            graph.replay()
            self.see(got, rows)


def by_torch(a: Any, b: Any) -> Any:
    """The control."""
    import torch

    return torch.matmul(a, b)


def by_ours(a: Any, b: Any) -> Any:
    """The mode."""
    import sassafras

    return sassafras.matmul(a, b, invariant=True)


def bits(n: int, k: int, dtype: str) -> dict[str, Any]:
    """A record: rows that were compared, and that differed, by us and by torch."""
    import torch

    import sassafras

    a, w = drawn(MOST, k, dtype, 1), drawn(n, k, dtype, 2)
    found: dict[str, Any] = {}
    with torch.no_grad():
        for name, product in (("", by_ours), ("control_", by_torch)):
            check, rng = Check(product, a, w), np.random.default_rng(n + k)
            check.counts(rng)
            if not name:
                check.ways(rng)
                matmul = sassafras.matmul
                compiled = torch.compile(lambda a, b: matmul(a, b, invariant=True), dynamic=True)  # noqa: B023
                if (n, k) in SHAPES[:2]:
                    for count in (3, 64, 200):
                        check.see(compiled(a[:count], w.t()), slice(0, count))
                digest = hashlib.sha256(check.whole.view(torch.int16).cpu().numpy().tobytes())
                found["digest"] = digest.hexdigest()
                exact = a[:64].double() @ w.double().t()
                error = (check.whole[:64].double() - exact).square().mean().sqrt()
                found["rms"] = float(error / exact.square().mean().sqrt())
            found |= {f"{name}rows": check.rows, f"{name}unequal": int(check.unequal)}
    return found


# -- times -------------------------------------------------------------------------------------------------


def times(stage: Any, m: int, n: int, k: int, dtype: str, seconds: float) -> dict[str, Any]:
    """A record: microseconds of each contestant, block by block."""
    import torch
    from products import Products, timed_chains

    from sassafras.gemm.matmul import api, invariant, row_kernels
    from sassafras.gemm.problem.shape import Shape

    shape = Shape(m, n, k)
    here = Products(stage, shape, dtype, cold=True)
    whole = stage.lt.heuristics(here.lt, 0, split=False)
    calls = {name: here.calls(name) for name in ("torch", "sassafras")}
    for name in ("sassafras_invariant", "sassafras_null"):
        calls[name] = [lambda s=s: api.matmul(s.a, s.b["tn"].t(), s.c, invariant=True) for s in here.sets]
    if whole:
        calls["lt_no_split"] = here.calls(here.fastest(whole))

    published = row_kernels.PUBLISHED[kind_of(dtype)]
    calls["triton_published"] = [
        lambda s=s: row_kernels.product(s.a, s.b["tn"].t(), published, s.c) for s in here.sets
    ]
    calls["triton_published"][0]()
    wanted = here.sets[0].c.clone()
    calls["triton_tuned"], tiling, count = here.by_triton(
        seconds / 2, lambda: torch.equal(wanted, here.sets[0].c)
    )
    for those in calls.values():
        those[0]()
    wrong = here.wrong_of(calls)
    us = timed_chains(stage, calls, len(here.sets), seconds, 200)
    served = [_last(engine, shape) for engine in (api._engine, invariant._engine)]
    more = {"served": served, "tiling": tiling, "tilings": count, "wrong": wrong}
    return {"us": us, **more}


def _last(engine: Any, shape: Any) -> str | None:
    """What an engine has last chosen for a shape."""
    found = [c for p, c in (engine.served if engine else {}).items() if p.shape == shape]
    return (found[-1].config.name if found[-1].config else found[-1].member) if found else None


# -- running -----------------------------------------------------------------------------------------------


def wanted(given: argparse.Namespace) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """(part, its arguments), most important first."""
    shapes = SHAPES[: given.count]
    parts = ("bits", "times", "models") if given.part == "all" else (given.part,)
    if "bits" in parts:
        yield from (("bits", (n, k, dtype)) for n, k in shapes for dtype in given.dtypes)
    if "times" in parts:
        for counts in (FIRST, OTHERS):
            yield from (
                ("times", (m, n, k, dtype)) for n, k in SHAPES for dtype in given.dtypes for m in counts
            )
    if "models" in parts:
        yield from (("models", (name, dtype)) for dtype in reversed(given.dtypes) for name in MODELS)


def warm(place: tuple[int, int, int, int, int]) -> None:
    """Compile a tile's kernels for the kinds of rows that there are, in a process of its own."""
    import torch

    from sassafras.gemm.matmul import row_kernels

    rows, columns, depth, warps, stages = place
    for kind in (torch.float16, torch.bfloat16):
        b = torch.zeros(1024, 1024, device="cuda", dtype=kind).t()
        for m in (1, 4, 16):
            try:
                row_kernels.product(b[:m], b, row_kernels.Tiling(rows, columns, depth, 8, warps, stages))
                row_kernels.product(b.t()[:m], b, row_kernels.Tiling(rows, columns, depth, 8, warps, stages))
            except Exception as error:
                if "out of resource" not in str(error):
                    raise


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__)
    parser.add_argument("part", choices=("bits", "times", "models", "all"))
    parser.add_argument("--count", type=int, default=len(SHAPES), help="(n, k) of bits and times")
    parser.add_argument("--process", type=int, default=0, help="number of this process, in the journal")
    parser.add_argument("--seconds", type=float, default=0.01, help="GPU time of a row's contestants")
    parser.add_argument("--context", type=int, default=128, help="cached tokens of each sequence")
    parser.add_argument("--layers", type=int, default=0, help="of a model [all]")
    parser.add_argument("--warm", type=int, default=0, help="processes that compile the Triton kernels")
    parser.add_argument("--seed", type=int, default=0)
    journal_options(parser, "fp16", "bf16")
    return parser.parse_args()


def measured(stage: Any, part: str, what: tuple[Any, ...], given: argparse.Namespace) -> dict[str, Any]:
    """A record. Raises what a contestant raises."""
    if part == "bits":
        return bits(*what)
    if part == "times":
        return times(stage, *what, given.seconds)
    name, dtype = what
    return model(name, kind_of(dtype), given.layers or MODELS[name], given.context)


def main() -> int:
    """Measure and write; 1 when anything was wrong or failed, 2 without a GPU, 3 when the context is lost."""
    begin, given = time.monotonic(), arguments()
    from sassafras.cuda.environment import available, environment
    from sassafras.gemm.bench.contestants import Contestants
    from sassafras.gemm.build.cubins import build
    from sassafras.gemm.configs import registry

    usable, reason = available()
    print(reason, flush=True)
    if given.dry_run:
        raise SystemExit("error: bits have no rehearsal; the tests have the summary's")
    if not usable:
        return 2
    tn = [i for i in (*registry.INSTANCES, *registry.OTHER_INSTANCES) if i.layout == "tn"]
    print(len(build(tn, given.cache)), "cubins ready", flush=True)
    if given.warm:
        from multiprocessing import get_context

        import products

        with get_context("spawn").Pool(given.warm) as pool:
            pool.map(warm, products.TILINGS, 1)
        print(f"{time.monotonic() - begin:6.1f} s Triton's kernels are compiled", flush=True)
    stage, where = Contestants(given.cache), environment()
    header = {"gpu": where["gpu"], "torch": where["torch"], "sassafras": code_digest("gemm")[:16]}
    header |= {"cublaslt": stage.lt.version, "seed": given.seed}
    journal = journal_of(given, "batch-invariant", header)
    done, lost = journal.done(), False
    for part, what in shared(wanted(given), given):
        key = " ".join(map(str, (part, *what, f"#{given.process}")))
        if key in done:
            continue
        if time.monotonic() - begin > given.limit_s or lost:
            break
        try:
            found = measured(stage, part, what, given)
        except Exception as error:  # a row must not cost the others
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
            lost = getattr(error, "sticky", False) or "CUDA error" in str(error)
        journal.add({"shape": key, "part": part, "of": what, "process": given.process, **found})
        print(f"{time.monotonic() - begin:6.1f} s {key:>34} {line(found)}", flush=True)
    records = list(journal.done().values())
    rows = rows_of(records)
    summary = summary_of(rows, records)
    path = write("batch-invariant", rows, summary, where, seed=given.seed, out=given.out)
    print(*(f"{key}: {value}" for key, value in summary.items()), path.name, sep="\n", flush=True)
    return 3 if lost else int(bool(summary["wrong"] or summary["failed"] or summary["unequal"] or not rows))


def line(record: dict[str, Any]) -> str:
    """A record in short."""
    if "error" in record:
        return str(record["error"])
    if "digest" in record:
        return f"{record['unequal']} of {record['rows']} rows differ, torch {record['control_unequal']}"
    if "tiling" in record:
        medians = {name: round(float(np.median(us)), 2) for name, us in record["us"].items()}
        return json.dumps(medians | {"served": record["served"], "wrong": record["wrong"]})
    us = {way: {b: round(float(np.median(v)), 1) for b, v in of.items()} for way, of in record["us"].items()}
    return json.dumps({"us": us, "unequal": record["unequal"]})


if __name__ == "__main__":
    sys.exit(main())
