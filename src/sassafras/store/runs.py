"""Searches and their evaluations."""

from __future__ import annotations

import hashlib
import json
import uuid
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from sassafras.core import Candidate, Kernel, Outcome, StoreError

from .database import KERNEL_COLUMNS, Database
from .records import RunRecord, StoredStep, typed
from .rows import OUTCOME_COLUMNS, dumps, kernel_of, now, outcome_row, row_outcome

#: in the order of a `RunRecord`'s fields
_RUN_COLUMNS = """
    r.id, r.uid, r.workload, r.case_name, k.name, k.arch, k.cubin, r.device, r.modelled, r.strategy, r.seed,
    r.created, (SELECT count(*) FROM evaluations e WHERE e.run = r.id), r.finished_budget, r.result,
    r.spec, r.environment, r.origin
    FROM runs r JOIN kernels k ON k.id = r.kernel"""


class Runs(Database):
    """The part of the store that searches write to."""

    def begin_run(
        self,
        spec: Mapping[str, Any],
        *,
        kernel: Kernel,
        workload: str,
        case: str,
        device: str,
        modelled: bool,
        strategy: str,
        seed: int,
        environment: Mapping[str, Any] | None = None,
        fresh: bool = False,
    ) -> int:
        """The run with this `spec` (everything that makes two searches the same), begun if need be.

        With `fresh` an earlier run of the same spec is kept, but no longer resumed.

        Returns:
            The run's id in this store.
        """
        text = dumps(spec)
        key = hashlib.sha256(text.encode()).hexdigest()
        with self.transaction() as db:
            if fresh:
                db.execute("UPDATE runs SET key = NULL WHERE key = ?", (key,))
            if found := db.execute("SELECT id FROM runs WHERE key = ?", (key,)).fetchone():
                return int(found[0])
            row = {
                "key": key,
                "kernel": self.kernel_id(kernel),
                "workload": workload,
                "case_name": case,
                "device": device,
                "modelled": int(modelled),
                "strategy": strategy,
                "seed": int(seed),
                "spec": text,
                "environment": dumps(environment or {}),
                "created": now(),
                "uid": uuid.uuid4().hex,
            }
            return self.insert("runs", row)

    def record(self, run_id: int, candidate: Candidate, outcome: Outcome, took: float = 0.0) -> Outcome:
        """Append one evaluation; on return it survives `kill -9`.

        Args:
            run_id: from `begin_run`.
            candidate: what was judged.
            outcome: what came of it.
            took: seconds of the search's budget that it cost.

        Returns:
            What the store now holds for this candidate: `outcome`, or what another process searching
            the same run recorded first.

        Raises:
            StoreError: the outcome is of another candidate, a modelled outcome was offered to a measured
                run (or the reverse), or there is no such run.
        """
        if outcome.digest != candidate.digest:
            raise StoreError("the outcome belongs to another candidate", where=self._where)
        return self.append(run_id, candidate.recipe, outcome, took)

    def append(self, run_id: int, recipe: Mapping[str, Any], outcome: Outcome, took: float = 0.0) -> Outcome:
        """`record` for an outcome whose candidate's code stayed on the machine that judged it.

        Raises:
            StoreError: a modelled outcome was offered to a measured run (or the reverse), or there is no such
                run.
        """
        packed = zlib.compress(dumps(recipe).encode(), 1)
        row = outcome_row(outcome)
        with self.transaction() as db:
            run = db.execute("SELECT modelled FROM runs WHERE id = ?", (run_id,)).fetchone()
            if run is None:
                raise StoreError(f"there is no run {run_id}", where=self._where)
            if bool(run[0]) != outcome.modelled:
                kinds = "a modelled", "a measured"
                offered, kept = kinds if outcome.modelled else reversed(kinds)
                raise StoreError(f"{offered} outcome was offered to {kept} run", where=self._where)
            marks = ", ".join("?" * (len(OUTCOME_COLUMNS) + 4))
            cursor = db.execute(
                f"INSERT INTO evaluations (run, {', '.join(OUTCOME_COLUMNS)}, took, recipe, recorded)"
                f" VALUES ({marks}) ON CONFLICT (run, digest) DO NOTHING",
                (run_id, *row, float(took), packed, now()),
            )
            if cursor.rowcount == 1:
                return outcome
        known = self.known(run_id, outcome.digest)
        assert known is not None
        return known[0]

    def known(self, run_id: int, digest: str) -> tuple[Outcome, float] | None:
        """What this run already knows of a candidate, and the seconds that it took; None for nothing."""
        row = self._one(
            f"SELECT {', '.join(OUTCOME_COLUMNS)}, took FROM evaluations WHERE run = ? AND digest = ?",
            (run_id, digest),
        )
        with self.reading():
            return None if row is None else (row_outcome(row[:-1]), row[-1])

    def recorded(self, run_id: int) -> Iterator[tuple[Outcome, float]]:
        """Every outcome of a run and the seconds that it took, in the order in which they were recorded."""
        query = f"SELECT {', '.join(OUTCOME_COLUMNS)}, took FROM evaluations WHERE run = ? ORDER BY id"
        with self.reading():
            for row in self._all(query, (run_id,)):
                yield row_outcome(row[:-1]), row[-1]

    def finish_run(self, run_id: int, budget: str | None, result: Mapping[str, Any]) -> None:
        """Note what the run reported, and the budget that it had; None: it was interrupted."""
        with self.transaction() as db:
            db.execute(
                "UPDATE runs SET finished_budget = ?, result = ? WHERE id = ?",
                (budget, dumps(result), run_id),
            )

    def note(self, run_id: int, **facts: Any) -> None:
        """Add to what a run ran on (`RunRecord.environment`), or change it. `facts` are JSON-able."""
        environment = {**self.run(run_id).environment, **facts}
        with self.transaction() as db:
            db.execute("UPDATE runs SET environment = ? WHERE id = ?", (dumps(environment), run_id))

    def runs(self) -> list[RunRecord]:
        """Every run, oldest first."""
        with self.reading():
            return [_run(row) for row in self._all(f"SELECT {_RUN_COLUMNS} ORDER BY r.id")]

    def run(self, run_id: int) -> RunRecord:
        """One run.

        Raises:
            StoreError: there is no such run.
        """
        fits = run_id.bit_length() < 64  # SQLite's numbers have 64 bits
        row = self._one(f"SELECT {_RUN_COLUMNS} WHERE r.id = ?", (run_id,)) if fits else None
        if row is None:
            raise StoreError(
                f"there is no run {run_id}", where=self._where, hint="see `sassafras store list`"
            )
        with self.reading():
            return _run(row)

    def evaluations(self, run_id: int) -> Iterator[Outcome]:
        """The outcomes of a run, in the order in which they were recorded."""
        self.run(run_id)
        for outcome, _ in self.recorded(run_id):
            yield outcome

    def baseline(self, run_id: int) -> Kernel:
        """The unmodified kernel that a run began with.

        Raises:
            StoreError: there is no such run, or its cubin is damaged.
        """
        record = self.run(run_id)
        row = self._one(
            f"SELECT {KERNEL_COLUMNS} FROM runs r JOIN kernels k ON k.id = r.kernel WHERE r.id = ?", (run_id,)
        )
        with self.reading():
            return kernel_of(self.cubin(record.baseline), *row[1:])

    def steps(self, run_id: int) -> Iterator[StoredStep]:
        """What a run tried, in order, without the outcomes' facts: quick to read for curves and trees."""
        self.run(run_id)
        query = (
            "SELECT digest, verdict, speedup, cycles, baseline_cycles, took, recipe FROM evaluations"
            " WHERE run = ? ORDER BY id"
        )
        with self.reading():
            for digest, verdict, speedup, cycles, before, took, recipe in self._all(query, (run_id,)):
                ratio = speedup if speedup is not None else before / cycles if cycles and before else None
                yield typed(StoredStep(digest, verdict, ratio, took, recipe))


def _run(row: tuple[Any, ...]) -> RunRecord:
    *before, device, modelled, strategy, seed, created, count, budget, result, spec, environment, origin = row
    result = None if result is None else json.loads(result)
    told = (strategy, seed, created, count, budget, result, json.loads(spec), json.loads(environment), origin)
    values: Any = (*before, device, bool(modelled), *told)
    return typed(RunRecord(*values))
