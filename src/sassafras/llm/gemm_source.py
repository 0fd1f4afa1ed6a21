"""Sources of a matrix product: a seed to begin with, the contract, and launches that candidates declare."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np

from sassafras.core import Buffer, Candidate, Case, SassafrasError
from sassafras.evaluate.evaluator import launch_key
from sassafras.evaluate.source import Source
from sassafras.evaluate.source.declared import DeclarationError, declared

from .answer import AnswerError
from .source_space import SourceSpace, SourceState, fenced

CONTRACT = """\
Contract of the kernel:
- One kernel, extern "C" __global__, with its launch declared in a comment, as JSON of literal numbers:
  // launch: {"entry": "NAME", "grid": [x, y, z], "threads": T, "shared_bytes": DYNAMIC, "cluster": [x, y, z],
  //          "parameters": ["a", ...], "tensor_maps": {"NAME": {"operand": "a", "box": [columns, rows],
  //          "swizzle": 128}}}
  shared_bytes, cluster and tensor_maps may be left out; swizzle is 0, 32, 64 or 128. At most 1024 threads,
  232448 bytes of shared memory, 8 blocks a cluster; the grid counts blocks.
- parameters names, in the kernel's order, some of a, b, c (pointers to FP16), workspace (float *), counters
  (int *) and your tensor maps. A tensor map is a parameter `const __grid_constant__ TensorMap NAME` of a type
  that you declare: `struct alignas(64) TensorMap { unsigned long long opaque[16]; };`. The host makes it for
  the whole row-major matrix; elements out of bounds are read as zeros and not written.
- a, b and c are aligned to 1024 bytes and contiguous. Inputs must not change. c holds garbage at the launch.
- workspace has @WORKSPACE@ bytes and holds garbage at the launch. counters are @COUNTERS@ ints, zero at the
  launch, and must be zero again at its end.
- Accumulate in FP32; FP16 accumulators and packed-half atomics are refused. Results are compared with FP32,
  the RMS and the largest error with cuBLAS's, and exactly on matrices of 0, 1 and -1.
- One launch does all the work. No dynamic parallelism, no host code, no results kept from launch to launch.
- GEMM_M, GEMM_N and GEMM_K are macros. nvcc compiles for sm_90a as C++17: wgmma, TMA, mbarriers, clusters,
  setmaxnreg, cp.async and mma.sync may be used through inline PTX. Headers: cuda_fp16.h, mma.h, stdint.h,
  cooperative_groups.h."""


@dataclass(frozen=True, slots=True)
class Launched(Candidate):
    """A candidate that is told from others by its launch too."""

    @property
    def digest(self) -> str:
        """sha256 of the cubin and of how it is launched."""
        return hashlib.sha256(self.kernel.cubin + b"\0" + launch_key(self.kernel).encode()).hexdigest()


def seed_source(case: Case, layout: str) -> str:
    """A plain kernel with holes for a case of `gemm.select.source_workload`.

    Raises:
        SassafrasError: N or K is no multiple of 8.
    """
    m, n, k = (int(case.constants[name]) for name in ("GEMM_M", "GEMM_N", "GEMM_K"))
    if layout[1] != "n" or n % 8 or k % 8:
        raise SassafrasError(
            "the kernel to begin with needs an A of M x K and multiples of 8 for N and K", where=case.name
        )
    bm, bn, bk, stages, pad = 128 if m > 64 else 64, 128 if n > 64 else 64, 32, 4, 8
    tn = layout[0] == "t"
    lines, line = (bn, bk + pad) if tn else (bk, bn + pad)
    shared = max(2 * stages * (bm * (bk + pad) + lines * line), 4 * bm * (bn + 4))
    text = files(__package__).joinpath("seed_gemm.cu").read_text(encoding="utf-8")
    for name, value in {
        "GRID_X": -(-n // bn),
        "GRID_Y": -(-m // bm),
        "SHARED": shared,
        "BM": bm,
        "BN": bn,
        "TN": "true" if tn else "false",
        "B_MAJOR": "wmma::col_major" if tn else "wmma::row_major",
    }.items():
        text = text.replace(f"@{name}@", str(value))
    return text


class GemmSourceSpace(SourceSpace):
    """Sources of a product. The baseline is a kernel of ours, whose source is none of this space's.

    Args: as `SourceSpace`; the workload is `gemm.select.source_workload`'s.
    """

    def _read_source(self) -> tuple[Any, str, str]:
        return "cuda", seed_source(self.case, str(self.workload.meta["layout"])), "gemm"

    def start(self) -> SourceState:
        """The baseline's kernel."""
        return SourceState(builtin=True)

    def seed(self) -> SourceState:
        """The source that the first proposals change."""
        return SourceState(origin="seed")

    def sample(self, state: SourceState, rng: np.random.Generator) -> Any:
        """See `SourceSpace.sample`; of the seed, for the baseline."""
        return super().sample(self.seed() if state.builtin else state, rng)

    def candidate(self, state: SourceState) -> Candidate:
        """See `SourceSpace.candidate`; the launch is the source's own."""
        if state.builtin:
            return Launched(self.baseline, {"origin": "baseline"})
        source = self._source(state)
        made = self.judge.candidate(source)
        made = Launched(made.kernel, made.recipe)
        self._digests[source.text] = made.digest
        return made

    def state(self, texts: Any, parent: SourceState, origin: str, note: str) -> SourceState:
        """See `SourceSpace.state`. Raises AnswerError also for a launch that cannot be."""
        made = super().state(texts, parent, origin, note)
        self._source(made)
        return made

    def _source(self, state: SourceState) -> Source:
        try:
            made = declared(self.source(state), self.case)
        except DeclarationError as error:
            raise AnswerError(error.what, hint=error.hint) from error
        return replace(made, recipe=self._recipe(state), flags=("-std=c++17",))

    def brief(self) -> str:
        """The task, the contract, the bound."""
        args, layout = self.case.args, self.workload.meta["layout"]
        m, n, k = (self.case.constants[name] for name in ("GEMM_M", "GEMM_N", "GEMM_K"))
        rows = {"n": f"row-major {k} x {n} (K x N)", "t": f"row-major {n} x {k} (N x K)"}[str(layout)[0]]
        workspace, counters = args["workspace"], args["counters"]
        assert isinstance(workspace, Buffer)
        assert isinstance(counters, Buffer)
        rules = CONTRACT.replace("@WORKSPACE@", str(workspace.nbytes))
        return "\n\n".join(
            [
                f"Write a CUDA C++ kernel for an NVIDIA Hopper GPU (sm_90a, 132 SMs) that computes C = A * B "
                f"for M = {m}, N = {n}, K = {k}: a is FP16 row-major {m} x {k}, b is FP16 {rows}, c is FP16 "
                f"row-major {m} x {n}. It need not serve any other shape. The reference is the faster of a "
                "tuned warp-specialised kernel of ours and cuBLASLt's best algorithm.",
                rules.replace("@COUNTERS@", str(counters.nbytes // 4)),
                self.bound(),
                *([] if self.whole else [self._holes(), "The source:\n" + fenced(self.text, self.language)]),
            ]
        )
