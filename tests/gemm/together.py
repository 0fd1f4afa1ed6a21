"""Several instances in one cubin: compilers and nvdisasm take longer to start than for one kernel more."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import pytest

from sassafras.core import DisassemblyError, ToolMissing
from sassafras.cuda.compile import compile_cuda
from sassafras.gemm.build.cubins import ARCH, KERNELS
from sassafras.gemm.configs.registry import Instance
from sassafras.sass import Program
from sassafras.validate import Validator
from tests.shared import once


def together(shared: Path, instances: Iterable[Instance]) -> Program:
    """These kernels' instructions, the same as in a cubin of each; skips the test where a tool is missing."""
    seen = set()

    def include(found: re.Match[str]) -> str:
        if found[1] in seen:
            return ""
        seen.add(found[1])
        return pasted((KERNELS / found[1]).read_text())

    def pasted(text: str) -> str:
        return re.sub(r'^#include "([\w./]+)"$', include, text.replace("#pragma once\n", ""), flags=re.M)

    text = pasted("\n".join(instance.source for instance in instances))

    def make(work: Path) -> None:
        (work / "cubin").write_bytes(compile_cuda(text, ARCH, name="together.cu"))

    try:
        return _read(once(shared, hashlib.sha256(text.encode()).hexdigest()[:32], make) / "cubin")
    except (ToolMissing, DisassemblyError) as missing:
        if isinstance(missing, DisassemblyError) and "nvdisasm" not in str(missing):
            raise
        pytest.skip(f"no compiler, or no disassembler for its output: {missing}")


@lru_cache(maxsize=2)
def _read(path: Path) -> Program:
    return Program.parse(path.read_bytes())


def accepted(program: Program, name: str) -> None:
    """The validator accepts this kernel as ptxas made it."""
    data = bytes(program.cubin.data)
    report = Validator(data, name, program=program).check(data)
    assert report.ok, f"the validator refuses what ptxas made: {report}"
