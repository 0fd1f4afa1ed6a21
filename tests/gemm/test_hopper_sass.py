"""The TMA + WGMMA kernels compile without a GPU, and their SASS is what we claim."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from sassafras.frontend._image import parameter_sizes
from sassafras.gemm.configs.registry import parse_instance
from sassafras.gemm.configs.split_k import SplitKInstance
from sassafras.sass.instruction import Instruction

from .together import accepted, together

NAMES = (
    "cs_nn_128x256_s4q1l3", "cs_tn_swapped_bf16_64x32_s16q1", "cs_nn_64x64_s6q1", "cs_tn_64x32_s4q2",
    "cs_nn_128x128_s6q1l4", "cs_tn_swapped_64x96_s8q1", "cs_nt_128x128_s4q1", "cs_tn_bf16_64x64_s10q1",
    "ws_nn_128x256_co2s4b2c1x1l3", "ws_nn_128x128_pp2s6b2c1x1", "ws_tn_192x128_co3s4b2c1x1",
    "ws_tn_64x128_pp2s8b2c1x1", "ws_nn_swapped_128x168_pp2s5b2c1x1", "ws_tn_128x168_pp2s5b2c1x1",
    "ws_tt_bf16_128x128_pp2s6b2c1x1", "ws_nt_128x192_pp2s4b3c1x2", "ws_nt_bf16_128x128_pp2s6b2c2x1",
    "ws_tn_128x160_pp2s5b2c2x1", "ws_tn_192x128_pp2s4b3c1x1", "ws_tn_128x192_pp2s4b3c2x1",
    "ws_tn_128x256_co2s4b2c1x1l3", "ws_nt_128x256_co2s4b2c2x1",
    "ws_tn_128x128_co2s6b2c1x1l4f", "ws_tn_bf16_128x160_co2s5b2c2x1l3f", "ws_nn_128x192_co2s4b2c1x2l3f",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_sass(name: str, shared: Path) -> None:
    instance = parse_instance(name)
    program = together(shared, map(parse_instance, NAMES))
    function = program.function(name)
    opcodes = [i.opcode for i in function.instructions]
    split = isinstance(instance, SplitKInstance)
    products = [op for op in opcodes if "MMA" in op]
    # one k tile of 64 for each 64 rows of a warpgroup; FP32 accumulators, nothing but warpgroup products
    blocks = instance.k_blocks if split else instance.tile_m // instance.sharers // 64  # type: ignore[union-attr]
    kind = ".BF16" if instance.dtype == "bf16" else ""
    assert products == [f"HGMMA.64x{instance.tile_n}x16.F32{kind}"] * (4 * blocks)
    # a wait behind every product is how ptxas answers what it does not understand
    assert len([op for op in opcodes if op.startswith("WARPGROUP.DEPBAR")]) <= 3
    assert not [op for op in opcodes if op.startswith(("LDL", "STL"))], "no spills"
    # descriptors are sums in uniform registers: no thread computes any between products
    issued = [number for number, op in enumerate(opcodes) if op.startswith("HGMMA")]
    moved = [op for op in opcodes[issued[0] : issued[-1]] if op.startswith("R2UR")]
    assert len(moved) <= 2, "descriptors pass through the registers of threads"
    assert not [op for op in opcodes if op.startswith(("HADD2", "HFMA2", "RED"))]
    assert any(op.startswith("UTMALDG.2D") for op in opcodes)
    loads = [number for number, op in enumerate(opcodes) if op.startswith("UTMALDG")]
    assert opcodes.index("ACQBULK") < loads[0], "waits for the launch before it"
    assert "PREEXIT" in opcodes[opcodes.index("ACQBULK") : loads[0]], "the next one may start only then"
    multicast = any(op.startswith("UTMALDG.2D.MULTICAST") for op in opcodes)
    assert multicast == (not split and instance.cluster > 1)  # type: ignore[union-attr]
    assert any(op.startswith("STSM.16.MT88.4" if instance.swap_ab else "STSM.16.M88.4") for op in opcodes)
    assert any(op.startswith("UTMASTG.2D") for op in opcodes) == (not split)
    assert not [op for op in opcodes if op.startswith(("ATOM", "LDGSTS"))], "sums have a fixed order"
    assert any(op.startswith("USETMAXREG") for op in opcodes) == (instance.threads > 256 and not split)
    # with setmaxnreg the multiplying threads may use more than a launch gives each
    text = " ".join(instruction.text for instruction in function.instructions)
    highest = max(int(number) for number in re.findall(r"\bR(\d+)\b", text))
    assert highest < (instance.registers if not split else 65536 // instance.threads)
    if "USETMAXREG.DEALLOC.CTAPOOL" in opcodes:
        loader_keeps_within_its_registers(function.instructions, opcodes)
    accepted(program, name)
    sizes = parameter_sizes(program.cubin.entries[name])
    bytes_of = {"tensormap": 128, "i32": 4}
    assert sizes == [bytes_of.get(parameter, 8) for _, parameter in instance.parameters]


def loader_keeps_within_its_registers(instructions: Sequence[Instruction], opcodes: list[str]) -> None:
    """From the hand-over to the role's end; ptxas itself does not check what the warpgroup gave away."""
    begin = opcodes.index("USETMAXREG.DEALLOC.CTAPOOL")
    end = next(i for i in range(begin, len(opcodes)) if opcodes[i] == "EXIT" and not instructions[i].guard)
    left = int(instructions[begin].operands[-1], 16)
    texts = " ".join(i.text for i in instructions[begin:end])
    assert max(int(number) for number in re.findall(r"\bR(\d+)\b", texts)) < left in (32, 40)
