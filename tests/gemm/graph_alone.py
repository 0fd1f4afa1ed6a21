"""torch.compile as far as Inductor's graphs: no program is written, the graph's operators run one by one.

For tests of what a graph becomes, and whether it is still right; a program takes g++ 0.6 s more.
"""

from __future__ import annotations

from typing import Any

import torch


def backend(graph: Any, inputs: Any) -> Any:
    """For ``torch.compile``: Inductor with its own passes and ours, without its code generation."""
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs, inner_compile=_passed)


def _passed(graph: Any, inputs: Any, is_inference: bool = False, **others: Any) -> Any:
    from functorch.compile import make_boxed_func

    rewrite(graph, inputs, is_inference)
    graph.recompile()
    return make_boxed_func(graph.forward)


def rewrite(graph: Any, inputs: Any, is_inference: bool) -> None:
    """Let the passes change a graph, and no more."""
    from torch._inductor.compile_fx import fake_tensor_prop
    from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
    from torch._inductor.virtualized import V

    view_to_reshape(graph)
    with torch.no_grad():
        mode = fake_tensor_prop(graph, inputs)
    with V.set_fake_mode(mode):
        post_grad_passes(graph, is_inference)
