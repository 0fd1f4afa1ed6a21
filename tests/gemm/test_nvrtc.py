"""What NVRTC asks of the kernels and nvcc does not: users compile with the one, CI with the other."""

from __future__ import annotations

import re

import pytest

from sassafras.core import ToolMissing
from sassafras.cuda.compile import with_nvrtc
from sassafras.gemm.build.cubins import ARCH, KERNELS, source
from sassafras.gemm.configs import registry

#: a function's definition at namespace or class level: what stands before its name, its name
DEFINITION = re.compile(r"^ {0,4}(?![ #/}])([^\n;{}()=]*?)\b(\w+)\([^;{}]*?\)(?: const)?\s*\{", re.MULTILINE)
STATEMENTS = {"if", "for", "while", "switch"}


def test_no_function_is_the_hosts() -> None:
    """NVRTC refuses a function without __device__, even a constexpr one that only the compiler runs."""
    found, without = 0, []
    for path in sorted(KERNELS.glob("*.cuh")):
        for match in DEFINITION.finditer(path.read_text()):
            if match[2] in STATEMENTS or "return" in match[1]:
                continue
            found += 1
            if "__device__" not in match[0] and "__global__" not in match[0]:
                without.append(f"{path.name}: {match[2]}")
    assert found > 150 and not without, without


def test_nvrtc_takes_a_kernel_of_each_family() -> None:
    kinds = {}
    for instance in registry.INSTANCES:
        kinds.setdefault((type(instance), bool(getattr(instance, "k_blocks", 0))), instance)
    assert len(kinds) >= 6
    options = [f"--gpu-architecture={ARCH}", "--std=c++17"]
    for instance in kinds.values():
        name = f"{instance.name}.cu"
        try:
            cubin, _ = with_nvrtc(source(instance), options, where=name, name=name)
        except ToolMissing as error:
            pytest.skip(f"no NVRTC: {error}")
        assert cubin[:4] == b"\x7fELF"
