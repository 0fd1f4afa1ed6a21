"""Choose block sizes, warps and stages of the suite's headline cases by measurement, as autotune would.

    python -m sassafras.suite.tune [NAME ...]

Needs a GPU and torch. Prints, for each kernel, the configurations that compiled and ran, best first, with the
time relative to the one that the suite uses. What is faster by more than the noise belongs into the suite: a
schedule search that starts from a badly chosen configuration proves nothing.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sassafras.core import Buffer, Case, SassafrasError, Uniform, Workload

from . import load, names

_GEMM = {
    "BLOCK_M": (64, 128),
    "BLOCK_N": (32, 64, 128),
    "BLOCK_K": (64, 128),
    "num_warps": (4, 8),
    "num_stages": (3, 4),
}
_ATTENTION = {"BLOCK_M": (64, 128), "BLOCK_N": (32, 64, 128), "num_warps": (4, 8), "num_stages": (2, 3, 4)}
_GEMV = {"BLOCK_N": (1, 2, 4, 8), "BLOCK_K": (1024, 2048), "num_warps": (2, 4, 8)}

#: what may vary; names in lower case are options, the others constants
CHOICES: Mapping[str, Mapping[str, Sequence[int]]] = {
    "gemm_leakyrelu": _GEMM,
    "batched_gemm": _GEMM,
    "feed_forward": _GEMM,
    "attention": _ATTENTION,
    "attention_causal": _ATTENTION,
    "softmax": {"num_warps": (4, 8, 16)},
    "rmsnorm": {"BLOCK_ROWS": (8, 16, 32, 64, 128), "num_warps": (2, 4, 8)},
    "layernorm": {"num_warps": (4, 8, 16)},
    "rotary": {"BLOCK_HEADS": (8, 16, 32), "num_warps": (2, 4, 8)},
    "swiglu": {"BLOCK": (512, 1024, 2048, 4096), "num_warps": (4, 8)},
    "cross_entropy": {"BLOCK": (1024, 2048, 4096, 8192), "num_warps": (4, 8, 16)},
    "gemv_int8": _GEMV,
    "gemv_int4": _GEMV,
    "topk_gating": {"BLOCK_TOKENS": (4, 8, 16, 32), "num_warps": (1, 2, 4, 8)},
    "kv_append": {"BLOCK": (256, 512, 1024), "num_warps": (1, 2, 4)},
    "paged_decode": {"num_warps": (2, 4, 8), "num_stages": (2, 3, 4)},
    "quantise_fp8": {"num_warps": (4, 8, 16)},
}
#: constant -> grid axis that it divides
_AXES: Mapping[str, Mapping[str, int]] = {
    **{key: {"BLOCK_N": 0, "BLOCK_M": 1} for key in ("gemm_leakyrelu", "batched_gemm", "feed_forward")},
    **{key: {"BLOCK_M": 0} for key in ("attention", "attention_causal")},
    **{key: {"BLOCK_N": 0} for key in ("gemv_int8", "gemv_int4")},
    "rmsnorm": {"BLOCK_ROWS": 0},
    "rotary": {"BLOCK_HEADS": 1},
    "swiglu": {"BLOCK": 0},
    "topk_gating": {"BLOCK_TOKENS": 0},
    "kv_append": {"BLOCK": 0},
}


def configurations(name: str, case: Case) -> Iterator[Case]:
    """The case under every combination of `CHOICES`, with the grid that goes with it.

    Sizes along a tiled axis must be multiples of the case's own block there, as in all headline cases.
    """
    choices = CHOICES[name]
    for values in itertools.product(*choices.values()):
        picked = dict(zip(choices, values, strict=True))
        constants = {**case.constants, **{k: v for k, v in picked.items() if k.isupper()}}
        options = {**case.options, **{k: v for k, v in picked.items() if not k.isupper()}}
        grid = list(case.grid)
        for constant, axis in _AXES.get(name, {}).items():
            grid[axis] = -(-case.grid[axis] * case.constants[constant] // constants[constant])
        label = " ".join(f"{k}={v}" for k, v in picked.items())
        x, y, z = grid
        yield replace(case, name=label, grid=(x, y, z), constants=constants, options=options)


def measure(workload: Workload, case: Case, args: Mapping[str, Any]) -> float:
    """Microseconds a launch, the median of Triton's own benchmark in a CUDA graph."""
    from triton.testing import do_bench_cudagraph

    kernel = workload.build.kernel  # type: ignore[attr-defined]
    time = do_bench_cudagraph(
        lambda: kernel[case.grid](**args, **case.constants, **case.options), rep=30, return_mode="median"
    )
    return 1e3 * float(time)


def main(wanted: Sequence[str]) -> int:
    """Tune the named kernels, all without a name."""
    for name in wanted or names():
        workload = load(name)
        case = workload.case()
        args = {n: _tensor(a) if isinstance(a, Buffer) else a for n, a in case.args.items()}
        current = measure(workload, case, args)
        rows: list[tuple[float, str]] = []
        for candidate in configurations(name, case):
            try:
                workload.build(candidate, _arch())
                rows.append((measure(workload, candidate, args), candidate.name))
            except SassafrasError:
                continue  # this combination does not compile
            except Exception as error:
                if "out of resource" not in str(error):
                    raise
        print(f"{name}: {current:.2f} us as it stands")
        for time, label in sorted(rows)[:3]:
            print(f"    {time / current:.3f}  {time:.2f} us  {label}", flush=True)
    return 0


def _arch() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def _tensor(buffer: Buffer) -> Any:
    """A CUDA tensor filled as the buffer says (normal values where it says nothing)."""
    import torch

    dtype = {
        "fp32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8e4nv": torch.float8_e4m3fn,
        "i64": torch.int64,
        "i32": torch.int32,
        "i8": torch.int8,
        "u8": torch.uint8,
    }[buffer.dtype]
    generator = torch.Generator(device="cuda").manual_seed(1)
    fill = buffer.fill
    if hasattr(fill, "fn"):
        return fill.fn(buffer.shape, dtype, generator, torch.device("cuda"))
    if isinstance(fill, Uniform) and not dtype.is_floating_point:
        low, high = int(fill.low), int(fill.high)
        return torch.randint(low, high, buffer.shape, generator=generator, device="cuda").to(dtype)
    values = torch.randn(buffer.shape, generator=generator, device="cuda")
    return (values * getattr(fill, "std", 1.0)).to(dtype)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
