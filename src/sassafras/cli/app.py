"""The ``sassafras`` program: its commands, and how errors are shown."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from . import audit as auditing
from . import capture as capturing
from . import check as checking
from . import compare as comparing
from . import (
    disasm,
    doctor,
    examples,
    gemm,
    judge,
    latency,
    llm,
    mcp,
    optimize,
    ptxas_options,
    run,
    status,
    store,
    suite,
    tune,
    validate,
    version,
)
from . import evolve as evolving
from . import explain as explaining
from . import report as reporting
from . import verify as verifying
from .console import error

_DEBUG = "--debug"
#: (commands, option) of earlier versions -> what to type now
_RENAMED = {
    (("knobs",), ""): "sassafras ptxas-options TARGET",
    (("optimize",), "--knobs"): "sassafras optimize TARGET --ptxas-options FILE",
    (("optimize",), "--captured"): "sassafras tune CAPTURE",
    (("gemm", "tune"), ""): "sassafras tune --products GRID",
}


class Commands(TyperGroup):
    """Shows a `SassafrasError` as one line with exit code 2, or in full with ``--debug``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take ``--debug`` from anywhere on the line, and refuse earlier names with the present one."""
        end = args.index("--") if "--" in args else len(args)  # what follows is another program's
        ours, others = args[:end], args[end:]
        ctx.meta[_DEBUG] = _DEBUG in ours or bool(os.environ.get("SASSAFRAS_DEBUG"))
        ours = [arg for arg in ours if arg != _DEBUG]
        for (words, option), now in _RENAMED.items():
            if tuple(ours[: len(words)]) == words and option in {"", *(a.split("=")[0] for a in ours)}:
                error(f"{' '.join((*words, option)).strip()} has another name now ({now})")
                raise typer.Exit(2)
        with _written(ctx.meta[_DEBUG]):  # --help
            return super().parse_args(ctx, ours + others)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        from sassafras.core import SassafrasError

        try:
            with _written(ctx.meta[_DEBUG]):
                return super().invoke(ctx)
        except SassafrasError as problem:
            if ctx.meta[_DEBUG]:
                raise
            error(problem)
            raise typer.Exit(2) from problem


@contextmanager
def _written(debug: bool) -> Iterator[None]:
    """Errors of the output, `sassafras disasm x.cubin | head`, or a full disk, as exit codes."""
    try:
        yield
    except OSError as problem:
        from sassafras.core.errors import reason

        known = problem.filename or problem.errno in (errno.EPIPE, errno.ENOSPC, errno.EFBIG)
        if debug or not known:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if problem.errno == errno.EPIPE:
            raise typer.Exit(1) from None
        error(f"{problem.filename or 'the output'}: {reason(problem)}")
        raise typer.Exit(2) from problem


app = typer.Typer(
    name="sassafras",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help says [:attribute] and [/CASE]: Rich takes these for markup, and fails
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Make GPU kernels faster after the compiler has finished: search instruction schedules, prove them "
    "legal, measure them, and deploy them.",
    epilog="Add --debug anywhere on the line to show the traceback of an error.",
)
app.command("optimize")(optimize.command)
app.command("check")(checking.command)
app.command("tune")(tune.command)
app.command("ptxas-options")(ptxas_options.command)
app.command("explain")(explaining.command)
app.command("evolve")(evolving.command)
app.command("report")(reporting.command)
app.command("doctor")(doctor.command)
app.command("suite")(suite.command)
app.command("validate")(validate.command)
app.command("audit")(auditing.command)
app.command("compare")(comparing.command)
app.command("verify")(verifying.command)
app.command("judge")(judge.command)
app.command("disasm")(disasm.command)
app.add_typer(store.app, name="store")
app.add_typer(latency.app, name="latency")
app.add_typer(gemm.app, name="gemm")
app.add_typer(llm.app, name="llm")
app.command("mcp")(mcp.command)
app.command("status")(status.command)
app.command("capture", context_settings={"allow_interspersed_args": False})(capturing.command)
app.command("run", context_settings={"allow_interspersed_args": False})(run.command)
app.command("version")(version.command)
examples.add(app)


def _version(wanted: bool) -> None:
    if wanted:
        version.command()
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options shared by all commands."""
