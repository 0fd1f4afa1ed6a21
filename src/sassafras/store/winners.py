"""Tuned kernels: measured ones, and, apart from them, what the timing model liked."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from sassafras.core import Candidate, Evaluation, Interval, Kernel, Modelled, Outcome, StoreError

from .database import KERNEL_COLUMNS
from .records import ModelledWinner, Winner, dumps, kernel_of, launch_facts, now, typed
from .runs import Runs


class Winners(Runs):
    """The part of the store that deployment reads."""

    def save_winner(
        self,
        original: Kernel,
        candidate: Candidate,
        outcome: Evaluation,
        *,
        gpu: str,
        workload: str,
        case: str,
        run_id: int | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> int:
        """Keep a tuned kernel that was measured; returns its id.

        Raises:
            StoreError: the outcome is modelled, not correct, without intervals, of another candidate, or
                the candidate's launch facts differ from the original's.
        """
        if not isinstance(outcome, Evaluation):
            raise StoreError("only a measurement can be saved as a winner", hint="use save_modelled_winner")
        if not outcome.verdict.ok:
            raise StoreError(f"a winner must be correct, this one is {outcome.verdict.value}")
        if (
            outcome.speedup is None
            or not outcome.interval
            or outcome.null is None
            or not outcome.null_interval
        ):
            raise StoreError("a winner needs a speed-up and a null experiment, both with their intervals")
        with self.transaction() as db:
            kernel_id, tuned = self._winner_parts(original, candidate, outcome)
            cursor = db.execute(
                "INSERT INTO winners (kernel, tuned, gpu, speedup, low, high, null_speedup, null_low,"
                " null_high, samples, workload, case_name, run, facts, created, uid)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    kernel_id,
                    tuned,
                    gpu,
                    float(outcome.speedup),
                    float(outcome.interval.low),
                    float(outcome.interval.high),
                    float(outcome.null),
                    float(outcome.null_interval.low),
                    float(outcome.null_interval.high),
                    int(outcome.samples),
                    workload,
                    case,
                    self._uid(run_id),
                    dumps(facts or {}),
                    now(),
                    uuid.uuid4().hex,
                ),
            )
            return int(cursor.lastrowid or 0)

    def save_modelled_winner(
        self,
        original: Kernel,
        candidate: Candidate,
        outcome: Modelled,
        *,
        model: str,
        workload: str,
        case: str,
        run_id: int | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> int:
        """Keep what the timing model liked best, apart from everything that was measured.

        Raises:
            StoreError: the outcome is no modelled one, was refused, or is of another candidate.
        """
        if not isinstance(outcome, Modelled) or outcome.modelled_ratio is None or outcome.verdict is not None:
            raise StoreError("only an accepted modelled outcome can be saved as a modelled winner")
        with self.transaction() as db:
            kernel_id, tuned = self._winner_parts(original, candidate, outcome)
            cursor = db.execute(
                "INSERT INTO modelled_winners (kernel, tuned, model, modelled_ratio, workload, case_name,"
                " run, facts, created, uid) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    kernel_id,
                    tuned,
                    model,
                    float(outcome.modelled_ratio),
                    workload,
                    case,
                    self._uid(run_id),
                    dumps(facts or {}),
                    now(),
                    uuid.uuid4().hex,
                ),
            )
            return int(cursor.lastrowid or 0)

    def winners(self, *, original: str | None = None, gpu: str | None = None) -> list[Winner]:
        """Measured winners, the surest (highest lower bound) first.

        Args:
            original: only those for the cubin with this digest.
            gpu: only those measured on this GPU model.
        """
        rows = self._all(
            f"SELECT w.id, w.tuned, w.gpu, w.speedup, w.low, w.high, w.null_speedup, w.null_low, w.null_high,"
            f" w.samples, w.workload, w.case_name, w.created, w.origin, w.facts, {KERNEL_COLUMNS}"
            " FROM winners w JOIN kernels k ON k.id = w.kernel"
            " WHERE (?1 IS NULL OR k.cubin = ?1) AND (?2 IS NULL OR w.gpu = ?2)"
            " ORDER BY w.low DESC, w.id DESC",
            (original, gpu),
        )
        return [_winner(row, self.cubin(row[1])) for row in rows]

    def remove_winner(self, winner_id: int) -> None:
        """Remove one measured winner, for example one that the validator refuses by now.

        Its cubins stay until `prune`.

        Raises:
            StoreError: there is none with this number.
        """
        with self.transaction() as db:
            if db.execute("DELETE FROM winners WHERE id = ?", (winner_id,)).rowcount != 1:
                raise StoreError(f"there is no winner {winner_id}", where=self._where)

    def modelled_winners(self, *, original: str | None = None) -> list[ModelledWinner]:
        """What the timing model liked best, highest ratio first. These are not measurements."""
        rows = self._all(
            "SELECT w.id, w.tuned, w.model, w.modelled_ratio, w.workload, w.case_name, w.created, w.origin,"
            f" w.facts, {KERNEL_COLUMNS} FROM modelled_winners w JOIN kernels k ON k.id = w.kernel"
            " WHERE (?1 IS NULL OR k.cubin = ?1) ORDER BY w.modelled_ratio DESC, w.id DESC",
            (original,),
        )
        return [_modelled_winner(row, self.cubin(row[1])) for row in rows]

    def _uid(self, run_id: int | None) -> str | None:
        return None if run_id is None else self.run(run_id).uid

    def _winner_parts(self, original: Kernel, candidate: Candidate, outcome: Outcome) -> tuple[int, str]:
        tuned = candidate.kernel
        if outcome.digest != candidate.digest:
            raise StoreError("the outcome belongs to another candidate")
        if (original.name, original.arch, launch_facts(original)) != (
            tuned.name,
            tuned.arch,
            launch_facts(tuned),
        ):
            raise StoreError(
                "the tuned kernel's launch facts differ from the original's", where=original.name
            )
        return self.kernel_id(original), self.put_cubin(tuned.cubin)


def _winner(row: tuple[Any, ...], cubin: bytes) -> Winner:
    """A row of `winners` joined with its kernel."""
    (
        row_id,
        tuned,
        gpu,
        speedup,
        low,
        high,
        null,
        null_low,
        null_high,
        samples,
        workload,
        case,
        created,
        origin,
        facts,
        original,
        *kernel,
    ) = row
    return typed(
        Winner(
            row_id,
            original,
            tuned,
            kernel_of(cubin, *kernel),
            gpu,
            speedup,
            Interval(low, high),
            null,
            Interval(null_low, null_high),
            samples,
            workload,
            case,
            created,
            origin,
            json.loads(facts),
        )
    )


def _modelled_winner(row: tuple[Any, ...], cubin: bytes) -> ModelledWinner:
    """A row of `modelled_winners` joined with its kernel."""
    (row_id, tuned, model, ratio, workload, case, created, origin, facts, original, *kernel) = row
    return typed(
        ModelledWinner(
            row_id,
            original,
            tuned,
            kernel_of(cubin, *kernel),
            model,
            ratio,
            workload,
            case,
            created,
            origin,
            json.loads(facts),
        )
    )
