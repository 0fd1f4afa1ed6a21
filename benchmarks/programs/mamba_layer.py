"""A layer of Mamba-2 2.7B, forward and backward, on a sequence of 8,192 tokens, BF16.

    python benchmarks/programs/mamba_layer.py --sources FOLDER [--choices FILE] [--steps 4]

FOLDER holds mamba_ssm/ at the commit of results/third-party.json. The scan over chunks and the gated RMS norm
are mamba_ssm's Triton kernels, the causal convolution and the products torch's; random weights. The step is
one CUDA graph: launched one by one, equal processes differed by 7 %. mamba_ssm's deterministic mode is on, so
that equal kernels give equal bytes: partial sums instead of atomic additions.

Its kernels are autotuned. The configurations that the first process chose are kept in --choices and taken by
the later ones: a second choice among configurations of about the same time would be another kernel.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import harness
import torch
import triton
from torch import Tensor, nn
from torch.nn import functional


class Dims(NamedTuple):
    """Of the layer and of its batch of one sequence."""

    model: int = 2560
    heads: int = 80
    head: int = 64
    state: int = 128
    chunk: int = 256
    tokens: int = 8192
    convolution: int = 4

    @property
    def inner(self) -> int:
        """Channels of the scan."""
        return self.heads * self.head


class Layer(nn.Module):
    """(1, tokens, model) -> the same; one group of B and C."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.dims = dims
        self.channels = dims.inner + 2 * dims.state
        self.in_proj = nn.Linear(dims.model, dims.inner + self.channels + dims.heads, bias=False)
        self.conv = nn.Conv1d(
            self.channels, self.channels, dims.convolution, padding=dims.convolution - 1, groups=self.channels
        )
        self.out_proj = nn.Linear(dims.inner, dims.model, bias=False)
        self.norm = nn.Parameter(torch.ones(dims.inner))
        self.to(torch.bfloat16)
        # FP32, as in mamba_ssm's own module
        self.a_log = nn.Parameter(torch.empty(dims.heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(torch.empty(dims.heads).uniform_(-7, -2))
        self.d = nn.Parameter(torch.ones(dims.heads))
        triton_ops = "mamba_ssm.ops.triton"
        self.scan = importlib.import_module(f"{triton_ops}.ssd_combined").mamba_chunk_scan_combined
        self.gated_norm = importlib.import_module(f"{triton_ops}.layernorm_gated").rmsnorm_fn

    def forward(self, u: Tensor) -> Tensor:
        dims = self.dims
        z, xbc, dt = self.in_proj(u).split([dims.inner, self.channels, dims.heads], dim=-1)
        xbc = self.conv(xbc.transpose(1, 2).contiguous())[..., : dims.tokens].transpose(1, 2)
        x, b, c = functional.silu(xbc.contiguous()).split([dims.inner, dims.state, dims.state], dim=-1)
        y = self.scan(
            x.unflatten(-1, (dims.heads, dims.head)),
            dt,
            -self.a_log.exp(),
            b.unsqueeze(2),
            c.unsqueeze(2),
            dims.chunk,
            D=self.d,
            dt_bias=self.dt_bias,
            dt_softplus=True,
        )
        y = self.gated_norm(y.flatten(-2), self.norm, None, z=z, eps=1e-5, norm_before_gate=False)
        return self.out_proj(y)


def program(dims: Dims, device: str) -> Callable[[], Sequence[Tensor]]:
    """The step; its outputs are the layer's, and the gradients of its input and parameters."""
    torch.manual_seed(0)
    with torch.device(device):
        layer = Layer(dims)
        u, dy = (torch.randn(1, dims.tokens, dims.model, dtype=torch.bfloat16) for _ in range(2))
    wanted = [u.requires_grad_(), *layer.parameters()]

    def step() -> Sequence[Tensor]:
        y = layer(u)
        return [y, *torch.autograd.grad(y, wanted, dy)]

    return step


def tuners() -> dict[str, Any]:
    """The autotuned kernels of the loaded modules, by name."""
    modules = [module for name, module in sys.modules.items() if name.startswith("mamba_ssm.ops.triton.")]
    found = [v for m in modules for v in vars(m).values() if isinstance(v, triton.runtime.Autotuner)]
    return {tuner.base_fn.__name__: tuner for tuner in found}


def take(choices: dict[str, dict[str, str]]) -> None:
    """Let the autotuners know the choices: of a kernel's name and key the configuration, as texts."""
    for name, tuner in tuners().items():
        known = {str(config): config for config in tuner.configs}
        for key, config in choices.get(name, {}).items():
            if config in known:
                tuner.cache[ast.literal_eval(key)] = known[config]


def chosen() -> dict[str, dict[str, str]]:
    """The choices that the autotuners have made."""
    made = {name: {repr(key): str(config) for key, config in t.cache.items()} for name, t in tuners().items()}
    return {name: keys for name, keys in made.items() if keys}


def main(words: Sequence[str] | None = None) -> None:
    """Run the program."""
    parser = harness.options(__doc__, 4, "mamba_ssm")
    default = Path(triton.knobs.cache.dir) / "mamba_layer.choices.json"
    parser.add_argument("--choices", type=Path, default=default, help="by default in Triton's cache")
    given = parser.parse_args(words)
    # the deterministic mode keeps the lists of configurations only where Triton caches choices, too
    os.environ.update(MAMBA_DETERMINISTIC="1", TRITON_CACHE_AUTOTUNING="1")
    harness.enter(given.sources, "mamba_ssm")
    torch.backends.cudnn.deterministic = True
    step = program(Dims(), "cuda")
    if given.choices.exists():
        take(json.loads(given.choices.read_text()))
    step()
    step = harness.graphed(step)
    given.choices.parent.mkdir(parents=True, exist_ok=True)
    given.choices.write_text(json.dumps(chosen(), indent=1))
    harness.run(step, given.steps)


if __name__ == "__main__":
    main()
