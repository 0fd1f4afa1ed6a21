"""What AutoTuning's lists miss: cuBLASLt's whole space, and CUBLAS_GEMM_AUTOTUNE; writes cublas-whole.json.

    python benchmarks/cublas_whole.py [--count 60] [--most 4000] [--seconds 0.3] [--limit-s 560]
        [--share 1/2] [--resume JOURNAL ...]

Shapes of the grid (stratified, as `contexts.py` has them), weights n x k, calls back to back. *lists*: the
fastest of the candidates that AutoTuning tries, which cuBLASLt's heuristic lists. *whole*: the fastest of
those and of every algorithm, tile, stage, cluster, custom option, split of k and reduction that the library
accepts for the shape (--most of them, drawn anew for each shape). *gemm_ex*: cublasGemmEx, told to benchmark
by itself. Selected by one measurement, compared by another; *null* is the fastest of the lists once more.
*ours*: Sassafras kernels with this layout over AutoTuning, as hgemm-offline.json has them (FP16, its GPU).

A shape is a line of cublas-whole.jsonl in --out; the same command goes on after it. A GPU is needed.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_int, c_int32, c_size_t, c_uint16, c_uint32, c_void_p
from typing import Any

import numpy as np
from common import RESULTS, command_line, geomean, journal_of, journal_options, read_result, shared, write
from products import timed_chains
from program_rows import interval

from sassafras.core import DeviceError, SassafrasError
from sassafras.cuda.cublas import (
    _COMPUTE_32F,
    _KINDS,
    _R_32F,
    GEMM_AUTOTUNE,
    CublasError,
    CublasLt,
    LtAlgorithm,
    LtProblem,
    both_ways,
    find_library,
)
from sassafras.cuda.environment import available, environment
from sassafras.gemm.bench.context import Context
from sassafras.gemm.problem.shape import Product, Shape, cuda_l2_grid, stratified

#: cublasLtMatmulAlgoConfigAttributes_t, and its types where they are not uint32_t
TILE, SPLIT, REDUCTION, SWIZZLE, CUSTOM, STAGES, CLUSTER = 1, 2, 3, 4, 5, 6, 8
_TYPES: dict[int, Any] = {SPLIT: c_int32, CLUSTER: c_uint16}
#: cublasLtMatmulAlgoCapAttributes_t
_SPLITS, _REDUCTIONS, _SWIZZLES, _TILE_IDS, _CUSTOM_MOST, _STAGES_IDS = 0, 1, 2, 6, 7, 13
#: cublasLtClusterShape_t, automatic first; parts of k; reductions in place and in FP32 (not in FP16)
CLUSTERS, PARTS, SCHEMES = (0, *range(2, 52)), (2, 3, 4, 5, 6, 8, 12, 16), (1, 2)
#: shapes for one of which a configuration has to be accepted
PROBES = (Shape(64, 4096, 4096), Shape(512, 512, 2048), Shape(4096, 4096, 1024))
#: algorithms that are timed together; seconds in which the space is looked through
TOGETHER, LOOKED = 200, 90.0


class Space:
    """The algorithms that a library has, by its own capabilities.

    Attributes:
        cut: the time was up before all configurations had been looked at.
    """

    def __init__(self, lt: CublasLt, dtype: str) -> None:
        self.lt, self.cut = lt, False
        self._kinds = _COMPUTE_32F, _R_32F, *[_KINDS[dtype]] * 4
        library = find_library("libcublasLt")
        p, size = c_void_p, c_size_t
        self._ids = self._raw(library, "cublasLtMatmulAlgoGetIds", p, *[c_int] * 7, p, p)
        self._init = self._raw(library, "cublasLtMatmulAlgoInit", p, *[c_int] * 7, p)
        self._capability = self._raw(library, "cublasLtMatmulAlgoCapGetAttribute", p, c_int, p, size, p)
        self._set = self._raw(library, "cublasLtMatmulAlgoConfigSetAttribute", p, c_int, p, size)
        self._get = self._raw(library, "cublasLtMatmulAlgoConfigGetAttribute", p, c_int, p, size, p)

    @staticmethod
    def _raw(library: ctypes.CDLL, name: str, *types: Any) -> Any:
        function = getattr(library, name)
        function.argtypes, function.restype = types, c_int
        return function

    def ids(self) -> list[int]:
        """Algorithms for these types, by number."""
        found, count = (c_int * 512)(), c_int()
        if status := self._ids(self.lt.handle, *self._kinds, len(found), found, byref(count)):
            raise CublasError("cublasLtMatmulAlgoGetIds", status)
        return list(found[: count.value])

    def _made(self, number: int) -> Any:
        """An algorithm's 64 bytes, unconfigured; None where the library has none for these types."""
        algo = (ctypes.c_uint64 * 8)()
        return None if self._init(self.lt.handle, *self._kinds, number, algo) else algo

    def _listed(self, algo: Any, which: int) -> list[int]:
        """A capability that is a list; [0] (undefined) where it is empty."""
        bytes_ = c_size_t()
        if self._capability(algo, which, None, 0, byref(bytes_)) or not bytes_.value:
            return [0]
        found = (c_uint32 * (bytes_.value // 4))()
        self._capability(algo, which, found, bytes_.value, byref(bytes_))
        return list(found)

    def _number(self, algo: Any, which: int) -> int:
        """A capability that is a number."""
        found, bytes_ = c_int32(), c_size_t()
        return 0 if self._capability(algo, which, byref(found), 4, byref(bytes_)) else found.value

    def configured(self, algo: Any, values: dict[int, int]) -> bool:
        """Whether these attributes' values can be written into an algorithm; it has them, then."""
        for which, value in values.items():
            held = _TYPES.get(which, c_uint32)(value)
            if self._set(algo, which, byref(held), ctypes.sizeof(held)):
                return False
        return True

    def cluster_of(self, algorithm: LtAlgorithm) -> tuple[int, int]:
        """An algorithm's number and cluster shape."""
        algo = (ctypes.c_uint64 * 8).from_buffer_copy(algorithm.blob)
        number, cluster, bytes_ = c_int32(), c_uint16(), c_size_t()
        self._get(algo, 0, byref(number), 4, byref(bytes_))
        self._get(algo, CLUSTER, byref(cluster), 2, byref(bytes_))
        return number.value, cluster.value

    def workspace(self, problem: LtProblem, algo: Any) -> int | None:
        """Bytes that the library wants for it; None where it does not run it, or there are not as many."""
        try:
            return self.lt.check(problem, LtAlgorithm(problem.layout, bytes(algo), 0))
        except CublasError:
            return None

    def configurations(self, problems: Sequence[LtProblem], seconds: float = LOOKED) -> list[bytes]:
        """All that one of these problems accepts, k not split. Clusters are tried of algorithms that are
        listed with one."""
        end = time.monotonic() + seconds
        listed = [algorithm for problem in problems for algorithm in self.lt.candidates(problem)]
        clustered = {number for number, cluster in map(self.cluster_of, listed) if cluster}
        found = list[bytes]()
        for number in sorted(self.ids(), key=lambda number: number not in clustered):
            if (algo := self._made(number)) is None:
                continue
            several = (
                self._listed(algo, _TILE_IDS),
                self._listed(algo, _STAGES_IDS),
                CLUSTERS if number in clustered else (0,),
                range(self._number(algo, _CUSTOM_MOST) + 1),
                range(1 + bool(self._number(algo, _SWIZZLES))),
            )
            names = TILE, STAGES, CLUSTER, CUSTOM, SWIZZLE
            for values in itertools.product(*several):
                if time.monotonic() > end:
                    self.cut = True
                    return found
                if not self.configured(algo, dict(zip(names, values, strict=True))):
                    continue
                if any(self.workspace(problem, algo) is not None for problem in problems):
                    found.append(bytes(algo))
        return found

    def algorithms(self, problem: LtProblem, configurations: Sequence[bytes]) -> Iterator[LtAlgorithm]:
        """All of those that this problem accepts, with k whole and split."""
        for blob in configurations:
            algo = (ctypes.c_uint64 * 8).from_buffer_copy(blob)
            if (bytes_ := self.workspace(problem, algo)) is not None:
                yield LtAlgorithm(problem.layout, bytes(algo), bytes_)
            mask = self._number(algo, _REDUCTIONS) if self._number(algo, _SPLITS) else 0
            for scheme, parts in itertools.product(SCHEMES, PARTS):
                if not (mask & scheme and self.configured(algo, {SPLIT: parts, REDUCTION: scheme})):
                    continue
                if (bytes_ := self.workspace(problem, algo)) is not None:
                    yield LtAlgorithm(problem.layout, bytes(algo), bytes_)


def fastest(here: Context, keys: Sequence[LtAlgorithm], until: float) -> tuple[list[LtAlgorithm], int]:
    """The fastest of each few that run together, as long as there is time; how many were tried."""
    found, tried = [], 0
    for first in range(0, len(keys), TOGETHER):
        if time.monotonic() > until:
            break
        some = keys[first : first + TOGETHER]
        try:
            found.append(here.fastest(some))
        except DeviceError as error:  # none of them runs, or nothing does any more
            if getattr(error, "sticky", False):
                raise
        tried += len(some)
    return found, tried


def measured(stage: Any, space: Space, bases: Sequence[bytes], shape: Shape, given: Any) -> dict[str, Any]:
    """A shape's record."""
    begun = time.monotonic()
    here = Context(stage, Product(shape, "tn", given.dtypes[0]), given.seed, most=1, around=False)
    try:
        listed = stage.lt.candidates(here.lt)
        known = {(a.blob, a.workspace) for a in listed}
        valid = both_ways(space.algorithms(here.lt, bases))
        more = [a for a in valid if (a.blob, a.workspace) not in known]
        rng = np.random.default_rng([given.seed, shape.m, shape.n, shape.k])
        drawn = [more[at] for at in rng.permutation(len(more))[: given.most]]
        best = here.fastest(listed)
        found, tried = fastest(here, drawn, begun + given.shape_s)
        whole = here.fastest([best, *found]) if found else best
        calls = {"lists": here.calls(best), "whole": here.calls(whole), "null": here.calls(best)}
        operands, failed = here.sets[0], ""
        addresses = operands.addresses("tn")

        def by_itself() -> None:
            stage.cublas.enqueue(shape, "tn", *addresses, given.dtypes[0], algorithm=GEMM_AUTOTUNE)

        try:
            by_itself()
            stage.gpu.sync()
            calls["gemm_ex"] = [by_itself]
        except CublasError as error:
            failed = str(error)
        try:
            us = timed_chains(stage, calls, 1, given.seconds)
        except SassafrasError as error:  # it benchmarks once more while it is captured
            if calls.pop("gemm_ex", None) is None or getattr(error, "sticky", False):
                raise
            failed = str(error)
            us = timed_chains(stage, calls, 1, given.seconds)
        right = here.right(whole)
    finally:
        here.close()
    counts = {"listed": len(listed), "valid": len(valid), "tried": tried}
    return {"us": us, **counts, "right": right, "missing": whole is not best, "failed": failed}


def row(record: dict[str, Any]) -> dict[str, Any]:
    """Of the result."""
    us = record["us"]
    made = {key: record[key] for key in ("shape", "listed", "valid", "tried", "right", "missing")}
    for name in ("whole", "gemm_ex", "null"):
        if name in us:
            found = interval([np.divide(us["lists"], us[name])])
            made |= dict(zip((name, f"{name}_low", f"{name}_high"), found, strict=True))
    return made | {"lists_us": round(float(np.median(us["lists"])), 3)}


def compared(rows: Sequence[dict[str, Any]], ours: Mapping[str, float]) -> dict[str, Any]:
    """Speed-ups over the lists' fastest of these rows; `ours`: of Sassafras kernels, by shape, which are set
    beside the fastest found, too."""
    found: dict[str, Any] = {"shapes": len(rows)}
    for name in ("whole", "gemm_ex", "null"):
        values = [r[name] for r in rows if name in r]
        found |= {name: geomean(values, 4), f"{name}_best": max(values, default=None)}
        found[f"{name}_shapes"] = len(values)
    found["above_2_percent"] = sum(r["whole_low"] > 1.02 for r in rows)
    found |= {name: sum(r[name] for r in rows) for name in ("valid", "tried")}
    both = [(ours[r["shape"]], r["whole"]) for r in rows if r["shape"] in ours]
    found |= {"ours": geomean((over for over, _ in both), 4), "ours_shapes": len(both)}
    return found | {"ours_over_whole": geomean((over / whole for over, whole in both), 4)}


def summary_of(rows: Sequence[dict[str, Any]], published: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Of all rows, and by band of FLOP. `published`: rows of hgemm-offline.json, for its kernels with weights
    n x k over its AutoTuning."""
    ours = {r["shape"]: r["lt_autotune_tn"] / r["ours_tn"] for r in published if "ours_tn" in r}
    bands = dict[str, list[dict[str, Any]]]()
    for r in sorted(rows, key=lambda r: Shape.parse(r["shape"]).flop):
        bands.setdefault(Shape.parse(r["shape"]).band, []).append(r)
    found = compared(rows, ours) | {"bands": {name: compared(those, ours) for name, those in bands.items()}}
    return found | {"wrong": [r["shape"] for r in rows if not r["right"]]}


def main() -> int:
    """Measure and write; 1 when anything was wrong or failed, 2 without a GPU."""
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=60, help="shapes")
    parser.add_argument("--most", type=int, default=4000, help="algorithms of a shape beside the lists")
    parser.add_argument("--shape-s", type=float, default=8.0, help="seconds of a shape's algorithms")
    parser.add_argument("--seconds", type=float, default=0.3, help="GPU time of a shape's comparison")
    parser.add_argument("--seed", type=int, default=0)
    journal_options(parser, "fp16", "bf16")
    begin, given = time.monotonic(), parser.parse_args()
    if given.dry_run:
        parser.error("cuBLASLt itself is asked: without a GPU there is no rehearsal")
    usable, reason = available()
    print(reason, flush=True)
    if not usable:
        return 2
    from sassafras.gemm.bench.contestants import Contestants

    published = read_result(RESULTS / "hgemm-offline.json", "environment")
    stage, where = Contestants(given.cache), environment()
    alike = ("fp16", published["environment"]["gpu"]) == (given.dtypes[0], where["gpu"])
    header = {"gpu": where["gpu"], "cublaslt": stage.lt.version, "seed": given.seed, "most": given.most}
    journal = journal_of(given, "cublas-whole", header)
    space = Space(stage.lt, given.dtypes[0])
    bases = space.configurations([stage.lt.problem(shape, "tn", given.dtypes[0]) for shape in PROBES])
    print(len(space.ids()), "algorithms,", len(bases), "configurations", "(cut)" * space.cut, flush=True)
    lost = False
    for shape in shared(stratified(cuda_l2_grid(), given.count, given.seed), given):
        if str(shape) in journal.done():
            continue
        if time.monotonic() - begin > given.limit_s or lost:
            break
        try:
            record = measured(stage, space, bases, shape, given)
        except Exception as error:  # a shape must not cost the others
            record = {"error": f"{type(error).__name__}: {error}"[:300]}
            lost = getattr(error, "sticky", False) or "CUDA error" in str(error)
        journal.add({"shape": str(shape), **record})
        said = row(journal.done()[str(shape)]) if "us" in record else record
        print(f"{time.monotonic() - begin:6.1f} s", said, flush=True)
    records = list(journal.done().values())
    rows = [row(record) for record in records if "us" in record]
    failed = {r["shape"]: r.get("error") or r["failed"] for r in records if r.get("error") or r.get("failed")}
    about = {"configurations": len(bases), "cut": space.cut, "failed": failed, "modelled": False}
    summary = summary_of(rows, published["rows"] if alike else ()) | about | {"conditions": header}
    path = write("cublas-whole", rows, summary, where, seed=given.seed, out=given.out)
    print(summary, path.name, flush=True)
    return int(bool(summary["wrong"]) or any(r.get("error") for r in records) or not rows)


if __name__ == "__main__":
    sys.exit(main())
