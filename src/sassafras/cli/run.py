"""``sassafras run -- COMMAND``"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import note
from .files import folder


def command(
    command: options.Program = None,
    store: options.StorePath = None,
    status: Annotated[
        Path | None,
        typer.Option(help="Folder to write status files to; show them with `sassafras status FOLDER`."),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(help="Leave the kernels with this name unchanged (* and ? match); repeatable."),
    ] = None,
    print_env: Annotated[
        bool,
        typer.Option(
            "--print-env", help="Print the environment variables for a shell or a container, and run nothing."
        ),
    ] = False,
) -> None:
    """Run a program and its Python child processes with tuned kernels; the program is not changed."""
    from sassafras.core import SassafrasError, StoreError
    from sassafras.core.errors import os_errors
    from sassafras.deploy.auto import environment
    from sassafras.store import Store

    set_ = environment(store=store, status=status, deny=deny or [])
    if print_env:
        import shlex

        for name, value in set_.items():
            print(f"export {name}={shlex.quote(value)}")
        return
    if not command:
        raise SassafrasError("no program to run", hint="sassafras run -- python serve.py")
    try:
        Store.open(store, readonly=True).close()
    except StoreError as problem:  # the program runs all the same
        note(f"note: no kernel is replaced: {problem}", "yellow")
    try:
        if status is not None:
            folder(status.expanduser(), 0o700)
    except SassafrasError as problem:  # likewise
        note(f"note: no status is written: {problem}", "yellow")
    with os_errors("cannot run it", command[0]):
        os.execvpe(command[0], command, {**os.environ, **set_})
