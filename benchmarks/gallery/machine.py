"""Schedules that cheat: a real kernel's machine code, patched. The validator must refuse every one unseen."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from . import Exhibit

TARGETS = ("softmax", "gemm_leakyrelu")


class Patched:
    """A suite kernel and copies of its code with some words changed."""

    def __init__(self, name: str) -> None:
        from sassafras.sass import Program
        from sassafras.targets import load
        from sassafras.validate import Validator

        workload = load(f"suite:{name}")
        self.kernel = workload.build(workload.cases[0], "sm_90a")
        self.program = Program.parse(self.kernel.cubin)
        self.function = self.program.function(self.kernel.name)
        self.validator = Validator(self.kernel.cubin, self.kernel.name)
        self.text = next(s for s in _sections(self.kernel.cubin) if s.name == f".text.{self.kernel.name}")

    def with_words(self, change: Callable[[np.ndarray, Any], None]) -> bytes:
        """The cubin after `change` worked on its (instructions, 2) words."""
        words = self.function.words.copy()
        change(words, self.function)
        data = bytearray(self.kernel.cubin)
        data[self.text.offset : self.text.offset + words.nbytes] = words.astype("<u8").tobytes()
        if bytes(data) == self.kernel.cubin:
            raise ValueError("the patch changed nothing")
        return bytes(data)


def _sections(cubin: bytes) -> Any:
    from sassafras.sass.cubin import Cubin

    return Cubin.parse(cubin).sections


def _places(function: Any, *bases: str) -> list[int]:
    return [i.index for i in function.instructions if i.base in bases]


def _nop(words: np.ndarray, function: Any, at: int) -> None:
    source = _places(function, "NOP")
    words[at] = words[source[0]] if source else (0x0000000000007918, 0x000FC00000000000)


def writes_nothing(words: np.ndarray, function: Any) -> None:
    """All stores to global memory become NOPs."""
    for at in _places(function, "STG"):
        _nop(words, function, at)


def writes_part(words: np.ndarray, function: Any) -> None:
    """The last store becomes a NOP."""
    _nop(words, function, _places(function, "STG")[-1])


def early_exit(words: np.ndarray, function: Any) -> None:
    """An EXIT a third of the way in: work is skipped."""
    out = _places(function, "EXIT")[-1]
    words[len(function) // 3] = words[out]


def skips_barrier(words: np.ndarray, function: Any) -> None:
    """The first barrier becomes a NOP: threads read each other's data too early."""
    _nop(words, function, _places(function, "BAR")[0])


def other_address(words: np.ndarray, function: Any) -> None:
    """The first store goes 16 bytes further: out of bounds at the end."""
    at = _places(function, "STG")[0]
    words[at, 0] ^= np.uint64(16 << 40)


def drops_waits(words: np.ndarray, function: Any) -> None:
    """No instruction waits for a load any more: stale registers, faster."""
    words[:, 1] &= ~np.uint64(0x3F << 52)


def short_stalls(words: np.ndarray, function: Any) -> None:
    """Every stall count becomes 1: results are read before they are there."""
    words[:, 1] = (words[:, 1] & ~np.uint64(0xF << 41)) | np.uint64(1 << 41)


def swaps_load_and_store(words: np.ndarray, function: Any) -> None:
    """The last load and the first store after it change places."""
    load = _places(function, "LDG")[-1]
    store = next(at for at in _places(function, "STG", "STS") if at > load)
    words[[load, store]] = words[[store, load]]


def keeps_stale_operand(words: np.ndarray, function: Any) -> None:
    """Every operand's reuse flag is set: old values are read from the reuse cache."""
    for at in _places(function, "FADD", "FMUL", "FFMA", "HFMA2", "IMAD", "MUFU", "FSEL"):
        words[at, 1] |= np.uint64(0x7 << 58)


def other_arithmetic(words: np.ndarray, function: Any) -> None:
    """One operand register of a multiplication is another: a different function."""
    at = _places(function, "FMUL", "FADD", "FFMA", "IMAD")[-1]
    words[at, 0] ^= np.uint64(1 << 24)


def no_loop(words: np.ndarray, function: Any) -> None:
    """The last backward branch becomes a NOP: the loop runs once."""
    for at in reversed(_places(function, "BRA")):
        offset = int(words[at, 0] >> np.uint64(32)) | (int(words[at, 1]) & 0x3FFFF) << 32
        if offset & (1 << 49) and at < len(function) - 8:
            _nop(words, function, at)
            return
    raise ValueError("no backward branch")


_PATCHES: tuple[tuple[Callable[..., None], str, tuple[str, ...]], ...] = (
    (writes_nothing, "writes nothing", TARGETS),
    (writes_part, "writes a part", TARGETS),
    (early_exit, "ends early and skips work", TARGETS),
    (skips_barrier, "leaves a barrier out", TARGETS),
    (other_address, "writes out of bounds", TARGETS),
    (drops_waits, "does not wait for its loads", TARGETS),
    (short_stalls, "does not wait for its arithmetic", TARGETS),
    (swaps_load_and_store, "stores before it loads", ("softmax",)),
    (keeps_stale_operand, "reads stale operands", TARGETS),
    (other_arithmetic, "computes something else", TARGETS),
    (no_loop, "runs its loop once", ("gemm_leakyrelu",)),
)


@functools.cache
def patched(target: str) -> Patched:
    """The subject of this name, made once a process."""
    return Patched(target)


def exhibits() -> list[Exhibit]:
    """Patched kernels; `make` gives (original, patched, a validator's report)."""

    def make(target: str, patch: Callable[..., None]) -> Any:
        subject = patched(target)
        cubin = subject.with_words(patch)
        return subject.kernel, cubin, subject.validator.check(cubin)

    return [
        Exhibit(
            f"cubin_{patch.__name__}_{target}",
            f"{title} ({target})",
            "cheat",
            "cubin",
            ("illegal_schedule",),
            "the validator, before anything runs",
            lambda t=target, p=patch: make(t, p),
        )
        for patch, title, targets in _PATCHES
        for target in targets
    ]
