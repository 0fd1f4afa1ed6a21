"""Layers of language and vision models in plain torch, with random weights; loads torch."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Dims:
    """A model's dimensions; `vocabulary` 0: there is no such product. `plain`: biases, LayerNorm and GELU
    instead of RMSNorm and SwiGLU. `vision`: attention sees all tokens, and nothing is turned. `apart`:
    queries, keys, values, gate and up are layers of their own, as transformers has them, instead of two.
    `static`: rows of a cache that is longer than what is in it; a mask says which count. `head_norms`: each
    head of queries and keys has an RMS norm."""

    hidden: int
    heads: int
    kv_heads: int
    head: int
    feed_forward: int
    vocabulary: int = 0
    qkv_bias: bool = False
    plain: bool = False
    vision: bool = False
    apart: bool = False
    static: int = 0
    head_norms: bool = False

    @property
    def layer_elements(self) -> int:
        """Of a layer's matrices."""
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads)
        return attention + (2 if self.plain else 3) * self.hidden * self.feed_forward


MODELS = {
    "llama-3.2-1b": Dims(2048, 32, 8, 64, 8192, 128256),
    "llama-3-8b": Dims(4096, 32, 8, 128, 14336, 128256),
    "qwen2.5-7b": Dims(3584, 28, 4, 128, 18944, 152064, qkv_bias=True),
    "qwen3-8b": Dims(4096, 32, 8, 128, 12288, 151936, head_norms=True),
    "starcoder2-7b": Dims(4608, 36, 4, 128, 18432, 49152, qkv_bias=True, plain=True),
    "vit-l": Dims(1024, 16, 16, 64, 4096, qkv_bias=True, plain=True, vision=True),
}
MODELS |= {f"{name}-apart": replace(MODELS[name], apart=True) for name in ("llama-3-8b", "qwen2.5-7b")}
MODELS["llama-3-8b-static"] = replace(MODELS["llama-3-8b"], apart=True, static=4096)
#: what the rehearsal runs in their place
_SMALL = {"hidden": 64, "heads": 4, "head": 16, "feed_forward": 96, "vocabulary": 128}
SMALL = {name: replace(d, kv_heads=4 if d.vision else 2, **_SMALL) for name, d in MODELS.items()}


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x (batch, tokens, heads, head); cos, sin: (tokens, 1, head)."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Layer(nn.Module):
    """Attention and feed-forward half; with `context` the keys and values before the token are cached."""

    #: torch's, or what a benchmark puts in its place
    attend = staticmethod(functional.scaled_dot_product_attention)

    def __init__(self, dims: Dims, batch: int, context: int) -> None:
        super().__init__()
        norm = nn.LayerNorm if dims.plain else nn.RMSNorm
        self.dims, self.context = dims, context
        self.first, self.second = norm(dims.hidden, eps=1e-5), norm(dims.hidden, eps=1e-5)
        kind = partial(norm, dims.head, eps=1e-6) if dims.head_norms else nn.Identity
        self.q_norm, self.k_norm = kind(), kind()
        queries, keys = dims.heads * dims.head, dims.kv_heads * dims.head
        widths = [queries, keys, keys] if dims.apart else [queries + 2 * keys]
        self.qkv = nn.ModuleList(nn.Linear(dims.hidden, n, bias=dims.qkv_bias) for n in widths)
        self.o = nn.Linear(queries, dims.hidden, bias=dims.plain)
        wide = dims.feed_forward
        widths = [wide, wide] if dims.apart else [wide * (2 - dims.plain)]
        self.up = nn.ModuleList(nn.Linear(dims.hidden, n, bias=dims.plain) for n in widths)
        self.down = nn.Linear(dims.feed_forward, dims.hidden, bias=dims.plain)
        if context:
            for name in ("keys", "values"):
                rows = max(context, dims.static)
                self.register_buffer(name, torch.randn(batch, dims.kv_heads, rows, dims.head))

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, last: Tensor, counts: Tensor | None = None
    ) -> Tensor:
        dims, (batch, tokens, _) = self.dims, x.shape
        heads, normed = [dims.heads, dims.kv_heads, dims.kv_heads], self.first(x)
        found = [layer(normed).view(batch, tokens, -1, dims.head) for layer in self.qkv]
        q, k, v = found if dims.apart else found[0].split(heads, dim=2)
        q, k = self.q_norm(q), self.k_norm(k)
        if not dims.vision:
            q, k = turned(q, cos, sin), turned(k, cos, sin)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if self.context:
            k, v = self.keys.index_copy_(2, last, k), self.values.index_copy_(2, last, v)
        y = self.attend(
            *(q, k, v, counts),
            is_causal=not (self.context or dims.vision),
            enable_gqa=dims.heads != dims.kv_heads,
        )
        x = x + self.o(y.transpose(1, 2).reshape(batch, tokens, -1))
        normed = self.second(x)
        inner = [layer(normed) for layer in self.up]
        if dims.plain:
            return x + self.down(functional.gelu(inner[0], approximate="none" if dims.vision else "tanh"))
        gate, up = inner if dims.apart else inner[0].chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Model(nn.Module):
    """Layers, a norm, and the vocabulary product if wanted: (batch, tokens, hidden) -> the same or logits."""

    def __init__(self, dims: Dims, layers: int, batch: int, tokens: int, context: int, head: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(dims, batch, context) for _ in range(layers))
        self.norm = (nn.LayerNorm if dims.plain else nn.RMSNorm)(dims.hidden, eps=1e-5)
        self.head = nn.Linear(dims.hidden, dims.vocabulary, bias=False) if head else nn.Identity()
        first = max(0, context - tokens)
        angles = torch.outer(
            torch.arange(first, first + tokens, dtype=torch.float32),
            5e5 ** -(torch.arange(0, dims.head, 2, dtype=torch.float32) / dims.head),
        )
        for name, table in (("cos", angles.cos()), ("sin", angles.sin())):
            self.register_buffer(name, torch.cat((table, table), dim=-1).unsqueeze(1))
        self.register_buffer("last", torch.tensor([max(0, context - 1)]))
        counts = (torch.arange(max(context, dims.static)) < context)[None, None, None]
        self.register_buffer("counts", counts if context and dims.static else None)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.last, self.counts)
        return self.head(self.norm(x))

    def shared(self) -> Model:
        """The same model of other modules: weights and caches are the same memory."""
        kept = {id(t): t for t in chain(self.parameters(), self.buffers())}
        return copy.deepcopy(self, kept)


def made(
    dims: Dims, layers: int, tokens: int, context: int, head: bool, dtype: torch.dtype, device: str
) -> tuple[Model, Tensor]:
    """A model with random weights, and its input. With `context`, `tokens` sequences decode a token each."""
    torch.manual_seed(tokens)
    batch, length = (tokens, 1) if context else (1, tokens)
    with torch.device(device):
        model = Model(dims, layers, batch, length, context, head).eval().requires_grad_(False)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
            else:
                parameter.normal_(0.0 if name.endswith("bias") else 1.0, 0.1)
        return model.to(dtype), torch.randn(batch, length, dims.hidden).to(dtype)
