"""Checking a store before it goes to many machines, and tuned cubins for programs without Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sassafras.core import Kernel, StoreError
from sassafras.deploy.fleet import check
from sassafras.store import Store
from tests.kernels import softmax_cubin

from .conftest import retuned, save

#: compiling the model and the space for the first time takes a while on a busy machine
pytestmark = pytest.mark.timeout(1500)


def softmax() -> Kernel:
    return Kernel(softmax_cubin(), "softmax", "sm_90a", 128, 32, meta={"source_hash": "s"})


def swapped(cubin: bytes) -> bytes:
    """Two neighbouring loads of the code made one: another program."""
    from sassafras.sass import Program

    code = Program.parse(cubin).function("softmax")
    at = [i.index for i in code.instructions if i.base == "LDG"][:2]
    words = bytearray(cubin)
    first, second = (code.text_offset + 16 * n for n in at)
    words[first : first + 16] = words[second : second + 16]
    return bytes(words)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sassafras", "store", *arguments], capture_output=True, text=True, timeout=900
    )


def test_every_winner_is_examined(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    kernel = softmax()
    save(path, kernel, retuned(kernel.cubin))
    save(path, kernel, swapped(kernel.cubin), speedup=1.2)
    with Store.open(path, readonly=True) as store:
        bad, good = check(store)  # the surest first
    assert good.problem is None and bad.problem is not None and "validator refuses" in bad.problem
    ran = command("check", "--store", str(path))
    assert ran.returncode == 1 and "fit for use" in ran.stdout and "validator refuses" in ran.stdout
    assert command("check", "--store", str(path), "--remove").returncode == 1
    ran = command("check", "--store", str(path), "--json")
    assert ran.returncode == 0 and '"fit for use"' in ran.stdout
    with Store.open(path) as store:
        assert [w.tuned for w in store.winners()] == [good.winner.tuned]
        with pytest.raises(StoreError, match="no winner"):
            store.remove_winner(bad.winner.id)


def test_a_plain_module_gets_its_tuned_cubin_at_build_time(tmp_path: Path) -> None:
    path, kernel = tmp_path / "store.sqlite", softmax()
    save(path, kernel, retuned(kernel.cubin))
    original, out = tmp_path / "k.cubin", tmp_path / "t.cubin"
    original.write_bytes(kernel.cubin)
    ran = command("tuned", str(original), "--gpu", "NVIDIA H200", "-o", str(out), "--store", str(path))
    assert ran.returncode == 0 and out.read_bytes() == retuned(kernel.cubin), ran.stderr
    other = command(
        "tuned", str(original), "--gpu", "NVIDIA A100", "-o", str(tmp_path / "n"), "--store", str(path)
    )
    assert other.returncode == 1 and "tuned for NVIDIA H200" in other.stdout and not (tmp_path / "n").exists()
