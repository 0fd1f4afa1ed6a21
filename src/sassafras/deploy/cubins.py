"""Tuned cubins for programs that load their own: plain CUDA modules, and one Triton configuration."""

from __future__ import annotations

import hashlib
from pathlib import Path

from sassafras.core.files import write_whole

from .settings import DeploySettings


def tuned_cubin(
    cubin: bytes, gpu: str | None = None, *, kernel: str | None = None, store: str | Path | None = None
) -> bytes:
    """The tuned cubin for this one, or this one where there is none that may stand in for it.

    Give the result to ``cuModuleLoadData`` (or `cuda.core.ObjectCode.from_cubin`) where you gave `cubin`,
    with the same launch. Shared memory and threads are not known here and so not compared; the code's own
    facts (parameters, registers, static memory, stack) are. What was decided is in `sassafras.status`.

    Args:
        cubin: an ELF file as the compiler made it, with one or several kernels.
        gpu: GPU model, as the driver names it; None for the first GPU of this process.
        kernel: only if the tuned entry has this name; None for whichever was tuned.
        store: the store's file; None for the one that `install` was given, else the default.

    Returns:
        Bytes of a cubin. Never raises for a store or GPU that cannot be used.
    """
    from .check import LaunchFacts
    from .engine import ENGINE, Decision
    from .index import Index

    digest = hashlib.sha256(cubin).hexdigest()
    try:
        settings = DeploySettings.read(store)
        index = ENGINE.index if store is None else None
        index = index or Index.read(settings.store, settings.wait_s)
        on = 0 if gpu is None else gpu
        decision = ENGINE.look_up(index, settings, cubin, digest, LaunchFacts(name=kernel), on)
    except Exception as error:
        decision = Decision.failed(error)
    given = cubin if decision.tuned is None else decision.tuned
    loaded = hashlib.sha256(given).hexdigest()
    ENGINE.note(kernel or "(plain cubin)", digest, loaded, -1, decision)
    return given


def override_file(
    cubin: bytes, folder: str | Path, gpu: str | None = None, *, store: str | Path | None = None
) -> str | None:
    """A file with the tuned cubin for this one, for ``triton.Config(ir_override=...)``; None without one.

    The file is named after its contents, because Triton's cache key holds the name and not the contents.
    Unlike `install` this compiles and caches a variant of its own. `Config(ir_override=None)` is Triton's
    default, so the result can be passed on as it is.

    Args:
        cubin: the compiler's cubin, for example ``compiled.asm["cubin"]``.
        folder: where to put the file; it has to stay.
        gpu, store: as for `tuned_cubin`.
    """
    given = tuned_cubin(cubin, gpu, store=store)
    if given == cubin:
        return None
    path = Path(folder).resolve() / f"{hashlib.sha256(given).hexdigest()}.cubin"
    try:
        if not path.exists() or path.read_bytes() != given:
            write_whole(path, given)
    except OSError:
        return None
    return str(path)
