"""Index of the store's tuned kernels, read once: a kernel that is not in it costs one dictionary lookup."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sassafras.core.errors import SassafrasError, StoreError

if TYPE_CHECKING:
    from sassafras.store import Store, Winner

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Index:
    """Which cubins have a tuned one, and on which GPU models. Only measured winners count.

    Attributes:
        path: the store's file.
        state: ``"ok"``, or why the store cannot be used.
        gpus: sha256 of an original cubin -> GPU models.
        names: kernel name -> GPU models.
        codes: kernel name -> `code_digest` -> (sha256, bytes) of an original; filled as names are asked for.
    """

    path: Path
    state: str
    gpus: Mapping[str, frozenset[str]] = field(default_factory=dict)
    names: Mapping[str, frozenset[str]] = field(default_factory=dict)
    codes: dict[str, dict[str, tuple[str, bytes]]] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, path: Path | None, wait_s: float) -> Index:
        """Read it; whatever is wrong with the store becomes `state`."""
        where = Path("?") if path is None else path
        try:
            from sassafras.store import default_path

            where = default_path() if path is None else path

            def rows(store: Store) -> list[tuple[str, str, str]]:
                # not Store.winners: that inflates every cubin, and one damaged cubin would hide all others
                with store.transaction(write=False) as db:
                    return db.execute(
                        "SELECT DISTINCT k.cubin, k.name, w.gpu FROM winners w"
                        " JOIN kernels k ON k.id = w.kernel"
                    ).fetchall()

            gpus: dict[str, set[str]] = {}
            names: dict[str, set[str]] = {}
            for digest, name, gpu in _ask(where, wait_s, rows):
                gpus.setdefault(digest, set()).add(gpu)
                names.setdefault(name, set()).add(gpu)
        except Exception as error:  # a damaged file can fail in many ways; the program must go on
            return cls(where, str(error) or type(error).__name__)
        return cls(
            where,
            "ok",
            {key: frozenset(value) for key, value in gpus.items()},
            {key: frozenset(value) for key, value in names.items()},
        )

    def same_code(self, cubin: bytes, name: str, wait_s: float) -> tuple[str, bytes] | None:
        """(sha256, bytes) of the original that differs from `cubin` in line information alone, or None.

        Only originals of a kernel of this name are read, once a name; without a name, of any of its entries.

        Raises:
            StoreError: the store is damaged, or did not answer in time.
        """
        from .code import code_digest, entries

        def originals(name: str, store: Store) -> dict[str, tuple[str, bytes]]:
            found: dict[str, tuple[str, bytes]] = {}
            with store.transaction(write=False) as db:
                rows = db.execute(
                    "SELECT DISTINCT k.cubin FROM winners w JOIN kernels k ON k.id = w.kernel"
                    " WHERE k.name = ?",
                    (name,),
                ).fetchall()
            for (digest,) in rows:
                try:
                    data = store.cubin(digest)
                except StoreError:  # one damaged cubin must not hide the others
                    continue
                if code := code_digest(data):
                    found[code] = (digest, data)
            return found

        names = [n for n in ([name] if name else entries(cubin)) if n in self.names]
        code = code_digest(cubin) if names else None
        for one in names if code else ():
            if one not in self.codes:
                self.codes[one] = _ask(self.path, wait_s, functools.partial(originals, one))
            if (found := self.codes[one].get(str(code))) is not None:
                return found
        return None

    def winners(self, digest: str, gpu: str, wait_s: float) -> list[Winner]:
        """The winners for this cubin on this GPU model, the surest first.

        Raises:
            StoreError: the store changed, is damaged, or did not answer in time.
        """
        return _ask(self.path, wait_s, lambda store: store.winners(original=digest, gpu=gpu))


def _ask(path: Path, wait_s: float, question: Callable[[Store], T]) -> T:
    """What the store answers. Raises StoreError, also when it did not answer in time."""
    from sassafras.store import Store

    def answer() -> T:
        with Store.open(path, readonly=True) as store:
            return question(store)

    return within(wait_s, answer)


def within(seconds: float, work: Callable[[], T]) -> T:
    """`work()`, in a thread of its own, or StoreError after `seconds`.

    SQLite waits for a lock, and a network file system for its server, for longer than a program that only
    wants to run its kernels should.
    """
    done: list[tuple[bool, T | BaseException]] = []

    def run() -> None:
        try:
            done.append((True, work()))
        except BaseException as error:
            done.append((False, error))

    thread = threading.Thread(target=run, name="sassafras-store", daemon=True)
    thread.start()
    thread.join(seconds)
    if not done:
        raise StoreError(f"the store did not answer within {seconds:g} s")
    fine, value = done[0]
    if fine:
        return value  # type: ignore[return-value]
    if isinstance(value, SassafrasError):
        raise value
    raise StoreError(f"the store failed: {type(value).__name__}: {value}")
