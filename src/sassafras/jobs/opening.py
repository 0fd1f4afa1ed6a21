"""Opens the workload, the device and the store of a search."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from sassafras.core import Device, DeviceError, Workload
from sassafras.cuda.environment import available
from sassafras.evaluate.gpu import CudaDevice
from sassafras.store import Store
from sassafras.targets import load
from sassafras.timing_model import ModelDevice

#: architecture compiled for where there is no GPU and the user names none
DEFAULT_ARCH = "sm_90a"


def load_workload(target: str | Path | Workload) -> Workload:
    """A target as `optimize` reads it. Raises WorkloadError."""
    if isinstance(target, Workload):
        return target
    return load(str(target))


def open_device(device: str | Device, arch: str | None = None) -> Device:
    """A device by name: auto, cuda, model. Raises DeviceError."""
    if not isinstance(device, str):
        return device
    if device == "auto":
        device = "cuda" if available()[0] else "model"
    made: Device
    if device == "cuda":
        made = CudaDevice()
    elif device == "model":
        made = ModelDevice(arch or DEFAULT_ARCH)
    else:
        raise DeviceError(f"there is no device {device!r}", hint="auto, cuda, model, or a Device of your own")
    return made


def opened_store(store: str | Path | Store | bool | None) -> Any:
    """A context with a store: by path, the default one (None, True), an open one, or none (False)."""
    if store is False:
        return nullcontext(None)
    if isinstance(store, Store):
        return nullcontext(store)
    if store is True:
        store = None
    return Store.open(store)


def read_store(store: str | Path | Store | None) -> AbstractContextManager[Store]:
    """A context with a store that is only read: by path, the default one (None), or an open one.

    Raises:
        StoreError: there is none.
    """
    return nullcontext(store) if isinstance(store, Store) else Store.open(store, readonly=True)
