"""Everything that sassafras.matmul may load, compiled before the first call: for images and shared folders.

The folder is what ``$SASSAFRAS_GEMM_CACHE`` names where the program runs; it may be read-only there. Cubins
run on every Hopper GPU and driver; the launcher belongs to one version of Python and one platform.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError

from ..configs import attention, joined, registry, rows, turned
from ..configs.registry import Instance, expression
from . import cubins as compiling
from . import launcher as launchers
from . import schedules


def kernels(only: str = "") -> list[Instance]:
    """The instances of all kernels: plain, BF16, nt and tt, with epilogues; second kernels; between products.

    Args:
        only: a regular expression that a name has to match somewhere (a second kernel's goes with the first).

    Raises:
        SassafrasError: it is none, or finds nothing.
    """
    wanted = expression(only)
    products = (*registry.INSTANCES, *registry.OTHER_INSTANCES, *registry.EPILOGUE_INSTANCES)
    between = *rows.INSTANCES, *attention.INSTANCES, *turned.INSTANCES
    every: tuple[Any, ...] = (*products, *joined.INSTANCES, *between)
    found = [instance for instance in every if wanted.search(instance.name)]
    if not found:
        raise SassafrasError("no kernel has such a name", where=only)
    return compiling.with_companions(found)


def missing(folder: Path, instances: Sequence[Instance], launcher: bool = True) -> list[str]:
    """Names of the files that are not there: cubins of this version's text, this Python's launcher."""
    paths = [compiling.cached_path(instance, folder) for instance in instances]
    absent = [path.name for path in paths if compiling.stored(path) is None]
    if launcher and not (built := launchers.path(folder)).is_file():
        absent.append(built.name)
    return absent


def scheduled(gpu: str, folder: Path | None = None) -> str:
    """What there is of tuned schedules for a GPU, among the compiled kernels of a folder; for people."""
    found, waiting = [], 0
    for name in schedules.entries(gpu):
        try:
            path = compiling.cached_path(registry.parse_instance(name), folder)
        except SassafrasError:
            continue  # a kernel of another version
        if path.is_file():
            found.append(schedules.scheduled(path.read_bytes(), name, gpu))
        else:
            waiting += 1
    later = f"{waiting} not compiled yet" if waiting else ""
    return "; ".join(filter(None, [schedules.words(found), later]))


def build(
    folder: Path, instances: Sequence[Instance], workers: int | None = None, launcher: bool = True
) -> list[str]:
    """Compile what is missing; returns what to tell the user of a launcher that could not be built.

    Raises:
        CompileError, ToolMissing: a kernel cannot be compiled.
        SassafrasError: the folder does not take it; what was kept before stays.
    """
    compiling.build(instances, folder, workers)
    if launcher:
        try:
            launchers.build(folder)
        except SassafrasError as error:
            return [str(error)]
    return []
