"""Do something after a module is imported, without importing it ourselves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(name: str, then: Callable[[ModuleType], None]) -> Callable[[], None]:
    """Call `then(module)` once, right after the module `name` has run, or now if it has already.

    An exception from `then` is swallowed: the program's import must not fail because of us.

    Returns:
        A function that calls it off.
    """
    if (module := sys.modules.get(name)) is not None:
        with suppress(Exception):
            then(module)
        return lambda: None
    finder = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    return finder.stop


class _Finder(MetaPathFinder):
    """Finds nothing itself: it asks the other finders, and wraps what the loader they name does last."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then

    def stop(self) -> None:
        """Look no longer."""
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give for our module; None for any other module."""
        if fullname != self.name:
            return None
        self.stop()
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                self._follow(spec)
                return spec
        return None

    def _follow(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        run = getattr(loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module: ModuleType) -> None:
            run(module)
            with suppress(Exception):
                self.then(module)

        with suppress(AttributeError, TypeError):  # a loader without attributes of its own: left alone
            loader.exec_module = exec_module
