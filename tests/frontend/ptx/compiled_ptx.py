"""PTX for these tests: of the suite, by Triton, and a few lines by hand."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile

import pytest

from sassafras.frontend import ptx
from sassafras.frontend._ptxas import ptxas_version
from sassafras.frontend.ptxas_options import available
from sassafras.sass.tools import find_all
from sassafras.targets import load

#: a loop of known length, and one of unknown length
LOOP = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry loop(.param .u64 a, .param .u32 n)
{
  .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .f32 %f<4>; .reg .pred %p<3>;
  ld.param.u64 %rd1, [a]; ld.param.u32 %r1, [n]; mov.u32 %r2, 0; mov.f32 %f1, 0f00000000;
HEAD:
  ld.global.f32 %f2, [%rd1]; /* ld.global.f32 %f9, [%rd9]; } */
  fma.rn.f32 %f1, %f2, %f1, %f2; add.s64 %rd1, %rd1, 4; add.s32 %r2, %r2, 1;
  setp.lt.s32 %p1, %r2, LIMIT; @%p1 bra HEAD;
  st.global.f32 [%rd1], %f1;
  ret;
}
"""


def releases() -> dict[str, str]:
    """ptxas by major version."""
    return {ptxas_version(path).split(".")[0]: path for path in reversed(available())}


def needs_cuda_13() -> None:
    """Skip where there is no ptxas of CUDA 13."""
    if "13" not in releases():
        pytest.skip("no ptxas of CUDA 13")


@functools.cache
def space(name: str) -> ptx.PtxSpace:
    """The space of a kernel of the suite under Triton's ptxas and, where there is one, CUDA 13's."""
    workload = load(f"suite:{name}")
    found = releases()
    return ptx.of(workload, workload.case(), "sm_90a", [found[k] for k in ("12", "13") if k in found])


@functools.cache
def code(cubin: bytes, name: str) -> tuple[str, ...]:
    """The texts of a kernel's instructions; without the liveness that `Program` has, which takes long."""
    tool = max(find_all("nvdisasm"), key=lambda one: tuple(map(int, one.version.split("."))))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        printed = subprocess.run(
            [tool.path, "-c", file.name], capture_output=True, text=True, check=True
        ).stdout
    section = printed.split(f".text.{name}:", 1)[1].split("\t.section", 1)[0]
    return tuple(re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", section, re.MULTILINE))
