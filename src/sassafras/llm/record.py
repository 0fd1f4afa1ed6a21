"""What a run of proposals knows: in memory, and in a folder where one is given, which alone resumes it.

| file | content |
|---|---|
| ``settings.json`` | the target, the task's text and every setting |
| ``0001.prompt.md``, ``0001.answer.md`` | prompts going out, answers coming back |
| ``transcript.jsonl`` | an event a line: ``reference``, ``prompt``, ``judged``, ``metrics``, ``confirmed`` |
| ``archive.jsonl`` | the variants, derived from the transcript |
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError
from sassafras.core.errors import os_errors, reason
from sassafras.core.files import write_whole

from .archive import Archive, ArchivedSource

_KNOWN = {each.name for each in fields(ArchivedSource)}
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})", re.MULTILINE)
#: verdicts of answers that became no candidate
UNREADABLE, DUPLICATE = "unreadable", "duplicate"


class RecordError(SassafrasError):
    """A run's folder cannot be used as it is. Nothing in it was changed."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a proposer is told of a target, fixed when the run begins.

    Attributes:
        text: the brief.
        form: what the code section of an answer must hold.
        start: the first variant as it is shown.
    """

    text: str
    form: str = ""
    start: str = ""

    def brief(self) -> str:
        """See `Promptable.brief`."""
        return self.text


class Record:
    """See the module.

    Args:
        folder: made where it is missing; None to keep everything in memory.

    Attributes:
        judged: what became of each prompt, by number.
        prompts: how each prompt was made, by number.
        metrics: ncu's, by digest.
        references: of each sitting: the device, the A/A control, the rival's time.
        dropped: bytes of a last line that was cut off, which were removed.

    Raises:
        RecordError: the folder is no such record, or cannot be read.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self.judged: dict[int, ArchivedSource] = {}
        self.prompts: dict[int, dict[str, Any]] = {}
        self.metrics: dict[str, dict[str, Any]] = {}
        self.references: list[dict[str, Any]] = []
        self.dropped = 0
        self.settings: dict[str, Any] = {}
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._settings_path.exists():
                self.settings = dict(json.loads(self._settings_path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise RecordError(
                f"not a folder of proposals: {reason(error)}", where=str(self.folder)
            ) from error
        for event in self.events():
            self.take(event)

    @property
    def _settings_path(self) -> Path:
        assert self.folder is not None
        return self.folder / "settings.json"

    @property
    def _transcript(self) -> Path:
        assert self.folder is not None
        return self.folder / "transcript.jsonl"

    # -- settings -----------------------------------------------------------------------------------------

    def agree(self, settings: Mapping[str, Any]) -> None:
        """Keep a run's settings, or compare them with the folder's.

        Raises:
            RecordError: a setting differs from that of the run in this folder.
        """
        given = json.loads(json.dumps(dict(settings), default=str))
        for name in sorted({*given, *self.settings} if self.settings else ()):
            if given.get(name) != self.settings.get(name):
                kept, other = _differing(self.settings.get(name), given.get(name))
                raise RecordError(
                    f"the run in this folder has {name} = {kept}, not {other}",
                    where=str(self.folder),
                    hint="go on with its settings, or name another folder",
                )
        if not self.settings:
            self.settings = given
            if self.folder is not None:
                self._write(self._settings_path, json.dumps(given, indent=1, sort_keys=True) + "\n")

    # -- transcript ---------------------------------------------------------------------------------------

    def events(self) -> list[dict[str, Any]]:
        """The transcript's lines; a last one that a kill cut off is removed from the file.

        Raises:
            RecordError: a line in the middle is no event.
        """
        if self.folder is None or not self._transcript.exists():
            return []
        with self._usable():
            data = self._transcript.read_bytes()
            end = data.rfind(b"\n") + 1
            if end < len(data):
                self.dropped = len(data) - end
                with self._transcript.open("r+b") as file:
                    file.truncate(end)
        found = []
        for number, line in enumerate(data[:end].splitlines(), 1):
            try:
                event = json.loads(line)
                if not isinstance(event["kind"], str):
                    raise TypeError("kind is no text")
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise RecordError(
                    f"a line of the transcript is no event: {error}",
                    where=f"{self._transcript}:{number}",
                    hint="restore the line; those before and after it are whole",
                ) from error
            found.append(event)
        return found

    def append(self, kind: str, **facts: Any) -> None:
        """Write one event down for good, then take it. Raises RecordError where that fails."""
        event = {"kind": kind, **facts}
        line = json.dumps(event, default=str)
        if self.folder is not None:
            # not created: a folder that vanished would come back without its contents
            how = "r+b" if self._transcript.exists() else "xb"
            with self._usable(), self._transcript.open(how) as file:
                file.seek(0, os.SEEK_END)
                file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self.take(json.loads(line))

    def take(self, event: Mapping[str, Any]) -> None:
        """Let an event count, which is in the transcript already.

        Raises:
            RecordError: it contradicts an earlier one.
        """
        kind = event["kind"]
        try:
            if kind == "reference":
                self.references.append(dict(event))
            elif kind == "prompt":
                if (number := int(event["number"])) < 1:
                    raise ValueError(f"a number from 1 up, not {number}")
                self.prompts[number] = dict(event)
            elif kind == "metrics":
                self.metrics[str(event["digest"])] = dict(event["metrics"])
            elif kind == "judged":
                variant = ArchivedSource(**{k: v for k, v in event.items() if k in _KNOWN})
                if self.judged.setdefault(variant.number, variant).answer != variant.answer:
                    raise RecordError(
                        f"the transcript has two answers to prompt {variant.number}", where=str(self.folder)
                    )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RecordError(
                f"an event {kind!r} lacks something: {error}", where=str(self.folder)
            ) from error

    def judge(self, variant: ArchivedSource) -> None:
        """Record what became of an answer."""
        self.append("judged", **asdict(variant))

    def archive(self) -> Archive:
        """The variants of all generations, in the order of their prompts."""
        archive = Archive()
        for number in sorted(self.judged):
            variant = self.judged[number]
            if variant.verdict not in (UNREADABLE, DUPLICATE):
                archive.add(replace(variant, metrics=self.metrics.get(variant.digest)))
        return archive

    def save_archive(self) -> None:
        """Write ``archive.jsonl``."""
        if self.folder is not None and self.judged:
            with self._usable():
                self.archive().save(self.folder / "archive.jsonl")

    # -- prompts and answers ------------------------------------------------------------------------------

    def path(self, number: int, what: str) -> Path:
        """The file of a ``prompt`` or an ``answer``."""
        assert self.folder is not None
        return self.folder / f"{number:04d}.{what}.md"

    def write(self, number: int, what: str, text: str) -> None:
        """Write a prompt or an answer; one that is there already stays."""
        if self.folder is not None and not (path := self.path(number, what)).exists():
            self._write(path, text)

    def answer(self, number: int) -> str | None:
        """The answer to a prompt; None where there is none, or not yet a whole one.

        Raises:
            RecordError: the folder is gone, the file is no text, or it changed after it was judged.
        """
        assert self.folder is not None
        path = self.path(number, "answer")
        try:
            with self._usable():
                if not self._settings_path.exists():
                    raise FileNotFoundError("settings.json is gone")
                text = path.read_text(encoding="utf-8") if path.exists() else ""
        except UnicodeDecodeError as error:
            raise RecordError(
                "the answer is no UTF-8 text", where=str(path), hint="write it again"
            ) from error
        known = self.judged.get(number)
        if known is not None and known.answer and known.answer != digest_of(text):
            raise RecordError(
                "the answer was changed after it was judged",
                where=str(path),
                hint="restore the one that was judged",
            )
        return None if not text.strip() or cut_off(text) else text

    def _write(self, path: Path, text: str) -> None:
        with self._usable():
            if not path.parent.is_dir():
                raise FileNotFoundError("the folder is gone")
            write_whole(path, text)

    def _usable(self) -> AbstractContextManager[None]:
        hint = "bring it back as it was; the same command goes on"
        return os_errors("the folder of proposals cannot be used", self.folder, RecordError, hint=hint)


def digest_of(text: str) -> str:
    """sha256 of a text, its line ends as they are read from a file."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return hashlib.sha256(text.encode()).hexdigest()


def cut_off(text: str) -> bool:
    """Whether an answer ends inside a code block."""
    open_ = ""
    for found in _FENCE.finditer(text):
        if not open_:
            open_ = found[1]
        elif found[1].startswith(open_):
            open_ = ""
    return bool(open_)


def _differing(*values: Any) -> list[str]:
    """Values as JSON; of long ones the part where they begin to differ."""
    texts = [json.dumps(value, sort_keys=True) for value in values]
    alike = zip(*texts, strict=False)
    same = next((at for at, each in enumerate(alike) if len({*each}) > 1), min(map(len, texts)))
    return [_cut(text, max(same - 30, 0) if max(map(len, texts)) > 60 else 0) for text in texts]


def _cut(text: str, start: int) -> str:
    return "..." * (start > 0) + text[start : start + 60] + "..." * (len(text) > start + 60)
