"""`workload_of`, `workloads_of`: workloads from a call that works, with nothing written by hand."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sassafras.capture.live import record
from sassafras.core import DeviceError, Workload, WorkloadError
from sassafras.cuda.environment import available
from sassafras.frontend.captured.files import NAME, Captured, CapturedVariant, read
from sassafras.frontend.captured.workloads import workload
from sassafras.frontend.triton import ARCHES
from sassafras.jobs.opening import DEFAULT_ARCH
from sassafras.store import default_path


def workload_of(
    call: Callable[[], Any],
    *,
    kernel: str | None = None,
    device: str = "auto",
    arch: str | None = None,
    folder: str | Path | None = None,
) -> Workload:
    """The workload of the Triton kernel that a call launches: ``workload_of(lambda: f(x))``.

    Grid, sizes, strides, constants and types are those of the launch; roles are read off the compiled kernel.
    Integer tensors keep their contents (up to 1 MiB each), others are filled with random values. There is no
    reference: candidates are compared with the unmodified kernel, bit by bit.

    Args:
        call: without arguments; it is called once (an autotuned kernel tries its configurations).
        kernel: which kernel, if the call launches several: a name, or a name with the first letters of a
            digest. Of an autotuned kernel's configurations it is the one that was launched.
        device: ``"auto"``: launch where there is a GPU, else compile only; ``"cuda"``; ``"model"``: compile
            only, with tensors on the CPU. What is only compiled computes nothing.
        arch: architecture to compile for where nothing is launched, by default ``sm_90a``.
        folder: where the recording is kept; by default beside the store.

    Raises:
        WorkloadError: the call raised, launched no Triton kernel or several, or one that cannot be launched
            again, with the reason.
    """
    captured = _recorded(call, device, arch, folder)
    launched = [variant for variant in captured.variants if variant.count]
    if kernel is not None:
        return workload(captured, captured.find(kernel))
    if len(launched) != 1:
        names = list(dict.fromkeys(v.name for v in launched))
        shown = names if len(names) == len(launched) else [v.label for v in launched]
        raise WorkloadError(
            f"the call launches {len(launched)} kernels: {', '.join(shown)}",
            hint=f"kernel={shown[0]!r} chooses one, workloads_of gives all",
        )
    return workload(captured, launched[0])


def workloads_of(
    call: Callable[[], Any],
    *,
    configurations: bool = True,
    device: str = "auto",
    arch: str | None = None,
    folder: str | Path | None = None,
) -> list[Workload]:
    """The workloads of all Triton kernels that a call launches, for `sassafras.optimize_all`.

    Args:
        call: as of `workload_of`.
        configurations: of autotuned kernels all configurations, not the chosen one alone.
        device, arch, folder: as of `workload_of`.

    Raises:
        WorkloadError: as `workload_of`; kernels that cannot be launched again are left out if others can.
    """
    captured = _recorded(call, device, arch, folder)
    wanted = [v for v in captured.variants if v.count or configurations]
    sound = [v for v in wanted if not v.problem]
    return [workload(captured, v) for v in sound or wanted]


def of_launch(
    launcher: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    device: str,
    arch: str | None,
) -> Workload:
    """The workload of ``kernel[grid](*args, **kwargs)``, for `optimize`.

    Args:
        launcher: ``kernel[grid]``, or a function.
        args, kwargs: what it is called with.
        options: what `optimize` itself was given beyond its defaults.
        device, arch: as of `workload_of`; tensors on the CPU mean that nothing is launched.

    Raises:
        WorkloadError: as `workload_of`; or a keyword could be the kernel's or `optimize`'s.
    """
    if hasattr(launcher, "run") and hasattr(launcher, "arg_names"):
        raise WorkloadError(
            "a kernel alone has no grid", hint="sassafras.optimize(kernel[grid], *args, **kwargs)"
        )
    both = sorted(set(options) & _parameters(launcher))
    if both:
        raise WorkloadError(
            f"{both[0]!r} is a parameter of the kernel and an option of optimize",
            hint="sassafras.optimize(sassafras.workload_of(lambda: kernel[grid](...)), ...)",
        )
    on_cpu = any(_on_cpu(value) for value in [*args, *kwargs.values()])
    return workload_of(lambda: launcher(*args, **kwargs), device="model" if on_cpu else device, arch=arch)


def _parameters(launcher: Any) -> set[str]:
    """Parameters of the kernel in ``kernel[grid]``, which Triton makes a closure."""
    found: set[str] = set()
    for cell in getattr(launcher, "__closure__", None) or ():
        found |= set(getattr(cell.cell_contents, "arg_names", ()))
    return found


def _on_cpu(value: Any) -> bool:
    return hasattr(value, "data_ptr") and str(getattr(getattr(value, "device", None), "type", "")) == "cpu"


def _recorded(call: Callable[[], Any], device: str, arch: str | None, folder: str | Path | None) -> Captured:
    """Record a call, in a folder named after what was launched."""
    if device not in ("auto", "cuda", "model"):
        raise DeviceError(f"there is no device {device!r}", hint="auto, cuda or model")
    if device == "cuda" and not available()[0]:
        raise DeviceError(f"no GPU to launch on: {available()[1]}", hint='device="model" compiles only')
    dry = device == "model" or not available()[0]
    capability = ARCHES.get(arch or DEFAULT_ARCH) if dry else None
    if dry and capability is None:
        raise WorkloadError(f"unknown architecture {arch!r}", hint="one of " + ", ".join(ARCHES))
    if folder is not None:
        place = Path(folder).expanduser()
        place.mkdir(parents=True, exist_ok=True)
        return record(call, place, capability=capability)
    home = default_path().parent / "calls"
    home.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=home, prefix=".new-"))
    try:
        captured = record(call, work, capability=capability)
        place = home / _name(captured)
        if not (place / NAME).exists():
            shutil.rmtree(place, ignore_errors=True)
            work.rename(place)
        return read(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _name(captured: Captured) -> str:
    """A folder's name: equal for equal launches, whatever they took."""

    def facts(variant: CapturedVariant) -> Any:
        shapes = sorted((s.id, sorted((k, repr(v)) for k, v in s.args.items())) for s in variant.shapes)
        return variant.digest, bool(variant.count), shapes

    text = json.dumps(sorted((facts(v) for v in captured.variants), key=repr), default=str)
    return f"{captured.variants[0].name[:40]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
