"""CuAsmRL's two moves of LDGSTS in real code: writes ldgsts-moves.json. Needs no GPU.

    python benchmarks/ldgsts.py [--archs sm_80 sm_90a] [--kernels gemm_leakyrelu,attention] [--out FOLDER]

The moves (arXiv 2501.08071): a copy (LDGSTS) past a neighbour with a ``.reuse`` flag, and a copy up past a
predicated-off LDS. Each place in every variant of these kernels is tried:

- ``reuse``: neighbours in the compiler's order. Whether the schedule space has the swap, whether the
  validator approves it, and whether it refuses the same swap with its flags kept.
- ``off``: the first copy behind a run of ``@!PT LDS``, taken above it, with the compiler's control codes.
- ``padding``: SHFL and ``@!PT LDS`` between a barrier or a use of shared memory and the next copy of a block.

For sm_90a both are also timed on the timing model, the validator left out: what the move would gain, not what
a search may do. Modelled figures are no measurements.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from common import command_line, without_gpu, write

from sassafras.core import Candidate, SassafrasError
from sassafras.sass import Emitter, Instruction, Program
from sassafras.schedule import REORDER, Move, ScheduleSpace
from sassafras.targets import load
from sassafras.targets.load import variants
from sassafras.timing_model import ModelDevice
from sassafras.validate import Validator

Row = dict[str, Any]
KERNELS = ("gemm_leakyrelu", "batched_gemm", "feed_forward", "attention", "softmax", "rmsnorm")
#: uses of shared memory that a copy is padded from
USERS = frozenset("LDS LDSM STS STSM ATOMS BAR".split())  # noqa: SIM905


def off(i: Instruction) -> bool:
    """Whether it is a predicated-off LDS."""
    return i.base == "LDS" and i.guard in ("!PT", "!UPT")


def padding(code: list[Instruction]) -> list[tuple[int, int]]:
    """Of each first copy behind a user of a block: (pads between, shuffles among them)."""
    found, pads, user = [], [], False
    for i in code:
        if i.base == "LDGSTS":
            if user:
                found.append((len(pads), sum(not off(p) for p in pads)))
            pads, user = [], False
        elif off(i) or i.base == "SHFL":
            pads.append(i)
        elif i.base in USERS:
            pads, user = [], True
    return found


class Moves:
    """The two moves in one kernel. `device`: opened on it, or None."""

    def __init__(self, kernel: Any, device: ModelDevice | None) -> None:
        program = Program.parse(kernel.cubin)
        self.kernel, self.device, self.function = kernel, device, program.function(kernel.name)
        self.emitter = Emitter(program, kernel.name)
        self.validator = Validator(kernel.cubin, kernel.name)
        self.space = ScheduleSpace(kernel, program, arch_by_name=True)
        self.gains: dict[str, list[float]] = {"reuse": [], "off": []}

    def taken(self, start: int, end: int) -> bytes:
        """The cubin with instruction `end` before `start`, its control codes and all others' as they are."""
        order = np.arange(len(self.function), dtype=np.int32)
        order[start : end + 1] = [end, *range(start, end)]
        return self.emitter.write(order, self.function.words[order])

    def reuse(self, at: int) -> Counter[str]:
        """The swap of instructions `at` and the next."""
        found = Counter(["places"])
        raw = self.validator.check(self.taken(at, at + 1))
        found["with flags refused"] += any(v.kind == "reuse" for v in raw.violations)
        try:
            after = self.space.apply(self.space.start(), Move(REORDER, at, at + 1))
        except SassafrasError:
            return found
        cubin = self.space.emit(after)
        found["in space"] += 1
        found["approved"] += self.validator.check(cubin).ok
        self._model("reuse", cubin)
        return found

    def off(self, start: int, end: int) -> Counter[str]:
        """The copy `end` above the run of ``@!PT LDS`` that begins at `start`."""
        cubin = self.taken(start, end)
        self._model("off", cubin)
        return Counter({"places": 1, "refused": int(not self.validator.check(cubin).ok)})

    def _model(self, what: str, cubin: bytes) -> None:
        if self.device is not None:
            ratio = self.device.remeasure(Candidate(self.kernel.with_cubin(cubin), {})).modelled_ratio
            self.gains[what] += [] if ratio is None else [ratio]

    def row(self) -> Row:
        """All places of the kernel."""
        code = self.function.instructions
        near, over = Counter(), Counter()
        pads: list[tuple[int, int]] = []
        for block in self.function.blocks:
            pads += padding(list(code[block.start : block.end]))
            for n in range(block.start, block.end - 1):
                a, b = code[n], code[n + 1]
                if {a.base, b.base} > {"LDGSTS"} and (a.control.reuse or b.control.reuse):
                    near += self.reuse(n)
                if off(a) and b.base == "LDGSTS":
                    start = n
                    while start > block.start and off(code[start - 1]):
                        start -= 1
                    over += self.off(start, n + 1)
        best = {what: max(gains, default=None) for what, gains in self.gains.items()}
        exact = sum(count == 3 for count, _ in pads)
        shuffled = sum(shuffles > 0 for _, shuffles in pads)
        return {
            "instructions": len(code),
            "copies": sum(i.base == "LDGSTS" for i in code),
            "reuse": dict(near),
            "off": dict(over),
            "padding": {"places": len(pads), "three": exact, "fewer": sum(c < 3 for c, _ in pads)},
            "padded by shuffles": shuffled,
            "modelled_best": best if self.device is not None else None,
        }


def rows(arch: str, kernel: str) -> list[Row]:
    """A row a variant of the kernel that has copies."""
    found = []
    workload = load(f"suite:{kernel}")
    for built, cases in variants(workload, arch):
        code = Program.parse(built.cubin).function(built.name).instructions
        if any(i.base == "LDGSTS" for i in code):
            device = None
            if arch == "sm_90a":
                device = ModelDevice(arch)
                device.open(workload, cases[0], built)
            found.append(
                {"arch": arch, "kernel": kernel, "shape": cases[0].name, **Moves(built, device).row()}
            )
    return found


def summarise(found: list[Row]) -> Row:
    """Sums by architecture; of sm_90a also the best modelled gains."""
    summary: Row = {}
    for arch in dict.fromkeys(row["arch"] for row in found):
        mine = [row for row in found if row["arch"] == arch]
        of: Row = {"kernels": len(mine), "copies": sum(row["copies"] for row in mine)}
        for part in ("reuse", "off", "padding"):
            of[part] = dict(sum((Counter(row[part]) for row in mine), Counter()))
        of["padding"] = {"fewer": 0, **of["padding"]}
        for what in ("reuse", "off"):
            best = [row["modelled_best"][what] for row in mine if row["modelled_best"]]
            of[f"modelled_best_{what}"] = max((gain for gain in best if gain is not None), default=None)
        summary[arch] = of
    return summary


def main() -> None:
    """Command line."""
    parse = command_line(__doc__)
    parse.add_argument("--archs", nargs="+", default=["sm_80", "sm_90a"])
    parse.add_argument("--kernels", default=",".join(KERNELS))
    given = parse.parse_args()
    found: list[Row] = []
    for arch in given.archs:
        for kernel in given.kernels.split(","):
            found += (made := rows(arch, kernel))
            for row in made:
                print(
                    *(row[key] for key in ("arch", "kernel", "shape", "reuse", "off", "padding")), flush=True
                )
    print(write("ldgsts-moves", found, summarise(found), without_gpu("triton"), out=given.out))


if __name__ == "__main__":
    main()
