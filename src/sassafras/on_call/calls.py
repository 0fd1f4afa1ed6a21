"""The searches of this process: which launch began one, its worker process, and the take-over."""

from __future__ import annotations

import atexit
import os
import queue
import shutil
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sassafras import __version__
from sassafras.capture import merge
from sassafras.capture.timing import capturing
from sassafras.core import Budget, SassafrasError
from sassafras.cuda.worker_process import Stopped, WorkerProcess
from sassafras.deploy import triton_load
from sassafras.deploy.engine import ENGINE, LookedUp, refresh
from sassafras.deploy.gpu import relaxed_capture
from sassafras.deploy.records import CallSearch
from sassafras.deploy.settings import disabled

from . import hook
from .first_call import FirstCall, describe, write
from .settings import BESIDES_S, CLOSE, LOOK_S, PATIENCE_S, RUNNER_UPS, TUNE, off

#: what a worker process runs
WORKER = "sassafras.on_call.worker"


@dataclass
class Trial:
    """A configuration that the autotuner tries.

    Attributes:
        config: as text.
        call: its first launch, once it was made.
    """

    config: str
    call: FirstCall | None = None


@dataclass(frozen=True)
class Wanted:
    """A search to make: the program's launch, then the autotuner's close ones; its budget and store."""

    calls: list[FirstCall]
    budget: str
    store: str


class Calls:
    """Begins searches and lets winners take over. Whatever goes wrong in here never reaches the program.

    Attributes:
        on: are launches looked at?
        settled: ids of kernels of which nothing more is to be done at a launch, and references that remove
            them when the kernels die (a `WeakSet` takes a third of a microsecond to look into).
        worker: module of the worker process.
        patience_s: seconds that a search waits for its turn and for an idle GPU.
    """

    def __init__(self) -> None:
        self.worker, self.patience_s = WORKER, PATIENCE_S
        self.on = False
        self._everything: str | None = None
        #: innermost jitted function and budget by its id
        self._marked: dict[int, tuple[Any, str]] = {}
        self.settled: dict[int, weakref.ref[Any]] = {}
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self.stop)

    def _reset(self) -> None:
        """Begin with nothing; a forked child has none of its parent's threads."""
        self._lock = threading.RLock()
        self._trials: dict[int, list[FirstCall]] = {}
        self._ready: dict[int, tuple[Any, LookedUp]] = {}
        self._queue: queue.SimpleQueue[Wanted] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def start(self, budget: str, kernel: Any = None) -> None:
        """Look at launches from now on: those of `kernel`, or all."""
        with self._lock:
            if kernel is None:
                self._everything = budget
            else:
                while not hasattr(kernel, "device_caches") and hasattr(kernel, "fn"):
                    kernel = kernel.fn
                self._marked[id(kernel)] = (kernel, budget)
            self._stopping.clear()
            problem = hook.attach(self)
            self.on = not problem
            if self.stop not in ENGINE.stops:
                ENGINE.stops.append(self.stop)

    def stop(self) -> None:
        """Begin no more searches, and end the one that runs."""
        with self._lock:
            self.on, self._everything = False, None
            self._marked.clear()
            self._stopping.set()
            hook.detach()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)
        with suppress(queue.Empty):
            while True:
                self._say(self._queue.get_nowait().calls[0], "refused", "stopped")
        for left in (self.settled, self._ready, self._trials):  # `start` may be told of other settings
            left.clear()

    # -- on the program's thread ----------------------------------------------------------------------------

    def bench(self, config: Any) -> Trial:
        """The autotuner begins to try a configuration."""
        return Trial(str(config))

    def benched(self, trial: Trial, timings: Any) -> None:
        """It has: the median, in milliseconds."""
        try:
            if trial.call is not None:
                trial.call.ms = float(timings[0] if isinstance(timings, list | tuple) else timings)
                number, key = id(trial.call.fn), trial.call.key
                before = [one for one in self._trials.get(number, []) if one.key == key]  # of this autotuning
                self._trials[number] = [*before, trial.call]
        except Exception as error:
            self._say(trial.call, "refused", _text(error))

    def launched(
        self, fn: Any, args: Any, kwargs: dict[str, Any], grid: Any, compiled: Any, trial: Trial | None
    ) -> None:
        """A launch of a kernel that is not settled has just been made."""
        call = None
        try:
            if compiled is None or capturing():
                return
            if (ready := self._ready.pop(id(compiled), None)) is not None:
                self._settle(compiled)
                triton_load.exchange(ENGINE, compiled, ready[1])
                return
            budget = self._budget_of(fn)
            if trial is not None and budget is not None:
                if trial.call is None or trial.call.compiled is not compiled:
                    trial.call = self._describe(fn, args, kwargs, grid, compiled, trial.config)
                return
            with self._lock:  # two threads may launch it first
                if id(compiled) in self.settled:
                    return
                self._settle(compiled)
            if budget is None or off() or disabled() or not ENGINE.active:
                return
            call = self._describe(fn, args, kwargs, grid, compiled)
            call.copy_integers(dict(zip(fn.arg_names, args, strict=False)) | kwargs)
            self._begin(call, budget)
        except Exception as error:
            self._say(call, "refused", _text(error))

    def _settle(self, compiled: Any) -> None:
        number, settled = id(compiled), self.settled
        settled[number] = weakref.ref(compiled, lambda _: settled.pop(number, None))

    def _budget_of(self, fn: Any) -> str | None:
        marked = self._marked.get(id(fn))
        return self._everything if marked is None else marked[1]

    def _describe(
        self, fn: Any, args: Any, kwargs: dict[str, Any], grid: Any, compiled: Any, config: str = ""
    ) -> FirstCall:
        from triton.runtime import driver

        given = describe(dict(zip(fn.arg_names, args, strict=False)) | kwargs)
        return FirstCall(fn, compiled, given, grid, int(driver.active.get_current_device()), config)

    def _begin(self, call: FirstCall, budget: str) -> None:
        tried = [one for one in self._trials.pop(id(call.fn), []) if one.key == call.key]
        for one in tried:
            if one.compiled is call.compiled:
                call.config, call.ms = one.config, one.ms
        close = sorted(
            (one for one in tried if one.compiled is not call.compiled and call.ms is not None
             and one.ms is not None and one.ms <= CLOSE * call.ms),
            key=lambda one: one.ms or 0.0,
        )  # fmt: skip
        assert ENGINE.index is not None
        self._say(call, "waiting", "for the worker process", budget)
        self._queue.put(Wanted([call, *close[:RUNNER_UPS]], budget, str(ENGINE.index.path)))
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="sassafras-on-call", daemon=True)
                self._thread.start()

    # -- in the background ----------------------------------------------------------------------------------

    def _work(self) -> None:
        with relaxed_capture():  # nothing here may fail or spoil a graph that the program captures meanwhile
            while not self._stopping.is_set():
                try:
                    wanted = self._queue.get(timeout=0.2)
                except queue.Empty:
                    continue
                try:
                    self._one(wanted)
                except Stopped:
                    self._say(wanted.calls[0], "refused", "stopped")
                except SassafrasError as error:
                    self._say(wanted.calls[0], "refused", str(error))
                except Exception as error:
                    self._say(wanted.calls[0], "refused", _text(error))

    def _one(self, wanted: Wanted) -> None:
        """Search one launch, and put what was found at hand."""
        first = wanted.calls[0]
        if self._at_hand(first):
            self._say(first, "done", "the store had a tuned cubin")
            return
        # a `TemporaryDirectory` would be removed by every fork of the program that ends
        folder = tempfile.mkdtemp(prefix="sassafras-call-")
        try:
            write(wanted.calls, Path(folder))
            if problem := merge(folder).find(first.digest).problem:
                self._say(first, "refused", problem)
                return
            worker = WorkerProcess(self.worker, environment=_environment(first.device))
            try:
                self._say(first, *self._searched(worker, wanted, folder))
            finally:
                worker.kill()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _searched(self, worker: WorkerProcess, wanted: Wanted, folder: str) -> tuple[str, str]:
        """How the search ended: state and detail."""
        first = wanted.calls[0]
        setting = f"{wanted.budget} {__version__}"
        place = {"store": wanted.store, "digest": first.digest, "device": first.device, "setting": setting}
        begin = time.monotonic()
        while (answer := self._ask(worker, "claim", BESIDES_S, **place))["state"] == "busy":
            if time.monotonic() - begin > self.patience_s:
                return "refused", f"gave up after {self.patience_s:g} s: {answer['detail']}"
            self._say(first, "waiting", answer["detail"])
            if self._stopping.wait(LOOK_S):
                raise Stopped
        if answer["state"] == "settled":
            found = self._at_hand(first)
            return "done", "the store has a tuned cubin" if found else f"searched before: {answer['detail']}"
        told, budget = [], Budget.parse(wanted.budget)
        share = replace(
            budget,
            seconds=budget.seconds and budget.seconds / len(wanted.calls),
            evaluations=budget.evaluations and max(2, budget.evaluations // len(wanted.calls)),
        )
        for call in wanted.calls:
            self._say(first, "searching", f"{call.config or call.compiled.name}, {share}")
            limit = (share.seconds or 0.0) + BESIDES_S
            asked = {"folder": folder, "which": call.digest, "budget": str(share), "flags": call.ptxas_flags}
            answer = self._ask(worker, "search", limit, **asked)
            told.append(f"{call.config}: {answer['detail']}" if len(wanted.calls) > 1 else answer["detail"])
            if answer["improved"] and not self._at_hand(call):
                told.append("not used: " + triton_load.look_up(ENGINE, call.compiled, call.device)[2].reason)
        detail = "; ".join(told)
        self._ask(worker, "settle", BESIDES_S, detail=detail)
        return "done", detail

    def _ask(self, worker: WorkerProcess, do: str, seconds: float, **fields: Any) -> dict[str, Any]:
        worker.send(do, **fields)
        return worker.receive(seconds, self._stopping.is_set)

    def _at_hand(self, call: FirstCall) -> bool:
        """Whether the store has a tuned cubin for it, which its next launch then loads, if it did not yet."""
        refresh()
        found = triton_load.look_up(ENGINE, call.compiled, call.device)
        if found.decision.tuned is None:
            return False
        rows = [row for row in ENGINE.loaded if row.original == found.digest and row.device == found.device]
        if call.compiled.module is not None and not (rows and rows[-1].tuned):
            self._ready[id(call.compiled)] = (
                call.compiled,
                found,
            )  # before the set: a launch may be under way
            self.settled.pop(id(call.compiled), None)
        return True

    def _say(self, call: FirstCall | None, state: str, detail: str, budget: str = "") -> None:
        """Note how a search stands."""
        if call is None:
            ENGINE.note_search(CallSearch("a launch", "", state, detail))
            return
        try:
            before = ENGINE.searches.get(call.digest)
            budget = budget or (before.budget if before else "")
            ENGINE.note_search(CallSearch(call.compiled.name, call.digest, state, detail, budget))
        except Exception as error:
            ENGINE.why = f"a search could not be noted: {_text(error)}"


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _environment(device: int) -> dict[str, str]:
    """A worker sees one GPU, the launch's, and installs, records and searches nothing by itself."""
    visible = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    one = visible[device] if device < len(visible) else str(device)
    return {"CUDA_VISIBLE_DEVICES": one, "SASSAFRAS_AUTOINSTALL": "0", "SASSAFRAS_CAPTURE": "", TUNE: "off"}


CALLS = Calls()
