"""Buffers for one shape on the GPU: guarded, poisoned, with an FP64 reference. Needs torch with CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sassafras.core import DeviceError

from ..problem.shape import LAYOUTS, Shape

#: guard band on either side of a buffer (bytes)
GUARD = 64 * 1024
#: RMS error allowed over that of cuBLAS without reduced-precision reductions
RMS_LIMIT = 1.1
#: baselines may reduce in FP16 (cuBLAS's default); beyond this their result counts as wrong
BASELINE_RMS_LIMIT = 10.0
#: half of a unit in the last place, relative
_ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8}


@dataclass(frozen=True, slots=True)
class Check:
    """What one launch left behind.

    Attributes:
        rms_ratio: RMS of C - reference, over cuBLAS's.
        why: what is wrong, ``""`` when nothing is.
    """

    rms_ratio: float
    why: str


def required(operands: Any, name: str, enqueue: Any, ours: bool) -> float:
    """Error ratio of one launch, by `Operands.check`. Raises DeviceError when it is wrong."""
    check = operands.check(enqueue, RMS_LIMIT if ours else BASELINE_RMS_LIMIT)
    if check.why:
        raise DeviceError(f"{name}: {check.why}", where=str(operands.shape))
    return float(check.rms_ratio)


class OperandSet:
    """A and B in every layout, and C: what it takes to bind a contestant. No guards, no reference.

    Attributes:
        dtype: ``fp16`` or ``bf16``.
        a, a_t: A (m x k), and the same as k x m, None where no layout wants that.
        b: B as it lies: ``nn`` k x n, ``tn`` n x k.
        c: C (m x n).
    """

    def __init__(
        self, shape: Shape, a: Any, b: dict[str, Any], c: Any, a_t: Any = None, dtype: str = "fp16"
    ) -> None:
        self.shape, self.a, self.b, self.c, self.a_t, self.dtype = shape, a, b, c, a_t, dtype

    def copy(self) -> OperandSet:
        """The inputs once more, and another C; without A as k x m."""
        b = {layout: matrix.clone() for layout, matrix in self.b.items()}
        return OperandSet(self.shape, self.a.clone(), b, self.c.clone(), dtype=self.dtype)

    def addresses(self, layout: str) -> tuple[int, int, int]:
        """Device addresses of A and of B as they lie in `layout`, and of C."""
        a, b = (self.a_t if layout[1] == "t" else self.a), self.b[layout[0] + "n"]
        return a.data_ptr(), b.data_ptr(), self.c.data_ptr()

    def factors(self, layout: str) -> tuple[Any, Any]:
        """A (m x k) and B (k x n) as torch sees them, lying as `layout` says."""
        return (
            self.a_t.t() if layout[1] == "t" else self.a,
            self.b["tn"].t() if layout[0] == "t" else self.b["nn"],
        )


def rotated(operands: Any, l2_bytes: int, most: int = 64) -> list[Any]:
    """Copies of the operands over more than twice the L2, `most` at the utmost; at least one."""
    count = int(min(most, max(1, 2 * l2_bytes // operands.shape.nbytes + 1)))
    return [operands.copy() for _ in range(count)]


class _Guarded:
    """A device buffer between two guard bands."""

    def __init__(self, nbytes: int) -> None:
        import torch

        self.nbytes = nbytes
        self.raw = torch.empty(2 * GUARD + -(-nbytes // 1024) * 1024, dtype=torch.uint8, device="cuda")
        self._bands = (self.raw[:GUARD], self.raw[GUARD + nbytes :])
        self.arm()

    def arm(self) -> None:
        """(Re)write the guard bands."""
        for band in self._bands:
            band.fill_(0xA5)

    def intact(self) -> bool:
        """No byte of the guard bands has changed."""
        return all(bool((band == 0xA5).all()) for band in self._bands)

    def view(self, rows: int, columns: int, kind: Any) -> Any:
        """As a matrix of this type of torch."""
        return self.raw[GUARD : GUARD + self.nbytes].view(kind).view(rows, columns)


class Operands(OperandSet):
    """A (m x k, and as k x m where a layout wants it), B both as k x n and as n x k, C (m x n), random
    normal.

    All work runs on torch's current stream. `reference` is computed in FP64 from the rounded inputs.

    Args:
        layouts: that will be asked for; `nn` is always there.
        dtype: of all three.
    """

    def __init__(
        self, shape: Shape, seed: int, layouts: Sequence[str] = LAYOUTS, dtype: str = "fp16"
    ) -> None:
        import torch

        kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
        m, n, k = shape.m, shape.n, shape.k
        sizes = {"a": (m, k), "nn": (k, n), "tn": (n, k), "c": (m, n)}
        if any(layout[1] == "t" for layout in layouts):
            sizes["a_t"] = (k, m)
        self._buffers = {name: _Guarded(2 * rows * columns) for name, (rows, columns) in sizes.items()}
        held = {name: self._buffers[name].view(*size, kind) for name, size in sizes.items()}
        b = {layout: held[layout] for layout in ("nn", "tn")}
        super().__init__(shape, held["a"], b, held["c"], held.get("a_t"), dtype)
        generator = torch.Generator(device="cuda")
        generator.manual_seed(seed)
        for to in (self.a, self.b["nn"]):
            to.normal_(generator=generator)
        self.b["tn"].copy_(self.b["nn"].t())
        if self.a_t is not None:
            self.a_t.copy_(self.a.t())
        self.reference = self.a.double() @ self.b["nn"].double()
        self._sums = self._input_sums()
        self.cublas_rms: float | None = None

    def poison(self) -> None:
        """NaN in every element of C."""
        import torch

        self.c.view(torch.int16).fill_(-1)

    def rms(self) -> float:
        """Root mean square of C - reference; NaN or infinite when C is."""
        difference = self.c.double()
        difference -= self.reference
        return float(difference.square_().mean().sqrt())

    def calibrate(self, enqueue: Any) -> None:
        """Measure the error of cuBLAS with FP32 reductions: `check` compares with it.

        Raises:
            DeviceError: that error is larger than rounding C explains (2^-11 of each element in FP16, 2^-8 in
                BF16), so the yardstick itself is wrong.
        """
        self.poison()
        enqueue()
        rms = self.rms()
        expected = _ROUNDING[self.dtype] * float(self.reference.square().mean().sqrt()) + 1e-7
        if not rms <= expected:
            raise DeviceError(
                f"cuBLAS is off by {rms:.3g} (RMS), rounding explains {expected:.3g}",
                where=str(self.shape),
            )
        self.cublas_rms = rms

    def check(self, enqueue: Any, limit: float = RMS_LIMIT) -> Check:
        """Poison C, launch, and look at every byte: result, guard bands, inputs.

        Raises:
            CudaError, CublasError: the launch failed.
        """
        if self.cublas_rms is None:
            raise DeviceError("calibrate comes before check", where=str(self.shape))
        self.poison()
        enqueue()
        rms = self.rms()
        ratio = rms / self.cublas_rms if self.cublas_rms else (1.0 if rms == 0 else float("inf"))
        why = ""
        if not rms < float("inf"):
            missing = int(self.c.isnan().sum())
            why = f"{missing} of {self.c.numel()} elements are NaN" if missing else "C is not finite"
        elif ratio > limit:
            why = f"RMS error {ratio:.3g} times cuBLAS's"
        for name, buffer in self._buffers.items():
            if not buffer.intact():
                why = f"wrote outside of {name}"
                buffer.arm()
        if self._input_sums() != self._sums:
            why = "modified its inputs"
        return Check(ratio, why)

    def _input_sums(self) -> list[int]:
        import torch

        names = [name for name in self._buffers if name != "c"]
        parts = [self._buffers[name].view(1, -1, torch.int16) for name in names]
        return list(torch.stack([part.sum(dtype=torch.int64) for part in parts]).tolist())
