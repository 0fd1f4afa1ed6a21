"""The fresh processes of a re-measurement: they open together, measure one after another, end together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sassafras.core import Candidate, DeviceError, Verdict
from sassafras.cuda.worker_process import WorkerProcess

from .protocol import kernel_facts


def in_turn(
    workers: Sequence[WorkerProcess], candidate: Candidate, limits: tuple[float, float], **how: Any
) -> list[dict[str, Any]]:
    """The answers of workers that were asked to open, or the first that is no measurement, alone.

    Args:
        limits: seconds for what is left of an opening, and for a measurement.
        how: of ``measure``.
    """
    opening, measuring = limits
    for worker in workers:
        answer = _guarded(worker, candidate, opening, None)
        if answer["verdict"] != Verdict.CORRECT:
            return [answer]
    answers = []
    for worker in workers:
        if worker.alive:  # what ended meanwhile was killed from outside
            answers.append(_guarded(worker, candidate, measuring, "measure", **how))
            if answers[-1]["verdict"] != Verdict.CORRECT:
                return answers[-1:]
    return answers or [{"verdict": Verdict.CRASHED, "detail": "no process was left to measure it"}]


def _guarded(
    worker: WorkerProcess, candidate: Candidate, seconds: float, do: str | None, **how: Any
) -> dict[str, Any]:
    """Wait for a fresh worker's ``open`` (`do` None) or ask it to measure; a verdict in every case."""
    try:
        if do is None:
            return {"verdict": Verdict.CORRECT, **worker.receive(seconds)}
        kernel = candidate.kernel
        return worker.ask(do, seconds, [kernel.cubin], kernel=kernel_facts(kernel), **how)
    except DeviceError as error:
        if error.verdict is None:
            raise
        return {"verdict": error.verdict, "detail": str(error)}


def end(workers: list[WorkerProcess]) -> None:
    """Kill them at a time, and wait a moment for the first of them: the system needs a while for each."""
    for worker in workers:
        worker.signal_kill()
    for number, worker in enumerate(workers):
        worker.kill(0.0 if number else 0.3)
    workers.clear()
