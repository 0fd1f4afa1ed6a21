"""The kernels with an epilogue compile without a GPU, and their SASS is what we claim."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sassafras.frontend._image import parameter_sizes
from sassafras.gemm.configs import registry
from sassafras.gemm.configs.fallback import FallbackInstance
from sassafras.gemm.configs.persistent import PersistentInstance
from sassafras.gemm.configs.small import SmallInstance
from sassafras.gemm.configs.stream import StreamInstance

from .together import accepted, together

#: one of each kind (the others compile alike)
SAMPLE = (
    "lean_nn_m1n2s4e", "staged_tn_64x64_w2x2s4a1e", "cs_tn_swapped_64x32_s8q1e",
    "ws_tn_128x256_co2s4b2c2x1el3p", "ws_tn_bf16_128x128_pp2s6b2c2x1ep",
    "ws_tn_192x144_co3s4b2c1x1ep", "ws_tn_bf16_128x128_pp2s6b2c2x1e", "ws_tn_bf16_128x128_co2s6b2c2x1el4f",
    "st_tn_w4s2k256e", "st_tn_bf16_w8s1k256e",
)  # fmt: skip


@pytest.mark.parametrize("name", SAMPLE)
def test_sass(name: str, shared: Path) -> None:
    instance = registry.parse_instance(name)
    program = together(shared, map(registry.parse_instance, SAMPLE))
    function = program.function(name)
    opcodes = [i.opcode for i in function.instructions]
    products = {op for op in opcodes if "MMA" in op}
    if isinstance(instance, SmallInstance | FallbackInstance):
        assert products == {"HMMA.16816.F32"}, "FP32 accumulators only"
    elif isinstance(instance, StreamInstance):
        kind = ".BF16" if instance.dtype == "bf16" else ""
        assert products == {f"HMMA.16816.F32{kind}"}
        copies = max(n for n, op in enumerate(opcodes) if op.startswith("UBLKCP"))
        loads = [n for n, op in enumerate(opcodes) if op.startswith("LDG")]
        assert loads and max(loads) < copies, (
            "bias and addend are loaded before the loop, not behind the sums"
        )
    else:
        kind = ".BF16" if instance.dtype == "bf16" else ""
        assert products == {f"HGMMA.64x{instance.tile_n}x16.F32{kind}"}
        loads = {op for op in opcodes if op.startswith("UTMALDG")}
        assert all(op.startswith("UTMALDG.3D") for op in loads) and loads, "a layer of the batch"
    assert not [op for op in opcodes if op.startswith(("LDL", "STL"))], "no spills"
    assert not [op for op in opcodes if op.startswith(("HADD2", "HFMA2", "HMUL2", "RED"))
                and not op.startswith(("HADD2.F32", "HFMA2.MMA"))], "the epilogue is FP32"  # fmt: skip
    assert [op for op in opcodes if op.startswith("MUFU.EX2")]
    first = next(n for n, op in enumerate(opcodes) if op.startswith(("LDG", "UTMALDG", "UBLKCP")))
    assert opcodes.index("ACQBULK") < first, "waits for the launch before it"
    assert "PREEXIT" in opcodes[opcodes.index("ACQBULK") :], "the next one may start only then"
    if isinstance(instance, PersistentInstance):
        assert any(op.startswith("UTMASTG.3D") for op in opcodes)
        text = " ".join(instruction.text for instruction in function.instructions)
        assert max(int(number) for number in re.findall(r"\bR(\d+)\b", text)) < instance.registers
        begin = opcodes.index("USETMAXREG.DEALLOC.CTAPOOL")
        ends = (n for n in range(begin, len(opcodes)) if opcodes[n] == "EXIT")
        end = next(n for n in ends if not function.instructions[n].guard)
        loader = " ".join(i.text for i in function.instructions[begin:end])
        assert max(int(number) for number in re.findall(r"\bR(\d+)\b", loader)) < 40
    if len(opcodes) < 4500:  # the others take it many seconds
        accepted(program, name)
    sizes = parameter_sizes(program.cubin.entries[name])
    bytes_of = {"tensormap": 128, "i32": 4, "f32": 4}
    assert sizes == [bytes_of.get(kind, 8) for _, kind in instance.parameters]
