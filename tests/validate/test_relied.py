"""Orders that compiled code relies on: taken for granted in an audit, unknown to the validator."""

from __future__ import annotations

import pytest

from sassafras.sass import Cubin, Instruction, Program
from sassafras.sass.control import READ_BARRIER_SHIFT, WAIT_SHIFT
from sassafras.sass.latency import LatencyTable
from sassafras.validate import Validator, relied
from sassafras.validate.audit import audit
from tests import kernels

GENERIC = r"""
extern "C" __global__ void stores(float4* out, const float* in, int n, int which) {
  extern __shared__ float4 s[];
  __shared__ float z[1024];
  int t = threadIdx.x;
  float4* p = (which ? out : s) + t;
#pragma unroll 1
  for (int k = 0; k < n; k++) {
    float a[8], b[8];
#pragma unroll
    for (int m = 0; m < 8; m++) { a[m] = in[t + (k * 8 + m) * 256]; b[m] = z[(t + m * k) & 1023]; }
#pragma unroll
    for (int m = 0; m < 8; m++) {
      p[m * 8] = make_float4(a[m] * b[m], b[m] + 1.f, a[m] + 2.f, b[m] * b[m]);
      z[(t * m) & 1023] = __expf(a[m]);
    }
    p += 1024;
  }
}
"""
SUMS = r"""
extern "C" __global__ void sums(float* out, const float4* in, int n) {
  int t = threadIdx.x;
#pragma unroll 1
  for (int k = 0; k < n; k++) {
    float4 v[8];
#pragma unroll
    for (int m = 0; m < 8; m++) v[m] = in[t + (k * 8 + m) * 256];
#pragma unroll
    for (int m = 0; m < 8; m++)
      asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(out + m * 1024 + 4 * t),
                   "f"(v[m].x * v[m].y), "f"(v[m].y), "f"(v[m].z), "f"(v[m].w) : "memory");
    out += 8192;
  }
}
"""
EITHER = r"""
extern "C" __global__ void either(float* out, const float* in, int n, int m) {
  asm volatile("{ .reg .pred p, q; .reg .f32 x, y; .reg .b32 k;"
    "setp.gt.s32 p, %2, 7; ld.global.f32 x, [%0+64]; @p st.global.f32 [%1+64], x;"
    "mov.f32 y, 0f3f800000; mov.b32 k, 0;\n"
    "LOOP: fma.rn.f32 y, y, y, y; add.s32 k, k, 1; setp.lt.s32 q, k, %3; @q bra LOOP;\n"
    "@!p ld.global.f32 x, [%0]; add.f32 x, x, y; st.global.f32 [%1], x; }"
    :: "l"(in + threadIdx.x), "l"(out + threadIdx.x), "r"(n), "r"(m) : "memory");
}
"""


def compiled(source: str) -> bytes:
    cubin = kernels.nvcc_cubin(source, flags=("-maxrregcount=64",))
    if cubin is None:
        pytest.skip("needs nvcc")
    return cubin


def changed(cubin: bytes, i: Instruction, low: int = 0, high: int = 0, clear: int = 0) -> bytes:
    """The cubin with bits of an instruction's words flipped, and bits of the upper one cleared."""
    (entry,) = Cubin.parse(cubin).entries.values()
    at = entry.text.offset + i.offset
    words = (i.low ^ low).to_bytes(8, "little") + ((i.high ^ high) & ~clear).to_bytes(8, "little")
    return cubin[:at] + words + cubin[at + 16 :]


@pytest.mark.parametrize(("source", "store"), [(GENERIC, "ST"), (SUMS, "REDG")])
def test_a_later_store_says_that_an_earlier_one_has_read_its_operands(source: str, store: str) -> None:
    cubin = compiled(source)
    code = Program.parse(cubin).function().instructions
    alone = [v for v in Validator(cubin).violations(cubin) if f"reads of {store}." in v.message]
    assert alone  # the validator knows of no order between them
    assert not audit(cubin).hazards
    bare = cubin  # with no scoreboard on any store, none says so
    for i in code:
        if i.base in (store, "STS") and i.control.read_barrier is not None:
            bare = changed(bare, i, high=(i.control.read_barrier ^ 7) << READ_BARRIER_SHIFT)
    found = audit(bare).hazards
    assert {v.kind for v in found} == {"scoreboard"}
    assert any(f"reads of {store}." in v.message for v in found)


def test_no_lane_runs_both_of_a_guarded_pair() -> None:
    cubin = compiled(EITHER)
    code = Program.parse(cubin).function().instructions
    store, add = (next(i for i in code if i.base == name) for name in ("STG", "FADD"))
    load = next(i for i in code if i.base == "LDG" and i.guard)
    assert store.guard and load.guard == f"!{store.guard}" and store.offset < load.offset
    early = {"clear": 0x3F << WAIT_SHIFT}

    def places(copy: bytes) -> set[str]:
        return {v.where for v in audit(copy).hazards if f"reads of {store.text}" in v.message}

    where = {i: f"+{i.offset:#x}: {i.text}" for i in (load, add)}
    assert not audit(cubin).hazards
    # the load may follow at once, the sum that always overwrites the stored register may not
    assert places(changed(cubin, load, **early)) == {where[add]}
    same = changed(cubin, load, low=1 << 15, **early)
    assert any("LDG" in place for place in places(same))
    # a compare between them that writes the predicate
    between = next(i for i in code if store.offset < i.offset < load.offset and i.base == "ISETP")
    was, now = (int(name[1:]) for name in (between.operands[0], store.guard))
    other = changed(changed(cubin, between, high=(was ^ now) << 17), load, **early)
    assert where[load] in places(other)


def test_floors_of_the_addend_that_is_taken_late() -> None:
    table = LatencyTable.load("sm_90")
    pair = ("raw", "IMAD.MOV.U32", "0", "IMAD.HI", "3+1")
    wide = table.floor("raw", "IMAD.MOV.U32", "0", "IMAD.WIDE", "3+1")
    assert relied.floor(table, *pair) == wide < table.floor(*pair)
    product = ("raw", "IMAD.MOV.U32", "0", "IMAD.HI", "1")
    assert relied.floor(table, *product) == table.floor(*product)
    assert relied.floor(table, "war", "HFMA2", "1", "IMAD", "0") == table.floor(
        "war", "HFMA2", "1", "IMAD", "0"
    )
    assert relied.floor(table, "war", "HSETP2", "1", "IMAD", "0") == 1
