"""The parent's side of `worker`: a GPU process for one shape after another, replaced when it is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sassafras.core import DeviceError
from sassafras.cuda.worker_process import WorkerDied, WorkerProcess, WorkerTimeout, WorkerTooLarge

from ..problem.shape import Shape

#: seconds without an answer after which a process hangs
STALL = 90.0
WORKER = "sassafras.gemm.bench.worker"


class WorkerClient:
    """A worker process: started when first asked, and another one after its context or its life was lost.

    Args:
        plan: what all questions share (mode, options, ...; see `worker.ShapeWorker`), JSON-able.
        stall: seconds without an answer after which it is killed, by default `STALL`.
        environment: further environment variables of the process.
    """

    def __init__(
        self,
        plan: dict[str, Any],
        *,
        stall: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.plan, self.stall, self.environment = plan, stall, environment
        #: the conditions that its figures belong to, once it runs
        self.header: dict[str, Any] = {}
        #: processes that died, were killed, or lost their context
        self.deaths = 0
        self._process: WorkerProcess | None = None

    @property
    def pid(self) -> int | None:
        """The process's id, None while there is none."""
        return self._process.pid if self._process is not None else None

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The record of one shape (``question["shape"]``).

        It carries ``error`` where something failed, and ``lost`` where the process died, hung or lost its
        context; the next question starts another one.

        Raises:
            DeviceError: the process cannot start, with its own words.
        """
        if self._process is None or not self._process.alive:
            self._start()
        assert self._process is not None
        record: dict[str, Any]
        try:
            self._process.send("shape", question=question)
            record = self._process.receive(self.stall or STALL)["record"]
        except (WorkerDied, WorkerTimeout, WorkerTooLarge) as error:
            shape = question["shape"]
            record = {"shape": shape, "band": Shape.parse(shape).band, "error": str(error), "lost": True}
        if record.get("lost"):
            self.deaths += 1
            self._process.kill()
        return record

    def _start(self) -> None:
        self.close()
        self._process = WorkerProcess(WORKER, environment=self.environment)
        try:
            self._process.send("open", plan=self.plan)
            self.header = self._process.receive(STALL)["header"]
        except DeviceError as error:
            self.close()
            raise DeviceError(
                f"the process that measures does not start: {error.what}",
                where=error.where or self.plan["mode"],
                hint=error.hint,
            ) from error

    def close(self) -> None:
        """End the process. Safe to call twice."""
        if self._process is not None:
            self._process.kill()
            self._process = None
