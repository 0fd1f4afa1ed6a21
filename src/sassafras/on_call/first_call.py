"""One launch as a search needs it: a description that holds no memory of the program's but small copies."""

from __future__ import annotations

import hashlib
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sassafras.capture.contents import ContentsWriter
from sassafras.capture.recorder import AutotunerConfig, LaunchRecorder, RecordedLaunch, ptxas_flags
from sassafras.capture.settings import CaptureSettings
from sassafras.core import WorkloadError
from sassafras.frontend.captured import values

#: bytes of one integer tensor that is copied, and of all of a launch; of larger ones the range is taken
TENSOR_BYTES, ALL_BYTES = 1 << 20, 16 << 20


class TensorFacts:
    """A tensor without its memory; read by `frontend.captured.values`."""

    def __init__(self, tensor: Any) -> None:
        self.dtype, self.shape = tensor.dtype, getattr(tensor, "shape", None)
        self._address, steps = int(tensor.data_ptr()), values.strides(tensor)
        self.stride = None if steps is None else lambda: steps

    def data_ptr(self) -> int:
        """Where it began."""
        return self._address


@dataclass
class FirstCall:
    """A launch of one compiled kernel.

    Attributes:
        fn, compiled: Triton's function and what it launched.
        given: arguments by name, tensors as `TensorFacts`.
        grid: as the program passed it, or what its function said.
        device: CUDA ordinal.
        config: the autotuner's configuration as text, or "".
        ms: the autotuner's time of it; None where it was not tried.
        copies: small integer tensors, copied on the GPU behind the launch.
        ranges: lowest and highest element of large ones, on the GPU.
        done: CUDA event behind the copies.
    """

    fn: Any
    compiled: Any
    given: dict[str, Any]
    grid: Any
    device: int
    config: str = ""
    ms: float | None = None
    copies: dict[str, Any] = field(default_factory=dict)
    ranges: dict[str, Any] = field(default_factory=dict)
    done: Any = None

    @property
    def digest(self) -> str:
        """sha256 of the compiler's cubin."""
        return hashlib.sha256(self.compiled.kernel).hexdigest()

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for launches with equal arguments, as far as a search is concerned."""
        passed = {k for k, kind in self.compiled.src.signature.items() if kind != "constexpr"}
        return tuple((k, values.key_of(v)) for k, v in self.given.items() if k in passed)

    def copy_integers(self, arguments: dict[str, Any]) -> None:
        """Queue copies of integer tensors behind the launch; waits for nothing."""
        torch, left = sys.modules.get("torch"), ALL_BYTES
        for name, value in arguments.items():
            kind = str(getattr(value, "dtype", "")).removeprefix("torch.")
            if torch is None or not isinstance(value, torch.Tensor) or not value.is_cuda or not value.numel():
                continue
            if not kind.startswith(("int", "uint", "bool")):
                continue
            size = value.numel() * value.element_size()
            if size <= min(TENSOR_BYTES, left):
                self.copies[name], left = value.detach().clone(), left - size
            elif kind != "bool":
                self.ranges[name] = torch.aminmax(value.detach())
        if self.copies or self.ranges:
            self.done = sys.modules["torch"].cuda.Event()
            self.done.record()

    def contents(self, folder: Path) -> dict[str, dict[str, Any]]:
        """What integer tensors held: ranges, and files in `folder`. Waits for the GPU."""
        torch = sys.modules.get("torch")
        if self.done is None or torch is None:
            return {}
        self.done.synchronize()
        with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.Stream()):
            found = ContentsWriter(_settings(folder)).copy(self.copies)
            for name, (low, high) in self.ranges.items():
                found[name] = {"low": int(low.item()), "high": int(high.item())}
        self.copies, self.ranges = {}, {}
        return found

    @property
    def ptxas_flags(self) -> list[str]:
        """See `capture.recorder.ptxas_flags`."""
        return ptxas_flags(self.compiled.metadata)


def describe(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, tensors without their memory."""
    return {
        name: TensorFacts(value) if values.is_tensor(value) else value for name, value in arguments.items()
    }


def write(calls: list[FirstCall], folder: Path) -> None:
    """Write launches of the same arguments as a capture: the first is the program's, others were only tried.

    Raises:
        OSError: the folder cannot be written.
        WorkloadError: nothing of them could be recorded.
    """
    recorder = LaunchRecorder(_settings(folder))
    first = calls[0]
    with nullcontext() if first.done is None else sys.modules["torch"].cuda.device(first.device):
        contents = first.contents(folder)
        for number, call in enumerate(calls):
            trial = AutotunerConfig(call.config, {call.digest})
            launch = RecordedLaunch((number,), call.fn, call.given, trial if number else None, contents)
            recorder.after(launch, call.compiled, call.grid)
            if call.ms is not None:
                recorder.benched(trial, [call.ms])
        recorder.write()
    if first.digest not in recorder.variants or not recorder.shapes:
        why = next(iter(recorder.problems), "its shape was not kept")
        raise WorkloadError(f"the launch cannot be recorded: {why}", where=first.compiled.name)


def _settings(folder: Path) -> CaptureSettings:
    return CaptureSettings(folder, TENSOR_BYTES, ALL_BYTES)
