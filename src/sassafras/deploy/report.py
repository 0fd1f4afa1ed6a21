"""Output of `sassafras status`: the switches, the store, and the processes that wrote a status."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sassafras.core.errors import SassafrasError, os_errors

from .index import Index
from .records import Status, read_statuses
from .settings import AUTOINSTALL, DENY, DISABLE, REVALIDATE, STATUS, WAIT, DeploySettings
from .triton_load import unchecked


@dataclass(frozen=True, slots=True)
class Overview:
    """See `overview`.

    Attributes:
        triton: version and whether it is one that can be wrapped.
        store: path, state, and kernels with a tuned cubin by GPU model.
        environment: our variables that are set.
        folder: where processes write, or None.
        processes: what they wrote, oldest first.
    """

    triton: str
    store: Mapping[str, Any]
    environment: Mapping[str, str]
    folder: Path | None
    processes: tuple[Status, ...] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "triton": self.triton,
            "store": dict(self.store),
            "environment": dict(self.environment),
            "folder": None if self.folder is None else str(self.folder),
            "processes": [status.to_json() for status in self.processes],
        }

    def __str__(self) -> str:
        path, state = str(self.store["path"]), str(self.store["state"])  # an error names its place as well
        lines = [f"triton: {self.triton}", f"store: {path}: {state.removeprefix(f'{path}: ')}"]
        for gpu, count in self.store["tuned"].items():
            lines.append(f"  {gpu}: tuned cubins for {count} kernels")
        lines += [f"{name}={value}" for name, value in self.environment.items()]
        if self.folder is None:
            lines.append(f"no status folder named: start the program with {STATUS}=FOLDER to see it here")
        elif not self.processes:
            lines.append(f"no process has written to {self.folder}")
        for status in self.processes:
            who = status.process
            life = {True: "running", False: "ended", None: "on another host"}[who.get("alive")]
            lines += ["", f"{who.get('program', '?')} (pid {who.get('pid', '?')}, {life})", str(status)]
        return "\n".join(lines)


def overview(folder: Path | None = None, store: Path | None = None) -> Overview:
    """What deployment would find in a process started here, and what running processes say they loaded.

    Raises:
        SassafrasError: `folder` cannot be read.
    """
    settings = DeploySettings.read(store, status_dir=folder)
    index = Index.read(settings.store, settings.wait_s)
    tuned = Counter(gpu for gpus in index.gpus.values() for gpu in gpus)
    names = (DISABLE, DENY, REVALIDATE, AUTOINSTALL, STATUS, WAIT)
    place = settings.status_dir
    processes: tuple[Status, ...] = ()
    if place is not None and place.is_dir():
        with os_errors("cannot read the status folder", place):
            processes = tuple(read_statuses(place))
    elif folder is not None:
        raise SassafrasError(
            "there is no such folder", where=str(folder), hint=f"start the program with {STATUS}={folder}"
        )
    return Overview(
        _triton(),
        {"path": str(index.path), "state": index.state, "tuned": dict(tuned)},
        {name: os.environ[name] for name in names if name in os.environ},
        place,
        processes,
    )


def _triton() -> str:
    """The installed version, read without importing Triton."""
    if importlib.util.find_spec("triton") is None:
        return "not installed"
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"
    return f"{version}, which this was not checked on: left alone" if unchecked(version) else version
