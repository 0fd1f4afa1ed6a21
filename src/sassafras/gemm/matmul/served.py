"""What operators ask of the engine for what stands between products, and for joined products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import api
from .problem import Problem


def compiled_for(problem: Problem) -> bool:
    """Whether a kernel serves a problem; it is compiled now."""
    for _ in range(2):  # a second time with the kernel that has been compiled
        if api._engine and api._engine.serve_rows(tuple(problem)):
            return True
        api.settle()
    return False


def in_graph(call: Any, read: Callable[..., tuple[Problem, Any] | None]) -> bool:
    """Whether a kernel serves a call of what stands for its tensors in a graph, as `read` reads it; that is
    compiled, then. Not where torch is to serve: it keeps the kernels that were chosen for the graph."""
    if (engine := api._engine) is None or api.suspended():
        return False
    found = read(call, None, engine.torch.device_type)
    return found is not None and compiled_for(found[0])


def launched(out: Any, what: str, *asked: Any) -> bool:
    """Whether the launcher's call `what` has launched a kernel that writes `out`; its plan is made if there
    is none yet."""
    if api.suspended() or (engine := api.engine_for(out)) is None:
        return False
    call = getattr(engine.launcher, what)
    if isinstance(result := call(*asked), tuple):
        engine.serve_rows(result)
        result = call(*asked)
    return result is True
