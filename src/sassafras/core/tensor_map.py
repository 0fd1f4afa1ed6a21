"""Tensor maps (TMA descriptors) as arguments of a launch: what they describe.

A kernel whose parameters are of type ``tensormap`` says in ``meta["tensor_maps"]`` what each of them
describes (`TensorMap.to_json`); the addresses are those of the case's buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class TensorMap:
    """Arguments of ``cuTensorMapEncodeTiled``: interleave none, element strides 1, zeros out of bounds.

    Attributes:
        operand: whose address it takes: ``a``, ``b``, ``c`` or ``addend`` as the kernel names its parameters.
        dtype: ``fp16`` or ``bf16``.
        dims: extents in elements, innermost first.
        strides: bytes from one index to the next, of every dimension but the innermost.
        box: extents of what one instruction copies, in elements.
        swizzle: bytes: 0, 32, 64 or 128.
        lines: 0 for a matrix's own lines. Otherwise every eighth line is a row, and the innermost extent
            reaches from the first line to the end of line number `lines` (`gemm.configs.unaligned`).
    """

    operand: str
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128
    lines: int = 0

    def spread(self, tight: int, leading: int) -> TensorMap:
        """The same for lines that lie further apart: elements from line to line, before and now.

        Raises:
            ValueError: no single stride is that of a line.
        """
        if tight == leading:
            return self
        if self.lines:
            length = self.dims[0] - (self.lines - 1) * tight
            inner = (self.lines - 1) * leading + length
            return replace(self, dims=(inner, *self.dims[1:]), strides=(16 * leading,))
        strides = list(self.strides)
        if strides.count(2 * tight) != 1:
            raise ValueError(f"the tensor map of {self.operand} has no single stride of a line")
        strides[strides.index(2 * tight)] = 2 * leading
        return replace(self, strides=tuple(strides))

    def why_illegal(self) -> str | None:
        """Why the driver would refuse it, None when it would not (the address needs 16-byte alignment)."""
        if len(self.strides) != len(self.dims) - 1 or len(self.box) != len(self.dims):
            return "dims, strides and box do not go together"
        for stride in self.strides:
            if stride % 16 or not 0 < stride < 1 << 40:
                return f"a row of {self.operand} takes {stride} bytes: TMA wants a multiple of 16"
        if any(not 0 < extent <= 256 for extent in self.box):
            return f"box {self.box}: extents up to 256"
        if any(not 0 < extent <= 1 << 32 for extent in self.dims):
            return f"extents {self.dims}: up to 2^32"
        if (inner := 2 * self.box[0]) % 16 or (self.swizzle and inner > self.swizzle):
            return f"{inner} bytes a row of the box with a swizzle of {self.swizzle}"
        return None

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorMap:
        """The reverse; what JSON made of tuples too."""
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**given)
