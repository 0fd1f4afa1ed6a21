"""What the caller's interpreter imports from: a confined one finds the same modules, to read only."""

from __future__ import annotations

import functools
import json
import os
import site
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

_ASK = "import json, sys; print(json.dumps(sys.path))"
#: a fresh interpreter's start, in seconds, at worst (path files may run code)
_START_S = 60.0


def import_path() -> list[str]:
    """Entries of `sys.path`, in its order, that a confined interpreter imports from too.

    Those that PYTHONPATH, the installation or a path file name, and those that hold an installed
    distribution, however they were added. Not the folder of the running script, nor the current one: those
    were not chosen to import packages from, and they hold what else the user has there. For the same reason
    no folder that holds the user's home or the temporary files.
    """
    named = set(_configured(_python_path()))
    found = dict.fromkeys(
        entry for entry in sys.path if Path(entry).is_absolute() and (entry in named or _has_packages(entry))
    )
    found.setdefault(str(Path(__file__).resolve().parents[3]))  # also what an editable installation needs
    # not Path.home, which raises where the user has none
    kept = {Path(tempfile.gettempdir()).resolve(), Path(os.path.expanduser("~")).resolve()}  # noqa: PTH111
    return [
        entry
        for entry in found
        if os.path.exists(entry)  # noqa: PTH110
        and not any(place.is_relative_to(Path(entry).resolve()) for place in kept)
    ]


def python_folders() -> list[str]:
    """Files and folders that the interpreter and its imports need to read."""
    places = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *site.getsitepackages()}
    places.add(str(Path(sys.executable).resolve().parent.parent))
    places.update(import_path())
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable___"):  # setuptools finds what is installed in place by a map
            places.update(getattr(module, "MAPPING", {}).values())
    return sorted(place for place in places if os.path.exists(place))  # noqa: PTH110


def _python_path() -> str:
    """PYTHONPATH; an empty entry means the current folder, and is there by mistake as a rule."""
    entries = [] if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(os.path.abspath(entry) for entry in entries if entry)  # noqa: PTH100


@functools.cache
def _configured(python_path: str) -> tuple[str, ...]:
    """What a fresh interpreter has, path files executed; its first entry is the current folder."""
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if python_path:
        own["PYTHONPATH"] = python_path
    flags = [flag for flag, on in (("-s", sys.flags.no_user_site), ("-S", sys.flags.no_site)) if on]
    done = subprocess.run(
        [sys.executable, *flags, "-c", _ASK], capture_output=True, env=own, check=False, timeout=_START_S
    )
    try:
        lines = done.stdout.splitlines()
        return tuple(entry for entry in json.loads(lines[-1]) if entry)
    except (ValueError, IndexError):
        return ()


def _has_packages(entry: str) -> bool:
    folder = Path(entry)
    return any(any(folder.glob(kind)) for kind in ("*.dist-info", "*.egg-info"))
