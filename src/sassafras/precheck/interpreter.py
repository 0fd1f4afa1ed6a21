"""Triton's interpreter, with every access to memory looked at before it happens.

Runs in a process of its own that was started with TRITON_INTERPRET=1. Read on Triton 3.6.0.
"""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import patch

import numpy as np

from .memory import Memory


class Watched:
    """Triton's module that reads and writes memory for the interpreter, behind `Memory.look`.

    Args:
        inner: the module.
        memory: sees every access first; lanes outside of every buffer are masked.
    """

    def __init__(self, inner: Any, memory: Memory) -> None:
        self._inner, self._look = inner, memory.look

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        """Triton's own, looked at."""
        seen = self._look(pointers, mask, np.dtype(dtype).itemsize, "load")
        return self._inner.load(pointers, seen, other, dtype)

    def store(self, pointers: Any, value: Any, mask: Any) -> Any:
        """Triton's own, looked at."""
        seen = self._look(pointers, mask, np.asarray(value).itemsize, "store")
        return self._inner.store(pointers, value, seen)

    def atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, sem: Any) -> Any:
        """Triton's own, looked at."""
        seen = self._look(pointers, mask, np.asarray(value).itemsize, "atomic")
        return self._inner.atomic_rmw(operation, pointers, value, seen, sem)

    def atomic_cas(self, pointers: Any, compare: Any, value: Any, sem: Any) -> Any:
        """Triton's own, looked at; it has no mask, so that it raises IndexError outside of every buffer."""
        if not self._look(pointers, True, np.asarray(value).itemsize, "atomic").all():
            raise IndexError("an atomic compare-and-swap outside of every buffer")
        return self._inner.atomic_cas(pointers, compare, value, sem)


def run(
    kernel: Any,
    arguments: Mapping[str, Any],
    grid: tuple[int, int, int],
    memory: Memory,
    seconds: float,
    ordered: bool,
) -> int:
    """Run a kernel's programs until the time is up: the corners of the grid first, the others shuffled.

    Args:
        kernel: an `InterpretedFunction`.
        arguments: by name, tensors of `memory` among them.
        grid: Triton's programs along x, y, z.
        memory: sees all accesses.
        seconds: no program is begun later than this.
        ordered: run them in Triton's order instead (they may wait for each other).

    Returns:
        How many programs ran.

    Raises:
        Exception: whatever the kernel or the interpreter raises.
    """
    from triton.runtime import interpreter as triton

    begin, done = time.monotonic(), 0
    executor = triton.GridExecutor(kernel.rewrite(), kernel.arg_names, grid)
    dot, tensors = triton.InterpreterBuilder.create_dot, triton._patch_lang_tensor
    with (
        patch.object(triton, "_interpreter", Watched(triton._interpreter, memory)),
        patch.object(triton, "_patch_lang_tensor", _letting_new_numpy_in(tensors)),
        patch.object(triton.InterpreterBuilder, "create_dot", _dot_of_bf16(dot)),
    ):
        scope = triton._patch_lang(executor.fn)
        try:
            known = inspect.getfullargspec(executor.fn).args
            given = inspect.getcallargs(executor.fn, **{k: v for k, v in arguments.items() if k in known})
            values = {n: v if n in executor.constexprs else triton._implicit_cvt(v) for n, v in given.items()}
            triton.interpreter_builder.set_grid_dim(*grid)
            for program in _order(grid, ordered):
                if done and time.monotonic() - begin > seconds:
                    break
                memory.program = program
                triton.interpreter_builder.set_grid_idx(*program)
                with np.errstate(all="ignore"):
                    executor.fn(**values)
                done += 1
        finally:
            scope.restore()
    return done


def _order(grid: tuple[int, int, int], ordered: bool) -> Iterator[tuple[int, int, int]]:
    if ordered:
        yield from itertools.product(*map(range, grid))  # type: ignore[misc]
        return
    corners = set(itertools.product(*((0, n - 1) for n in grid)))
    yield from sorted(corners)  # type: ignore[misc]
    total, rng = grid[0] * grid[1] * grid[2], np.random.default_rng(0)
    # of more programs than can ever run in the time, some
    for number in rng.permutation(total) if total <= 1 << 22 else rng.integers(0, total, 1 << 20):
        x, rest = divmod(int(number), grid[1] * grid[2])
        if (program := (x, *divmod(rest, grid[2]))) not in corners:
            yield program


def _letting_new_numpy_in(original: Any) -> Any:
    """Triton 3.6.0's interpreter calls int() on arrays of one element, which NumPy 2.4 refuses."""

    def patched(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patched


def _dot_of_bf16(original: Any) -> Any:
    """Triton 3.6.0's interpreter multiplies the bits of BF16 matrices as whole numbers."""

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        import triton.language as tl

        a, b = (self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return original(self, a, b, *rest)

    return create_dot
