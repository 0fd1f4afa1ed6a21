"""The plugin in vLLM if it is installed, otherwise in a stand-in of the functions of vLLM's that it concerns.

Both on the CPU: the GPU that vLLM is told of is the driver's stand-in.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
import types
import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sassafras.gemm.matmul import vllm_plugin as plugin  # noqa: E402
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
GROUP = "vllm.general_plugins"
UTILS, LINEAR = "vllm.model_executor.layers.utils", "vllm.model_executor.layers.linear"
STAND_IN = {
    "vllm": "",
    "vllm.envs": "environment_variables = {}",
    "vllm.platforms": """
class Platform:
    def is_cuda(self): return False
    def is_device_capability(self, capability, device_id=0): return False
current_platform = Platform()
""",
    "vllm.model_executor": "",
    "vllm.model_executor.parameter": """
import torch
def get_tensor_model_parallel_rank(): raise AssertionError
def get_tensor_model_parallel_world_size(): raise AssertionError
class ModelWeightParameter(torch.nn.Parameter):
    def __new__(cls, data, **kwargs):
        return super().__new__(cls, data, requires_grad=False)
    def __init__(self, data, **kwargs):
        self.rank = get_tensor_model_parallel_rank()
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})
""",
    "vllm.model_executor.layers": "",
    UTILS: """
import torch
def default_unquantized_gemm(layer, x, weight, bias=None):
    return torch.nn.functional.linear(x, weight, bias)
def dispatch_unquantized_gemm(): return default_unquantized_gemm
""",
    LINEAR: """
import torch
from vllm.model_executor.layers.utils import dispatch_unquantized_gemm
from vllm.model_executor.parameter import ModelWeightParameter
class UnquantizedLinearMethod:
    def __init__(self): self.gemm = dispatch_unquantized_gemm()
    def create_weights(self, layer, k, ns, input_size, output_size, params_dtype, weight_loader):
        data = torch.empty(sum(ns), k, dtype=params_dtype)
        weight = ModelWeightParameter(data=data, input_dim=1, output_dim=0, weight_loader=weight_loader)
        layer.register_parameter("weight", weight)
    def apply(self, layer, x, bias=None): return self.gemm(layer, x, layer.weight, bias)
""",
}


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """vLLM's module of functions, on a platform that says it is a Hopper GPU."""
    if importlib.util.find_spec("vllm"):  # before the platform is another: these modules ask it
        importlib.import_module("vllm.model_executor.layers.vocab_parallel_embedding")
    else:
        for name, source in STAND_IN.items():
            module = types.ModuleType(name)
            monkeypatch.setitem(sys.modules, name, module)
            exec(source, module.__dict__)
    monkeypatch.setenv(plugin.VARIABLE, "1")
    platform = type(importlib.import_module("vllm.platforms").current_platform)
    monkeypatch.setattr(platform, "is_cuda", lambda self: True)
    monkeypatch.setattr(platform, "is_device_capability", lambda *call: call[-1] == (9, 0))
    parameter = importlib.import_module("vllm.model_executor.parameter")
    monkeypatch.setattr(parameter, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(parameter, "get_tensor_model_parallel_world_size", lambda: 1)
    yield importlib.import_module(UTILS)
    plugin.unload()


@pytest.fixture
def engine(install: Install) -> Iterator[Planner]:
    made = install("compiled")
    made.everything = True
    with torch.inference_mode():  # as vLLM's workers run
        yield made


def made(dtype: Any = torch.float16, n: int = 48, k: int = 64) -> tuple[Any, Any]:
    """A linear method of vLLM's and a layer with weights that the method made."""
    method, layer = importlib.import_module(LINEAR).UnquantizedLinearMethod(), torch.nn.Module()
    method.create_weights(layer, k, [n], k, n, dtype, weight_loader=lambda *call: None)
    layer.weight.data.copy_(half(n, k, seed=3))
    return method, layer


def exact(x: Any, layer: Any, bias: Any = None) -> Any:
    wanted = x.double() @ layer.weight.detach().double().t()
    return wanted if bias is None else wanted + bias.double()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_unquantised_layers_run_our_kernels(engine: Planner, vllm: Any, library: Path, dtype: Any) -> None:
    theirs, (early, its_layer) = vllm.default_unquantized_gemm, made(dtype)
    x, bias, before = half(2, 16, 64, dtype=dtype), half(48, seed=1, dtype=dtype), launches(library)
    assert plugin.load() and plugin.load()
    method, layer = made(dtype)
    assert type(layer.weight) is not torch.nn.Parameter
    assert close(method.apply(layer, x), exact(x, layer)) and launches(library) == before + 1
    assert (
        close(method.apply(layer, x[0], bias), exact(x[0], layer, bias)) and launches(library) == before + 2
    )
    plain = torch.nn.Module()
    plain.weight = torch.nn.Parameter(half(48, 64, seed=5, dtype=dtype), requires_grad=False)
    assert close(method.apply(plain, x), exact(x, plain)) and launches(library) == before + 3
    early.apply(its_layer, x)  # right in any case; ours where vLLM asks its dispatch at each call
    plugin.unload()
    before = launches(library)
    wanted = torch.nn.functional.linear(x, layer.weight, bias)
    assert torch.equal(method.apply(layer, x, bias), wanted)
    method, _ = made(dtype)
    assert torch.equal(method.apply(layer, x, bias), wanted) and launches(library) == before
    assert vllm.default_unquantized_gemm is theirs
    plugin.unload()
    assert plugin.load() and vllm.default_unquantized_gemm is not theirs


@pytest.mark.filterwarnings("ignore:sassafras.matmul")  # which names the type
def test_other_weights_are_torchs(engine: Planner, vllm: Any, library: Path) -> None:
    class Packed(torch.nn.Parameter):
        pass

    assert plugin.load()
    before, x = launches(library), half(16, 64)
    method, layer = made(torch.float32)
    wanted = torch.nn.functional.linear(x.float(), layer.weight)
    assert torch.equal(method.apply(layer, x.float()), wanted)
    layer.weight = Packed(half(48, 64), requires_grad=False)
    assert torch.equal(method.apply(layer, x), torch.nn.functional.linear(x, layer.weight))
    assert launches(library) == before


def test_compiled_layers_hold_our_operator(install: Install, vllm: Any, library: Path) -> None:
    """In one graph for any number of rows, as vLLM compiles; its cache keeps such graphs apart."""
    install("compiled").everything = True
    variables = importlib.import_module("vllm.envs").environment_variables
    assert plugin.VARIABLE not in variables and plugin.load() and "sassafras" in variables[plugin.VARIABLE]()
    torch._dynamo.reset()
    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    method, layer = made()
    bias, before = half(48, seed=1), launches(library)

    def forward(x: Any) -> Any:
        return method.apply(layer, method.apply(layer, x, bias)[:, :1] + x)

    with torch.no_grad():
        compiled = torch.compile(forward, backend=keep, fullgraph=True)
        for rows in (16, 24):
            torch._dynamo.mark_dynamic(x := half(rows, 64), 0)
            assert torch.equal(compiled(x), forward(x))
    assert launches(library) == before + 8
    ours = [str(node.target) for node in graphs[0].graph.nodes if "sassafras" in str(node.target)]
    assert len(graphs) == 1 and ours == ["sassafras.fused.default", "sassafras.mm.default"]
    plugin.unload()
    assert plugin.VARIABLE not in variables
    torch._dynamo.reset()


def test_nothing_is_done_unasked(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = vllm.default_unquantized_gemm
    monkeypatch.setitem(sys.modules, UTILS, None)  # importing it fails
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.setenv(plugin.VARIABLE, "0")
        assert not plugin.load()
        monkeypatch.delenv(plugin.VARIABLE)
        assert not plugin.load()
    monkeypatch.setenv(plugin.VARIABLE, "yes")
    with pytest.warns(RuntimeWarning, match="SASSAFRAS_VLLM is 1 or 0, not 'yes'"):
        assert not plugin.load()
    monkeypatch.setenv(plugin.VARIABLE, "1")
    with pytest.warns(RuntimeWarning, match=r"^sassafras: this vLLM is unknown .*; vLLM is left as it is$"):
        assert not plugin.load()
    assert vllm.default_unquantized_gemm is theirs


def test_another_api_and_another_gpu_are_left_alone(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(layer: Any, weight: Any) -> None: ...

    monkeypatch.setattr(vllm, "default_unquantized_gemm", other)
    with pytest.warns(RuntimeWarning, match="takes layer, weight"):
        assert not plugin.load()
    assert vllm.default_unquantized_gemm is other
    monkeypatch.delattr(vllm, "default_unquantized_gemm")
    with pytest.warns(RuntimeWarning, match="has no attribute 'default_unquantized_gemm'"):
        assert not plugin.load()
    monkeypatch.undo()


def test_another_gpu(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = vllm.default_unquantized_gemm
    platform = type(importlib.import_module("vllm.platforms").current_platform)
    monkeypatch.setattr(platform, "is_device_capability", lambda *call: False)
    with pytest.warns(RuntimeWarning, match="does not run on a Hopper GPU"):
        assert not plugin.load()
    assert vllm.default_unquantized_gemm is theirs


def entry_points() -> dict[str, str]:
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(settings["project"]["entry-points"][GROUP])


def test_the_entry_point_names_it() -> None:
    assert EntryPoint("sassafras", entry_points()["sassafras"], GROUP).load() is plugin.load


def test_vllm_loads_it_for_its_layers(
    vllm: Any, install: Install, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the entry point; a linear layer and a language model's head, which vLLM's classes make."""
    plugins = pytest.importorskip("vllm.plugins")
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.envs import compile_factors
    from vllm.model_executor.layers.linear import ReplicatedLinear
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    install("compiled").everything = True
    about = tmp_path / "adapter-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: adapter\nVersion: 1\n")
    named = "".join(f"{name} = {target}\n" for name, target in entry_points().items())
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{named}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "plugins_loaded", False)
    known = compile_factors()
    plugins.load_general_plugins()
    assert compile_factors().keys() - known.keys() == {plugin.VARIABLE}
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
        layer = ReplicatedLinear(64, 48, params_dtype=torch.float16, disable_tp=True, return_bias=False)
    head, method, x = torch.nn.Module(), UnquantizedEmbeddingMethod(), half(16, 64)
    method.create_weights(head, 64, [48], 64, 48, torch.float16)
    before = launches(library)
    with torch.inference_mode():
        for module in (layer, head):
            module.weight.data.copy_(half(48, 64))
        layer.bias.data.copy_(bias := half(48, seed=1))
        assert close(layer(x), exact(x, layer, bias)) and launches(library) == before + 1
        assert close(method.apply(head, x), exact(x, head)) and launches(library) == before + 2
