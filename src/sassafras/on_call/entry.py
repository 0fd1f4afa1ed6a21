"""What a program writes: a decorator, or one call for all kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from sassafras import deploy
from sassafras.core import Budget
from sassafras.deploy import Status

F = TypeVar("F")


def install(store: Any = None, *, tune: str | None = None, **options: Any) -> Status:
    """From now on, Triton kernels that load run the tuned cubins of the store.

    A tuned cubin is used only if the sha256 of the compiler's cubin, the GPU model and everything that a
    launch relies on match, and the stored measurement shows a speed-up. Otherwise, and whenever anything goes
    wrong, the compiler's cubin is loaded as if we were not here; `status` says why. Triton's cache is neither
    read nor written. Kernels that were loaded before keep their code. Calling this again takes the new
    settings and reads the store again.

    With `tune`, the first launch of each compiled kernel that the store has nothing for also begins a search.
    The launch itself runs at once. The search runs in a worker process, one at a time; once its winner is
    validated and re-measured, later launches run it, in this process and in later ones.
    ``SASSAFRAS_TUNE=off`` turns this off.

    Args:
        store: its file; None for ``$SASSAFRAS_STORE`` or the user's data folder. Opened read-only by this
            process; the worker process writes.
        tune: budget of each search, for example ``"20s"`` or ``"2000e"``; None: no searches.
        options: ``deny``, ``revalidate``, ``wait_s``, ``status_dir``: see `sassafras.deploy.install`.

    Returns:
        The status. A store, GPU or Triton that cannot be used raises nothing: the status says so.

    Raises:
        SearchError: `tune` is no budget.
    """
    budget = None if tune is None else _budget(tune)
    status = deploy.install(store, **options)
    if budget is None:
        return status
    from .calls import CALLS

    CALLS.start(budget)
    return deploy.status()


@overload
def autotune(kernel: F) -> F: ...
@overload
def autotune(kernel: None = None, *, budget: str = "20s") -> Callable[[F], F]: ...
def autotune(kernel: F | None = None, *, budget: str = "20s") -> F | Callable[[F], F]:
    """Decorator above ``@triton.jit`` or ``@triton.autotune``: search this kernel when it is first called.

    The first call with a new compiled kernel runs the compiler's code at once. A worker process searches in
    the background: options of ptxas and schedules, of an autotuned kernel for the configuration that Triton
    chose and for the next best. The validated, re-measured winner then takes over and is stored for later
    starts. Needs no `install`. ``SASSAFRAS_TUNE=off`` turns the search off; stored winners are used all the
    same.

    Args:
        kernel: the kernel; None where the decorator is called with options.
        budget: of the search, for example ``"20s"`` or ``"2000e"``.

    Returns:
        The kernel itself.

    Raises:
        SearchError: `budget` is no budget.

    Example:
        ``@sassafras.autotune(budget="20s")`` on a line of its own above ``@triton.jit``.
    """
    text = _budget(budget)

    def mark(kernel: F) -> F:
        from .calls import CALLS

        deploy.tuned(kernel)
        CALLS.start(text, kernel)
        return kernel

    return mark if kernel is None else mark(kernel)


def _budget(text: str) -> str:
    """The budget, checked."""
    return str(Budget.of(text))
