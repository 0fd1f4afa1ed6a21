"""Errors that say what is wrong, where, and what to do about it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from .verdict import Verdict


class SassafrasError(Exception):
    """Base of every error that Sassafras raises on purpose.

    Args:
        what: what is wrong, one sentence.
        where: the file, section, offset, argument or instruction concerned.
        hint: what the user can do about it.
    """

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        text = self.what
        if self.where:
            text = f"{self.where}: {text}"
        if self.hint:
            text = f"{text} ({self.hint})"
        return text


def reason(error: BaseException) -> str:
    """What an error of Python's says, for a sentence of ours: no class names, no numbers of errno."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (file_limit() if error.errno == errno.EFBIG else "")
    if isinstance(error, ValueError) and type(error).__name__ == "JSONDecodeError":
        return f"it is no JSON: {error}"
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]!r}" if error.args else "something is missing in it"
    return str(error) or type(error).__name__


@contextmanager
def os_errors(
    what: str, where: object, kind: type[SassafrasError] = SassafrasError, *, hint: str | None = None
) -> Iterator[None]:
    """What the operating system refuses in the block is said as ``WHERE: WHAT: Permission denied``.

    Raises:
        SassafrasError: of this kind.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {reason(error)}", where=str(where), hint=hint) from error


def file_limit() -> str:
    """`` (this shell limits files to N KiB: ulimit -f)``, or ``""`` where files may be of any size."""
    try:
        import resource
    except ImportError:  # not a Unix
        return ""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return (
        ""
        if limit == resource.RLIM_INFINITY
        else f" (this shell limits files to {limit >> 10} KiB: ulimit -f)"
    )


class CubinError(SassafrasError):
    """A cubin is truncated, malformed, or holds something we refuse to handle."""


class DisassemblyError(SassafrasError):
    """nvdisasm failed, printed nothing, or printed what we cannot explain."""


class UnsupportedArch(SassafrasError):
    """The architecture cannot be used for what was asked of it."""


class ToolMissing(SassafrasError):
    """A program or an optional package that this step needs is not installed."""


class LatencyTableError(SassafrasError):
    """A latency table is missing, malformed, or for another architecture."""


class WorkloadError(SassafrasError):
    """A workload file or description is wrong."""


class CompileError(SassafrasError):
    """The compiler refused the source."""


class StoreError(SassafrasError):
    """The store is corrupt, foreign, of a newer version, or cannot be written."""


class DeviceError(SassafrasError):
    """The device is absent, busy, or failed.

    Args:
        what, where, hint: as of every `SassafrasError`.
        sticky: the process that it arose in is lost.
        verdict: what it says of the candidate that ran; None where that is not at fault.
    """

    sticky = False
    verdict: Verdict | None = None

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        sticky: bool = False,
        verdict: Verdict | None = None,
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.sticky = sticky or self.sticky
        self.verdict = verdict or self.verdict


class SearchError(SassafrasError):
    """A search was asked for something impossible: unknown strategy, empty budget, foreign resume."""
