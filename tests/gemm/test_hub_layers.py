"""The layer for Hugging Face's `kernels`: their rules for it, and in models if that package is installed."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.core import SassafrasError  # noqa: E402
from sassafras.gemm.matmul.hub_layers import Linear, write_kernel  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
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
nn = torch.nn


@pytest.fixture
def engine(install: Install) -> Planner:
    made = install("compiled")
    made.everything = True
    return made


def test_the_layer_is_one_that_can_be_put_into_another() -> None:
    """No state and no names of its own but two, and torch.nn.Linear's parameters."""
    assert Linear.__init__ is nn.Module.__init__
    own = {name for name, _ in inspect.getmembers(Linear)} - {
        name for name, _ in inspect.getmembers(nn.Module)
    }
    assert own == {"can_torch_compile", "has_backward"}
    mine, theirs = (inspect.signature(cls.forward).parameters.values() for cls in (Linear, nn.Linear))
    assert [(p.name, p.kind) for p in mine] == [(p.name, p.kind) for p in theirs]


def test_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "kernel"
    assert write_kernel(folder) == folder and write_kernel(str(folder)) == folder
    variant = folder / "build" / "torch-universal"
    found = sorted(str(path.relative_to(variant)) for path in variant.rglob("*") if path.is_file())
    assert found == ["metadata.json", "sassafras/__init__.py"]
    described = json.loads((variant / "metadata.json").read_text())
    assert described["id"].isidentifier() and described["id"] != "sassafras"  # it is a module's name
    spec = importlib.util.spec_from_file_location("written", variant / "sassafras" / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.layers.Linear is Linear
    (tmp_path / "file").write_text("")
    with pytest.raises(SassafrasError, match="a kernel repository cannot be written"):
        write_kernel(tmp_path / "file")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    kernels = pytest.importorskip("kernels")
    for name in ("kernel_layer_name", "kernel_condition"):  # what is set on the class goes with the test
        monkeypatch.setattr(nn.Linear, name, None, raising=False)
    kernels.replace_kernel_forward_from_hub(nn.Linear, "Linear", lambda layer: type(layer) is nn.Linear)
    found = kernels.LocalLayerRepository(write_kernel(tmp_path / "kernel"), layer_name="Linear")
    with kernels.use_kernel_mapping({"Linear": {"cpu": found}}, inherit_mapping=False):
        yield kernels


class Quantised(nn.Linear):  # type: ignore[misc]
    def forward(self, input: Any) -> Any:
        return torch.ones(3)


def test_kernelized_models(engine: Planner, library: Path, repository: Any) -> None:
    """In inference and in training; classes made of torch.nn.Linear keep their forward."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 64, bias=False)).half()
    network.append(Quantised(64, 64).half())
    x, state, mode = half(2, 16, 64), list(network.state_dict()), repository.Mode
    wanted = network[:3](x)
    kernelized = repository.kernelize(network, mode=mode.INFERENCE, device="cpu", use_fallback=False)
    before = launches(library)
    with torch.no_grad():
        assert close(kernelized[:3](x), wanted.double()) and launches(library) == before + 2
        assert torch.equal(kernelized(x), torch.ones(3))
    assert list(kernelized.state_dict()) == state
    with pytest.warns(RuntimeWarning, match="2 with a replaced forward"):
        sassafras.accelerate(kernelized)  # which leaves them
    repository.kernelize(network, mode=mode.TRAINING | mode.TORCH_COMPILE, device="cpu", use_fallback=False)
    network[:3](x).float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network[:3].parameters())


def test_kernelized_and_compiled(engine: Planner, library: Path, repository: Any) -> None:
    layer, x, mode = nn.Linear(64, 48).half(), half(16, 64), repository.Mode
    repository.kernelize(layer, mode=mode.INFERENCE | mode.TORCH_COMPILE, device="cpu", use_fallback=False)
    torch._dynamo.reset()
    with torch.no_grad():
        wanted, before = layer(x), launches(library)
        result = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(result, wanted) and launches(library) == before + 1
    torch._dynamo.reset()
