"""Scripts of benchmarks/ in the tests' own process: a process of its own takes one to three seconds to begin.

That each starts as a program and explains itself is `benchmarks/test_file_arguments.py`'s.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run_benchmark(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """What ``python benchmarks/NAME.py WORDS`` gives; an exception that leaves it is raised."""
    command = [str(BENCHMARKS / f"{name}.py"), *map(str, words)]
    out, err, status = io.StringIO(), io.StringIO(), None
    environment = dict(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", command)
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                runpy.run_path(command[0], run_name="__main__")
            except SystemExit as end:
                status = end.code
            finally:
                os.environ.clear()
                os.environ.update(environment)
    if isinstance(status, str):
        status, _ = 1, err.write(status + "\n")
    return subprocess.CompletedProcess(command, status or 0, out.getvalue(), err.getvalue())
