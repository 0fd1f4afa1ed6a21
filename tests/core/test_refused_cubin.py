"""A refusal of unmodified code leaves the cubin where the user can find it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sassafras.core import Kernel, SassafrasError, refused_cubin
from sassafras.sass.cubin import Cubin
from sassafras.schedule import spaces
from sassafras.validate import Validator
from tests import kernels


def unknown(data: bytes) -> bytes:
    """The cubin with a record of an attribute that nobody knows, in the place of one that holds nothing."""
    entry = Cubin.parse(data).entries["softmax"]
    record = next(r for r in entry.info if r.attribute == 0x1B)  # MAXREG_COUNT: a value of two bytes
    out = bytearray(data)
    struct.pack_into("<B", out, record.offset - 1, 0x40)
    return bytes(out)


def test_code_that_cannot_be_rescheduled_is_written_beside_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kernel = Kernel(unknown(kernels.softmax_cubin()), "softmax", "sm_90a", 128)
    for name in spaces.SPACES:
        with pytest.raises(SassafrasError, match="attributes we do not know") as caught:
            spaces.space_of(name, Validator)(kernel)
        (written,) = tmp_path.iterdir()
        assert str(written) in str(caught.value)
        assert written.read_bytes() == kernel.cubin


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    kernel = Kernel(kernels.softmax_cubin(), "softmax", "sm_90a", 128)
    (tmp_path / "file").write_bytes(b"")
    text = refused_cubin.kept(kernel, tmp_path / "file")
    assert "cannot be written" in text and list(tmp_path.iterdir()) == [tmp_path / "file"]
