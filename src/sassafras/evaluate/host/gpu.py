"""What the CUDA driver needs of the system in a confined process: device files, facts, variables.

Known from what sandboxes of distributions grant CUDA programs, and from the driver's open sources.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from ..sandbox import Confinement

#: without /proc/modules and /proc/devices the driver takes its kernel modules for not loaded
CUDA_READABLE = (
    "/proc/driver/nvidia",
    "/proc/modules",
    "/proc/devices",
    "/proc/sys/vm/mmap_min_addr",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/memory",
    "/sys/bus/pci",
    "/sys/class/drm",
    "/sys/module/nvidia",
    "/sys/module/nvidia_uvm",
    "/etc/nvidia",
)
CUDA_WRITABLE = (
    *(f"/dev/nvidia{index}" for index in range(16)),
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-caps",
    "/dev/nvidia-modeset",
    "/proc/self/task",
)
#: which GPU, in whose numbering, and where the driver's library lies: the caller's choice
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH")
#: facts of a GPU's place; not its registers, which lie beside them
_FACTS = (
    "vendor",
    "device",
    "class",
    "revision",
    "subsystem_vendor",
    "subsystem_device",
    "numa_node",
    "local_cpus",
    "local_cpulist",
)
_NVIDIA = "0x10de"


def with_cuda(limits: Confinement) -> Confinement:
    """The same confinement with what the CUDA driver needs besides, and no limit on address space."""
    libraries = [
        entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry[:1] == "/"
    ]
    return replace(
        limits,
        memory_bytes=None,
        cuda=True,
        writable=(*limits.writable, *CUDA_WRITABLE),
        readable=(*limits.readable, *CUDA_READABLE, *_places(), *libraries),
    )


def variables() -> dict[str, str]:
    """The caller's variables that decide which GPU a process sees and which driver it loads."""
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def _places() -> list[str]:
    """Files that say where each GPU sits; sysfs links to them from a folder that may be read."""
    found = []
    for device in Path("/sys/bus/pci/devices").glob("*"):
        with contextlib.suppress(OSError):
            if (device / "vendor").read_text().strip() == _NVIDIA:
                found += [str(device / name) for name in _FACTS]
    return found
