"""Messages name the real fault: what is wrong on the machine or in the kernel, and the way out."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sassafras.cli.app import app

KERNELS = """
import triton
import triton.language as tl

from sassafras import Buffer, Case
from sassafras.frontend.triton import workload as made_of


@triton.jit
def copy(y, x, n, PRINTS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    if PRINTS:
        tl.device_print("v", v)
    tl.store(y + i, v, mask=i < n)


def call(prints=False):
    args = {"y": Buffer("fp32", (500,), "out"), "x": Buffer("fp32", (500,)), "n": 500}
    return Case("c", lambda meta: (triton.cdiv(500, meta["BLOCK"]),), args, {"PRINTS": prints, "BLOCK": 256})


workload = made_of(copy, [call()])
prints = made_of(copy, [call(True)])


def gluon():
    from triton.experimental import gluon

    return made_of(gluon.jit(copy.fn), [call()])


class Module:  # as torch's: what is looked for is there
    def forward(self, x):
        return x

    def named_parameters(self):
        return ()


module = Module()
"""
OPTIONS = ["--device", "model", "--budget", "2e", "--no-check", "--store", "st.sqlite"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text(KERNELS)
    (tmp_path / "ké.py").write_text(KERNELS)
    (tmp_path / "file").touch()
    # what was compiled from another path would be found in the cache of the other tests
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def said(*words: str) -> str:
    """The line that a failing `optimize` ends with."""
    ran = CliRunner().invoke(app, ["optimize", *words, *OPTIONS])
    assert ran.exit_code == 2, f"{ran.exit_code}: {ran.output} {ran.exception!r}"
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["k.py:prints"], "case c: the kernel prints (tl.device_print)"),
        (["k.py:gluon"], "copy: a Gluon kernel cannot be described in a workload file (record a call of it"),
        (["k.py:module"], "'module' is a torch.nn.Module, not a Workload (record its call"),
        (["k.py:copy"], "'copy' is a JITFunction, not a Workload"),
        (["k.py", "--ptxas", "/bin/true"], "/bin/true: it ran and wrote no cubin: this is no ptxas"),
        (["ké.py"], "\\xe9.py' is not ASCII (rename the file or its folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_with_the_target(here: Path, words: list[str], part: str) -> None:
    assert part in said(*words)


def test_a_compiler_that_hangs(here: Path) -> None:
    ptxas = here / "ptxas"
    ptxas.write_text("#!/bin/sh\nsleep 600\n")
    ptxas.chmod(0o755)
    begin = time.monotonic()
    line = said("k.py", "--ptxas", str(ptxas), "--compile-timeout", "6")
    assert "copy, case c: compilation did not end within 6 s (--compile-timeout SECONDS" in line
    assert time.monotonic() - begin < 60


def test_a_cache_that_cannot_be_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(here / "file"))
    line = said("k.py")
    assert f"{here / 'file'}: Triton's cache cannot be written: Not a directory (TRITON_CACHE_DIR" in line


@pytest.mark.parametrize(
    ("before", "target", "part"),
    [
        ("ulimit -f 1", "k.py", "this shell limits files to 1 KiB: ulimit -f"),
        ("export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0", "ké.py", "is not ASCII (rename the file"),
    ],
    ids=["ulimit", "locale"],
)
def test_what_is_wrong_with_the_shell(here: Path, before: str, target: str, part: str) -> None:
    command = f"{before}; exec {sys.executable} -m sassafras optimize {target} {' '.join(OPTIONS)}"
    # without bytecode: Python 3.11 keeps what a limit of files has cut off
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=200, check=False, env=env)
    text = done.stderr.decode(errors="replace")
    assert done.returncode == 2 and part in text and "Traceback" not in text, text
