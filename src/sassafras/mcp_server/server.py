"""The server: its tools and resources, the queue of calls, and the worker process of each."""

from __future__ import annotations

import inspect
import os
import socket
import threading
import time
import typing
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
from anyio import from_thread, to_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings

from sassafras import __version__
from sassafras.core import SassafrasError
from sassafras.core.errors import os_errors
from sassafras.cuda.fork_server import ForkServer
from sassafras.cuda.worker_process import Stopped, WorkerProcess, WorkerTimeout

from .tools import TOOLS

#: what each resource says: a file beside this one
RESOURCES = {
    "workload": "The format of a workload",
    "cheats": "What counts as a cheat",
    "results": "How to read a result",
}
#: tools that always need the GPU
_ON_GPU = ("compare", "profile")
#: seconds that a call may stand in the queue
_QUEUE = 24 * 3600.0
_WORKER = "sassafras.mcp_server.worker"
Tool = Callable[..., dict[str, Any]]
_HOSTS = ("127.0.0.1:*", "localhost:*")


class Calls:
    """Runs each call in a worker process: one at a time on the GPU, as many as there are CPUs without it.

    Args:
        root: folder of the callers' files.
        store: path of the store, None for the default.
        limit: seconds that any call may take, below the tools' own limits; None for those.
    """

    def __init__(self, root: Path, store: Path | None, limit: float | None) -> None:
        self.root, self.store = str(root.resolve()), None if store is None else str(store.absolute())
        self.limit = limit
        self._forks, self._forking = ForkServer(_WORKER), threading.Lock()
        self._gpu, self._cpu = anyio.CapacityLimiter(1), anyio.CapacityLimiter(os.cpu_count() or 1)

    async def run(self, tool: Tool, seconds: float, arguments: dict[str, Any], ctx: Context) -> Any:
        """The tool's answer. Cancelled, it kills the worker.

        Raises:
            ToolError: what is wrong, where, and what to do.
        """
        gpu = tool.__name__ in _ON_GPU or arguments.get("device") == "cuda"
        ticket, stop = f"{time.time_ns():020d} {os.getpid()} {id(ctx)}", threading.Event()
        limit = min(seconds, self.limit or seconds)
        lane = self._gpu if gpu else self._cpu
        if lane.available_tokens < 1:
            waiting = lane.statistics().tasks_waiting
            await ctx.report_progress(0.0, None, f"queued behind {waiting + 1} calls")
        async with lane:
            try:
                work = partial(self._work, tool.__name__, arguments, gpu, ticket, limit, stop, ctx)
                own = anyio.CapacityLimiter(1)  # the queue is the lane's
                return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=own)
            except WorkerTimeout as error:
                raise ToolError(f"{tool.__name__} took longer than {limit:g} s and was ended") from error
            except SassafrasError as error:
                raise ToolError(str(error)) from error
            finally:
                stop.set()

    def _work(
        self,
        tool: str,
        arguments: dict[str, Any],
        gpu: bool,
        ticket: str,
        limit: float,
        stop: threading.Event,
        ctx: Context,
    ) -> Any:
        began, told = time.monotonic(), 0.0

        def hear(news: dict[str, Any]) -> None:
            nonlocal told
            told = max(told + 1e-3, time.monotonic() - began)  # has to rise
            left = None if news.get("total") is None else told + news["total"] - news["progress"]
            if not stop.is_set():
                from_thread.run(ctx.report_progress, told, left, news["message"])

        with self._forking:
            if not self._forks.alive:
                self._forks.close()
                self._forks = ForkServer(_WORKER)
        worker = WorkerProcess(_WORKER, server=self._forks)
        try:
            if gpu:
                worker.send("turn", tool=tool, store=self.store, ticket=ticket)
                worker.receive(_QUEUE, stop.is_set, hear)
            worker.send("call", tool=tool, arguments=arguments, root=self.root, store=self.store)
            return worker.receive(limit, stop.is_set, hear)["result"]
        except Stopped:
            return None
        finally:
            worker.kill()

    def close(self) -> None:
        """End the workers."""
        self._forks.close()


def server(calls: Calls) -> MCPServer:
    """The server with its tools and resources."""
    words = _text("instructions")
    made = MCPServer("sassafras", version=__version__, instructions=words, log_level="WARNING")
    for tool, seconds in TOOLS.items():
        made.tool()(_wrapped(calls, tool, seconds))
    for name, title in RESOURCES.items():
        made.resource(f"sassafras://{name}", name=name, title=title, mime_type="text/markdown")(
            partial(_text, name)
        )
    return made


def serve(root: Path, store: Path | None, limit: float | None, http: int | None) -> None:
    """Answer until the client is gone (stdio), or until a signal (HTTP on this port of 127.0.0.1)."""
    origins = [f"http://{host}" for host in _HOSTS]
    guard = TransportSecuritySettings(
        enable_dns_rebinding_protection=True, allowed_hosts=list(_HOSTS), allowed_origins=origins
    )
    with closing(Calls(root, store, limit)) as calls:
        made = server(calls)
        if http is None:
            made.run("stdio")
        else:
            with os_errors("cannot serve HTTP", f"127.0.0.1:{http}"):
                socket.create_server(("127.0.0.1", http)).close()  # else the server ends in its log's line
            made.run("streamable-http", host="127.0.0.1", port=http, transport_security=guard)


def _text(name: str) -> str:
    return files(__package__).joinpath(f"{name}.md").read_text(encoding="utf-8")


def _wrapped(calls: Calls, tool: Tool, seconds: float) -> Callable[..., Any]:
    """A tool with its own signature, but for `Call`, that runs in a worker."""

    async def run(ctx: Context, **arguments: Any) -> dict[str, Any]:
        return await calls.run(tool, seconds, arguments, ctx)

    hints = typing.get_type_hints(tool) | {"ctx": Context}
    _, *given = inspect.signature(tool).parameters.values()
    named = inspect.Parameter.KEYWORD_ONLY
    given.append(inspect.Parameter("ctx", named))
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(annotation=hints[one.name], kind=named) for one in given],
        return_annotation=dict[str, Any],
    )
    run.__annotations__ = {name: hint for name, hint in hints.items() if name != "call"}
    run.__name__, run.__doc__ = tool.__name__, inspect.getdoc(tool)
    return run
