"""``sassafras capture -- COMMAND``"""

from __future__ import annotations

import math
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options
from .console import error, note, print_json, print_table
from .files import folder


def command(
    command: options.Program = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="New or empty folder for the capture.")] = Path(
        "captured"
    ),
    tensor_mib: Annotated[
        float, typer.Option(min=0, help="Keep the contents of integer tensors up to this size, in MiB.")
    ] = 1.0,
    all_mib: Annotated[
        float, typer.Option(min=0, help="Keep contents up to this total size per process, in MiB.")
    ] = 64.0,
    cases: Annotated[int, typer.Option(min=1, help="Number of shapes to keep per compiled kernel.")] = 32,
    json: options.Json = False,
) -> None:
    """Run a program and record the Triton kernels that it launches, as workloads for `sassafras tune`."""
    from sassafras.capture import merge
    from sassafras.capture.settings import CaptureSettings
    from sassafras.core import SassafrasError
    from sassafras.deploy.auto import hook_path

    if not command:
        raise SassafrasError("no program to run", hint="sassafras capture -- python serve.py")
    for name, mib in (("--tensor-mib", tensor_mib), ("--all-mib", all_mib)):
        if mib == math.inf:
            raise SassafrasError(f"{name} is inf", hint="a number of MiB")
    if any(folder(out).iterdir()):
        raise SassafrasError("the folder is not empty", where=str(out), hint="name another one with -o")
    settings = CaptureSettings(out.resolve(), int(tensor_mib * 2**20), int(all_mib * 2**20), cases)
    own = {**os.environ, **settings.environment(), "PYTHONPATH": hook_path()}
    code = run_program(command, own, apart=json)
    try:
        captured = merge(out)
    except SassafrasError as nothing:
        if not code:
            raise
        error(f"{out}: the program ended with {code}: {nothing.what}")
        raise typer.Exit(_exit(code)) from nothing
    if json:
        print_json(summary(captured))
    else:
        _table(captured)
        for problem, count in captured.problems.items():
            note(f"note: {count} launches were not recorded: {problem}", "yellow")
        print(f"wrote {out / 'captured.json'}; next: sassafras tune {out}")
    if code:
        note(f"the program ended with {code}", "yellow")
        raise typer.Exit(_exit(code))


def _exit(code: int) -> int:
    return code if 0 < code < 256 else 1


def run_program(command: list[str], environment: dict[str, str], *, apart: bool) -> int:
    """The program's exit code; signals that we get are passed on to it.

    Args:
        apart: what it prints goes to stderr, as stdout is to hold JSON alone.
    """
    from sassafras.core.errors import os_errors

    with os_errors("cannot run it", command[0]):
        process = subprocess.Popen(command, env=environment, stdout=2 if apart else None)

    def forward(number: int, frame: Any) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(number)

    old = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return process.wait()
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def summary(captured: Any) -> dict[str, Any]:
    """A capture in short, JSON-able."""
    shares = captured.shares()
    return {
        "gpu": captured.gpu,
        "triton": captured.triton,
        "wall_s": captured.wall_s,
        "timed": captured.timed,
        "problems": dict(captured.problems),
        "kernels": [
            {
                "kernel": v.label,
                "function": v.function,
                "config": v.config,
                "launches": v.count,
                "shapes": len(v.shapes),
                "share": shares.get(v.digest),
                "gpu_us": v.gpu_us,
                "bench_us": v.bench_us,
                "problem": v.problem,
            }
            for v in captured.variants
        ],
    }


def _table(captured: Any) -> None:
    shares = captured.shares()
    of = "of GPU time" if captured.timed else "of launches"
    rows = [
        [
            v.label,
            f"{100 * shares[v.digest]:.1f} % {of}" if v.digest in shares else "runner-up",
            f"{v.count:,}",
            str(len(v.shapes)),
            v.config,
            v.problem,
        ]
        for v in captured.variants
    ]
    print_table("", ["kernel", "share", "launches", "shapes", "configuration", "cannot be tuned"], rows)
