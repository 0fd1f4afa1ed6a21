"""A candidate's first launch in a fresh process, before the baseline was ever launched there."""

from __future__ import annotations

from typing import Any

from sassafras.core import DeviceError, Kernel, Verdict
from sassafras.cuda.driver import CudaError

from .case_on_gpu import CaseOnGpu, Image
from .guarded_buffers import make_image

#: bytes that outputs hold before a launch: NaN, and a pattern that is a plain number in every dtype
POISONS = (0xFF, 0xA5)


def launch_cold(scene: CaseOnGpu, kernel: Kernel, seed: int, hang_s: float) -> Any:
    """Launch once on the inputs of `seed`; what it left in the arena, to be compared later.

    Raises:
        DeviceError: it crashed, could not be loaded, or ran longer than `hang_s` seconds; `verdict` says what
            that says of the candidate, and the process is lost.
    """
    import torch

    gpu = scene.gpu
    image = Image("cold", make_image(scene.layout, seed=seed, poison=POISONS[0]))
    torch.cuda.synchronize()
    try:
        function = gpu.load_kernel(kernel)
        plan = scene.plan(kernel, function)
        scene.restore(image)
        scene.checker.scrub()
        scene.launch(plan, function)
        if not gpu.wait(hang_s):
            raise _failed(f"still running after {hang_s:g} s", Verdict.TIMED_OUT)
    except CudaError as error:
        raise _failed(str(error), error.verdict) from error
    left = scene.live.clone()
    torch.cuda.synchronize()
    gpu.unload(function)
    return left


def _failed(what: str, verdict: Verdict | None) -> DeviceError:
    return DeviceError(f"cold first launch: {what}", sticky=True, verdict=verdict)
