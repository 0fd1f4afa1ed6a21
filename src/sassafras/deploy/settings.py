"""Settings of a deployment: from arguments, else from environment variables."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: 1 (or true, yes, on): nothing is substituted, whatever else was asked for; looked at on every kernel load
DISABLE = "SASSAFRAS_DISABLE"
#: kernel names that are never substituted, separated by commas; ``*`` and ``?`` as in a shell
DENY = "SASSAFRAS_DENY"
#: when imported winners are validated again: imported (the default), always, never
REVALIDATE = "SASSAFRAS_REVALIDATE"
#: folder that each process writes its status to, for `sassafras status` in another process
STATUS = "SASSAFRAS_STATUS"
#: 1: a Python started by `sassafras run` (or with our folder on PYTHONPATH) installs by itself
AUTOINSTALL = "SASSAFRAS_AUTOINSTALL"
#: seconds that a program waits for the store at most, at `install` and at each match
WAIT = "SASSAFRAS_WAIT"

Revalidate = Literal["imported", "always", "never"]
_DEFAULT_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class DeploySettings:
    """How a process deploys.

    Attributes:
        store: the store's file; None for `sassafras.store.default_path()`.
        deny: patterns of kernel names that keep the compiler's code.
        revalidate: which tuned cubins the validator sees again before their first use.
        wait_s: seconds to wait for the store at most.
        status_dir: folder for the status file, or None for none.
    """

    store: Path | None = None
    deny: tuple[str, ...] = ()
    revalidate: Revalidate = "imported"
    wait_s: float = _DEFAULT_WAIT_S
    status_dir: Path | None = None

    @classmethod
    def read(
        cls,
        store: str | Path | None = None,
        deny: Iterable[str] = (),
        revalidate: Revalidate | None = None,
        wait_s: float | None = None,
        status_dir: str | Path | None = None,
    ) -> DeploySettings:
        """Arguments where given, else the environment. An unusable value falls to the careful side."""
        asked = revalidate or os.environ.get(REVALIDATE, "imported")
        careful: Revalidate = "always"
        chosen = {"imported": "imported", "always": "always", "never": "never"}.get(str(asked), careful)
        names = [deny] if isinstance(deny, str) else list(deny)
        names += os.environ.get(DENY, "").split(",")
        named, folder = store or os.environ.get("SASSAFRAS_STORE"), status_dir or os.environ.get(STATUS)
        return cls(
            _place(named),
            tuple(dict.fromkeys(name.strip() for name in names if name.strip())),
            chosen,  # type: ignore[arg-type]
            _seconds(wait_s),
            _place(folder),
        )


def disabled() -> bool:
    """Is the kill switch on?"""
    return os.environ.get(DISABLE, "").strip().lower() in ("1", "true", "yes", "on")


def _place(named: str | Path | None) -> Path | None:
    """A path that stays the same when the program changes its folder; None where none is named."""
    try:
        return Path(named).expanduser().absolute() if named else None
    except (OSError, RuntimeError):  # the present folder was removed, or there is no such home
        return Path(str(named))


def _seconds(given: float | None) -> float:
    try:
        seconds = float(os.environ.get(WAIT, _DEFAULT_WAIT_S) if given is None else given)
    except ValueError:
        return _DEFAULT_WAIT_S
    return seconds if 0 < seconds < 3600 else _DEFAULT_WAIT_S
