"""The suite on a real GPU: every variant meets its reference, and is the one that Triton's JIT selects."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from sassafras import suite
from sassafras.core import Buffer, Candidate, Case, Custom, Kernel, Uniform, Verdict
from sassafras.evaluate.gpu import CudaDevice
from sassafras.targets import load
from sassafras.targets.load import variants

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    with CudaDevice() as opened:
        yield opened


@pytest.mark.parametrize("name", suite.names())
def test_every_variant_agrees_with_its_reference(device: CudaDevice, name: str) -> None:
    """`open` compares the original with the reference, on every case of the variant."""
    workload = load(f"suite:{name}")
    for kernel, cases in variants(workload, device.arch):
        device.open(workload, cases[0], kernel)
        outcome = device.run(Candidate(kernel, {"identity": True}))
        assert outcome.verdict is Verdict.CORRECT, f"{cases[0].name}: {outcome.detail}"


@pytest.mark.parametrize("name", suite.names())
def test_tritons_jit_selects_the_variant_that_we_build(device: CudaDevice, name: str) -> None:
    """The same call, made through Triton with torch tensors, ends in the same cubin, byte for byte."""
    import torch

    workload = load(f"suite:{name}")
    for case in workload.cases:
        kernel: Kernel = workload.build(case, device.arch)
        args = {n: _tensor(a) if isinstance(a, Buffer) else a for n, a in case.args.items()}
        function = workload.build.kernel  # type: ignore[attr-defined]
        compiled = function[_grid(case)](**args, **case.constants, **case.options)
        torch.cuda.synchronize()
        assert compiled.asm["cubin"] == kernel.cubin, case.name
        assert (compiled.metadata.shared, 32 * compiled.metadata.num_warps) == (
            kernel.shared_bytes,
            kernel.threads,
        )


def _grid(case: Case) -> tuple[int, int, int]:
    x, y, z = case.grid
    return (x // int(case.options.get("num_ctas", 1)), y, z)


def _tensor(buffer: Buffer) -> Any:
    """A CUDA tensor with harmless contents: indices must be in range even where nothing is compared."""
    import torch

    dtype = {
        "fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
        "fp8e4nv": torch.float8_e4m3fn, "i64": torch.int64, "i32": torch.int32, "i8": torch.int8,
        "u8": torch.uint8,
    }[buffer.dtype]  # fmt: skip
    generator = torch.Generator(device="cuda").manual_seed(1)
    if isinstance(buffer.fill, Custom):
        return buffer.fill.fn(buffer.shape, dtype, generator, torch.device("cuda"))
    if isinstance(buffer.fill, Uniform) and not dtype.is_floating_point:
        low, high = int(buffer.fill.low), int(buffer.fill.high)
        return torch.randint(low, high, buffer.shape, generator=generator, device="cuda").to(dtype)
    return torch.zeros(buffer.shape, dtype=torch.float32, device="cuda").to(dtype)
