"""What a node needs in order to load a workload that lies on the driver's machine."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sassafras.core import Case, Kernel, Workload, WorkloadError
from sassafras.core.errors import os_errors
from sassafras.core.identity import fingerprint
from sassafras.frontend import description
from sassafras.targets.load import NAMED, load

#: files beside the workload that travel with it
SUFFIXES = frozenset({".py", ".toml", ".cu", ".cuh", ".h", ".hpp", ".cubin", ".json", ".npz", ".npy"})
MAX_BYTES = 16 << 20


def describe(workload: Workload, case: Case, baseline: Kernel) -> dict[str, Any]:
    """What `JobSubject` makes the same three objects from on another machine.

    Raises:
        WorkloadError: the workload cannot be loaded again, or the files beside it are too large to send.
    """
    if not workload.source:
        raise WorkloadError(
            "a cluster's node loads the workload again from its file, and this one has none",
            where=workload.name,
            hint="load it with sassafras.targets.load('file.py:attribute')",
        )
    return {
        "source": workload.source,
        "case": description.describe(case),
        "files": {} if workload.source.startswith(NAMED) else _beside(workload.source),
        "baseline": baseline,
    }


def _split(source: str) -> tuple[Path, str]:
    """The path of a source, and ``:attribute`` or nothing."""
    text, dot, attribute = source.partition(".py:")
    return (Path(text + ".py"), ":" + attribute) if dot else (Path(source), "")


def _beside(source: str) -> dict[str, bytes]:
    """The workload's file and those beside it that it may read or import."""
    path, _ = _split(source)
    files: dict[str, bytes] = {}
    total = 0
    with os_errors("cannot read what lies beside the workload", path.parent, WorkloadError):
        for file in sorted(path.parent.iterdir()):
            if not file.is_file() or (file.suffix not in SUFFIXES and file != path):
                continue
            total += file.stat().st_size
            if total > MAX_BYTES:
                raise WorkloadError(
                    f"the files beside the workload exceed {MAX_BYTES >> 20} MiB, and all would travel",
                    where=str(path.parent),
                    hint="give the workload a folder of its own",
                )
            files[file.name] = file.read_bytes()
    return files


class JobSubject:
    """The workload, case and baseline of a payload; its files lie in a temporary folder while it is open.

    Attributes:
        workload, case, baseline: as on the driver.

    Raises:
        WorkloadError: when it is opened: the workload cannot be loaded here, or its case is another.
    """

    workload: Workload
    case: Case
    baseline: Kernel

    def __init__(self, described: Mapping[str, Any]) -> None:
        self._described = described
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> JobSubject:
        source, files = str(self._described["source"]), self._described["files"]
        if files:
            self._folder = tempfile.TemporaryDirectory(prefix="sassafras-node-", ignore_cleanup_errors=True)
            for name, data in files.items():
                Path(self._folder.name, Path(name).name).write_bytes(data)
            path, attribute = _split(source)
            source = str(Path(self._folder.name, path.name)) + attribute
        try:
            self.workload = load(source)
            self.case = self.workload.case(self._described["case"]["name"])
            if fingerprint(description.describe(self.case)) != fingerprint(self._described["case"]):
                raise WorkloadError(
                    f"case {self.case.name} has other arguments than on the driver",
                    where=f"{socket.gethostname()}: {self._described['source']}",
                    hint="was the file edited meanwhile? what it imports must be the same on all nodes",
                )
        except BaseException:
            self.__exit__()
            raise
        self.baseline = self._described["baseline"]
        return self

    def __exit__(self, *exception: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
