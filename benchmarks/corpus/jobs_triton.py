"""The Triton part of the corpus: the suite over tiles, data types, warps, stages and architectures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

_GEMM_TILES = [
    # BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages
    (64, 64, 32, 4, 2),
    (64, 64, 64, 4, 3),
    (128, 64, 32, 4, 3),
    (128, 128, 32, 8, 3),
    (128, 128, 64, 8, 3),
    (64, 128, 64, 4, 4),
    (32, 64, 64, 2, 3),
    (16, 64, 128, 4, 3),
    (128, 256, 64, 8, 3),
    (64, 32, 32, 8, 5),
    (128, 64, 64, 4, 1),
]

#: workload -> variations of the headline: (constants, options, data types to replace)
VARIATIONS: dict[str, list[tuple[dict[str, Any], dict[str, Any], dict[str, str]]]] = {
    "gemm_leakyrelu": [
        ({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, {"num_warps": w, "num_stages": s}, {})
        for m, n, k, w, s in _GEMM_TILES
    ]
    + [
        ({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}, {"num_warps": 4, "num_stages": s}, {"fp16": d})
        for d in ("bf16", "fp32")
        for s in (2, 4)
    ],
    "batched_gemm": [
        ({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, {"num_warps": w, "num_stages": s}, {"fp16": "bf16"})
        for m, n, k, w, s in _GEMM_TILES[:6]
    ]
    + [
        ({"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 16}, {"num_warps": 4, "num_stages": 2}, {"fp16": "fp64"}),
    ],
    "feed_forward": [
        ({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, {"num_warps": w, "num_stages": s}, {})
        for m, n, k, w, s in ((64, 64, 32, 4, 3), (128, 64, 32, 8, 3), (64, 64, 64, 8, 2), (16, 32, 64, 2, 4))
    ],
    "attention": [
        ({"BLOCK_M": m, "BLOCK_N": n, "HEAD": h, "CAUSAL": c}, {"num_warps": w, "num_stages": s}, {"fp16": d})
        for m, n, h, c, w, s, d in (
            (64, 64, 64, False, 4, 2, "fp16"),
            (64, 32, 32, True, 4, 2, "bf16"),
            (128, 128, 64, True, 8, 2, "fp16"),
            (128, 32, 128, False, 8, 3, "bf16"),
            (32, 32, 64, False, 2, 2, "fp16"),
            (64, 64, 16, True, 4, 3, "fp16"),
        )
    ],
    "softmax": [
        ({"BLOCK": b}, {"num_warps": w}, {"fp32": d})
        for b in (256, 1024, 8192)
        for w in (1, 4, 16)
        for d in ("fp32", "fp16")
    ],
    "rmsnorm": [
        ({"BLOCK_ROWS": r, "BLOCK_COLS": c}, {"num_warps": w}, {"fp16": d})
        for r, c, w, d in ((1, 64, 1, "fp32"), (8, 64, 2, "bf16"), (128, 64, 8, "fp32"), (4, 1024, 8, "fp16"))
    ],
    "layernorm": [
        ({"BLOCK": b}, {"num_warps": w}, {"fp16": d})
        for b, w, d in ((512, 1, "fp16"), (8192, 16, "bf16"), (2048, 4, "fp32"), (4096, 32, "fp64"))
    ],
    "rotary": [
        ({"HALF": h, "BLOCK_HEADS": b}, {"num_warps": w}, {"bf16": d})
        for h, b, w, d in ((32, 16, 2, "fp16"), (64, 4, 1, "fp32"), (128, 16, 8, "bf16"))
    ],
    "swiglu": [
        ({"BLOCK": b}, {"num_warps": w}, {"bf16": d}) for b, w, d in ((512, 2, "fp16"), (4096, 8, "fp32"))
    ],
    "cross_entropy": [
        ({"BLOCK": b}, {"num_warps": w, "num_stages": s}, {"bf16": d})
        for b, w, s, d in ((1024, 4, 3, "fp32"), (8192, 16, 2, "fp16"), (512, 1, 4, "bf16"))
    ],
    "gemv_int8": [
        ({"BLOCK_N": n, "BLOCK_K": k}, {"num_warps": w}, {"fp16": d})
        for n, k, w, d in ((1, 4096, 4, "fp16"), (16, 256, 4, "bf16"), (8, 512, 8, "fp16"))
    ],
    "gemv_int4": [
        ({"BLOCK_N": n, "BLOCK_K": k}, {"num_warps": w}, {"fp16": d})
        for n, k, w, d in ((1, 2048, 4, "fp16"), (16, 256, 4, "bf16"))
    ],
    "topk_gating": [
        ({"TOPK": k, "BLOCK_TOKENS": t, "BLOCK_EXPERTS": e}, {"num_warps": w}, {})
        for k, t, e, w in ((1, 32, 16, 2), (4, 8, 128, 4), (2, 1, 512, 8))
    ],
    "kv_append": [
        ({"BLOCK": b}, {"num_warps": w}, {"bf16": d}) for b, w, d in ((256, 1, "i8"), (4096, 8, "fp32"))
    ],
    "paged_decode": [
        ({"HEAD": h, "PAGE": p}, {"num_warps": w, "num_stages": s}, {"bf16": d})
        for h, p, w, s, d in ((64, 32, 4, 2, "fp16"), (128, 16, 2, 4, "bf16"), (64, 128, 8, 2, "bf16"))
    ],
    "quantise_fp8": [
        ({"BLOCK": b}, {"num_warps": w}, {"bf16": d, "fp8e4nv": q})
        for b, w, d, q in (
            (1024, 4, "fp16", "fp8e5"),
            (2048, 8, "fp32", "fp8e5"),
            (8192, 16, "bf16", "fp8e4nv"),
        )
    ],
}


def triton_jobs() -> Iterator[dict[str, Any]]:
    """Every job: the suite's own cases first, sm_90a and sm_80 before the other architectures."""
    from sassafras import suite

    for arches, variations in (
        (("sm_90a", "sm_80"), False),
        (("sm_90a", "sm_80"), True),
        (("sm_89", "sm_86"), False),
        (("sm_100a", "sm_120a"), None),
    ):
        for arch in arches:
            for name in suite.names():
                workload = suite.load(name)
                cases = workload.cases if variations is not None else workload.cases[:1]
                if not variations:
                    for case in cases:
                        yield _job(arch, name, case.name, {})
                    continue
                for number, (constants, options, dtypes) in enumerate(VARIATIONS.get(name, [])):
                    overrides = {"constants": constants, "options": options, "dtypes": dtypes}
                    yield _job(arch, name, f"v{number}", overrides)


def _job(arch: str, name: str, label: str, overrides: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "triton",
        "name": f"triton-{name}-{label}-{arch}",
        "arch": arch,
        "workload": name,
        "case": None if overrides else label,
        "overrides": overrides,
    }


def run_triton(job: dict[str, Any]) -> dict[str, Any]:
    """Compile one; raises what the frontend raises."""
    from sassafras import suite
    from sassafras.core import Buffer

    workload = suite.load(job["workload"])
    case = workload.case(job["case"])
    if overrides := job["overrides"]:
        swap = overrides["dtypes"]
        args = {
            name: dataclasses.replace(arg, dtype=swap.get(arg.dtype, arg.dtype))
            if isinstance(arg, Buffer)
            else arg
            for name, arg in case.args.items()
        }
        case = dataclasses.replace(
            case,
            args=args,
            constants={**case.constants, **overrides["constants"]},
            options={**case.options, **overrides["options"]},
        )
    kernel = workload.build(case, job["arch"])
    return {
        "cubin": kernel.cubin,
        "entry": kernel.name,
        "threads": kernel.threads,
        "shared_bytes": kernel.shared_bytes,
        "compiler": f"triton {kernel.meta['triton']}, ptxas {kernel.meta['ptxas']}",
        "flags": [f"{k}={v}" for k, v in {**case.constants, **case.options}.items()],
    }
