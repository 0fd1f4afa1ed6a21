"""sassafras.accelerate on models in host memory; the driver's stand-in computes what kernels are told to."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.core import SassafrasError  # noqa: E402
from sassafras.gemm.build.cubins import cached_path  # noqa: E402
from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.matmul import layers as module  # noqa: E402
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
def engine(install: Install, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planner]:
    monkeypatch.setattr(module, "_said", set())
    made = install("compiled")
    made.everything = True
    with torch.no_grad():
        yield made


def model(seed: int = 0, dtype: Any = torch.float16) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 64, bias=False)).to(dtype)


def accelerated(network: Any) -> list[str]:
    return [layer.name for layer in sassafras.layers(network) if layer.accelerated]


# --- swapping and restoring -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_forward_and_back_again(engine: Planner, library: Path, dtype: Any) -> None:
    network, x = model(dtype=dtype), half(2, 16, 64, dtype=dtype)
    wanted, state, shown = network(x), network.state_dict(), repr(network)
    before = launches(library)
    assert sassafras.accelerate(network) is network
    assert close(network(x), wanted.double()) and launches(library) == before + 2
    assert repr(network) == shown and list(network.state_dict()) == list(state)
    assert all(torch.equal(one, state[name]) for name, one in network.state_dict().items())
    assert isinstance(network[0], nn.Linear) and accelerated(network) == ["0", "2"]
    sassafras.accelerate(network)  # nothing more
    assert close(network(x), wanted.double()) and launches(library) == before + 4
    assert sassafras.restore(network) is network and type(network[0]) is nn.Linear
    assert torch.equal(network(x), wanted) and launches(library) == before + 4
    assert accelerated(network) == []
    sassafras.restore(network)
    alone = nn.Linear(64, 48).to(dtype)
    sassafras.accelerate(alone)
    alone(x)
    assert launches(library) == before + 5


def test_parameters_are_read_at_the_call(engine: Planner, library: Path) -> None:
    layer, x = nn.Linear(64, 48).half(), half(16, 64)
    sassafras.accelerate(layer)
    layer(x)
    before = launches(library)
    layer.weight = nn.Parameter(half(48, 64, seed=5))
    assert close(layer(x), x.double() @ layer.weight.double().t() + layer.bias.double())
    layer.weight.mul_(-1)
    layer.bias = None
    assert close(layer(x), x.double() @ layer.weight.double().t())
    layer.load_state_dict({"weight": half(48, 64, seed=6)})
    assert close(layer(x), x.double() @ half(48, 64, seed=6).double().t())
    assert launches(library) == before + 3
    layer.float()
    assert torch.allclose(layer(x.float()), x.float() @ layer.weight.t())
    assert launches(library) == before + 3


def test_what_is_left_alone_is_counted_and_said_once(engine: Planner, library: Path) -> None:
    class Quantised(nn.Linear):
        def forward(self, input: Any) -> Any:
            return torch.ones(3)

    class Packed(torch.Tensor):
        pass

    packed, moved, hooked = (nn.Linear(64, 64).half() for _ in range(3))
    packed.weight = nn.Parameter(packed.weight.as_subclass(Packed))
    packed.weight.__class__ = Packed
    hooked.forward = lambda input: input  # type: ignore[method-assign]
    network = nn.ModuleList([
        Quantised(64, 64).half(), packed, moved.to("meta"), hooked, nn.Linear(64, 64),
        nn.Linear(64, 64).half(), nn.LazyLinear(64, dtype=torch.float16), nn.MultiheadAttention(64, 2).half(),
    ])  # fmt: skip
    with pytest.warns(RuntimeWarning) as seen:
        sassafras.accelerate(network)
    assert [w.filename for w in seen] == [__file__]
    assert str(seen[0].message) == (
        "sassafras.accelerate: 7 of 8 linear layers are left to torch: 1 of class LazyLinear, 1 of class "
        "NonDynamicallyQuantizableLinear, 1 of class Quantised, 1 of type float32, 1 on the meta device, "
        "1 with a replaced forward, 1 with a weight of class Packed"
    )
    assert accelerated(network) == ["5"] and network[0](half(1, 64)).shape == (3,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sassafras.accelerate(network)
    network[4].half()
    with pytest.warns(RuntimeWarning, match="6 of 8"):
        sassafras.accelerate(network)
    assert accelerated(network) == ["4", "5"]
    with pytest.warns(RuntimeWarning, match=r"the model has no torch\.nn\.Linear"):
        sassafras.accelerate(nn.ReLU())


def test_without_a_gpu_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_said", set())
    room.use(None)
    network = model()
    with pytest.warns(RuntimeWarning, match="2 of 2 linear layers are left to torch: 2 on the cpu device"):
        sassafras.accelerate(network, wait=True)
    assert accelerated(network) == [] and "torch, on the cpu device" in str(sassafras.layers(network)[0])


def test_a_gpu_without_kernels_is_left_alone(engine: Planner) -> None:
    engine.gpu(0).chooser, engine.gpu(0).why_not = None, "nothing was tuned for it"
    with pytest.warns(RuntimeWarning, match="2 nothing was tuned for it"):
        sassafras.accelerate(model())


def test_bad_arguments() -> None:
    with pytest.raises(SassafrasError, match=r"a torch\.nn\.Module is expected, not function"):
        sassafras.accelerate(lambda x: x)
    with pytest.raises(SassafrasError, match="positive integers"):
        sassafras.accelerate(nn.ReLU(), tokens=(1, 0))
    with pytest.raises(SassafrasError, match="positive integers, not 8"):
        sassafras.accelerate(nn.ReLU(), tokens=8)  # type: ignore[arg-type]


# --- what programs do with models -----------------------------------------------------------------


def test_copies_are_accelerated_and_files_are_plain(engine: Planner, library: Path) -> None:
    network, x = model(), half(16, 64)
    network[2].weight = network[0].weight = nn.Parameter(half(64, 64))  # tied
    network[0].bias, network[0].out_features, network[2].in_features = None, 64, 64
    sassafras.accelerate(network)
    wanted = network(x)
    twin = copy.deepcopy(network)
    assert accelerated(twin) == ["0", "2"] and twin[0].weight is twin[2].weight is not network[0].weight
    assert torch.equal(twin(x), wanted)
    twin[0].weight.zero_()
    assert torch.equal(network(x), wanted)
    for read in (pickle.loads(pickle.dumps(network)), saved(network)):
        assert type(read[0]) is nn.Linear and read[0].weight is read[2].weight and not accelerated(read)
        assert torch.equal(sassafras.accelerate(read)(x), wanted)
    assert accelerated(network) == ["0", "2"]


def saved(network: Any) -> Any:
    """Written and read with the list of classes that torch knows to be safe, and torch's own layers."""
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.GELU]):
        return torch.load(file, weights_only=True)


def test_training_hooks_and_modes(engine: Planner, library: Path) -> None:
    ours, torchs = sassafras.accelerate(model()), model().double()
    seen: list[str] = []
    ours[0].register_forward_pre_hook(lambda *_: seen.append("before"))
    ours[2].register_forward_hook(lambda *_: seen.append("after"))
    ours[2].register_full_backward_hook(lambda *_: seen.append("back"))
    x, before = half(16, 64), launches(library)
    with torch.enable_grad():
        for network, given in ((ours.train(), x), (torchs, x.double())):
            network(given).square().mean().backward()
    assert seen == ["before", "after", "back"] and launches(library) >= before + 4
    for mine, other in zip(ours.parameters(), torchs.parameters(), strict=True):
        assert float((mine.grad - other.grad).abs().max()) <= 0.03 * float(other.grad.abs().max())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(x).dtype == torch.bfloat16


@pytest.mark.parametrize("grad", [False, True])
def test_compiled_models(engine: Planner, library: Path, grad: bool) -> None:
    """One graph, one operator a layer with its bias inside; accelerated before or after."""
    torch._dynamo.reset()
    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    network, x = model(), half(2, 16, 64)
    wanted = network(x)
    compiled = torch.compile(network, backend=keep, fullgraph=True)
    with torch.set_grad_enabled(grad):
        compiled(x)
        sassafras.accelerate(network)
        before = launches(library)
        result = compiled(x)
        assert close(result.detach(), wanted.double()) and launches(library) == before + 2
        aot = torch.compile(network, backend="aot_eager", fullgraph=True)(x)
        assert torch.equal(aot, result) and aot.requires_grad == grad
    ours = [str(node.target) for node in graphs[1].graph.nodes if "sassafras" in str(node.target)]
    assert len(graphs) == 2 and ours == ["sassafras.fused.default", "sassafras.mm.default"]
    sassafras.restore(network)
    compiled(x)
    assert launches(library) == before + 4
    torch._dynamo.reset()


def test_wrappers_that_keep_a_layer_inside(engine: Planner, library: Path) -> None:
    """As PEFT's LoRA layers do."""

    class Lora(nn.Module):
        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base_layer = base
            self.down, self.up = nn.Linear(64, 8, bias=False).half(), nn.Linear(8, 48, bias=False).half()

        def forward(self, x: Any) -> Any:
            return self.base_layer(x) + self.up(self.down(x))

    network, x = Lora(nn.Linear(64, 48).half()), half(16, 64)
    wanted, before = network(x), launches(library)
    sassafras.accelerate(network)
    assert accelerated(network) == ["base_layer", "down", "up"]
    assert close(network(x), wanted.double()) and launches(library) == before + 3
    network.base_layer.weight.data += network.up.weight @ network.down.weight  # merged
    assert close(network.base_layer(x), wanted.double())


def test_parametrised_after_accelerate(engine: Planner, library: Path) -> None:
    layer, x = sassafras.accelerate(nn.Linear(64, 48).half()), half(16, 64)
    nn.utils.parametrizations.weight_norm(layer)
    before = launches(library)
    wanted = x.double() @ layer.weight.double().t() + layer.bias.double()
    assert close(layer(x), wanted)
    assert launches(library) == before + 1 and accelerated(layer) == [""]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sassafras.accelerate(layer, tokens=[16])
    copied = copy.deepcopy(layer)
    for one in (layer, copied):
        assert sassafras.restore(one) is one and accelerated(one) == []
        assert close(one(x), wanted) and launches(library) == before + 1
        nn.utils.parametrize.remove_parametrizations(one, "weight")
        assert type(one) is nn.Linear and close(one(x), wanted) and launches(library) == before + 1


@pytest.fixture
def group() -> Iterator[None]:
    import torch.distributed as distributed

    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield
    distributed.destroy_process_group()


def test_data_parallel(engine: Planner, library: Path, group: None) -> None:
    from torch.nn.parallel import DistributedDataParallel

    network, x = model(), half(16, 64)
    wanted, before = network(x), launches(library)
    with torch.enable_grad():
        parallel = DistributedDataParallel(network)
        sassafras.accelerate(parallel)
        result = parallel(x)
        assert close(result.detach(), wanted.double()) and launches(library) == before + 2
        result.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_sharded_parameters(engine: Planner, library: Path, group: None) -> None:
    """FSDP's are whole and plain in forward; tensor-parallel ones are torch's."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh, x = init_device_mesh("cpu", (1,)), half(16, 64)
    network = model()
    wanted = network(x)
    with torch.enable_grad():
        fully_shard(network, mesh=mesh)
        sassafras.accelerate(network)
        assert accelerated(network) == ["0", "2"]
        before = launches(library)
        result = network(x)
        assert close(result.detach(), wanted.double()) and launches(library) == before + 2
        result.float().sum().backward()
    assert all(p.grad is not None for p in network.parameters())
    network = sassafras.accelerate(model())
    for part in (network[0], network[2], network):  # each layer of a class of its own
        fully_shard(part, mesh=mesh)
    before = launches(library)
    assert accelerated(network) == ["0", "2"] and close(network(x), wanted.double())
    assert launches(library) == before + 2
    sassafras.restore(network)
    assert accelerated(network) == [] and isinstance(network[0], FSDPModule)
    assert close(network(x), wanted.double()) and launches(library) == before + 2
    network = parallelize_module(model(), mesh, {"0": ColwiseParallel()})
    sassafras.accelerate(network, wait=True)
    before = launches(library)
    assert close(network(x), wanted.double()) and launches(library) == before + 1


def test_a_layer_without_its_weight_is_left_alone(engine: Planner) -> None:
    """As FSDP's flat parameters leave it, outside of forward."""
    network = model()
    del network[0].weight
    with pytest.warns(RuntimeWarning, match="1 of 2 linear layers are left to torch: 1 without a weight"):
        sassafras.accelerate(network)
    assert accelerated(network) == ["2"]
    assert str(sassafras.layers(network)[0]) == "0 48x64: torch, without a weight"
    del network[2].weight
    assert sassafras.layers(network)[1].why_not == "without a weight"


def test_a_script_is_refused_in_one_line(engine: Planner) -> None:
    network = sassafras.accelerate(model())
    with pytest.raises(SassafrasError, match=r"torch\.jit\.script .*restore"):
        torch.jit.script(network)
    assert accelerated(network) == ["0", "2"]
    scripted, x = torch.jit.script(sassafras.restore(network)), half(16, 64)
    assert torch.equal(scripted(x), network(x))


# --- kernels ahead of the first call, and the report ----------------------------------------------


def test_wait_builds_what_the_layers_need(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path
) -> None:
    from sassafras.gemm.matmul import planner

    built: list[Any] = []

    def cubin(instance: Any, cache: Path) -> bytes:
        built.append(instance)
        cached_path(instance, cache).write_bytes(b"\x7fELF")
        return b"\x7fELF"

    monkeypatch.setattr(planner, "cubin", cubin)
    engine, network = install("compiled", cache=tmp_path, background=True), model()
    engine.everything = True
    with torch.no_grad():
        sassafras.accelerate(network)
        assert not built and not engine.served, "kernels come with the first calls"
        sassafras.accelerate(network, wait=True, tokens=iter((1, 16)))  # type: ignore[arg-type]
        assert built and {(p.m, p.n) for p in engine.served} == {(1, 48), (1, 64), (16, 48), (16, 64)}
        assert {choice.member for choice in engine.served.values()} == {"ours"}
        before, misses = launches(library), engine.launcher.counts()["misses"]
        for rows in (1, 16):
            network(half(rows, 64))
        assert launches(library) == before + 4 and engine.launcher.counts()["misses"] == misses
        sassafras.accelerate(network, wait=True)
    assert {p.m for p in engine.served} == {2**i for i in range(13)}


def test_the_report(engine: Planner) -> None:
    network = sassafras.accelerate(
        nn.ModuleDict({"up": nn.Linear(64, 48).half(), "down": nn.Linear(48, 64).half()})
    )
    for rows in (1, 32):
        network["up"](half(rows, 64))
    up, down = sassafras.layers(network)
    assert (up.name, up.n, up.k, up.accelerated, up.served) == ("up", 48, 64, True, {1: "ours", 32: "ours"})
    assert str(up) == "up 48x64: 1: ours, 32: ours" and str(down) == "down 64x48: no call yet"


# --- real models ----------------------------------------------------------------------------------


def test_a_transformers_model(engine: Planner, library: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96}
    config = transformers.LlamaConfig(
        **sizes, num_key_value_heads=2, vocab_size=128, tie_word_embeddings=True
    )
    torch.manual_seed(0)
    network = transformers.LlamaForCausalLM(config).half().eval()
    ids = torch.arange(12).view(2, 6)
    wanted, before = network(ids).logits, launches(library)
    sassafras.accelerate(network)
    assert len(accelerated(network)) == 15 and network.lm_head.weight is network.model.embed_tokens.weight
    assert close(network(ids).logits, wanted.double()) and launches(library) == before + 15
    tokens = network.generate(ids, max_new_tokens=4, do_sample=False)
    assert torch.equal(tokens, sassafras.restore(network).generate(ids, max_new_tokens=4, do_sample=False))
    vit = transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=32, patch_size=8)).half().eval()
    image = half(1, 3, 32, 32)
    wanted = vit(image).last_hidden_state
    assert close(sassafras.accelerate(vit)(image).last_hidden_state, wanted.double())


@pytest.mark.parametrize("first", [True, False])
def test_a_peft_model(engine: Planner, library: Path, first: bool) -> None:
    """Accelerated before the adapters are added, or after."""
    peft = pytest.importorskip("peft")
    network, x = nn.Sequential(nn.Linear(64, 48).half()), half(16, 64)
    if first:
        sassafras.accelerate(network)
    config = peft.LoraConfig(target_modules=["0"], init_lora_weights=False)
    adapted = peft.get_peft_model(network, config).half()
    assert len(accelerated(adapted)) == int(first)
    before = launches(library)
    result = sassafras.accelerate(adapted)(x)
    assert launches(library) == before + 3 and close(result, sassafras.restore(adapted)(x).double())


def test_a_torchao_model(engine: Planner) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    network = model(dtype=torch.bfloat16)
    quantization.quantize_(network, quantization.Int8WeightOnlyConfig())
    x = half(16, 64, dtype=torch.bfloat16)
    wanted = network(x)
    with pytest.warns(
        RuntimeWarning, match="2 of 2 linear layers are left to torch: 2 with a weight of class"
    ):
        sassafras.accelerate(network)
    assert torch.equal(network(x), wanted)
    late = sassafras.accelerate(model(dtype=torch.bfloat16))
    quantization.quantize_(late, quantization.Int8WeightOnlyConfig())
    assert torch.equal(late(x), wanted)
