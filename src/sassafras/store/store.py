"""The store: every evaluation, every cubin worth keeping, every tuned kernel."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sassafras.core import StoreError

from .transfer import export_store, import_store
from .winners import Winners

#: before the first run, and within the calendar of `datetime`
_MOST_DAYS = 100_000


class _DryRun(Exception):
    """Ends a transaction that shall change nothing."""


class Store(Winners):
    """One SQLite file. Safe to use from several processes concurrently; one object per process and thread.

    Made by `Store.open` (path: the file; connection: SQLite's). Use it as a context manager, or call
    `close`. Every method raises `StoreError` when the file turns out
    to be corrupt, locked for long, or not writable; nothing is ever overwritten.
    """

    def export(self, path: str | Path, *, runs: bool = True) -> int:
        """Write everything into one self-contained JSON Lines file; see `sassafras.store.transfer`.

        Returns:
            The number of lines written.
        """
        return export_store(self, Path(path), runs=runs)

    def import_(self, path: str | Path) -> Mapping[str, int]:
        """Take in an exported file, checked in every detail, wholly or not at all.

        Returns:
            How many cubins, kernels, runs, evaluations and winners were new.
        """
        return import_store(self, Path(path))

    def prune(
        self, *, older_than_days: float | None = None, modelled: bool = False, dry_run: bool = False
    ) -> Mapping[str, int]:
        """Remove runs and their evaluations, then cubins that nothing refers to. Measured winners stay.

        Args:
            older_than_days: only runs begun longer ago than this; None for all that are finished.
            modelled: also remove modelled winners.
            dry_run: remove nothing, only count.

        Returns:
            How many runs, evaluations, modelled winners and cubins went.
        """
        if older_than_days is not None and not older_than_days >= 0:
            raise StoreError(f"older_than_days is {older_than_days}, not a number from 0 up")
        gone: dict[str, int] = {}
        with suppress(_DryRun), self.transaction() as db:
            which, values = "finished_budget IS NOT NULL OR key IS NULL", list[str]()
            if older_than_days is not None:
                limit = datetime.now(UTC) - timedelta(days=min(older_than_days, _MOST_DAYS))
                which, values = "created < ?", [limit.isoformat(timespec="microseconds")]
            gone["evaluations"] = db.execute(
                f"DELETE FROM evaluations WHERE run IN (SELECT id FROM runs WHERE {which})", values
            ).rowcount
            gone["runs"] = db.execute(f"DELETE FROM runs WHERE {which}", values).rowcount
            gone["modelled_winners"] = db.execute("DELETE FROM modelled_winners").rowcount if modelled else 0
            db.execute(
                "DELETE FROM kernels WHERE id NOT IN (SELECT kernel FROM runs "
                "UNION SELECT kernel FROM winners UNION SELECT kernel FROM modelled_winners)"
            )
            gone["cubins"] = db.execute(
                "DELETE FROM cubins WHERE digest NOT IN (SELECT cubin FROM kernels "
                "UNION SELECT tuned FROM winners UNION SELECT tuned FROM modelled_winners)"
            ).rowcount
            if dry_run:
                raise _DryRun  # rolls back
        if dry_run:
            return gone
        with self._guard():
            self._connection.execute("VACUUM")
        return gone
