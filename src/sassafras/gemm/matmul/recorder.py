"""Which products a program calls, and how often.

While a recorder is installed, it stands before the launcher (`api.watch`); otherwise calls know nothing of
it. Replays of torch's CUDA graphs count the products that were called during the capture.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError
from sassafras.core.errors import reason
from sassafras.core.files import write_whole

from ..problem.shape import Product
from .problem import Problem

#: folder that a program's processes write their records to
VARIABLE = "SASSAFRAS_GEMM_RECORD"
#: recorders of this process
_EVERY: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _after_fork() -> None:
    for one in list(_EVERY):
        one.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class Recorder:
    """Counts calls; threads may do so at the same time.

    Args:
        folder: where `save` writes, now and then and when the process ends; None: nowhere.

    Attributes:
        calls: product -> calls.
        others: calls of batches, and of SwiGLU's pairs, which are not told apart.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder, self.others = folder and folder.absolute(), 0  # the program may change its own
        self.calls: Counter[Product] = Counter()
        self._captured: Counter[Product] | None = None
        self._refused, self._lock = False, threading.Lock()
        _EVERY.add(self)
        self._original: dict[str, Callable[..., Any]] = {}

    def over(self, launcher: Any) -> CountingLauncher:
        """A launcher that counts."""
        return CountingLauncher(launcher, self)

    def count(self, key: tuple[int, ...] | None) -> None:
        """A call of this problem (`Problem`; None: of no problem)."""
        if key is None:
            return
        product = Problem(*key).product
        with self._lock:
            if product is None:
                self.others += 1
                return
            self.calls[product] += 1
            if self._captured is not None:
                self._captured[product] += 1
            calls, new = self.calls.total(), self.calls[product] == 1
        if new or calls & (calls - 1) == 0:
            self.save()

    def save(self) -> None:
        """Write the folder's file of this process, if there is a folder; one warning where it takes none."""
        if self.folder is None:
            return
        with self._lock:
            found = {"products": to_json(self.calls), "others": self.others}
            try:
                write_whole(self.folder / f"{os.getpid()}.json", json.dumps(found))
                return
            except OSError as error:
                told = f"{VARIABLE}={self.folder}: products cannot be recorded there: {reason(error)}"
            said, self._refused = self._refused, True
        if not said:
            warnings.warn(f"sassafras.matmul: {told}", RuntimeWarning, stacklevel=2)

    def after_fork(self) -> None:
        """A child counts its own calls; it has none of its parent's threads, which may hold the lock."""
        self._lock, self.others = threading.Lock(), 0
        self.calls.clear()

    def watch_graphs(self, graph: Any) -> None:
        """Count replays of a class of CUDA graphs (torch.cuda.CUDAGraph), until `leave_graphs`."""
        kept = {name: getattr(graph, name) for name in ("capture_begin", "capture_end", "replay")}
        self._original = kept

        def begin(this: Any, *given: Any, **named: Any) -> Any:
            self._captured = Counter()
            return kept["capture_begin"](this, *given, **named)

        def end(this: Any, *given: Any, **named: Any) -> Any:
            this.sassafras_products, self._captured = self._captured, None
            return kept["capture_end"](this, *given, **named)

        def replay(this: Any) -> Any:
            with self._lock:
                self.calls.update(getattr(this, "sassafras_products", None) or {})
            return kept["replay"](this)

        graph.capture_begin, graph.capture_end, graph.replay = begin, end, replay

    def leave_graphs(self, graph: Any) -> None:
        """Undo `watch_graphs`."""
        for name, function in self._original.items():
            setattr(graph, name, function)
        self._original = {}


class CountingLauncher:
    """A launcher's calls, counted where it serves them; others reach `Recorder.count` on their way."""

    def __init__(self, launcher: Any, recorder: Recorder) -> None:
        self._launcher, self._recorder = launcher, recorder

    def __call__(self, *call: Any) -> Any:
        """See `PythonLauncher`."""
        result = self._launcher(*call)
        if result is not NotImplemented:
            self._count(*call)
        return result

    def linear(self, x: Any, weight: Any, bias: Any, residual: Any, activation: int) -> Any:
        """See `PythonLauncher`."""
        result = self._launcher.linear(x, weight, bias, residual, activation)
        if result is not NotImplemented:
            beta = float(residual is not None)
            self._count(x, weight.t(), None, bias, activation, 1.0, beta, residual)
        return result

    def _count(self, *call: Any) -> None:
        plain = (value.detach() if hasattr(value, "detach") else value for value in call)
        self._recorder.count(self._launcher.key(*plain))


def to_json(calls: Counter[Product]) -> list[dict[str, Any]]:
    """Products with their calls, for a file."""
    return [{**product.to_json(), "calls": count} for product, count in calls.items()]


def recorded(paths: Iterable[Path]) -> tuple[Counter[Product], dict[str, Any]]:
    """What these files hold together: calls, and their further fields, `others` added up.

    Raises:
        SassafrasError: a file is damaged.
    """
    calls, more = Counter[Product](), {"others": 0}
    for path in paths:
        try:
            found = json.loads(path.read_text())
            for one in found.pop("products"):
                calls[Product.from_json(one)] += int(one["calls"])
            more = {**found, "others": more["others"] + int(found["others"])}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, SassafrasError) as error:
            what, hint = f"not a record of products: {error}", "remove it, and record again"
            raise SassafrasError(what, where=str(path), hint=hint) from error
    return calls, more
