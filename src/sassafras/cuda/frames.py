"""Messages between the parent and a worker: one JSON object and some binary blobs a frame.

A frame is an 8-byte big-endian length, that many bytes of JSON, then the blobs, whose lengths stand in
the JSON under ``blobs``. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from sassafras.core import DeviceError

_LENGTH = struct.Struct(">Q")
#: has a worker print where it stands
ASK_WHERE = signal.SIGUSR1
#: refuse absurd lengths: a worker that died half-way through a write must not make us allocate
MAX_FRAME = 1 << 31


def readable(fd: int, seconds: float) -> bool:
    """Whether there is something to read, or the end, within so long; `select` knows no number above 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * max(0.0, seconds)))


def write_frame(fd: int, message: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> None:
    """Write one frame to a pipe. Raises OSError (BrokenPipeError) when the other side is gone."""
    head = json.dumps({**message, "blobs": [len(blob) for blob in blobs]}).encode()
    _write_all(fd, b"".join([_LENGTH.pack(len(head)), head, *blobs]))


def read_frame(fd: int) -> tuple[dict[str, Any], list[bytes]] | None:
    """Read one frame, blocking; None at the end of the stream (also inside a frame).

    Raises:
        DeviceError: the bytes are no frame.
    """
    head = _read_exactly(fd, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME:
        raise DeviceError(f"a worker message claims {length} bytes", hint="the pipe holds something else")
    body = _read_exactly(fd, length)
    if body is None:
        return None
    try:
        message = json.loads(body)
        lengths = message.pop("blobs")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeviceError("a worker message is not valid JSON") from error
    blobs = []
    for size in lengths:
        if not isinstance(size, int) or not 0 <= size <= MAX_FRAME:
            raise DeviceError(f"a worker message claims a blob of {size!r} bytes")
        blob = _read_exactly(fd, size)
        if blob is None:
            return None
        blobs.append(blob)
    return message, blobs


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read_exactly(fd: int, count: int) -> bytes | None:
    parts = []
    while count:
        part = os.read(fd, min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
