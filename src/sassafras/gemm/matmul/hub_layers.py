"""`sassafras.linear` as a layer of Hugging Face's `kernels`, and the folder from which that loads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sassafras import __version__
from sassafras.core.errors import os_errors
from sassafras.core.files import write_whole

from .api import torch
from .linear import linear

_NAME = "sassafras"


class Linear(torch.nn.Module):
    """What `kernelize` puts in the place of torch.nn.Linear's forward: no constructor, no state."""

    can_torch_compile = True
    has_backward = True

    def forward(self, input: Any) -> Any:
        """As torch.nn.Linear, whose parameters it reads."""
        return linear(input, self.weight, self.bias)


def write_kernel(folder: Path | str) -> Path:
    """Write a kernel repository with the layer `Linear`, for `kernels.LocalLayerRepository`.

    It imports sassafras, which has to be installed where it is loaded. Files of an earlier call are replaced.
    Returns the folder.

    Raises:
        SassafrasError: the folder cannot be written.
    """
    variant = Path(folder) / "build" / "torch-universal"
    described = {
        "id": f"{_NAME}_kernel_{__version__.replace('.', '_')}",  # the name of a module
        "name": _NAME,
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda"},
    }
    source = "from sassafras.gemm.matmul import hub_layers as layers\n\n__all__ = ['layers']\n"
    with os_errors("a kernel repository cannot be written", folder):
        write_whole(variant / "metadata.json", json.dumps(described, indent=1) + "\n")
        write_whole(variant / _NAME / "__init__.py", source)
    return Path(folder)
