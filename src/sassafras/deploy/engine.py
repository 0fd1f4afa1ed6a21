"""One deployment a process: what is installed, which bytes each kernel gets, and what was said about it."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .records import CallSearch, LaunchJournal, Loaded, Status
from .settings import DISABLE, DeploySettings, Revalidate, disabled

if TYPE_CHECKING:
    from .check import LaunchFacts
    from .index import Index

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Decision:
    """Which bytes to load for a cubin, and why.

    Attributes:
        tuned: the bytes to load instead, or None for the original.
        reason: one phrase for the status.
        row: what `Loaded` says beyond that (GPU, figures).
    """

    tuned: bytes | None
    reason: str
    row: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def failed(cls, error: Exception) -> Decision:
        """To load the original, since looking it up raised."""
        return cls(None, f"looking it up failed: {type(error).__name__}: {error}")


class LookedUp(NamedTuple):
    """The sha256 of the compiler's cubin (empty where unreadable), the CUDA ordinal, and the decision."""

    digest: str
    device: int
    decision: Decision


class Deployment:
    """Decides, and remembers. Whatever goes wrong ends as a `Decision`'s reason, never in the program."""

    def __init__(self) -> None:
        self.settings = DeploySettings()
        self.everything = False
        self.index: Index | None = None
        self.loaded: list[Loaded] = []
        self.denied: tuple[str, ...] = ()
        self.why = "not installed"
        self.triton = ""
        #: jitted functions marked by `tuned`, by id (held, so that an id stays theirs)
        self.marked: dict[int, Any] = {}
        #: CompiledKernels that `loaded` tells of
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()
        self.lock = threading.RLock()
        #: searches that launches began, by the original's sha256; kept by `sassafras.on_call`
        self.searches: dict[str, CallSearch] = {}
        #: called by `uninstall`
        self.stops: list[Callable[[], None]] = []
        self._verdicts: dict[tuple[str, str], str | None] = {}
        self._journal = LaunchJournal(None)
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def active(self) -> bool:
        """Are kernels looked up?"""
        return bool(self.everything or self.marked) and self.index is not None

    def configure(self, settings: DeploySettings) -> None:
        """Take settings over and read the store."""
        from .index import Index

        if self._journal.folder != settings.status_dir:
            self._journal = LaunchJournal(settings.status_dir)
        self.settings = settings
        self.denied = tuple(dict.fromkeys(self.denied + settings.deny))
        self.index = Index.read(settings.store, settings.wait_s)
        self._verdicts = {}

    def decide(self, cubin: bytes, digest: str, launch: LaunchFacts, device: int, fn: Any = None) -> Decision:
        """What to load for `cubin`, which has this sha256. May raise."""
        index = self.index
        if index is None:
            return Decision(None, "not installed")
        if digest not in index.gpus and launch.name not in index.names:  # the usual case ends here
            return Decision(None, _unknown(index, launch.name or ""))
        if not self.everything and id(fn) not in self.marked:
            return Decision(None, "only decorated kernels are substituted")
        return self.look_up(index, self.settings, cubin, digest, launch, device)

    def look_up(
        self,
        index: Index,
        settings: DeploySettings,
        cubin: bytes,
        digest: str,
        launch: LaunchFacts,
        on: int | str,
    ) -> Decision:
        """What `index` has for this cubin on a GPU, named by its CUDA ordinal or its model. May raise."""
        name, lines = launch.name or "", False
        if digest not in index.gpus:
            original = index.same_code(cubin, name, settings.wait_s)
            if original is None:
                return Decision(None, _unknown(index, name))
            (digest, cubin), lines = original, True  # from here on as if the program had the original
        gpus = index.gpus[digest]
        if disabled():
            return Decision(None, f"{DISABLE} is set")
        if self.is_denied(name, settings):
            return Decision(None, "denied by name")
        from .gpu import gpu_name

        gpu = on if isinstance(on, str) else gpu_name(on)
        if gpu not in gpus:
            return Decision(None, f"tuned for {', '.join(sorted(gpus))}, not for {gpu}", (("gpu", gpu),))
        found = self._choose(index, settings, cubin, digest, launch, gpu)
        return replace(found, reason=f"{found.reason}, other line information") if lines else found

    def is_denied(self, name: str, settings: DeploySettings) -> bool:
        """Does a kernel of this name keep the compiler's code?"""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in (*self.denied, *settings.deny))

    def _choose(
        self, index: Index, settings: DeploySettings, cubin: bytes, digest: str, launch: LaunchFacts, gpu: str
    ) -> Decision:
        from .check import outdated, refusal, revalidate

        here, reasons = (("gpu", gpu),), []
        for winner in index.winners(digest, gpu, settings.wait_s):
            tuned = winner.kernel.cubin
            again = settings.revalidate
            if winner.original != digest or winner.tuned != hashlib.sha256(tuned).hexdigest():
                why: str | None = "the store's digests do not fit its bytes"
            elif self.is_denied(winner.kernel.name, settings):
                why = "denied by name"
            elif (why := refusal(winner, cubin, launch)) is None and (
                again == "always" or (again == "imported" and (winner.origin != "local" or outdated(winner)))
            ):
                key, verdicts = (digest, winner.tuned), self._verdicts  # `configure` replaces them
                if key not in verdicts:
                    verdicts[key] = revalidate(winner, cubin)
                why = verdicts[key]
            if why is None:
                return Decision(
                    tuned,
                    "tuned" if winner.origin == "local" else "tuned (imported)",
                    (
                        *here,
                        ("speedup", winner.speedup),
                        ("low", winner.interval.low),
                        ("high", winner.interval.high),
                        ("workload", f"{winner.workload}/{winner.case}"),
                        ("winner", winner.id),
                    ),
                )
            reasons.append(why)
        return Decision(None, "; ".join(reasons) or "its tuned cubin is no longer in the store", here)

    def load(
        self,
        name: str,
        found: LookedUp,
        tuned: Callable[[bytes], None],
        plain: Callable[[], None],
        of: Any = None,
    ) -> None:
        """Give the driver what was decided, and note it.

        Args:
            name: of the kernel.
            found: what was decided for which cubin.
            tuned: loads other bytes than the compiler's; where it raises, nothing may be left of them.
            plain: loads the compiler's. If this raises, then it would have without us.
            of: Triton's kernel, so that it is noted once.
        """
        digest, device, decision = found
        loaded = digest
        if decision.tuned is not None:
            try:
                tuned(decision.tuned)
                loaded = hashlib.sha256(decision.tuned).hexdigest()
            except Exception as error:
                reason = f"loading the tuned cubin failed: {type(error).__name__}: {error}"
                decision = replace(decision, tuned=None, reason=reason)
        if decision.tuned is None:
            plain()
        if digest:
            self.note(name, digest, loaded, device, decision, of)

    def note(
        self, name: str, original: str, loaded: str, device: int, decision: Decision, of: Any = None
    ) -> None:
        """Remember what the driver got. Never raises."""
        try:
            row = Loaded(name, original, loaded, device, decision.reason, **dict(decision.row))
            self.loaded.append(row)
            self._journal.write("loaded", asdict(row))
            if of is not None:
                self.known.add(of)
        except Exception as error:
            self._journal.problem = f"a kernel could not be noted: {type(error).__name__}: {error}"

    def note_search(self, search: CallSearch) -> None:
        """Remember how a search stands, and append it to the status file."""
        self.searches = {**self.searches, search.original: search}
        self._journal.write("search", asdict(search))

    def say_state(self) -> None:
        """Append what is installed to the status file."""
        state = self.status().to_json()
        told = ("kernels", "process", "searches")
        self._journal.write("state", {k: v for k, v in state.items() if k not in told})

    def status(self) -> Status:
        """See `status`."""
        from .records import process

        index = self.index
        off = disabled()
        reason = f"{DISABLE} is set" if off else self.why
        if self._journal.problem:
            reason += f"; {self._journal.problem}"
        return Status(
            active=self.active and not off,
            reason=reason,
            triton=self.triton,
            store="" if index is None else str(index.path),
            store_state="" if index is None else index.state,
            tuned_in_store=0 if index is None else len(index.gpus),
            deny=self.denied,
            revalidate=self.settings.revalidate,
            kernels=tuple(self.loaded),
            process=process(),
            searches=tuple(self.searches.values()),
        )

    def _after_fork(self) -> None:
        """A child has none of its parent's kernels, and must not wait for its parent's threads."""
        self.lock = threading.RLock()
        self._journal.after_fork()
        self.loaded, self.known, self.searches = [], weakref.WeakSet(), {}
        if self.active:
            self.say_state()


def _unknown(index: Index, name: str) -> str:
    if index.state != "ok":
        return f"the store cannot be used: {index.state}"
    if name in index.names:
        return (
            "the store has a tuned kernel of this name, but for another cubin (other arguments, options or "
            "compiler: see docs/guides/capture-and-deploy.md)"
        )
    return "not in the store"


ENGINE = Deployment()


def install(
    store: str | Path | None = None,
    *,
    deny: Iterable[str] = (),
    revalidate: Revalidate | None = None,
    wait_s: float | None = None,
    status_dir: str | Path | None = None,
) -> Status:
    """From now on, Triton kernels that load run the tuned cubins of the store.

    A tuned cubin is used only if the sha256 of the compiler's cubin, the GPU model and everything that a
    launch relies on match, and the stored measurement shows a speed-up. Otherwise, and whenever anything goes
    wrong, the compiler's cubin is loaded as if we were not here; `status` says why. Triton's cache is neither
    read nor written. Kernels that were loaded before keep their code. Calling this again takes the new
    settings and reads the store again.

    Args:
        store: its file; None for ``$SASSAFRAS_STORE`` or the user's data folder. Opened read-only.
        deny: names (``*`` and ``?`` as in a shell) of kernels that keep the compiler's code; names in
            ``$SASSAFRAS_DENY`` are added.
        revalidate: which tuned cubins the validator proves legal again before their first use:
            ``"imported"`` (default: these, and what earlier rules of the validator approved), ``"always"``
            or ``"never"``.
        wait_s: seconds to wait for the store at most, here and at each match.
        status_dir: folder for a status file that `sassafras status` can read (``$SASSAFRAS_STATUS``).

    Returns:
        The status. Never raises for a store, GPU or Triton that cannot be used: the status says so.
    """
    return _install(DeploySettings.read(store, deny, revalidate, wait_s, status_dir), everything=True)


def _install(settings: DeploySettings, *, everything: bool, module: Any = None) -> Status:
    from . import inductor, triton_load

    with ENGINE.lock:
        try:
            if disabled():
                ENGINE.why = f"{DISABLE} is set"
                return ENGINE.status()
            problem, version = triton_load.attach(ENGINE, module)
            ENGINE.triton = version
            if problem is not None:
                ENGINE.why = problem
                return ENGINE.status()
            ENGINE.configure(settings)
            ENGINE.everything = ENGINE.everything or everything
            ENGINE.why = (
                "kernels that load from now on are looked up"
                if ENGINE.everything
                else "decorated kernels that load from now on are looked up"
            )
            if ENGINE.everything:
                inductor.attach(ENGINE)
            triton_load.note_earlier(ENGINE)
        except Exception as error:
            ENGINE.why = f"installing failed: {type(error).__name__}: {error}"
        finally:
            ENGINE.say_state()
        return ENGINE.status()


def uninstall() -> Status:
    """Stop substituting. Kernels that were loaded keep their code, and `status` goes on telling of them."""
    from . import inductor, triton_load

    while ENGINE.stops:  # before the lock: a search that ends may want it
        ENGINE.stops.pop()()
    with ENGINE.lock:
        ENGINE.everything, ENGINE.index = False, None
        ENGINE.marked.clear()
        ENGINE.denied = ()
        ENGINE.why = "uninstalled"
        inductor.detach()
        triton_load.detach()
        ENGINE.say_state()
        return ENGINE.status()


def refresh() -> Status:
    """Read the store again: kernels that load from now on are looked up in what it holds now."""
    with ENGINE.lock:
        if ENGINE.active:
            ENGINE.configure(ENGINE.settings)
            ENGINE.say_state()
        return ENGINE.status()


def status() -> Status:
    """What deployment does in this process, and for every kernel loaded since: which bytes, and why."""
    return ENGINE.status()


def deny(*names: str) -> None:
    """Kernels of these names (or patterns) that load from now on keep the compiler's code."""
    with ENGINE.lock:
        ENGINE.denied = tuple(dict.fromkeys(ENGINE.denied + names))


def allow(*names: str) -> None:
    """Take names off the deny list."""
    with ENGINE.lock:
        ENGINE.denied = tuple(name for name in ENGINE.denied if name not in names)
        left = tuple(name for name in ENGINE.settings.deny if name not in names)
        ENGINE.settings = replace(ENGINE.settings, deny=left)


def tuned(kernel: F) -> F:
    """Decorator above ``@triton.jit`` (or ``@triton.autotune``): only kernels marked so are substituted.

    Needs no `install`, which would substitute all kernels. The kernel itself is returned, so a launch costs
    what it cost before. Never raises.

    Example:
        ``@sassafras.deploy.tuned`` on a line of its own above ``@triton.jit``.
    """
    fn: Any = kernel
    while not hasattr(fn, "device_caches") and hasattr(fn, "fn"):  # autotune and heuristics hold it in .fn
        fn = fn.fn
    with ENGINE.lock:
        ENGINE.marked[id(fn)] = fn
        if not ENGINE.active:
            _install(DeploySettings.read(), everything=False)
    return kernel
