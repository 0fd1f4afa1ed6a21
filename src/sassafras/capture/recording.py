"""Start and stop the recording of this process."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

from . import hook, inductor
from .recorder import LaunchRecorder
from .settings import CaptureSettings

_recorder: LaunchRecorder | None = None


def start(settings: CaptureSettings | str | Path) -> str:
    """Begin to record this process's Triton launches.

    Args:
        settings: how, or only the folder to write to.

    Returns:
        ``""``, or why this Triton cannot be recorded. Never raises.
    """
    global _recorder
    made = LaunchRecorder(
        settings if isinstance(settings, CaptureSettings) else CaptureSettings(Path(settings))
    )
    if problem := hook.attach(made):
        return problem
    inductor.attach(made)
    _recorder = made
    atexit.register(made.write)
    os.register_at_fork(after_in_child=made.after_fork)
    return ""


def stop() -> None:
    """Write what is known and put Triton's methods back."""
    global _recorder
    if _recorder is not None:
        _recorder.on = False
        _recorder.write()
        atexit.unregister(_recorder.write)
        hook.detach()
        inductor.detach()
        _recorder = None


def start_when_triton_comes() -> None:
    """`start` once the program has imported Triton, if the environment asks for it."""
    settings = CaptureSettings.read()
    if settings is None:
        return
    from sassafras.deploy.lazy import after_import

    def then(module: object) -> None:
        start(settings)

    after_import("triton.runtime.autotuner", then)
