"""``sassafras disasm CUBIN``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .files import about, read


def command(
    cubin: Annotated[Path, typer.Argument(help="A cubin.", show_default=False)],
    kernel: Annotated[str | None, typer.Option(help="Print only this kernel.")] = None,
) -> None:
    """Print a cubin's instructions with their control codes and basic blocks.

    The columns of a control code: scoreboards waited for (B), scoreboard set until the operands are read (R)
    and until the result is written (W), yield (Y), stall cycles (S).
    """
    from sassafras.sass import Program

    with about(cubin):
        program = Program.parse(read(cubin))
        functions = [program.function(kernel)] if kernel else list(program.functions.values())
    for function in functions:
        size = f"{len(function)} instructions, {function.registers} registers"
        print(f"// {function.name}  {function.arch}  {size}")
        labels: dict[int, list[str]] = {}
        for label, offset in function.labels.items():
            labels.setdefault(offset, []).append(label)
        starts = {16 * block.start for block in function.blocks}
        for instruction in function.instructions:
            for label in labels.get(instruction.offset, []):
                print(f"{label}:")
            if instruction.offset in starts and instruction.offset not in labels and instruction.offset:
                print()
            print(f"  {instruction}")
