"""Inductor's static launcher: torch's real class, with only its C++ loader (CUDA's boundary) replaced."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sassafras import deploy

from . import stock
from .boundary import Driver, sha
from .conftest import forget, kernel_of, launch, retuned, save

pytest.importorskip("torch", reason="Inductor is part of torch")


class Loader:
    """In the place of ``torch._C._StaticCudaLauncher``."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, str]] = []
        self.refuse: set[str] = set()

    def _load_kernel(self, path: str, name: str, shared: int, device: int) -> tuple[int, int, int, int]:
        digest = sha(Path(path).read_bytes())
        if digest in self.refuse:
            raise RuntimeError("CUDA driver error: device kernel image is invalid")
        self.loads.append((path, digest))
        return 1, 7, 32, 0

    def _unload_kernel(self, module: int) -> None:
        pass


@pytest.fixture
def launcher() -> Any:
    return pytest.importorskip("torch._inductor.runtime.static_triton_launcher")


def static(launcher: Any, compiled: Any, loader: Loader) -> Any:
    """What Inductor makes of a CompiledKernel."""
    compiled._cubin_path = next(p for n, p in compiled.metadata_group.items() if n.endswith(".cubin"))
    kernel = launcher.StaticallyLaunchedCudaKernel(compiled)
    kernel.__dict__["C_impl"] = loader
    return kernel


def test_the_static_launcher_gets_the_tuned_bytes(driver: Driver, tmp_path: Path, launcher: Any) -> None:
    compiled = launch(stock.scale)
    other = launch(stock.shift)
    kernel = kernel_of(compiled)
    tuned = retuned(kernel.cubin)
    save(tmp_path / "store.sqlite", kernel, tuned)
    forget(stock)
    own = launcher.StaticallyLaunchedTritonKernel.load_kernel
    deploy.install(tmp_path / "store.sqlite")
    loader = Loader()
    first, second = static(launcher, compiled, loader), static(launcher, other, loader)
    cache_file = Path(first.cubin_path)
    for made in (first, second, first):  # the last is loaded already
        made.load_kernel(0)
    assert [digest for _, digest in loader.loads] == [sha(tuned), sha(other.asm["cubin"])]
    assert not Path(loader.loads[0][0]).exists()  # the copy is gone, Triton's file is as it was
    assert sha(cache_file.read_bytes()) == kernel.digest and first.function == 7 and first.cubin_path is None
    told = [k for k in deploy.status().kernels if k.reason != "loaded before install()"]
    assert [(k.name, k.loaded) for k in told] == [("scale", sha(tuned)), ("shift", sha(other.asm["cubin"]))]

    loader.refuse = {sha(tuned)}
    third = static(launcher, compiled, loader)
    third.load_kernel(0)
    assert loader.loads[-1] == (str(cache_file), kernel.digest)
    assert "loading the tuned cubin failed" in deploy.status().kernels[-1].reason

    deploy.uninstall()
    assert launcher.StaticallyLaunchedTritonKernel.load_kernel is own
    assert "torch._inductor.runtime.static_triton_launcher" in sys.modules
