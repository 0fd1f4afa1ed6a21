"""A decoder step of Llama 3 8B's layers: 16 sequences decode a token each, BF16, 512 cached tokens.

    python benchmarks/programs/decoder_step.py [--max-autotune] [--steps 64]

Four layers of random weights, compiled by torch.compile, replayed as one CUDA graph.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import harness
from decoder import MODELS, SMALL, made

LAYERS, TOKENS, CONTEXT = 4, 16, 512


def program(device: str, max_autotune: bool) -> Callable[[], Sequence[Tensor]]:
    """The step, compiled; on a GPU the replay of its graph."""
    cpu = device == "cpu"
    dims = (SMALL if cpu else MODELS)["llama-3-8b"]
    model, x = made(dims, LAYERS, TOKENS, CONTEXT, False, torch.bfloat16, device)
    if cpu:
        compiled = torch.compile(model, backend="eager")
        return lambda: [compiled(x)]
    # without graphs of its own: the whole step is captured
    compiled = torch.compile(model, mode="max-autotune-no-cudagraphs" if max_autotune else None)
    return harness.graphed(lambda: [compiled(x)])


def main(words: Sequence[str] | None = None) -> None:
    """Run the program."""
    parser = harness.options(__doc__, steps=64)
    parser.add_argument("--max-autotune", action="store_true", help="torch.compile's max-autotune mode")
    parser.add_argument("--device", default="cuda", help="cpu: small dimensions, to try the program")
    given = parser.parse_args(words)
    with torch.no_grad():
        harness.run(program(given.device, given.max_autotune), given.steps, given.device)


if __name__ == "__main__":
    main()
