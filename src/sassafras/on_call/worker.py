"""The worker process of a search on call: claims a kernel and a GPU, searches, stores the winner.

Started as ``python -m sassafras.on_call.worker READ_FD WRITE_FD PARENT``; ends with its parent.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sassafras.api.optimize import optimize
from sassafras.api.ptxas_options import choose
from sassafras.core import (
    Budget,
    Buffer,
    Candidate,
    Case,
    CompileError,
    Device,
    DeviceError,
    Evaluation,
    Kernel,
    SassafrasError,
    ToolMissing,
    Workload,
    beats,
)
from sassafras.core.workload import DTYPE_BYTES
from sassafras.cuda.environment import free_bytes
from sassafras.cuda.watcher import Watcher
from sassafras.cuda.worker_loop import Answer, Handler, serve
from sassafras.deploy.check import LaunchFacts, other_code
from sassafras.deploy.gpu import claim_key
from sassafras.evaluate.gpu import CudaDevice
from sassafras.frontend._ptxas import assemble, ptxas_version
from sassafras.frontend.captured.files import Captured, CapturedVariant, read
from sassafras.frontend.captured.workloads import workload
from sassafras.frontend.ptx import PtxSpace, fingerprint
from sassafras.frontend.triton import bundled_ptxas
from sassafras.jobs.confirm import remeasure
from sassafras.store import Store
from sassafras.store.claims import Owner, claim, release, settle

#: copies of a launch's buffers that judging it takes at most, and bytes besides
_COPIES, _BESIDES = 10, 1 << 30
#: looks at a busy GPU, and seconds between the first two
_LOOKS, _APART_S = 5, 0.1
#: what a worker yields to: the program's own threads
_NICE = 10


@dataclass(frozen=True)
class Fixed:
    """Builds one kernel, whichever case is asked for."""

    kernel: Kernel

    def __call__(self, case: Case, arch: str, ptxas: str | None = None) -> Kernel:
        """The kernel."""
        return self.kernel


class CallWorker:
    """Answers the requests of `Calls`.

    Args:
        make: makes the device that judges.
        idle: whether the GPU is idle but for us.
    """

    def __init__(self, make: Callable[[], Device], idle: Callable[[], bool]) -> None:
        self._make, self._idle = make, idle
        self._owner = Owner.me()
        self._device: Any = None
        self._store: Store | None = None
        self._kernel = self._gpu = self._setting = ""
        self.handlers: dict[str, Handler] = {
            "claim": self._claim,
            "search": self._search,
            "settle": self._settle,
        }

    def _opened(self) -> Store:
        if self._store is None:
            raise DeviceError("nothing is claimed", hint="claim first")
        return self._store

    def _claim(self, message: Answer, blobs: list[bytes]) -> Answer:
        """``state``: claimed, busy (ask again later) or settled, and ``detail``."""
        self._device = self._device or self._make()
        self._store = self._store or Store.open(message["store"])
        self._gpu = claim_key(self._owner.host)
        self._kernel, self._setting = f"{message['digest']} {self._device.name}", message["setting"]
        row = claim(self._store, (self._gpu, self._kernel), self._setting, self._owner)
        if row is None:
            if self._idle():
                return {"state": "claimed", "detail": ""}
            return {"state": "busy", "detail": "the GPU is in use by other programs"}
        if row.state != "running":
            return {"state": "settled", "detail": row.detail}
        return {"state": "busy", "detail": f"process {row.owner.pid} searches"}

    def _settle(self, message: Answer, blobs: list[bytes]) -> Answer:
        settle(self._opened(), self._kernel, "done", self._setting, message["detail"], self._owner)
        release(self._opened(), self._gpu, self._owner)
        return {}

    def _search(self, message: Answer, blobs: list[bytes]) -> Answer:
        """Search one compiled kernel of a capture: ``improved`` and ``detail``."""
        store = self._opened()
        captured = read(message["folder"])
        variant = captured.find(message["which"])
        try:
            found = workload(captured, variant)
            own = found.build(found.case(), self._device.arch)
            if not self._device.modelled:
                _fits(found.case())
            budget = message["budget"]
            base, said = self._base(captured, variant, found, own, tuple(message["flags"]), budget)
            if base is own:
                result = optimize(found, device=self._device, budget=budget, store=store)
            else:  # what is found is kept for the program's own code, below
                fixed = replace(found, build=Fixed(base))
                result = optimize(fixed, device=self._device, budget=budget, store=False)
            if base is own:
                return {"improved": result.improved and not result.modelled, "detail": result.summary()}
            improved, figure = self._both(store, found, own, result.kernel, result.recipe)
            return {"improved": improved, "detail": f"{said}, {figure}"}
        except DeviceError:
            raise
        except SassafrasError as error:  # of the kernel: the next start would meet it too
            return {"improved": False, "detail": str(error)}

    def _base(
        self,
        captured: Captured,
        variant: CapturedVariant,
        found: Workload,
        own: Kernel,
        flags: tuple[str, ...],
        budget: str,
    ) -> tuple[Kernel, str]:
        """What the schedule search begins with: the fastest of what ptxas makes that may stand in for it."""
        limit = Budget.parse(budget).evaluations
        try:
            ptx = (captured.folder / f"{variant.digest}.ptx").read_text(encoding="utf-8")
            tool = bundled_ptxas(int("".join(filter(str.isdigit, own.arch))))
            if fingerprint(assemble(ptx, own.arch, tool, flags=flags)) != fingerprint(own.cubin):
                return own, ""  # made by another ptxas, or under other flags
            named = replace(own, meta={**own.meta, "ptxas": ptxas_version(tool)})
            space = PtxSpace(named, ptx, [tool], flags)
            settings = [each.options for each in space.sweep() if not each.options.ptxas]
            if limit is not None:
                settings = settings[: limit // 2]
            choice = choose(space, found, found.case(), self._device, settings)
        except (OSError, UnicodeDecodeError, ImportError, CompileError, ToolMissing):
            return own, ""
        made = choice.kernel
        if made.digest == own.digest or other_code(made, own.cubin, LaunchFacts(name=own.name)):
            return own, ""
        return made, choice.best.describe(choice.ptxas)

    def _both(
        self, store: Store, found: Workload, own: Kernel, best: Kernel, recipe: Any
    ) -> tuple[bool, str]:
        """Re-measure options and schedule together against the program's own code, and keep a winner."""
        candidate = Candidate(own.with_cubin(best.cubin), {"ptxas_options": True, **recipe})
        self._device.open(found, found.case(), own)
        try:
            outcome = remeasure(self._device, candidate)
        finally:
            self._device.close()
        if not isinstance(outcome, Evaluation) or not outcome.verdict.ok or not beats(outcome):
            return False, f"{outcome.verdict.value if outcome.verdict else 'modelled'}: not beyond its null"
        facts = {
            "validator": "none against the original: other options of ptxas, judged by results",
            "environment": self._device.environment(),
            "recipe": dict(candidate.recipe),
            "facts": dict(outcome.facts),
        }
        place = {"gpu": self._device.name, "workload": found.name, "case": found.case().name}
        store.save_winner(own, candidate, outcome, **place, facts=facts)
        return True, f"{outcome.speedup:.3f}x {outcome.interval}"


def _fits(case: Case) -> None:
    """Raise DeviceError where judging this case could take memory that the program will want."""
    buffers = [value for value in case.args.values() if isinstance(value, Buffer)]
    needed = _BESIDES + _COPIES * sum(int(math.prod(b.shape) * DTYPE_BYTES[b.dtype]) for b in buffers)
    free = free_bytes()
    if free is not None and needed > free // 2:
        raise DeviceError(
            f"a search may take {needed >> 20} MiB of GPU memory, more than half of the {free >> 20} MiB "
            "that are free"
        )


def gpu_idle() -> bool:
    """Whether the GPU is idle at one of several looks (`cuda.idle`)."""
    watcher = Watcher()
    try:
        return watcher.idle(_LOOKS, _APART_S)
    finally:
        watcher.close()


if __name__ == "__main__":
    os.nice(_NICE)
    sys.exit(serve(CallWorker(CudaDevice, gpu_idle).handlers))
