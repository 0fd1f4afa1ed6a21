"""Tuned kernels: measured ones, and, apart from them, what the timing model liked."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from sassafras.core import Candidate, Evaluation, Interval, Kernel, Modelled, Outcome, StoreError

from .database import KERNEL_COLUMNS
from .records import ModelledWinner, Winner, typed
from .rows import dumps, kernel_of, now
from .runs import Runs

#: columns of a `TunedKernel`
_TUNED = f"w.id, w.tuned, {KERNEL_COLUMNS}, w.workload, w.case_name, w.created, w.origin, w.facts"


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
        figures = {
            "gpu": gpu,
            "speedup": float(outcome.speedup),
            "low": float(outcome.interval.low),
            "high": float(outcome.interval.high),
            "null_speedup": float(outcome.null),
            "null_low": float(outcome.null_interval.low),
            "null_high": float(outcome.null_interval.high),
            "samples": int(outcome.samples),
            "workload": workload,
            "case_name": case,
        }
        return self._save("winners", (original, candidate, outcome), figures, run_id, facts)

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
        """Store the best kernel on the timing model, apart from everything that was measured.

        Raises:
            StoreError: the outcome is no modelled one, was refused, or is of another candidate.
        """
        if not isinstance(outcome, Modelled) or outcome.modelled_ratio is None or outcome.verdict is not None:
            raise StoreError("only an accepted modelled outcome can be saved as a modelled winner")
        ratio = float(outcome.modelled_ratio)
        figures = {"model": model, "modelled_ratio": ratio, "workload": workload, "case_name": case}
        return self._save("modelled_winners", (original, candidate, outcome), figures, run_id, facts)

    def winners(self, *, original: str | None = None, gpu: str | None = None) -> list[Winner]:
        """Measured winners, the surest (highest lower bound) first.

        Args:
            original: only those for the cubin with this digest.
            gpu: only those measured on this GPU model.
        """
        rows = self._all(
            f"SELECT w.gpu, w.speedup, w.low, w.high, w.null_speedup, w.null_low, w.null_high, w.samples,"
            f" {_TUNED} FROM winners w JOIN kernels k ON k.id = w.kernel"
            " WHERE (?1 IS NULL OR k.cubin = ?1) AND (?2 IS NULL OR w.gpu = ?2)"
            " ORDER BY w.low DESC, w.id DESC",
            (original, gpu),
        )
        with self.reading():
            return [
                typed(
                    Winner(
                        gpu=gpu,
                        speedup=speedup,
                        interval=Interval(low, high),
                        null=null,
                        null_interval=Interval(null_low, null_high),
                        samples=samples,
                        **self._tuned(*kept),
                    )
                )
                for gpu, speedup, low, high, null, null_low, null_high, samples, *kept in rows
            ]

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
        """The best kernels on the timing model, highest ratio first. These are not measurements."""
        rows = self._all(
            f"SELECT w.model, w.modelled_ratio, {_TUNED} FROM modelled_winners w"
            " JOIN kernels k ON k.id = w.kernel"
            " WHERE (?1 IS NULL OR k.cubin = ?1) ORDER BY w.modelled_ratio DESC, w.id DESC",
            (original,),
        )
        with self.reading():
            return [
                typed(ModelledWinner(model=model, modelled_ratio=ratio, **self._tuned(*kept)))
                for model, ratio, *kept in rows
            ]

    def _tuned(self, *row: Any) -> dict[str, Any]:
        """The fields of a `TunedKernel` from the columns `_TUNED`."""
        number, tuned, original, *kernel, workload, case, created, origin, facts = row
        return {
            "id": number,
            "original": original,
            "tuned": tuned,
            "kernel": kernel_of(self.cubin(tuned), *kernel),
            "workload": workload,
            "case": case,
            "created": created,
            "origin": origin,
            "facts": json.loads(facts),
        }

    def _save(
        self,
        table: str,
        judged: tuple[Kernel, Candidate, Outcome],
        figures: Mapping[str, Any],
        run_id: int | None,
        facts: Mapping[str, Any] | None,
    ) -> int:
        """A row of `table` for (original, candidate, outcome), with these figures."""
        original, candidate, outcome = judged
        tuned = candidate.kernel
        if outcome.digest != candidate.digest:
            raise StoreError("the outcome belongs to another candidate")
        own, its = ((k.name, k.arch, k.launch_facts()) for k in (original, tuned))
        if own != its:
            raise StoreError(
                "the tuned kernel's launch facts differ from the original's", where=original.name
            )
        with self.transaction():
            row = {
                "kernel": self.kernel_id(original),
                "tuned": self.put_cubin(tuned.cubin),
                **figures,
                "run": None if run_id is None else self.run(run_id).uid,
                "facts": dumps(facts or {}),
                "created": now(),
                "uid": uuid.uuid4().hex,
            }
            return self.insert(table, row)
