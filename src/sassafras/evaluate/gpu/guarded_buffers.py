"""One allocation holds all buffers of a case, with guard bands between them.

A check is then two operations on the whole arena: restore it (inputs, poisoned outputs, guards), launch,
compare it with what the baseline left. Outputs that differ, inputs that were modified and stray writes into
a guard band are all found by that one comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from sassafras.core import Buffer, Case, Custom, DeviceError, Normal, Uniform
from sassafras.core.workload import DTYPE_BYTES, Fill

#: bytes of guard band before, between and after the buffers
GUARD = 64 * 1024
#: alignment of every buffer; torch's allocator gives 512
ALIGN = 1024

Part = Literal["in", "out", "inout", "guard"]
#: torch dtype names of `core.workload.DTYPE_BYTES`
TORCH_DTYPES: Mapping[str, str] = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "i1": "bool",
}
_REAL = ("fp64", "fp32", "fp16", "bf16", "fp8e4nv", "fp8e5")


@dataclass(frozen=True, slots=True)
class Segment:
    """A buffer's place in the arena."""

    name: str
    offset: int
    buffer: Buffer

    @property
    def end(self) -> int:
        """First byte after it."""
        return self.offset + self.buffer.nbytes


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """Where every buffer of a case lies. `nbytes` is the arena's size, a multiple of 16."""

    segments: tuple[Segment, ...]
    nbytes: int

    @classmethod
    def of(cls, case: Case) -> BufferLayout:
        """Lay a case's buffers out in parameter order."""
        at = GUARD
        segments = []
        for name, argument in case.args.items():
            if isinstance(argument, Buffer):
                segments.append(Segment(name, at, argument))
                at = -(-(at + argument.nbytes) // ALIGN) * ALIGN + GUARD
        return cls(tuple(segments), at)

    def filled(self, fills: Mapping[str, Fill]) -> BufferLayout:
        """The same places with other fills, by buffer name."""
        segments = (
            replace(s, buffer=replace(s.buffer, fill=fills.get(s.name, s.buffer.fill))) for s in self.segments
        )
        return replace(self, segments=tuple(segments))

    def where(self, offset: int) -> tuple[Part, str]:
        """What lies at a byte offset: (role or ``guard``, words for a human)."""
        for segment in self.segments:
            if segment.offset <= offset < segment.end:
                element = (offset - segment.offset) // _width(segment.buffer)
                return segment.buffer.role, f"{segment.name}, near element {element}"
        before = [s for s in self.segments if s.end <= offset]
        if before:
            return "guard", f"{offset - before[-1].end} bytes past the end of {before[-1].name}"
        name = self.segments[0].name if self.segments else "the arena"
        first = self.segments[0].offset if self.segments else self.nbytes
        return "guard", f"{first - offset} bytes before {name}"

    def unchanged_ranges(self) -> list[tuple[int, int]]:
        """(begin, end) of everything that a kernel must not write, cut to whole 16-byte words.

        Used where outputs are compared with a tolerance: everything else stays a bitwise comparison.
        """
        ranges = []
        at = 0
        for segment in self.segments:
            if segment.buffer.role == "in":
                continue
            if segment.offset > at:
                ranges.append((at, segment.offset))
            at = -(-segment.end // 16) * 16
        if at < self.nbytes:
            ranges.append((at, self.nbytes))
        return ranges


def guard_pattern(nbytes: int, device: str = "cpu") -> Any:
    """Guard bytes as a uint8 torch tensor: position-dependent, NaN as FP32, FP16 and (upper halves) BF16."""
    import torch

    words = torch.arange(-1023, 0, dtype=torch.int32, device=device)  # from 0xFFFFFC01
    return words.repeat(-(-nbytes // (4 * len(words)))).view(torch.uint8)[:nbytes]


def view(arena: Any, segment: Segment) -> Any:
    """The segment as a torch tensor of its dtype and shape, sharing the arena's memory."""
    import torch

    raw = arena[segment.offset : segment.end]
    return raw.view(getattr(torch, TORCH_DTYPES[segment.buffer.dtype])).view(segment.buffer.shape)


def make_image(
    layout: BufferLayout, *, seed: int, poison: int = 0xFF, special: bool = False, device: str = "cuda"
) -> Any:
    """A pristine arena as a uint8 torch tensor: filled inputs, poisoned outputs, guard bands.

    Args:
        seed: every buffer draws from a generator of its own, seeded by this and its position.
        poison: byte that outputs hold before a launch; 0xFF is NaN in every real dtype.
        special: also plant infinities, NaN, subnormal and huge values in real inputs.
    """
    import torch

    arena = guard_pattern(layout.nbytes, device)
    for index, segment in enumerate(layout.segments):
        if segment.buffer.role == "out":
            arena[segment.offset : segment.end] = poison
            continue
        generator = torch.Generator(device=device)
        generator.manual_seed((seed * 1_000_003 + 7919 * index + 1) % (1 << 63))
        target = view(arena, segment)
        target.copy_(fill(segment, generator, device).view(segment.buffer.shape))
        if special and segment.buffer.dtype in _REAL and not isinstance(segment.buffer.fill, Custom):
            _plant_special(target, generator, device)
    return arena


def fill(segment: Segment, generator: Any, device: str) -> Any:
    """A tensor of the segment's shape and dtype, filled as its buffer says.

    Raises:
        DeviceError: a custom fill returned another shape.
    """
    import torch

    buffer = segment.buffer
    dtype = getattr(torch, TORCH_DTYPES[buffer.dtype])
    how = buffer.fill
    if isinstance(how, Custom):
        made = how.fn(buffer.shape, dtype, generator, device)
        if tuple(made.shape) != tuple(buffer.shape):
            raise DeviceError(
                f"the custom fill returned shape {tuple(made.shape)}, the buffer has {tuple(buffer.shape)}",
                where=segment.name,
            )
        return made.to(device=device, dtype=dtype)
    real = buffer.dtype in _REAL
    wide = torch.float64 if buffer.dtype == "fp64" else torch.float32
    if isinstance(how, Normal):
        values = torch.randn(buffer.shape, generator=generator, device=device, dtype=wide)
        values = values * how.std + how.mean
        return values.to(dtype) if real else values.round().to(torch.int64).to(dtype)
    if isinstance(how, Uniform):
        if real:
            values = torch.rand(buffer.shape, generator=generator, device=device, dtype=wide)
            return (values * (how.high - how.low) + how.low).to(dtype)
        low, high = int(how.low), int(how.high)
        high = max(high, low + 1)
        whole = torch.randint(low, high, buffer.shape, generator=generator, device=device, dtype=torch.int64)
        return whole.to(dtype)
    raise DeviceError(f"unknown fill {how!r}", where=segment.name)


def _width(buffer: Buffer) -> int:
    return DTYPE_BYTES[buffer.dtype]


def _plant_special(target: Any, generator: Any, device: str) -> None:
    """Replace about one element in 2048 (at least one) by a special value of the dtype, in place."""
    import torch

    info = torch.finfo(target.dtype)
    specials = [
        float("inf"),
        float("-inf"),
        float("nan"),
        info.max,
        info.min,
        info.tiny,
        -info.tiny,
        0.0,
        -0.0,
    ]
    specials += [info.tiny / 2, -info.tiny / 4]  # subnormal
    flat = target.view(-1)
    count = max(1, flat.numel() // 2048)
    where = torch.randint(0, flat.numel(), (count,), generator=generator, device=device)
    values = torch.tensor(specials, device=device, dtype=torch.float64).repeat(-(-count // len(specials)))[
        :count
    ]
    wide = torch.float64 if target.dtype == torch.float64 else torch.float32
    changed = flat.to(wide)
    changed[where] = values.to(wide)
    flat.copy_(changed.to(target.dtype))
