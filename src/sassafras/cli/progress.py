"""The progress line: live on a terminal, an occasional plain line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .console import stderr

if TYPE_CHECKING:
    from sassafras.core import Outcome
    from sassafras.search import Progress

#: seconds between two lines: on a terminal, elsewhere; and elsewhere to the first of a stage
LIVE_SECONDS, PLAIN_SECONDS, FIRST_SECONDS = 0.1, 10.0, 2.0


class Show:
    """Shows stages and progress on stderr; nothing at all when quiet. A context manager."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = stderr()
        self._live: Any = None
        self._last = 0.0

    def __enter__(self) -> Self:
        if not self._quiet and self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def stage(self, text: str) -> None:
        """Another part of the work begins."""
        if not self._quiet:
            self._console.print(text, style="dim", markup=False)
        self._last = 0.0 if self._live is not None else time.monotonic() - PLAIN_SECONDS + FIRST_SECONDS

    def progress(self, event: Progress) -> None:
        """A new outcome."""
        self.update(lambda: line(event))

    def update(self, text_of: Callable[[], str]) -> None:
        """This line from now on, unless the last one is recent."""
        now = time.monotonic()
        if self._quiet or now - self._last < (PLAIN_SECONDS if self._live is None else LIVE_SECONDS):
            return
        self._last = now
        text = text_of()
        if self._live is None:
            self._console.print(text, markup=False)
        else:
            from rich.text import Text

            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


def line(event: Progress) -> str:
    """Time searched, share of the search, time left to the answer, evaluations and their rate, verdicts, best
    with its interval."""
    parts = [
        f"{_clock(event.elapsed)} ({event.fraction:.0%})",
        f"{event.evaluations:,} evaluations, {event.rate:,.0f}/s",
        _verdicts(event.verdicts),
        f"best {worth(event.best)}",
    ]
    if event.left is not None:
        parts.insert(1, f"about {_clock(event.left)} left")
    if event.replayed:
        parts.insert(-2, f"{event.replayed:,} from the store")
    return " | ".join(parts)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def worth(outcome: Outcome) -> str:
    """An outcome's ratio, with its interval, or with the words that it was selected on and not measured."""
    from sassafras.core import Modelled

    if isinstance(outcome, Modelled):
        return f"modelled {outcome.modelled_ratio:.3f}x as selected"
    return f"{outcome.speedup:.3f}x {outcome.interval or ''}".rstrip()


def _verdicts(verdicts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(verdicts.items(), key=lambda i: -i[1]))
