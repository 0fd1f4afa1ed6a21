"""Installing without touching the program: what `sassafras run` sets, and what reads it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .settings import AUTOINSTALL, DENY, STATUS, DeploySettings

#: the module that a program must import to launch Triton kernels
_TRITON = "triton.compiler.compiler"


def install_when_triton_comes() -> None:
    """`install()` once the program has imported Triton; a program that never does has no cost."""
    from .lazy import after_import

    def then(module: object) -> None:
        from .engine import _install

        _install(DeploySettings.read(), everything=True, module=module)

    after_import(_TRITON, then)


def environment(
    *, store: Path | None = None, status: Path | None = None, deny: Sequence[str] = ()
) -> dict[str, str]:
    """The variables that make a program's Pythons, child processes too, install by themselves.

    ``PYTHONPATH`` gets a folder with a ``sitecustomize`` module in front. ``python -I`` and ``-E`` do not
    look there, and a Python that has no Sassafras goes on without it.

    Args:
        store: the store's file, if not the default.
        status: folder for status files.
        deny: names of kernels that keep the compiler's code, beside those of the variable already set.
    """
    made = {AUTOINSTALL: "1", "PYTHONPATH": hook_path()}
    if store is not None:
        made["SASSAFRAS_STORE"] = str(store.expanduser().resolve())
    if status is not None:
        made[STATUS] = str(status.expanduser().resolve())
    if deny:
        made[DENY] = ",".join([*filter(None, [os.environ.get(DENY)]), *deny])
    return made


def hook_path() -> str:
    """``PYTHONPATH`` with the folder in front whose ``sitecustomize`` reads our variables."""
    hook = str(Path(__file__).resolve().parents[1] / "autoinstall")
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry not in ("", hook)]
    return os.pathsep.join([hook, *path])
