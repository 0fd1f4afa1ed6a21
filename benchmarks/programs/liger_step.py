"""A training step with Liger's kernels: forward, loss, backward, SGD; 4,096 tokens, BF16.

    python benchmarks/programs/liger_step.py --sources FOLDER [--steps 1]

FOLDER holds liger_kernel/ at the commit of results/third-party.json. Embedding, two layers and head have
Mistral 7B's dimensions and random weights. RMS norm, rotary embedding, SwiGLU and the head with its cross
entropy are Liger's. Torch's deterministic algorithms are on, so that equal kernels give equal bytes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import harness
import torch
from torch import Tensor, nn
from torch.nn import functional


class Dims(NamedTuple):
    """Of the model and of its batch of one sequence."""

    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head: int = 128
    feed_forward: int = 14336
    vocabulary: int = 32000
    tokens: int = 4096
    layers: int = 2


def liger(module: str, name: str) -> Callable[..., Any]:
    """The `apply` of an autograd function of Liger's."""
    return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name).apply


class Layer(nn.Module):
    """Attention and feed-forward half of a Llama-like model; Liger's functions are looked up here."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.dims = dims
        self.norm = liger("rms_norm", "LigerRMSNormFunction")
        self.rope = liger("rope", "LigerRopeFunction")
        self.silu_mul = liger("swiglu", "LigerSiLUMulFunction")
        self.first, self.second = (nn.Parameter(torch.ones(dims.hidden)) for _ in range(2))
        self.q = nn.Linear(dims.hidden, dims.heads * dims.head, bias=False)
        self.k = nn.Linear(dims.hidden, dims.kv_heads * dims.head, bias=False)
        self.v = nn.Linear(dims.hidden, dims.kv_heads * dims.head, bias=False)
        self.o = nn.Linear(dims.heads * dims.head, dims.hidden, bias=False)
        self.gate = nn.Linear(dims.hidden, dims.feed_forward, bias=False)
        self.up = nn.Linear(dims.hidden, dims.feed_forward, bias=False)
        self.down = nn.Linear(dims.feed_forward, dims.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.norm(x, self.first, 1e-5)
        q, k, v = (f(h).unflatten(-1, (-1, self.dims.head)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.rope(q, k, cos, sin)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(-2))
        h = self.norm(x, self.second, 1e-5)
        return x + self.down(self.silu_mul(self.gate(h), self.up(h)))


class Model(nn.Module):
    """Tokens and targets (1, tokens) -> the mean loss."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.embedding = nn.Embedding(dims.vocabulary, dims.hidden)
        self.layers = nn.ModuleList(Layer(dims) for _ in range(dims.layers))
        self.last = nn.Parameter(torch.ones(dims.hidden))
        self.head = nn.Linear(dims.hidden, dims.vocabulary, bias=False)
        self.loss = liger("fused_linear_cross_entropy", "LigerFusedLinearCrossEntropyFunction")
        powers = torch.arange(0, dims.head, 2) / dims.head
        angles = torch.outer(torch.arange(dims.tokens), 1e4**-powers).repeat(1, 2).unsqueeze(0)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        x = self.layers[0].norm(x, self.last, 1e-5)
        return self.loss(x.flatten(0, 1), self.head.weight, targets.flatten())[0]


def program(dims: Dims, device: str) -> Callable[[], Sequence[Tensor]]:
    """The step; its outputs are the loss and all gradients."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Model(dims).to(torch.bfloat16)
        for parameter in model.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        tokens, targets = torch.randint(dims.vocabulary, (2, 1, dims.tokens))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def step() -> Sequence[Tensor]:
        optimizer.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        return [loss, *(parameter.grad for parameter in model.parameters())]

    return step


def main(words: Sequence[str] | None = None) -> None:
    """Run the program."""
    given = harness.options(__doc__, 1, "liger_kernel").parse_args(words)
    harness.enter(given.sources, "liger_kernel.ops")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what torch wants for its determinism
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    harness.run(program(Dims(), "cuda"), given.steps)


if __name__ == "__main__":
    main()
