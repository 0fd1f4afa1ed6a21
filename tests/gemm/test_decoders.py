"""What decoding models become: the launches of ours in their graphs, by the H200's table. Nothing runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.gemm.matmul import inductor_graph  # noqa: E402
from sassafras.gemm.select.table import TunedTable, shipped_path  # noqa: E402

from . import graph_alone  # noqa: E402
from .test_matmul_fused import Install, cache, install, library  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from decoder import MODELS, made  # noqa: E402

__all__ = ["cache", "install", "library"]  # fixtures

FEW = "turned attention layer layer layer"
SOME = "turned attention layer rms_norm {} gated layer"
MANY = "turned attention mm layer mm"
PLAIN = "turned attention layer layer_norm layer(gelu_tanh) layer"
LARGE = "fused fused fused(gelu) fused"


@pytest.mark.parametrize(
    ("model", "tokens", "chain"),
    [
        ("llama-3.2-1b", 1, f"layer {FEW} layer {FEW}"),
        ("llama-3.2-1b", 16, f"mm {SOME} rms_norm layer {SOME}".format("layer", "layer")),
        ("llama-3.2-1b", 64, f"mm {SOME} rms_norm layer {SOME}".format("layer", "layer")),
        ("llama-3.2-1b", 128, f"mm {MANY} mm {MANY}"),
        ("llama-3-8b-apart", 4, f"joined {FEW} joined {FEW}"),
        ("llama-3-8b-apart", 33, f"mm mm mm {SOME} rms_norm joined {SOME}".format("joined", "joined")),
        ("qwen2.5-7b", 16, f"fused {SOME} rms_norm layer {SOME}".format("layer", "layer")),
        ("qwen3-8b", 1, f"layer {FEW} layer {FEW}"),
        ("qwen2.5-7b", 128, f"fused {MANY} fused {MANY}"),
        ("starcoder2-7b", 1, f"fused {PLAIN} layer_norm layer {PLAIN}"),
        ("starcoder2-7b", 16, f"fused {PLAIN} layer_norm layer {PLAIN}"),
        ("starcoder2-7b", 128, f"{LARGE} {LARGE}".replace("(gelu)", "")),
        ("vit-l", 1024, f"{LARGE} {LARGE}"),
    ],
)
def test_what_two_layers_launch(install: Install, model: str, tokens: int, chain: str) -> None:
    import torch._inductor.config as settings
    from torch._inductor.compile_fx import compile_fx

    install("python", table=TunedTable.load(shipped_path("NVIDIA H200")))
    found: list[str] = []

    def noted(graph: Any, inputs: Any, is_inference: bool = False, **others: Any) -> Any:
        graph_alone.rewrite(graph, inputs, is_inference)
        for node in graph.graph.nodes:
            if str(node.target).startswith("sassafras"):
                applied = [f"({a})" for a in node.args if a in ("relu", "gelu", "gelu_tanh")]
                found.append("".join([str(node.target).split(".")[1], *applied]))
        raise NotImplementedError("noted")

    network, x = made(MODELS[model], 2, tokens, 512, False, torch.bfloat16, "meta")
    network = network.to_empty(device="cpu")  # memory that nothing touches
    torch._dynamo.reset()
    with torch.no_grad(), settings.patch(fx_graph_cache=False, post_grad_custom_pre_pass=None):
        inductor_graph.install()
        compiled = torch.compile(
            sassafras.accelerate(network),
            backend=lambda graph, inputs: compile_fx(graph, inputs, inner_compile=noted),
            dynamic=False,
        )
        with pytest.raises(Exception, match="noted"):
            compiled(torch.empty_like(x, device="cpu"))
    torch._dynamo.reset()
    assert " ".join(found) == chain
