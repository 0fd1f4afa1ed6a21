"""``sassafras audit FILE``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import print_json


def command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A cubin, a program or library that holds cubins, or a folder of cubins.",
            show_default=False,
        ),
    ],
    kernel: Annotated[str | None, typer.Option(help="Audit kernels whose name contains this text.")] = None,
    json: options.Json = False,
) -> None:
    """Find hazards in compiled kernels: missing waits, short stalls, misused barriers. Runs nothing.

    Exit code 1: a hazard. 3: none was found, but a kernel cannot be audited.
    """
    from sassafras.api.audit import audit
    from sassafras.validate.audit import RULES, KernelAudit

    from .files import about

    def show(cubin: str, one: KernelAudit) -> None:
        found = f"{len(one.hazards)} hazards, {len(one.surplus)} surplus waits"
        state = f"not audited: {one.unsupported}" if one.unsupported else found
        print(f"{cubin}: {one.kernel} ({one.arch}, {one.instructions} instructions): {state}")
        for violation in (*one.hazards, *one.surplus):
            print(f"  {violation}")
        for kind in dict.fromkeys(violation.kind for violation in (*one.hazards, *one.surplus)):
            print(f"  {kind}: {RULES[kind]}")

    with about(path):
        found = audit(path, kernel) if json else audit(path, kernel, show)
    if json:
        print_json(found.to_json())
    else:
        for cubin, reason in found.unread:
            print(f"{cubin}: not audited: {reason}")
        counts = f"{found.hazards} hazards, {found.surplus} surplus waits, {found.not_audited} not audited"
        print(f"{len(found.kernels)} kernel{'s' * (len(found.kernels) != 1)}: {counts}")
    raise typer.Exit(1 if found.hazards else 3 if found.not_audited else 0)
