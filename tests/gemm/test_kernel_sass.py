"""The lean and staged kernels compile without a GPU, and their SASS is what we claim."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sassafras.core import CompileError, ToolMissing
from sassafras.frontend._image import parameter_sizes
from sassafras.gemm.build.cubins import build, cached_path, cubin, source
from sassafras.gemm.configs import fallback, registry, small
from sassafras.gemm.configs.persistent import PersistentInstance
from sassafras.gemm.configs.registry import Instance
from sassafras.gemm.configs.small import SmallInstance
from sassafras.gemm.configs.split_k import SplitKInstance
from sassafras.gemm.configs.stream import StreamInstance

from .together import together

INSTANCES: tuple[Instance, ...] = (*small.INSTANCES, *fallback.INSTANCES)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cubins")
    try:
        cubin(INSTANCES[0], folder)
    except ToolMissing as missing:
        pytest.skip(str(missing))
    return folder


#: every second one, and all that are exact or odd (the others compile alike; all of them take a minute)
SAMPLE = [i for n, i in enumerate(INSTANCES) if n % 2 == 0 or i.name.endswith(("x", "a1", "a2"))]


@pytest.mark.parametrize("instance", SAMPLE, ids=lambda i: i.name)
def test_sass(instance: Instance, shared: Path) -> None:
    name = instance.name
    program = together(shared, SAMPLE)
    function = program.function(name)
    opcodes = [i.opcode for i in function.instructions]
    products = {op for op in opcodes if "MMA" in op}
    assert products == {"HMMA.16816.F32"}, "FP32 accumulators only"
    loop = [op for op in opcodes if op.startswith("HMMA")]
    if isinstance(instance, SmallInstance):
        assert len(loop) >= 2 * instance.mma_m * instance.mma_n * 2 * instance.k_steps, "two groups of steps"
        assert not [op for op in opcodes if "CONSTANT" in op], "may be moved ahead of the wait"
        assert "LDSM" not in " ".join(opcodes)
    else:
        per_warp = instance.tile_m * instance.tile_n // (instance.warps_m * instance.warps_n)
        assert len(loop) == per_warp // 128 * 4, "one k tile of 64"
        copies = {8: "LDGSTS.E.BYPASS.128", 2: "LDGSTS.E", 1: "LDG.E.U16"}[instance.alignment]
        assert any(op.startswith(copies) for op in opcodes)
        assert any(
            op.startswith("LDSM.16.MT88.4" if instance.layout == "nn" else "LDSM.16.M88.4") for op in opcodes
        )
    assert not [op for op in opcodes if op.startswith(("RED", "ATOM"))], "sums have a fixed order"
    assert not [op for op in opcodes if op.startswith(("LDL", "STL"))], "no spills"
    loads = [number for number, op in enumerate(opcodes) if op.startswith(("LDG", "LDGSTS"))]
    assert opcodes.index("ACQBULK") < loads[0], "waits for the launch before it"
    assert opcodes.index("ACQBULK") < opcodes.index("PREEXIT"), "and lets the next one start only then"
    assert not [
        op for op in opcodes if op.startswith(("HADD2", "HFMA2")) and "MMA" not in op and op != "HFMA2.MMA"
    ]
    sizes = parameter_sizes(program.cubin.entries[name])
    assert sizes == [8 if kind.startswith("*") else 4 for _, kind in instance.parameters]


def test_source_is_self_contained(cache: Path) -> None:
    for instance in (*registry.INSTANCES, *registry.OTHER_INSTANCES):
        text = source(instance)
        assert "#include" not in text and "#pragma once" not in text
        # further ones for normalised rows; for weights that are read early; for ranges of k, and for a pair
        more = {StreamInstance: 1, SplitKInstance: 1, PersistentInstance: 2}
        problems = 1 + next((more[kind] for kind in more if isinstance(instance, kind)), 0)
        assert len(re.findall(r"Problem (?:: \w+ )?{\n", text)) == problems and f" {instance.name}(" in text


def test_cache_is_keyed_by_text(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = INSTANCES[0]
    before = cached_path(instance, cache)
    assert before.is_file()
    assert build([instance], cache) == {instance: before}
    other = SmallInstance("tn", 1, 1, 3)
    assert cached_path(other, cache) != before and not cached_path(other, cache).exists()


def test_refused_source_says_so(cache: Path) -> None:
    with pytest.raises(CompileError, match="NN loads at least two columns"):
        cubin(SmallInstance("nn", 1, 1, 1), cache)
    assert not cached_path(SmallInstance("nn", 1, 1, 1), cache).exists()
