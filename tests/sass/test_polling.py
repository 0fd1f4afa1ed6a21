"""Kernels whose blocks may wait for one another, as ptxas makes them."""

from __future__ import annotations

from sassafras.frontend._ptxas import assemble
from sassafras.sass import Program
from sassafras.sass.polling import polls
from sassafras.sass.tools import find

_HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
_ENTRY = """.visible .entry {name}(.param .u64 p) {{
  .reg .b64 %p; .reg .b32 %v; .reg .pred %again;
  ld.param.u64 %p, [p]; cvta.to.global.u64 %p, %p;
more:
  {read}
  setp.eq.u32 %again, %v, 0;
  @%again bra more;
  st.global.u32 [%p+4], %v;
  ret;
}}
"""


_READS = (
    ("ld.volatile.global.u32 %v, [%p];", True),
    ("ld.acquire.gpu.global.u32 %v, [%p];", True),
    ("ld.relaxed.gpu.global.u32 %v, [%p];", True),
    ("ld.global.cv.u32 %v, [%p];", True),
    ("atom.global.exch.b32 %v, [%p], 0;", True),
    ("ld.acquire.gpu.u32 %v, [%p];", True),  # by a generic address
    ("ld.global.nc.u32 %v, [%p];", False),
    ("ld.global.u32 %v, [%p];", False),
    ("ld.global.u32 %v, [%p]; red.global.add.u32 [%p+8], 1;", False),
)


def test_blocks_wait_by_reads_that_see_others_writes() -> None:
    text = _HEAD + "".join(_ENTRY.format(name=f"k{n}", read=read) for n, (read, _) in enumerate(_READS))
    program = Program.parse(assemble(text, "sm_90a", str(find("ptxas").path)))
    assert [polls(program.function(f"k{n}")) for n in range(len(_READS))] == [may for _, may in _READS]
