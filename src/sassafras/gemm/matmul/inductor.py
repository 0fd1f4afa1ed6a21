"""The door to Inductor's autotuning: a matrix product that it times beside its own kernels."""

from __future__ import annotations

from typing import Any

import torch._inductor.lowering  # first: its modules import each other
from torch._inductor.kernel.mm import lazy_register_extern_choice

from . import api, graph_by_torch


def external_matmul(a: Any, b: Any, out: Any) -> None:
    """out = a @ b, for `torch._inductor.config.external_matmul`.

    With ``torch._inductor.config.external_matmul = [sassafras.external_matmul]`` and ``mode="max-autotune"``
    torch.compile chooses for each product without a bias between its kernels and `matmul`'s. It sees torch's
    products only: those of accelerated layers are ours already.

    Args:
        a: (m, k).
        b: (k, n).
        out: (m, n).
    """
    if graph_by_torch.waits_are_missing():
        graph_by_torch.say()
        torch.mm(a, b, out=out)
        return
    call = (a, b, out, None, None, 1.0, 0.0)
    result = api._served(*call)
    if not isinstance(result, torch.Tensor) and torch.compiler.is_compiling():
        api.settle()  # it is being timed: with its kernel, or not at all
        result = api._served(*call)
    if not isinstance(result, torch.Tensor):
        torch.mm(a, b, out=out)


# a program from Inductor's cache calls it by its name, without having compiled
lazy_register_extern_choice(external_matmul)
