"""Headless Chromium over its debugging pipe: what a page logs, what it asks the network for, how it looks."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str | None:
    """Where Chromium is, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One page in a browser of its own. `logged` and `requested` collect what it did."""

    def __init__(
        self, path: Path, *, dark: bool = False, width: int = 1360, height: int = 900, phone: bool = False
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.logged: list[str] = []
        self.requested: list[str] = []
        self._number, self._buffer = 0, b""
        self._answers: dict[int, dict[str, Any]] = {}
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()

        def wire() -> None:  # Chromium reads commands from 3 and answers on 4
            a, b = os.dup(to_read), os.dup(to_write)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self._process = subprocess.Popen(
            [
                str(executable()), "--headless=new", "--no-sandbox", "--disable-gpu",
                "--remote-debugging-pipe",
                "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--mute-audio",
                "--disable-background-networking", f"--user-data-dir={self._folder.name}",
                f"--window-size={width},{height}", "about:blank",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=wire,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        if phone:
            width, height = 390, 844
        size = {"width": width, "height": height, "deviceScaleFactor": 1 + phone, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete'")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 600
        while self._number not in self._answers:
            self._read(end)
        answer = self._answers.pop(self._number)
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self, end: float) -> None:
        ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
        assert ready, "Chromium does not answer"
        data = os.read(self._in, 1 << 20)
        assert data, "Chromium ended"
        self._buffer += data
        *whole, self._buffer = self._buffer.split(b"\0")
        for text in whole:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._note(message["method"], message["params"])

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.logged.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.logged.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.logged.append(json.dumps(parameters["args"]))

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 600) -> None:
        """Until the expression is true."""
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.05)

    def screenshot(self, path: Path) -> None:
        """A PNG of what is on the screen."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """End the browser."""
        for descriptor in (self._out, self._in):
            os.close(descriptor)
        self._process.kill()
        self._process.wait(30)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
