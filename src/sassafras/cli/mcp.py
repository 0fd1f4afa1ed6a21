"""``sassafras mcp``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options


def command(
    http: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Serve HTTP on this port of 127.0.0.1 [default: stdio]."),
    ] = None,
    root: Annotated[Path, typer.Option(help="Folder of the files that tools may read.")] = Path(),
    store: options.StorePath = None,
    limit: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds that a call may take [default: the tool's limit].")
    ] = None,
) -> None:
    """Serve the commands to coding agents as tools of the Model Context Protocol.

    Workload files below --root are executed: they are trusted, candidates are not.
    """
    from sassafras.core import SassafrasError, ToolMissing

    if not root.is_dir():
        raise SassafrasError("no such folder", where=str(root))
    try:
        from sassafras.mcp_server.server import serve
    except ModuleNotFoundError as error:
        if not str(error.name).startswith(("mcp", "anyio", "pydantic")):
            raise
        raise ToolMissing("the MCP SDK is not installed", hint="pip install -e '.[mcp]'") from error
    serve(root, store, limit, http)
