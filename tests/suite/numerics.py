"""Run every suite kernel on the CPU, in Triton's interpreter, against its reference.

    TRITON_INTERPRET=1 python tests/suite/numerics.py [NAME ...]

Needs torch (a CPU build will do). Prints one line a case; the exit status is 1 when any output is off.
Buffers are poisoned with NaN (or a large integer) first, and guard elements around them must stay so.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from typing import Any

import torch

from sassafras.core import Buffer, Case, Custom, Normal, Tolerance, Uniform, Workload

TORCH = {
    "fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2, "i64": torch.int64, "i32": torch.int32,
    "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "i1": torch.bool,
}  # fmt: skip

#: arguments of each module's `_case`, small: whole blocks, masked tails, odd sizes
SMALL: dict[str, list[tuple[Any, ...]]] = {
    "gemm_leakyrelu": [(64, 32, 256), (80, 48, 272), (65, 33, 129)],
    "batched_gemm": [(2, 128, 64, 128), (2, 144, 80, 80), (1, 129, 65, 67)],
    "feed_forward": [(64, 32, 128), (80, 48, 80), (65, 33, 67)],
    "attention": [
        (1, 1, 128, 32, 128, 64, 4, 2), (1, 2, 144, 32, 128, 64, 4, 2), (1, 1, 131, 64, 128, 64, 4, 2),
        (1, 1, 192, 128, 128, 64, 4, 2),
    ],
    "attention_causal": [
        (1, 1, 256, 64, 128, 64, 4, 2, True), (1, 1, 208, 32, 128, 64, 4, 2, True),
        (1, 1, 130, 32, 64, 64, 4, 2, True),
    ],
    "softmax": [(3, 256, 256, 4), (3, 240, 256, 4), (3, 255, 256, 4)],
    "rmsnorm": [
        ("64x64", 64, 64, 32, 64, 4), ("50x48", 50, 48, 32, 64, 4), ("33x63", 33, 63, 32, 64, 4),
        ("2x1024", 2, 1024, 1, 1024, 4),
    ],
    "layernorm": [(3, 256, 256, 4), (3, 240, 256, 4), (3, 253, 256, 4)],
    "rotary": [(5, 32, 128, 32, 4), (5, 48, 128, 32, 4), (4, 28, 64, 32, 4), (3, 8, 128, 8, 4)],
    "swiglu": [(2, 2048), (2, 2064), (2, 4095)],
    "cross_entropy": [(3, 4096), (3, 5008), (3, 4999)],
    "gemv_int8": [(8, 2048), (12, 4000), (7, 2047)],
    "gemv_int4": [(8, 2048), (12, 3840), (7, 768)],
    "topk_gating": [(32, 64, 8, 16, 64), (40, 48, 8, 16, 64), (65, 8, 2, 64, 8), (17, 60, 8, 16, 64)],
    "kv_append": [(4, 8, 128), (4, 6, 128), (3, 5, 127)],
    "paged_decode": [(2, 2, 4, 64, 200), (3, 1, 8, 128, 130), (2, 1, 3, 64, 63)],
    "quantise_fp8": [(3, 256, 256, 4), (3, 240, 256, 4), (3, 255, 256, 4)],
}  # fmt: skip
_GUARD = 64


def fill(buffer: Buffer, generator: torch.Generator) -> torch.Tensor:
    """A tensor with guard elements at both ends of its storage, filled as the buffer says."""
    dtype = TORCH[buffer.dtype]
    count = int(torch.Size(buffer.shape).numel())
    whole = torch.full((count + 2 * _GUARD,), 77, dtype=torch.float32).to(dtype)
    tensor = whole[_GUARD : _GUARD + count].view(buffer.shape)
    if buffer.role == "out":
        poison = float("nan") if dtype.is_floating_point else 99
        tensor.copy_(torch.full(buffer.shape, poison, dtype=torch.float32).to(dtype))
    elif isinstance(buffer.fill, Custom):
        tensor.copy_(buffer.fill.fn(buffer.shape, dtype, generator, torch.device("cpu")))
    elif isinstance(buffer.fill, Uniform) and not dtype.is_floating_point:
        low, high = int(buffer.fill.low), int(buffer.fill.high)
        tensor.copy_(torch.randint(low, high, buffer.shape, generator=generator))
    elif isinstance(buffer.fill, Uniform):
        span = buffer.fill.high - buffer.fill.low
        tensor.copy_(torch.rand(buffer.shape, generator=generator) * span + buffer.fill.low)
    else:
        assert isinstance(buffer.fill, Normal)
        tensor.copy_(torch.randn(buffer.shape, generator=generator) * buffer.fill.std + buffer.fill.mean)
    return tensor


def without_small_floats(case: Case) -> Case:
    """The case with FP32 for BF16 and FP8, to which Triton's interpreter rounds otherwise than GPUs do.

    Seen in 3.6.0: to BF16 it truncates; to FP8 it loses the carry of a mantissa into the exponent.
    """
    args = {
        n: dataclasses.replace(a, dtype="fp32")
        if isinstance(a, Buffer) and a.dtype in ("bf16", "fp8e4nv")
        else a
        for n, a in case.args.items()
    }
    return dataclasses.replace(case, args=args)


def check(workload: Workload, case: Case, seed: int = 0) -> tuple[bool, str]:
    """Run one case; whether every output is within tolerance, and a line that says how far off it is."""
    generator = torch.Generator().manual_seed(seed)
    args = {n: fill(a, generator) if isinstance(a, Buffer) else a for n, a in case.args.items()}
    before = {n: a.clone() if isinstance(a, torch.Tensor) else a for n, a in args.items()}
    expected = workload.reference(before) if workload.reference else {}
    workload.build.kernel[case.grid](**args, **case.constants, **case.options)  # type: ignore[attr-defined]
    good, notes = True, []
    outputs = [n for n, a in case.args.items() if isinstance(a, Buffer) and a.role != "in"]
    if sorted(outputs) != sorted(expected):
        return False, f"the reference gives {sorted(expected)}, the outputs are {sorted(outputs)}"
    for name, value in expected.items():
        fine, worst = compare(args[name], value, workload.tolerance)
        good &= fine
        notes.append(f"{name} {worst:.2g} of tolerance")
    for name, value in args.items():
        if isinstance(value, torch.Tensor):
            if name not in outputs and not torch.equal(value.float(), before[name].float()):
                good, notes = False, [*notes, f"{name} was changed"]
            storage = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage()).float()
            edges = torch.cat((storage[:_GUARD], storage[-_GUARD:]))
            if not torch.equal(edges, torch.full_like(edges, 77).to(value.dtype).float()):
                good, notes = False, [*notes, f"{name}: written outside of the buffer"]
    return good, "; ".join(notes)


def compare(got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance) -> tuple[bool, float]:
    """Whether all elements are within tolerance, and the largest error as a fraction of it."""
    got, want = got.double(), want.double()
    if got.shape != want.shape:
        return False, float("inf")
    allowed = tolerance.atol + tolerance.rtol * want.abs()
    error = (got - want).abs()
    fine = bool((error <= allowed).all())
    worst = float((error / allowed.clamp_min(1e-300)).nan_to_num(float("inf")).max())
    return fine, worst


def let_new_numpy_in() -> None:
    """Triton 3.6.0's interpreter calls int() on arrays of one element, which NumPy 2.4 refuses."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def main(names: list[str]) -> int:
    """Check the named kernels, all without a name."""
    from sassafras import suite

    assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1"
    let_new_numpy_in()
    failures = 0
    for name in names or suite.names():
        workload = suite.load(name)
        module = importlib.import_module("sassafras.suite." + name.removesuffix("_causal"))
        for arguments in SMALL[name]:
            case = without_small_floats(module._case(*arguments))
            good, note = check(workload, case)
            failures += not good
            print(f"{'ok  ' if good else 'FAIL'} {name} {case.name}: {note}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
