"""A process without CUDA in which real Triton kernels load, and a store with winners for them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sassafras.core import Candidate, Evaluation, Interval, Kernel, Verdict
from sassafras.store import Store

from .boundary import H200, Driver, Tensor


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Triton on a boundary driver, an empty Triton cache, fresh kernels, and nothing of ours installed."""
    from triton.compiler import CompiledKernel
    from triton.runtime import driver as config

    import sassafras.deploy as deploy
    from sassafras.deploy import engine, gpu

    from . import stock

    for name in ("DISABLE", "DENY", "REVALIDATE", "STATUS", "AUTOINSTALL", "WAIT", "STORE"):
        monkeypatch.delenv(f"SASSAFRAS_{name}", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton-cache"))
    made = Driver()
    before = config._active
    config.set_active(made)
    monkeypatch.setattr(gpu, "gpu_name", lambda device: H200)  # CUDA's boundary, too
    forget(stock)
    for (
        thing
    ) in gc.get_objects():  # `install` finds loaded kernels; earlier tests' may await their collection
        if type(thing) is CompiledKernel:
            thing.module = None
    monkeypatch.setattr(engine.ENGINE, "loaded", [])
    yield made
    deploy.uninstall()
    forget(stock)
    config._active = before


def forget(module: Any) -> None:
    """As if the process had just begun: no kernel of the module is loaded."""
    for fn in vars(module).values():
        if hasattr(fn, "cache") and hasattr(fn, "fn") and hasattr(fn.fn, "device_caches"):
            fn.cache.clear()
            fn = fn.fn
        if hasattr(fn, "device_caches"):
            fn.device_caches.clear()


def launch(fn: Any, n: int = 1000, **options: Any) -> Any:
    """A user's call."""
    if not hasattr(fn, "configs"):
        options = {"BLOCK": 256, "num_warps": 4} | options
    return fn[(4,)](Tensor(), Tensor(address=8192), n, **options)


def kernel_of(compiled: Any) -> Kernel:
    """The kernel as the store knows it."""
    data = compiled.metadata
    return Kernel(
        compiled.asm["cubin"], data.name, "sm_90a", 32 * data.num_warps, data.shared,
        scratch_bytes=data.global_scratch_size or 0, meta={"source_hash": "stock"},
    )  # fmt: skip


def retuned(cubin: bytes) -> bytes:
    """The same cubin with one instruction's stall count one longer: other bytes, legal and correct."""
    from sassafras.sass import Cubin

    (entry,) = Cubin.parse(cubin).entries.values()
    words = bytearray(cubin)
    for at in range(entry.text.offset, entry.text.offset + entry.text.size, 16):
        high = int.from_bytes(words[at + 8 : at + 16], "little")
        stall, yields = high >> 41 & 15, high >> 45 & 1
        if 1 <= stall < 11 and yields:  # bit 45 set means no yield; both encodings stay legal below 12
            high += 1 << 41
            words[at + 8 : at + 16] = high.to_bytes(8, "little")
            return bytes(words)
    raise AssertionError("no instruction to lengthen")


def save(
    path: Path, original: Kernel, tuned: bytes, *, speedup: float = 1.1, gpu: str = H200,
    facts: dict[str, object] | None = None,
) -> None:  # fmt: skip
    """A measured winner in the store at `path`."""
    candidate = Candidate(original.with_cubin(tuned), {"moves": []})
    outcome = Evaluation(
        candidate.digest, Verdict.CORRECT, 10 / speedup, 10.0, speedup,
        Interval(speedup - 0.002, speedup + 0.002), 1.0, Interval(0.999, 1.001), 60,
    )  # fmt: skip
    with Store.open(path) as store:
        store.save_winner(original, candidate, outcome, gpu=gpu, workload="stock", case="1000", facts=facts)
