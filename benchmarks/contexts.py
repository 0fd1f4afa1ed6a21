"""Products where programs have them, beside torch and cuBLASLt's best; writes contexts.json or layers.json.

    python benchmarks/contexts.py {contexts,layers,learn} [--dtypes fp16 bf16] [--process 0] [--tuned]
        [--triton] [--limit-s 560] [--share 1/4] [--resume JOURNAL ...] [--dry-run]

`layers`: layer shapes, weights from memory (rotating through twice the L2), back to back and with an
elementwise kernel between; cuBLASLt's algorithm, and with --triton a plain Triton kernel's tiles, are the
fastest of the former. A shape that the table has is tuned. Ours are `matmul` and, as compiled models call
layers, a kernel that reads its weights early where there is one (`layer`). `contexts`: shapes of the grid
(stratified), weights n x k; cuBLASLt's algorithm is selected back to back, as AutoTuning does. Its contexts:
back_to_back; dependent (C of a product is A of the next, m x n x k and m x k x n by turns); elementwise and
pdl_neighbour (a kernel on C between, its time included); cold (rotating weights); up to 1e10 FLOP isolated
(event to event, shapes interleaved), isolated_subtracted (an empty kernel's time subtracted) and random (a
call after an exponential pause of a millisecond, rotating weights). Launch `pdl` is what sassafras.matmul
chooses, `plain` the same configuration launched plainly.

`learn`: the shapes of learn-6 as `layers` has them with an elementwise kernel between, types by turns: torch
and what may run them, for ``choosers.py --program``; writes learn.jsonl.gz.

Every C is compared with FP32. A shape of a process is a line of the journal in --out (NAME.jsonl); the same
command goes on after it. Each run is a fresh process: run it with --process 0 to 4 for intervals over them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from common import code_digest, command_line, commit, journal_of, journal_options, shared, write
from products import Calls, Products, mixed, timed_chains
from program_rows import context_rows, context_summary

from sassafras.cuda.environment import available, environment
from sassafras.gemm.bench.context import chooser
from sassafras.gemm.bench.grids import choose_shapes
from sassafras.gemm.bench.timing import Isolated
from sassafras.gemm.bench.worker import _stage
from sassafras.gemm.configs import registry
from sassafras.gemm.configs.fields import from_fields, to_fields
from sassafras.gemm.configs.registry import with_dtype
from sassafras.gemm.matmul.plan import why_illegal
from sassafras.gemm.matmul.problem import Problem
from sassafras.gemm.problem.shape import Product, Shape, cuda_l2_grid, stratified
from sassafras.gemm.select.dataset import Dataset, DatasetEntry

TOKENS = (1, 3, 8, 16, 17, 33, 64, 96, 127, 200, 333, 1000, 3000)
#: (n, k) of layers; none of them, at any m, is in a table or in training data
LAYERS = (
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (3584, 3584), (37888, 3584), (3584, 18944),
    (10240, 8192), (8192, 28672), (57344, 8192), (128256, 4096),
)  # fmt: skip
#: FLOP up to which calls are isolated, how many calls, a pause a second, shapes that are interleaved
ISOLATED, CALLS, RATE, GROUP = 1e10, 100, 1000.0, 4
#: sets of operands that single calls rotate through at most
SETS = 24
#: launches of a chain of dependent products in a block: more would let its values grow or vanish
CHAIN = 16
#: configurations to learn from: the chooser's, and all; launches of their blocks, at most
FAVOURITES, CANDIDATES, SHORT = 10, 26, 200


def layer_shapes(dtypes: Sequence[str]) -> Iterator[tuple[Any, str]]:
    """(shape, type): every eleven of a type have all layers and different numbers of tokens."""
    for shift in range(len(TOKENS)):
        for which, dtype in enumerate(dtypes):
            for index, (n, k) in enumerate(LAYERS):
                yield Shape(TOKENS[(6 * which + shift + 5 * index) % len(TOKENS)], n, k), dtype


def layer(stage: Any, shape: Any, dtype: str, seconds: float, triton: bool = False) -> dict[str, Any]:
    """A record: two contexts, weights from memory; `triton` is one more contestant."""
    here = Products(stage, shape, dtype, cold=True)
    calls = here.contestants()
    if not stage.modelled:
        calls |= {"sassafras_layer": early} if (early := here.as_layer()) else {}
        calls |= {"triton": here.by_triton(seconds / 2)[0]} if triton else {}
    wrong = here.wrong_of(calls)
    count = len(here.sets)
    us = {
        "cold": timed_chains(stage, calls, count, seconds),
        "elementwise": timed_chains(stage, mixed(calls, here.between()), count, seconds),
    }
    return {"us": us, "wrong": sorted({*wrong, *here.wrong_of(calls)}), "served": here.served}


def able(stage: Any, product: Product) -> list[Any]:
    """Configurations to learn from: the chooser's favourites, then the estimate's, one of each kernel."""
    shape, problem = product.shape, Problem.of(product)
    favourites = chooser(stage).favourites(
        shape, "tn", lambda c: why_illegal(c, problem) is None, lambda c: with_dtype(c, product.dtype)
    )
    found = {config: config.instance for config in itertools.islice(favourites, FAVOURITES)}
    legal = registry.legal(shape, dtype=product.dtype, layouts=("tn",))
    for config in sorted(legal, key=lambda c: (c.estimate_us(shape), c.rank)):
        if len(found) < CANDIDATES and config.instance not in found.values():
            found[config] = config.instance
    return list(found)


def learnt(stage: Any, shape: Any, dtype: str, seconds: float) -> dict[str, Any]:
    """A record of what to learn from: an elementwise kernel between, weights from memory."""
    here = Products(stage, shape, dtype, cold=True)
    configs = {c.name: c for c in able(stage, here.product)}
    calls = {"torch": here.calls("torch")} | {name: here.calls(c) for name, c in configs.items()}
    us = timed_chains(stage, mixed(calls, here.between()), len(here.sets), seconds, SHORT)
    medians = {name: round(float(np.median(those)), 3) for name, those in us.items()}
    ours = [[to_fields(with_dtype(c, "fp16") or c), medians[name]] for name, c in configs.items()]
    return {"ours": ours, "torch": medians["torch"], "wrong": here.wrong_of(calls)}


def dataset_of(records: Sequence[dict[str, Any]], header: dict[str, Any]) -> Dataset:
    """What `learnt` found, without what was wrong."""
    entries = []
    for record in records:
        if record.get("wrong", True):
            continue
        ours = {from_fields(fields): (us, 0) for fields, us in record["ours"]}
        entries.append(DatasetEntry(Shape.parse(record["of"]), ours, {"torch": {"tn": record["torch"]}}))
    return Dataset(header, entries)


def graphs(stage: Any, shape: Any, dtype: str, seconds: float) -> tuple[dict[str, Any], Calls, Calls]:
    """A record of the contexts that are graphs; the calls on one set of operands, and on all."""
    warm, cold = (Products(stage, shape, dtype, cold=cold) for cold in (False, True))
    back = Products(stage, Shape(shape.m, shape.k, shape.n), dtype, cold=False)
    algorithm = warm.fastest(stage.lt.candidates(warm.lt))
    calls, rotating = warm.contestants(algorithm), cold.contestants(algorithm)
    wrong = [*warm.wrong_of(calls), *cold.wrong_of(rotating)]
    us = {
        "back_to_back": timed_chains(stage, calls, 1, seconds),
        "elementwise": timed_chains(stage, mixed(calls, warm.between()), 1, seconds),
        "pdl_neighbour": timed_chains(stage, mixed(calls, warm.between(pdl=True)), 1, seconds),
        "cold": timed_chains(stage, rotating, len(cold.sets), seconds),
    }
    restore = None
    if not stage.modelled:  # the way back reads what the product wrote, and writes what it reads
        warm_set, back_set = warm.sets[0], back.sets[0]
        start = warm_set.a.clone()
        back_set.a, back_set.c = warm_set.c, warm_set.a

        def restore(which: int) -> None:
            warm_set.a.copy_(start)

    returning = back.contestants()
    chains = {name: [*those, *returning.get(name, returning["sassafras"])] for name, those in calls.items()}
    if "sassafras_plain" in returning:
        chains.setdefault("sassafras_plain", [*calls["sassafras"], *returning["sassafras_plain"]])
    us["dependent"] = timed_chains(stage, chains, 2, seconds, CHAIN, restore)
    if restore:
        restore(0)
        wrong += warm.wrong_of(calls)
    record = {"us": us, "wrong": sorted(set(wrong)), "served": warm.served}
    return record, calls, rotating


def isolated(stage: Any, records: Sequence[tuple[dict[str, Any], Calls, Calls]], seed: int) -> None:
    """Add the contexts of single calls to the records of a group of shapes, which are interleaved."""
    if stage.modelled:
        empty = [lambda: stage.gpu.launch(1.0)]
    else:
        from neighbours import nothing

        empty = [nothing]
        nothing()
    rng = np.random.default_rng(seed)
    for context, which, rate in (("isolated", 1, 1e9), ("random", 2, RATE)):
        names = [(record, name) for record, *found in records for name in found[which - 1]]
        lists = [found[which - 1][name][:SETS] for _, *found in records for name in found[which - 1]]
        taken = Isolated(stage, [*lists, empty])
        table = taken.calls(CALLS, rate, rng)[0]
        taken.close()
        nothing_us = float(np.median(table[:, -1]))
        for at, (record, name) in enumerate(names):
            us = [round(float(v), 4) for v in table[:, at]]
            record["us"].setdefault(context, {})[name] = us
            if context == "isolated":
                less = [round(max(v - nothing_us, 0.05), 4) for v in us]
                record["us"].setdefault("isolated_subtracted", {})[name] = less


# -- running and writing --------------------------------------------------------------------------------


def groups(given: argparse.Namespace) -> list[list[tuple[Any, str]]]:
    """What is measured together, most important first; one process's journal has all of a group or none."""
    if given.table == "layers":
        return [[item] for item in layer_shapes(given.dtypes)][: given.count]
    if given.table == "learn":
        drawn = choose_shapes("learn-6")
        some = np.random.default_rng(given.seed).permutation(len(drawn))[: given.count]
        return [[(drawn[at], given.dtypes[at % len(given.dtypes)])] for at in some]
    shapes = stratified(cuda_l2_grid(), min(given.count, 60), given.seed)
    near = [shapes[at : at + GROUP] for at in range(0, len(shapes), GROUP)]
    order = np.random.default_rng(given.seed).permutation(len(near))
    return [[(shape, dtype) for shape in near[at]] for dtype in given.dtypes for at in order]


def measured(stage: Any, group: Sequence[tuple[Any, str]], given: argparse.Namespace) -> list[dict[str, Any]]:
    """A record a shape. Raises what a contestant raises."""
    if given.table == "layers":
        return [layer(stage, shape, dtype, given.seconds, given.triton) for shape, dtype in group]
    if given.table == "learn":
        return [learnt(stage, shape, dtype, given.seconds / 10) for shape, dtype in group]
    found = [graphs(stage, shape, dtype, given.seconds) for shape, dtype in group]
    if single := [f for f, (shape, _) in zip(found, group, strict=True) if shape.flop <= ISOLATED]:
        isolated(stage, single, given.seed + given.process)
    return [record for record, _, _ in found]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__)
    parser.add_argument("table", choices=("contexts", "layers", "learn"))
    parser.add_argument(
        "--count", type=int, default=1000, help="shapes of the grid (60 at most), or of the others"
    )
    parser.add_argument("--process", type=int, default=0, help="number of this process, in the journal")
    parser.add_argument("--tuned", action="store_true", help="these shapes were tuned: rows of their own")
    parser.add_argument("--triton", action="store_true", help="of layers: a plain Triton kernel, too")
    parser.add_argument("--seconds", type=float, default=0.15, help="GPU time of a context of a shape")
    parser.add_argument("--seed", type=int, default=0)
    journal_options(parser, "fp16", "bf16")
    return parser.parse_args()


def main() -> int:
    """Measure and write; 1 when anything was wrong or failed, 2 without a GPU, 3 when the context is lost."""
    begin, given = time.monotonic(), arguments()
    usable, reason = available()
    print(reason, flush=True)
    if not usable and not given.dry_run:
        return 2
    name = given.table + "-dry" * given.dry_run
    stage = _stage({"dry": given.dry_run, "cache": given.cache, "options": {"seed": given.seed}})
    where = environment()
    header = {"gpu": where["gpu"], "torch": where["torch"], "sassafras": code_digest("gemm")[:16]}
    more = {"triton": True} if given.triton else {}  # a contestant that other journals lack
    journal = journal_of(given, name, {**header, "cublaslt": stage.lt.version, "seed": given.seed, **more})
    done, lost = journal.done(), False
    for group in shared(groups(given), given):
        suffix = " tuned" * given.tuned + f" #{given.process}"
        keys = [f"{shape} {dtype}{suffix}" for shape, dtype in group]
        if all(key in done for key in keys):
            continue
        if time.monotonic() - begin > given.limit_s or lost:
            break
        try:
            found = measured(stage, group, given)
        except Exception as error:  # a group must not cost the others
            found = [{"error": f"{type(error).__name__}: {error}"[:300]}] * len(group)
            lost = getattr(error, "sticky", False) or "CUDA error" in str(error)
        for key, (shape, dtype), record in zip(keys, group, found, strict=True):
            tuned = given.tuned or record.get("served", {}).get("in_table", False)
            more = {"of": str(shape), "dtype": dtype, "tuned": tuned, "process": given.process}
            journal.add({"shape": key, **more, **record})
            print(f"{time.monotonic() - begin:6.1f} s {key:>32} {line(record)}", flush=True)
    records = list(journal.done().values())
    if given.table == "learn":
        about = {"gpu": where["gpu"], "torch": where["torch"], "commit": commit(), "date": where["date"]}
        about |= {"command": " ".join(["contexts.py", *sys.argv[1:]]), "modelled": given.dry_run}
        taken = dataset_of(records, about)
        taken.save(given.out / f"{name}.jsonl.gz")
        print(len(taken), "products,", taken.pairs, "times", flush=True)
        return 3 if lost else int(len(taken) < len(records) or not records)
    rows = context_rows(given.table, records)
    summary = context_summary(given.table, rows) | {
        "wrong": [f"{r['shape']}: {', '.join(r['wrong'])}" for r in records if r.get("wrong")],
        "failed": {r["shape"]: r["error"] for r in records if "error" in r},
        "modelled": given.dry_run,
    }
    path = write(name, rows, summary, where, seed=given.seed, out=given.out)
    print(*(f"{key}: {value}" for key, value in summary.items()), path.name, sep="\n", flush=True)
    return 3 if lost else int(bool(summary["wrong"] or summary["failed"] or not rows))


def line(record: dict[str, Any]) -> str:
    """A record in short: speed-ups over cuBLASLt's best by context, who served."""
    if "error" in record:
        return str(record["error"])
    if "ours" in record:
        fastest = min(record["ours"], key=lambda row: row[1])
        return f"{record['torch'] / fastest[1]:.3f} {fastest[0]['kernel']} {record['wrong'] or ''}"
    over = {
        context: round(float(np.median(np.divide(us["lt_autotune"], us["sassafras"]))), 3)
        for context, us in record["us"].items()
    }
    return json.dumps(over | {"served": record["served"], "wrong": record["wrong"]})


if __name__ == "__main__":
    sys.exit(main())
