"""``sassafras audit`` by exit status, text and JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from sassafras.sass import Program
from sassafras.sass.control import WAIT_SHIFT
from sassafras.sass.tools import find_all
from tests import kernels
from tests.cli.in_process import sassafras


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    path = tmp_path / "clean.cubin"
    path.write_bytes(kernels.softmax_cubin())
    return path


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A softmax whose first use of a load does not wait for it."""
    cubin = bytearray(kernels.softmax_cubin())
    function = Program.parse(bytes(cubin)).function()
    user = next(i for i in function.instructions if i.base.startswith("FM") and i.control.wait_mask)
    at = function.text_offset + user.offset + 8
    high = user.high & ~(0x3F << WAIT_SHIFT)
    cubin[at : at + 8] = high.to_bytes(8, "little")
    path = tmp_path / "cache" / "deep" / "broken.cubin"
    path.parent.mkdir(parents=True)
    path.write_bytes(cubin)
    return path


def test_a_clean_cubin(clean: Path) -> None:
    status, out, _ = sassafras("audit", clean)
    assert status == 0 and "softmax (sm_90a" in out and "1 kernel: 0 hazards" in out


def test_a_hazard_is_named_with_its_rule(broken: Path) -> None:
    status, out, _ = sassafras("audit", broken.parents[1])
    assert status == 1 and "deep/broken.cubin: softmax" in out
    assert "LDG" in out and "may be pending" in out and "only after a wait for a scoreboard" in out
    status, out, _ = sassafras("audit", broken, "--json")
    found = json.loads(out)
    assert status == 1 and not found["ok"] and found["hazards"] == len(found["kernels"][0]["hazards"]) > 0
    assert found["kernels"][0]["hazards"][0].keys() == {"kind", "where", "message", "rule"}


def test_bad_input(clean: Path, tmp_path: Path) -> None:
    text, empty = tmp_path / "notes.txt", tmp_path / "empty"
    text.write_text("no code")
    empty.mkdir()
    cut = tmp_path / "cut.cubin"
    cut.write_bytes(clean.read_bytes()[:3000])
    for arguments, part in (
        ((text,), "no cubin, and no program"),
        ((tmp_path / "absent",), "cannot be read"),
        ((empty,), "no *.cubin in this folder"),
        ((cut,), "past the end of the file"),
        ((clean, "--kernel", "absent"), "no kernel's name contains 'absent'"),
    ):
        status, _, error = sassafras("audit", *arguments)
        assert status == 2 and part in error and error.count("\n") == 1, error


def test_a_kernel_that_cannot_be_audited(tmp_path: Path) -> None:
    path = tmp_path / "blackwell.cubin"
    path.write_bytes(kernels.softmax_cubin("sm_100a"))
    status, out, _ = sassafras("audit", path)
    assert status == 3 and "not audited: sm_100a is parsed only" in out


@pytest.mark.skipif(not shutil.which("nvcc") or not find_all("cuobjdump"), reason="needs nvcc and cuobjdump")
def test_a_program(tmp_path: Path) -> None:
    source = tmp_path / "two.cu"
    source.write_text("__global__ void one(int* p) { *p = 1; }\n__global__ void two(int* p) { *p = 2; }\n")
    subprocess.run(["nvcc", "-arch=sm_90a", "-c", source, "-o", tmp_path / "two.o"], check=True, timeout=120)
    status, out, _ = sassafras("audit", tmp_path / "two.o")
    assert status == 0 and "2 kernels: 0 hazards" in out
