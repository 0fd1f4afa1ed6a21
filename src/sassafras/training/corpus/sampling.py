"""`samples` lists the corpus without compiling any; `survey` compiles and keeps what has different code."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from sassafras.core import Buffer, Case, Kernel, SassafrasError, Workload
from sassafras.sass.cubin import Cubin

#: kernels with more instructions are left out of training: thoughts about them take too long
MOST_ROWS = 700
#: and so are those with fewer: nothing to move
LEAST_ROWS = 16
#: samples of one kernel at most, chosen evenly from all combinations
MOST_A_KERNEL = 30

_FLOATS = ("fp16", "bf16", "fp32")
_GEMM = {
    "BLOCK_M": (64, 128),
    "BLOCK_N": (32, 64, 128),
    "BLOCK_K": (32, 64, 128),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
    "type": ("fp16", "bf16"),
}
_FLAT = {"BLOCK": (256, 512, 1024, 2048), "num_warps": (1, 2, 4, 8), "type": _FLOATS}
_TILE = {"ROWS": (1, 2, 4, 8), "COLS": (128, 256, 512, 1024), "num_warps": (1, 2, 4, 8), "type": _FLOATS}

#: family -> kernel -> what varies. Names in capitals are constants, ``type`` the element type, ``case``
#: the case by number; ``n_cols`` and the like are sizes; all others are compiler options
VARIED: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]] = {
    "norm": {
        "suite:layernorm": {
            "n_cols": (512, 1024, 2048, 4096, 4093), "num_warps": (2, 4, 8, 16), "type": _FLOATS,
        },
        "suite:rmsnorm": {
            "BLOCK_ROWS": (1, 4, 16, 32), "BLOCK_COLS": (64, 128, 256, 1024), "num_warps": (2, 4, 8),
            "type": _FLOATS, "case": (0, 3),
        },
    },
    "loss": {
        "suite:cross_entropy": {
            "BLOCK": (512, 1024, 2048, 4096), "num_warps": (2, 4, 8, 16), "type": _FLOATS, "case": (0, 3),
        },
    },
    "gemm": dict.fromkeys(("suite:gemm_leakyrelu", "suite:batched_gemm", "suite:feed_forward"), _GEMM),
    "rotary": {
        "suite:rotary": {
            "HALF": (32, 64, 128), "BLOCK_HEADS": (2, 4, 8, 16), "num_warps": (1, 2, 4, 8), "type": _FLOATS,
        },
    },
    "swiglu": {"suite:swiglu": {**_FLAT, "case": (0, 3)}},
    "gating": {
        "suite:topk_gating": {
            "BLOCK_TOKENS": (2, 4, 8, 16, 32), "BLOCK_EXPERTS": (8, 16, 64, 128), "TOPK": (1, 2, 4, 8),
            "num_warps": (1, 2, 4, 8),
        },
    },
    "append": {"suite:kv_append": {**_FLAT, "case": (0, 3)}},
    "elementwise": {f"corpus:{name}": _FLAT for name in ("gelu", "chain", "dropout", "adam")},
    "reduction": {
        "corpus:moments": {"n_cols": (512, 1024, 2048, 2039), "num_warps": (1, 2, 4, 8), "type": _FLOATS},
        "corpus:column_sum": {
            "ROWS": (16, 32, 64), "COLS": (32, 64, 128), "num_warps": (2, 4, 8), "type": _FLOATS,
        },
        "corpus:argmax": _TILE,
    },
    "moving": {
        "corpus:transpose": {
            "ROWS": (16, 32, 64), "COLS": (16, 32, 64), "num_warps": (2, 4, 8), "type": _FLOATS,
        },
        "corpus:embedding": _TILE,
    },
    "scan": {"corpus:cumsum": _TILE, "corpus:convolve": {**_FLAT, "TAPS": (3, 4, 7)}},
}  # fmt: skip
#: held out: to see whether what was learnt holds where nothing was seen. Few, with different code
HELD_OUT: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]] = {
    "attention": {
        "suite:attention": {"BLOCK_M": (64,), "BLOCK_N": (32, 64), "num_warps": (4,), "num_stages": (2, 3)},
        "suite:paged_decode": {"num_warps": (2, 4, 8)},
    },
    "softmax": {"suite:softmax": {"num_warps": (2, 4, 8, 16), "type": ("fp16", "fp32")}},
    "gemv": {
        name: {"BLOCK_N": (1, 2), "BLOCK_K": (1024,), "num_warps": (2, 4)}
        for name in ("suite:gemv_int8", "suite:gemv_int4")
    },
    "quantise": {"suite:quantise_fp8": {"num_warps": (2, 4, 8, 16), "case": (0, 1)}},
}
#: what rows are as long as, where it varies
_BLOCKS = {"suite:layernorm": "BLOCK", "corpus:moments": "BLOCK"}


@dataclass(frozen=True, slots=True)
class CorpusSample:
    """One kernel of the corpus, before it is compiled. Plain data: it travels between processes.

    Attributes:
        family: kernels of one family are drawn as often as those of another.
        kernel: ``suite:NAME`` or ``corpus:NAME``.
        changes: what is different from the kernel's own case: (name, value) in the order of `VARIED`.
    """

    family: str
    kernel: str
    changes: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """For logs."""
        return " ".join([self.kernel, *(f"{k}={v}" for k, v in self.changes)])


@dataclass(frozen=True, slots=True)
class Survey:
    """What compiling the samples has shown.

    Attributes:
        kept: by family, samples whose code differs from all others'.
        skipped: how many were not kept, by reason.
    """

    kept: Mapping[str, tuple[CorpusSample, ...]]
    skipped: Mapping[str, int]

    @property
    def count(self) -> int:
        """Kernels with different code."""
        return sum(map(len, self.kept.values()))


def samples(
    varied: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]] = VARIED, most: int = MOST_A_KERNEL
) -> Iterator[CorpusSample]:
    """Samples of every kernel, at most so many of one: evenly spread over all combinations."""
    for family, kernels in varied.items():
        for kernel, choices in kernels.items():
            rows = list(itertools.product(*choices.values()))
            # a step that has no factor in common with the number of rows meets all of them
            first = max(1, round(0.618 * len(rows)))
            step = next(s for s in itertools.count(first) if math.gcd(s, len(rows)) == 1)
            for n in range(min(most, len(rows))):
                values = rows[n * step % len(rows)]
                yield CorpusSample(family, kernel, tuple(zip(choices, values, strict=True)))


def open_sample(sample: CorpusSample) -> tuple[Workload, Case]:
    """The workload and the case that a sample stands for; nothing is compiled yet.

    Raises:
        SassafrasError: there is no such kernel, or triton is not installed.
    """
    place, _, name = sample.kernel.partition(":")
    if place == "suite":
        from sassafras.suite import load
    else:
        from .kernels import load
    workload = load(name)
    changes = dict(sample.changes)
    case = workload.cases[changes.pop("case", 0)]
    args, constants, options = dict(case.args), dict(case.constants), dict(case.options)
    kind = changes.pop("type", None)
    for name, value in changes.items():
        if name in args:
            args[name] = value
            if (block := _BLOCKS.get(sample.kernel)) is not None:
                constants[block] = 1 << (int(value) - 1).bit_length()
        elif name.isupper():
            constants[name] = value
        else:
            options[name] = value
    if kind is not None:
        # of arrays in 16 bits; statistics and indices stay as they are
        for name, value in args.items():
            if isinstance(value, Buffer) and value.dtype in ("fp16", "bf16"):
                args[name] = dataclasses.replace(value, dtype=kind)
    return workload, dataclasses.replace(
        case, name=sample.name, args=args, constants=constants, options=options
    )


def _code(kernel: Kernel) -> bytes:
    try:
        cubin = Cubin.parse(kernel.cubin)
        section = next(s for s in cubin.sections if s.name == f".text.{kernel.name}")
    except (SassafrasError, StopIteration):
        return b""
    return section.data


def look(sample: CorpusSample, arch: str) -> tuple[str, str]:
    """Compile one sample: (what its code is, why it is not kept); one of the two is empty."""
    try:
        workload, case = open_sample(sample)
        code = _code(workload.build(case, arch))
    except SassafrasError:
        return "", "does not compile"
    if not LEAST_ROWS <= len(code) // 16 <= MOST_ROWS:
        return "", f"not {LEAST_ROWS} to {MOST_ROWS} instructions"
    return hashlib.sha256(code).hexdigest(), ""


def survey(
    wanted: Sequence[CorpusSample], arch: str, workers: int = 1, say: Callable[[str], None] | None = None
) -> Survey:
    """Compile all samples in so many processes (Triton caches them) and keep those with different code.

    The result does not depend on `workers`: of samples with equal code the first is kept.
    """
    found: list[tuple[str, str]]
    if workers <= 1:
        found = [look(sample, arch) for sample in wanted]
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            found = list(pool.map(look, wanted, itertools.repeat(arch), chunksize=4))
    kept: dict[str, list[CorpusSample]] = {}
    seen: set[str] = set()
    skipped: Counter[str] = Counter()
    for sample, (code, reason) in zip(wanted, found, strict=True):
        if not reason and code in seen:
            reason = "same code as another"
        if reason:
            skipped[reason] += 1
            continue
        seen.add(code)
        kept.setdefault(sample.family, []).append(sample)
    result = Survey({family: tuple(members) for family, members in kept.items()}, dict(skipped))
    if say is not None:
        say(
            f"{result.count} kernels with different code of {len(wanted)} samples: "
            + ", ".join(f"{family} {len(members)}" for family, members in result.kept.items())
            + "".join(f"; {n} skipped: {reason}" for reason, n in sorted(skipped.items()))
        )
    return result
