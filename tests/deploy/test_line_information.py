"""A source file that was touched, or lies elsewhere, makes another cubin; the tuned one is still found."""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sassafras import deploy
from sassafras.deploy.code import code_digest
from sassafras.sass import Cubin
from sassafras.store import Store

from ..kernels import softmax_cubin
from . import stock
from .boundary import Driver, sha
from .conftest import kernel_of, launch, retuned, save


def compiled_from(path: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A launch of `scale` from a copy of the stock file, with a cold cache of its own."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / f"cache-{name}"))
    spec = importlib.util.spec_from_file_location(f"copied_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return launch(module.scale)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copy(stock.__file__, tmp_path / "program.py"))


def test_a_touched_or_moved_source_file_keeps_its_tuned_cubin(
    driver: Driver, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(source, (1_700_000_000, 1_700_000_000))
    first = kernel_of(compiled_from(source, "first", tmp_path, monkeypatch))
    tuned = retuned(first.cubin)
    save(tmp_path / "store.sqlite", first, tuned)
    deploy.install(tmp_path / "store.sqlite")

    os.utime(source, (1_700_000_999, 1_700_000_999))
    touched = compiled_from(source, "touched", tmp_path, monkeypatch)
    elsewhere = tmp_path / "a folder with a longer name" / "program.py"
    elsewhere.parent.mkdir()
    shutil.copy(source, elsewhere)
    moved = compiled_from(elsewhere, "moved", tmp_path, monkeypatch)

    cubins = [first.cubin, touched.asm["cubin"], moved.asm["cubin"]]
    assert len({sha(cubin) for cubin in cubins}) == 3, "ptxas writes path and time into each"
    assert len({code_digest(cubin) for cubin in cubins}) == 1
    assert driver.loads[-2:] == [("scale", sha(tuned))] * 2
    told = deploy.status().kernels[-2:]
    assert [kernel.reason for kernel in told] == ["tuned, other line information"] * 2
    assert all(kernel.tuned and kernel.speedup == 1.1 for kernel in told)
    assert deploy.tuned_cubin(moved.asm["cubin"], "NVIDIA H200") == tuned  # its name is not told


def _sections(cubin: bytes) -> list[tuple[str, int]]:
    """(name, file offset of its header) of each section."""
    table = struct.unpack_from("<Q", cubin, 0x28)[0]
    return [(s.name, table + 64 * s.index) for s in Cubin.parse(cubin).sections]


def _forged(cubin: bytes) -> dict[str, bytes]:
    """The cubin with one thing changed that a loader may act on and that is not in a section's contents."""
    text = next(at for name, at in _sections(cubin) if name.startswith(".text."))
    programs = struct.unpack_from("<Q", cubin, 0x20)[0]
    covered = [(0, 64), (programs, programs + 56 * struct.unpack_from("<H", cubin, 0x38)[0])]
    covered += [(s.offset, s.offset + len(s.data)) for s in Cubin.parse(cubin).sections]
    table = struct.unpack_from("<Q", cubin, 0x28)[0]
    covered.append((table, table + 64 * len(_sections(cubin))))
    gap = next(n for n in range(len(cubin)) if not any(a <= n < b for a, b in covered))

    def changed(at: int, byte: int = 0x40) -> bytes:
        return cubin[:at] + bytes([cubin[at] ^ byte]) + cubin[at + 1 :]

    return {
        "section flags": changed(text + 8), "section address": changed(text + 17),
        "section link": changed(text + 40), "section alignment": changed(text + 48),
        "entry size": changed(text + 56), "program header flags": changed(programs + 4),
        "program header address": changed(programs + 16), "program header size": changed(programs + 40),
        "program header offset": changed(programs + 56 * 2 + 8), "entry point": changed(0x18),
        "bytes of no section": changed(gap), "bytes behind the end": cubin + b"\1",
    }  # fmt: skip


def test_nothing_that_a_loader_reads_is_left_out_of_the_digest() -> None:
    cubin = softmax_cubin()
    seen = {code_digest(cubin)}
    for what, forged in _forged(cubin).items():
        assert code_digest(forged) not in seen, what
    assert None not in seen


def test_a_damaged_cubin_has_no_digest() -> None:
    cubin = softmax_cubin()
    for at in (0x20, 0x28):  # a table that begins outside the file, however far
        for far in (len(cubin), (1 << 64) - 1):
            assert code_digest(cubin[:at] + far.to_bytes(8, "little") + cubin[at + 8 :]) is None
    assert all(code_digest(cubin[:size]) is None for size in (0, 4, 40, 64, len(cubin) // 2, len(cubin) - 1))


def test_other_code_of_the_same_name_is_no_match(
    driver: Driver, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kernel_of(compiled_from(source, "first", tmp_path, monkeypatch))
    save(tmp_path / "store.sqlite", first, retuned(first.cubin))
    deploy.install(tmp_path / "store.sqlite")
    text = source.read_text()
    assert "* 3.0" in text
    source.write_text(text.replace("* 3.0", "* 4.0"))
    other = compiled_from(source, "other", tmp_path, monkeypatch)
    assert driver.loads[-1] == ("scale", sha(other.asm["cubin"]))
    assert "for another cubin" in deploy.status().kernels[-1].reason


def test_a_damaged_original_hides_no_other(
    driver: Driver, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    store = tmp_path / "store.sqlite"
    os.utime(source, (1_700_000_000, 1_700_000_000))
    first = kernel_of(compiled_from(source, "first", tmp_path, monkeypatch))
    damaged = replace(first, cubin=retuned(retuned(first.cubin)))
    save(store, damaged, first.cubin)
    save(store, first, retuned(first.cubin))
    with sqlite3.connect(store) as db:
        db.execute("UPDATE cubins SET data = x'00' WHERE digest = ?", (sha(damaged.cubin),))
    deploy.install(store)
    os.utime(source, (1_700_000_999, 1_700_000_999))
    compiled_from(source, "touched", tmp_path, monkeypatch)
    with Store.open(store, readonly=True) as opened, pytest.raises(Exception, match="damaged"):
        opened.cubin(sha(damaged.cubin))
    assert deploy.status().kernels[-1].reason == "tuned, other line information"
