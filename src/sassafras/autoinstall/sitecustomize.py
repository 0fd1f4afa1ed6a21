"""Found first on the path by a Python that `sassafras run` starts: installs, then hands on.

Python imports a module of this name at start-up. The one that we hide, if there is one, runs too.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path


def _install() -> None:
    if os.environ.get("SASSAFRAS_AUTOINSTALL") == "1":
        from sassafras.deploy.auto import install_when_triton_comes

        install_when_triton_comes()
    if os.environ.get("SASSAFRAS_CAPTURE"):
        from sassafras.capture.recording import start_when_triton_comes

        start_when_triton_comes()


def _hand_on() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = Path(__file__).resolve().parent
    rest = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != here]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


with suppress(Exception):  # another Python without us, an old one: the program runs as it would have
    _install()
_hand_on()
