"""Native code: a cubin in, a `Program` out, and a cubin back. Pure Python and NumPy, no GPU, no torch.

```python
program = Program.parse(Path("kernel.cubin").read_bytes())
function = program.function()  # the only kernel, or one by name
for instruction in function.instructions:
    print(instruction)  # B--2---:R-:W1:Y:S04  /*00a0*/  LDG.E.128 R4, desc[UR8][R2.64]
data = program.emit(function.name, order)  # the same words in another order, as a cubin
```

How Hopper schedules instructions is told in ``docs/concepts/hopper-schedules.md``; these are the modules,
in the order in which to read them:

| module | question that it answers |
|---|---|
| `control` | which bits of an instruction say when the next one may issue? |
| `registers` | which registers are there? (small integers, so that sets of them are cheap) |
| `opcodes` | which queue, latency, memory and fence has an opcode? |
| `instruction` | everything known of one instruction |
| `cubin`, `eiattr` | what is in the ELF file, and which of its records hold offsets of instructions? |
| `tools`, `disassembly` | what does nvdisasm say: text, labels, registers read and written? |
| `effects` | what does nvdisasm not know, and where does it contradict its own text? |
| `cfg` | basic blocks, and which may follow which |
| `program` | `Program` and `Function`: all of it together, and the way back to bytes |
| `in_order_completion` | which scoreboard says that an earlier operation is done, too? |
| `latency` | how many cycles must lie between two instructions? Tables mined from ptxas's output |
| `archs` | which architectures are parsed, scheduled, measured |

Nothing here decides what may move: that is `sassafras.schedule`, and, independently, `sassafras.validate`.
"""

from .archs import ARCHS, Arch, check_schedulable
from .cfg import Block
from .control import Control
from .cubin import Cubin
from .instruction import Instruction
from .opcodes import Fence, Memory, Op, Queue
from .program import Emitter, Function, Program

__all__ = [
    "ARCHS", "Arch", "Block", "Control", "Cubin", "Emitter", "Fence", "Function", "Instruction", "Memory",
    "Op", "Program", "Queue", "check_schedulable",
]  # fmt: skip
