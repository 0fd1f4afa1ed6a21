"""What a verdict depends on, and cubins as differences from their original."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np


def validator_digest() -> str:
    """Hash of everything that a verdict depends on: a plan of another validator is stale."""
    import sassafras

    root = Path(str(sassafras.__file__)).parent
    files = sorted([*root.glob("validate/*.py"), *root.glob("sass/**/*.py"), *root.glob("sass/**/*.json")])
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


def difference(old: bytes, new: bytes) -> list[tuple[int, str]]:
    """(offset, bytes as hexadecimal) of every run of bytes that changed; both are equally long."""
    a, b = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    places = np.flatnonzero(a != b)
    runs: list[tuple[int, str]] = []
    for run in np.split(places, np.flatnonzero(np.diff(places) > 4) + 1):
        if run.size:
            runs.append((int(run[0]), new[run[0] : run[-1] + 1].hex()))
    return runs


def patched(old: bytes, runs: list[tuple[int, str]]) -> bytes:
    """The inverse of `difference`."""
    data = bytearray(old)
    for offset, text in runs:
        piece = bytes.fromhex(text)
        data[offset : offset + len(piece)] = piece
    return bytes(data)
