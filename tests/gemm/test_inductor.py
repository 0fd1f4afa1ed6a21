"""sassafras.external_matmul: what Inductor times, and what a compiled program calls."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from tests.gemm.test_matmul_fused import (  # noqa: E402
    Install,
    cache,
    close,
    half,
    install,
    launches,
    library,
)

__all__ = ["cache", "install", "library"]  # fixtures


@pytest.mark.parametrize("backends", ["ATEN", ""])
def test_inductor_times_ours(
    install: Install, library: Path, backends: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Beside torch's kernel, and alone."""
    import torch._inductor.config as settings

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    engine = install("compiled")
    engine.everything = True
    layer, x, before = torch.nn.Linear(64, 48, bias=False).half(), half(32, 64), launches(library)
    options = {"max_autotune": True, "max_autotune_gemm_backends": backends, "fx_graph_cache": False}
    with torch.no_grad(), settings.patch(external_matmul=[sassafras.external_matmul]):
        compiled = torch.compile(layer, fullgraph=True, options=options)
        assert close(compiled(x), x.double() @ layer.weight.double().t())
        timed = launches(library) - before
        compiled(x)
    assert timed > 10 if backends else launches(library) == before + 2
    torch._dynamo.reset()


def test_what_no_kernel_serves_is_torchs(install: Install, library: Path) -> None:
    install()
    a, b, before = torch.randn(4, 8), torch.randn(8, 6), launches(library)
    out = torch.empty(4, 6)
    sassafras.external_matmul(a, b, out)
    assert torch.equal(out, a @ b) and launches(library) == before
