"""`workload_of`, `workloads_of`: workloads from a call that works, with nothing written by hand."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sassafras.capture.live import record
from sassafras.core import DeviceError, Workload, WorkloadError
from sassafras.core.errors import os_errors
from sassafras.cuda.environment import available
from sassafras.frontend.captured.files import Captured, read
from sassafras.frontend.captured.workloads import workload
from sassafras.frontend.triton import ARCHES
from sassafras.jobs.opening import DEFAULT_ARCH
from sassafras.store import default_path


def workload_of(
    call: Callable[[], Any], *, kernel: str | None = None, device: str = "auto", arch: str | None = None
) -> Workload:
    """The workload of the Triton kernel that a call launches: ``workload_of(lambda: f(x))``.

    Grid, sizes, strides, constants and types are those of the launch; roles are read off the compiled kernel.
    Integer tensors keep their contents (up to 1 MiB each), others are filled with random values. There is no
    reference: candidates are compared with the unmodified kernel, bit by bit. The recording is kept in
    ``calls/`` beside the store.

    Args:
        call: without arguments; it is called once.
        kernel: which kernel, if the call launches several: its name, or its name with a digest's beginning.
        device: ``"auto"``: launch where there is a GPU, else compile only; ``"model"``: compile only, with
            tensors on the CPU; what is only compiled computes nothing, and of an autotuned kernel's
            configurations it is the first.
        arch: architecture to compile for where nothing is launched, by default ``sm_90a``.

    Raises:
        WorkloadError: the call raised, launched no Triton kernel or several, or one that cannot be launched
            again, with the reason.
    """
    captured = _recorded(call, device, arch, False)
    if kernel is not None:
        return workload(captured, captured.find(kernel))
    launched = [variant for variant in captured.variants if variant.count]
    if len(launched) != 1:
        names = {v.name for v in launched}
        shown = sorted(names) if len(names) == len(launched) else [v.label for v in launched]
        raise WorkloadError(
            f"the call launches {len(launched)} kernels: {', '.join(shown)}",
            hint=f"kernel={shown[0]!r} chooses one, workloads_of gives all",
        )
    return workload(captured, launched[0])


def workloads_of(
    call: Callable[[], Any], *, configurations: bool = True, device: str = "auto", arch: str | None = None
) -> list[Workload]:
    """The workloads of all Triton kernels that a call launches, for `sassafras.optimize_all`.

    Args:
        call: as of `workload_of`.
        configurations: of autotuned kernels all configurations, not the chosen one alone.
        device, arch: as of `workload_of`.

    Raises:
        WorkloadError: as `workload_of`; kernels that cannot be launched again are left out if others can.
    """
    captured = _recorded(call, device, arch, configurations)
    wanted = [v for v in captured.variants if v.count or configurations]
    return [workload(captured, v) for v in [v for v in wanted if not v.problem] or wanted]


def of_launch(
    launcher: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    device: str,
    arch: str | None,
) -> Workload:
    """The workload of ``kernel[grid](*args, **kwargs)``, for `optimize`.

    Args:
        launcher: ``kernel[grid]``, or a function.
        args, kwargs: what it is called with; tensors on the CPU mean that nothing is launched.
        options: what `optimize` itself was given beyond its defaults.
        device, arch: as of `workload_of`.

    Raises:
        WorkloadError: as `workload_of`; or a keyword could be the kernel's or `optimize`'s.
    """
    if hasattr(launcher, "run") and hasattr(launcher, "arg_names"):
        hint = "sassafras.optimize(kernel[grid], *args, **kwargs)"
        raise WorkloadError("a kernel alone has no grid", hint=hint)
    # Triton makes kernel[grid] a closure over the kernel
    cells = [cell.cell_contents for cell in getattr(launcher, "__closure__", None) or ()]
    for name in sorted(set(options) & {n for c in cells for n in getattr(c, "arg_names", ())}):
        raise WorkloadError(
            f"{name!r} is a parameter of the kernel and an option of optimize",
            hint="sassafras.optimize(sassafras.workload_of(lambda: kernel[grid](...)), ...)",
        )
    tensors = [value for value in [*args, *kwargs.values()] if hasattr(value, "data_ptr")]
    on_cpu = any(str(getattr(t, "device", "")) == "cpu" for t in tensors)
    return workload_of(lambda: launcher(*args, **kwargs), device="model" if on_cpu else device, arch=arch)


def _recorded(call: Callable[[], Any], device: str, arch: str | None, every: bool) -> Captured:
    """Record a call, in a folder named after what was launched."""
    if device not in ("auto", "cuda", "model"):
        raise DeviceError(f"there is no device {device!r}", hint="auto, cuda or model")
    capability = ARCHES.get(arch or DEFAULT_ARCH)
    if capability is None:
        raise WorkloadError(f"unknown architecture {arch!r}", hint="one of " + ", ".join(ARCHES))
    dry = device == "model" or (device == "auto" and not available()[0])
    home = default_path().parent / "calls"
    with os_errors("cannot keep the recorded call", home, WorkloadError, hint="set SASSAFRAS_STORE"):
        home.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=home, prefix=".new-"))
    try:
        captured = record(call, work, capability=capability if dry else None, every=every)
        launched = sorted(
            (v.digest, v.count > 0, repr([v.problem, *((s.id, s.args) for s in v.shapes)]))
            for v in captured.variants
        )
        digest = hashlib.sha256(repr(launched).encode()).hexdigest()[:16]
        place = home / f"{captured.variants[0].name[:40]}-{digest}"
        if (kept := _kept(place)) is None:
            shutil.rmtree(place, ignore_errors=True)
            with suppress(OSError):  # another process was faster
                work.rename(place)
            kept = read(place)
        return kept
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _kept(place: Path) -> Captured | None:
    """The recording of the same call that lies there; None for none, or a damaged one."""
    try:
        captured = read(place)
        for variant in captured.variants:
            captured.cubin(variant)
    except WorkloadError:
        return None
    return captured
