"""The other side of the wire: a loopback HTTP server that speaks chat completions and fails on demand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: one step of a script: ``(status, headers, body)``, seconds to sleep, or a function of the request's JSON
Step = tuple[int, dict[str, str], str] | float | Callable[[dict[str, Any]], str]


def completion(text: str | None, *, finish: str = "stop", usage: bool = True) -> str:
    """The JSON of an answer."""
    body: dict[str, Any] = {
        "id": "x", "object": "chat.completion", "created": 0, "model": "wire",
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
        ],
    }  # fmt: skip
    if usage:
        body["usage"] = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return json.dumps(body)


@dataclass
class Wire:
    """A running server: its address, and what it was asked."""

    url: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


@contextmanager
def serve(*script: Step) -> Iterator[Wire]:
    """Serve the steps one after another; the last one for ever."""
    turns = iter(script)
    last: list[Step] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                wire.asked.append(body)
                wire.keys.append(self.headers.get("Authorization", ""))
                step = next(turns, None)
                step = last[0] if step is None else step
                last[:] = [step]
            if isinstance(step, float):
                time.sleep(step)
                step = (200, {}, completion("late"))
            if callable(step):
                step = (200, {}, step(body))
            status, headers, text = step
            try:
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                if text == "drip":  # the beginning of an answer, a blank at a time
                    self.end_headers()
                    while True:
                        self.wfile.write(b"1\r\n \r\n")
                        time.sleep(0.1)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())
            except OSError:
                pass  # the client has given up

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    wire = Wire(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield wire
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
