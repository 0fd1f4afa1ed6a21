"""Networks on disk: NumPy arrays and a JSON description in one ``.npz``, no pickle."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from sassafras.core import SearchError

_HEAD = "description"
FORMAT = 1
#: what earlier versions called parts of a description
_RENAMED = {"lessons": "settings", "verbs": "actions", "boards": "kernels", "looks": "samples_per_state"}
#: the policy that ships with the package
PRETRAINED = "pretrained.npz"


def save(path: Path, arrays: Mapping[str, np.ndarray], description: Mapping[str, Any]) -> None:
    """Write a checkpoint, complete or not at all.

    Args:
        path: ends in ``.npz``.
        arrays: by name; no name may be ``description``.
        description: JSON-able facts: network, its arguments, how it was trained.
    """
    head = json.dumps({"format": FORMAT, **description}, sort_keys=True).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    with part.open("wb") as file:
        held: dict[str, Any] = {_HEAD: np.frombuffer(head, dtype=np.uint8), **arrays}
        np.savez_compressed(file, **held)
    part.replace(path)


def load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `save` wrote: (arrays, description).

    Raises:
        SearchError: there is no such file, or it is not a checkpoint of this format.
    """
    try:
        with np.load(path, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        description = json.loads(arrays.pop(_HEAD).tobytes())
        if description.get("format") != FORMAT:
            raise ValueError(f"format {description.get('format')!r}, not {FORMAT}")
    except (OSError, EOFError, TypeError, ValueError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise SearchError(
            f"cannot read this policy: {error}", where=str(path), hint="see docs/concepts/assembly-game.md"
        ) from error
    return arrays, _renamed(description)


def _renamed(value: Any) -> Any:
    """A description under the names of today."""
    if not isinstance(value, dict):
        return value
    return {_RENAMED.get(name, name): _renamed(held) for name, held in value.items()}


def find(policy: str) -> Path | None:
    """The file that a policy's name stands for; None for networks that start from nothing.

    Raises:
        SearchError: the pre-trained policy is not installed, or there is no such file.
    """
    if policy in ("fresh", "untrained"):
        return None
    if policy != "pretrained":
        if not Path(policy).is_file():
            raise SearchError(
                f"there is no policy {policy!r}",
                hint="pretrained, fresh, untrained, or a file",
            )
        return Path(policy)
    path = Path(str(resources.files(__package__).joinpath(PRETRAINED)))
    if not path.exists():
        raise SearchError(
            "no pre-trained policy is installed",
            hint="python -m sassafras.training, then --policy PATH; or --policy fresh",
        )
    return path


def digest(path: Path) -> str:
    """First 16 digits of the file's sha256: part of what makes two searches the same.

    Raises:
        SearchError: it cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise SearchError(f"cannot read this policy: {error}", where=str(path)) from error
