"""What a verdict depends on."""

from __future__ import annotations

import hashlib
from pathlib import Path


def validator_digest() -> str:
    """Hash of everything that a verdict depends on: a plan of another validator is stale."""
    import sassafras

    root = Path(str(sassafras.__file__)).parent
    files = sorted([*root.glob("validate/*.py"), *root.glob("sass/**/*.py"), *root.glob("sass/**/*.json")])
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]
