"""Native code: a cubin in, a `Program` out, and a cubin back. Pure Python and NumPy, no GPU, no torch."""

from .archs import ARCHS, Arch, check_schedulable
from .cfg import Block
from .control import Control
from .cubin import Cubin
from .instruction import Instruction
from .opcodes import Fence, Memory, Op, Queue
from .program import Emitter, Function, Parameter, Program, parameters

__all__ = [
    "ARCHS", "Arch", "Block", "Control", "Cubin", "Emitter", "Fence", "Function", "Instruction", "Memory",
    "Op", "Parameter", "Program", "Queue", "check_schedulable", "parameters",
]  # fmt: skip
