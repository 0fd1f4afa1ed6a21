"""A raw cubin with a description of its launch, as a workload."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sassafras.core import Case, Kernel, Tolerance, Workload, WorkloadError
from sassafras.core.errors import os_errors
from sassafras.core.workload import Reference
from sassafras.sass.cubin import Cubin

from . import _image


@dataclasses.dataclass(frozen=True)
class CubinBuilder:
    """Wraps a cubin that is there already; `build` only checks that it fits.

    Attributes:
        path: the cubin.
        entry: kernel name; None when the cubin holds one kernel.
        threads: threads a block, unless a case's options say otherwise.
        shared_bytes: dynamic shared memory a block, unless a case's options say otherwise.
        label: the workload's name, for error messages.
    """

    path: Path
    entry: str | None
    threads: int
    shared_bytes: int
    label: str

    def __call__(self, case: Case, arch: str, ptxas: str | None = None) -> Kernel:
        """The kernel as it stands.

        Raises:
            WorkloadError: the file cannot be read, or entry or arguments do not fit.
            UnsupportedArch: the cubin is for another architecture.
            CubinError: the file is no usable cubin.
        """
        where = f"{self.label}, case {case.name}"
        if ptxas is not None:
            raise WorkloadError("a raw cubin cannot be assembled again with another ptxas", where=where)
        with os_errors("cannot read the cubin", self.path, WorkloadError):
            data = self.path.read_bytes()
        meta = {"compiler": "cubin", "source_hash": hashlib.sha256(data).hexdigest()}
        return kernel_of(data, self.entry, case, arch, self.threads, self.shared_bytes, meta, where)


def kernel_of(
    data: bytes,
    entry_name: str | None,
    case: Case,
    arch: str,
    threads: int,
    shared_bytes: int,
    meta: Mapping[str, Any],
    where: str,
) -> Kernel:
    """A kernel of a cubin, its arguments typed by what the cubin says of its parameters.

    Raises:
        WorkloadError, UnsupportedArch, CubinError: see `CubinBuilder.__call__`.
    """
    cubin = Cubin.parse(data)
    entry = _image.find_entry(cubin, entry_name, where)
    return Kernel(
        cubin=data,
        name=entry.name,
        arch=_image.arch_of(cubin, arch, where),
        threads=_image.whole_option(case, "threads", threads, where, 1, _image.MOST_THREADS),
        shared_bytes=_image.whole_option(case, "shared_bytes", shared_bytes, where, 0, _image.MOST_SHARED),
        cluster=_image.cluster_shape(entry),
        parameters=_image.typed_parameters(_image.parameter_sizes(entry), case.args, where),
        meta=meta,
    )


def workload(
    path: str | Path,
    cases: Sequence[Case],
    *,
    threads: int,
    entry: str | None = None,
    shared_bytes: int = 0,
    reference: Reference | None = None,
    tolerance: Tolerance | None = None,
    name: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Workload:
    """A workload around a cubin file.

    Args:
        path: the cubin.
        cases: shapes; `Case.args` in parameter order. Options ``threads`` and ``shared_bytes`` of a case
            override those given here.
        threads: threads a block.
        entry: kernel name, mangled or plain; may be left out when the cubin holds one kernel.
        shared_bytes: dynamic shared memory a block.
        reference: expected outputs; without one, candidates are compared with the original only.
        tolerance: how far an output may be from the reference.
        name: defaults to the entry or the file's stem.
        meta: provenance, JSON-able.

    Raises:
        WorkloadError: there is no such file, or no case.
    """
    path = Path(path)
    if not path.is_file():
        raise WorkloadError("no such cubin", where=str(path))
    label = name or entry or path.stem
    return Workload(
        name=label,
        cases=tuple(cases),
        build=CubinBuilder(path, entry, threads, shared_bytes, label),
        reference=reference,
        tolerance=tolerance or Tolerance(),
        meta={"frontend": "cubin", **(meta or {})},
    )
