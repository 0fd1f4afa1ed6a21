"""The supervisor that shows what the fences refuse: it sees calls and files, and refuses them as they do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sassafras.evaluate.sandbox.confine import landlock_version

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import confined_cuda

pytestmark = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")


def test_what_is_refused_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    code = (
        "import socket, threading\n"
        "def tried(f, *a):\n    try: f(*a)\n    except OSError as e: return e.errno\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        f"print(tried(socket.socket), tried(open, {str(tmp_path / 'secret')!r}))\n"
    )
    found = confined_cuda.some(code, ("files", "limits"), record=True)
    assert (found["status"], found["words"]) == (0, "thread\n1 13")
    assert any(what.startswith("socket(0x2, ") and what.endswith("EPERM") for what in found["refused"])
    assert any(what.startswith("clone3(") and what.endswith("ENOSYS") for what in found["refused"])
    assert str(tmp_path / "secret") in found["outside"]


@pytest.mark.parametrize("fence", confined_cuda.FENCES)
def test_each_fence_alone_lets_python_run(fence: str) -> None:
    found = confined_cuda.some("print('up')", (fence,))
    assert (found["status"], found["words"]) == (0, "up")
