"""The process that keepers are forked from: ``python -P template.py FILE DESCRIPTOR`` (see `keepers`).

Run by its path, as the programs are: the packages around it stay out of their memory.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
from functools import partial
from pathlib import Path
from typing import Any

_OURS = [str(Path(__file__).parents[up]) for up in (0, 3)]
sys.path[:0] = _OURS
from confine import fork_sibling, keep  # type: ignore[import-not-found,unused-ignore]  # noqa: E402

from sassafras.cuda.fork_server import serve  # noqa: E402

del sys.path[:2]
#: seconds without a new program after which it ends
IDLE_S = 60.0


class Keepers:
    """What `fork_server.serve` forks: a keeper, whose program is the file's ``main``."""

    def __init__(self, file: str) -> None:
        self._file = file

    def preload(self) -> None:
        """Import the file, and what it imports. No word of a program has come by then, nor comes later."""
        spec = importlib.util.spec_from_file_location("confined", self._file)
        assert spec is not None and spec.loader is not None
        self._module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._module)
        self._module.preload()
        with open("/proc/self/smaps") as file:  # noqa: PTH123
            if any(line.startswith("VmFlags:") and "sh" in line.split() for line in file):
                raise OSError(f"{self._file} leaves memory that its forks would share")

    def main(self) -> int:
        """In the fork: keep the program that the first descriptor tells of."""
        os.setsid()
        note, *given = map(int, sys.argv[1:-1])
        with os.fdopen(note) as file:
            told = json.load(file)
        spec = told["spec"]
        _place(given, [spec["report"], spec["lifeline"], *spec["descriptors"]])
        if not os.read(spec["lifeline"], 1):
            return 1  # the judge does not know of us
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir(told["folder"])
        os.environ.clear()
        os.environ.update(told["environment"])
        return int(keep(spec, partial(self._run, told["words"])))

    def _run(self, words: list[str]) -> int:
        """In the confined process: what an interpreter of its own would do."""
        sys.argv = words
        tempfile.tempdir = None
        _draw_anew()
        try:
            return int(self._module.main(*map(int, words[1:])))
        except BaseException:
            traceback.print_exc()
            return 1
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()


def _draw_anew() -> None:
    """Give the generators that were seeded when they were imported seeds of this process."""
    random.seed()
    found: Any = sys.modules
    if "numpy.random" in found:
        found["numpy.random"].seed()
    if "torch" in found:
        found["torch"].default_generator.seed()  # the CPU's; a GPU's begins alike in every process


def _place(given: list[int], wanted: list[int]) -> None:
    """Have these descriptors where an interpreter of its own would have them, and no others but 0 to 2."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # as the judge, which may have more by now
    above = max(2, *given, *wanted) + 1
    for number, fd in enumerate(given):
        os.dup2(fd, above + number)
    for number, fd in enumerate(wanted):
        os.dup2(above + number, fd)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2 and int(name) not in wanted:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(int(name))


if __name__ == "__main__":
    os._exit(serve(partial(Keepers, sys.argv[1]), int(sys.argv[2]), fork_sibling, IDLE_S))
