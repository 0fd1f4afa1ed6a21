"""A candidate's first launch in a fresh process, before the baseline was ever launched there."""

from __future__ import annotations

from typing import Any

from sassafras.core import DeviceError, Kernel, Verdict
from sassafras.cuda.driver import CudaError

from .case_on_gpu import CaseOnGpu, Image
from .guarded_buffers import make_image

#: bytes that outputs hold before a launch: NaN, and a pattern that is a plain number in every dtype
POISONS = (0xFF, 0xA5)


class ColdLaunchFailed(DeviceError):
    """A candidate's first launch in a fresh process failed.

    Attributes:
        verdict: what that says of the candidate.
        sticky: the process is lost.
    """

    def __init__(self, what: str, verdict: Verdict) -> None:
        super().__init__(f"cold first launch: {what}")
        self.verdict = verdict
        self.sticky = True


def launch_cold(scene: CaseOnGpu, kernel: Kernel, seed: int, hang_s: float) -> Any:
    """Launch once on the inputs of `seed`; what it left in the arena, to be compared later.

    Raises:
        ColdLaunchFailed: it crashed, could not be loaded, or ran longer than `hang_s` seconds.
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
            raise ColdLaunchFailed(f"still running after {hang_s:g} s", Verdict.TIMED_OUT)
    except CudaError as error:
        raise ColdLaunchFailed(str(error), error.verdict) from error
    left = scene.live.clone()
    torch.cuda.synchronize()
    gpu.unload(function)
    return left
