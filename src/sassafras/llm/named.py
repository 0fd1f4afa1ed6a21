"""Proposers by the names that the command line gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sassafras.core import SearchError

from .endpoint import Endpoint, EndpointSettings
from .exchange import Exchange, Replay
from .local import LocalModel, LocalSettings
from .proposer import Proposer
from .record import Record


def _endpoint(model: str, options: Mapping[str, Any]) -> Proposer:
    return Endpoint(EndpointSettings(model, **{k: v for k, v in options.items() if k != "device"}))


def _local(model: str, options: Mapping[str, Any]) -> Proposer:
    path, _, adapter = model.partition("+")
    return LocalModel(LocalSettings(path, adapter or None, device=options.get("device", "cpu")))


def _exchange(folder: str, options: Mapping[str, Any]) -> Proposer:
    return Exchange()


def _replay(folder: str, options: Mapping[str, Any]) -> Proposer:
    return Replay(Record(folder))


#: kind -> what makes a proposer from the rest of its name and options; a new kind needs a line here
_KINDS: dict[str, Callable[[str, Mapping[str, Any]], Proposer]] = {
    "endpoint": _endpoint,
    "local": _local,
    "exchange": _exchange,
    "replay": _replay,
}
FORMS = "mutate, endpoint:MODEL, local:PATH[+ADAPTER], exchange:FOLDER, or replay:FOLDER"


def proposer_named(what: str | Proposer | None, options: Mapping[str, Any] | None = None) -> Proposer | None:
    """The proposer that a text names, or the one given; None for ``mutate``, which asks nothing.

    Args:
        what: ``mutate``, ``endpoint:MODEL``, ``local:PATH[+ADAPTER]`` (a folder or a .gguf file),
            ``exchange:FOLDER`` (answers come as files), or ``replay:FOLDER`` (those of a recorded run).
        options: fields of `EndpointSettings`; ``device`` of a local model.

    Raises:
        SearchError: it names no proposer.
        ProposerError, ToolMissing: the proposer cannot be made.
    """
    if not isinstance(what, str):
        return what
    if what == "mutate":
        return None
    kind, _, rest = what.partition(":")
    if kind not in _KINDS or not rest:
        raise SearchError(f"there is no proposer {what!r}", hint=FORMS)
    return _KINDS[kind](rest, options or {})
