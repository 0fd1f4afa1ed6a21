"""Instances with an epilogue, on the CPU: alpha, beta, bias, activations, batches, tails, gaps, splits."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sassafras.core import SassafrasError
from sassafras.gemm.configs import epilogue, names, persistent, registry
from sassafras.gemm.configs.base import Mode
from sassafras.gemm.configs.epilogue import ACTIVATIONS, Batch, Lines
from sassafras.gemm.configs.fallback import FallbackConfig, FallbackInstance
from sassafras.gemm.configs.persistent import PersistentConfig
from sassafras.gemm.configs.persistent_folded import FoldedPersistentConfig, FoldedPersistentInstance
from sassafras.gemm.configs.persistent_pair import PairConfig
from sassafras.gemm.configs.registry import Config, Instance
from sassafras.gemm.configs.small import SmallConfig, SmallInstance
from sassafras.gemm.configs.split_k import SplitKConfig, SplitKInstance
from sassafras.gemm.configs.split_k_folded import FoldedInstance, FoldedSplitKConfig
from sassafras.gemm.configs.stream import StreamConfig, StreamInstance
from sassafras.gemm.configs.unaligned import UnalignedConfig, UnalignedInstance
from sassafras.gemm.problem.shape import Shape

from .epilogue_launch import INSTANCES, Case, Emulator, build
from .hopper_launch import EAGER, LATE, RANDOM

_C, _L, _R = SplitKInstance, SmallInstance, StreamInstance

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def emulator(shared: Path) -> Emulator:
    return build(shared)


@pytest.fixture
def few_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent, "AT_ONCE", (4,) * 8)


def configs(instance: Instance) -> list[Config]:
    """Whole tiles first; then every way of splitting k."""
    if isinstance(instance, SmallInstance):
        return [SmallConfig(instance, *c) for c in ((1, 1, 1, 1), (2, 1, 2, 1), (1, 2, 1, 4), (1, 1, 2, 2))]
    if isinstance(instance, FallbackInstance):
        return [FallbackConfig(instance, cluster) for cluster in (1, 2, 4)]
    if isinstance(instance, UnalignedInstance):
        return [UnalignedConfig(instance, slices) for slices in (1, 2, 3, 4)]
    if isinstance(instance, FoldedPersistentInstance):
        kinds = ((1, 2), (3, 3), (-2, 4))
        return [FoldedPersistentConfig(instance, group, split_k=ranges) for group, ranges in kinds]
    if isinstance(instance, FoldedInstance):
        return [FoldedSplitKConfig(instance, split_k=ranges) for ranges in (2, 3, 4)]
    if isinstance(instance, SplitKInstance):
        return [SplitKConfig(instance, slices) for slices in (1, 2, 3, 4)]
    if isinstance(instance, StreamInstance):
        return [StreamConfig(instance, mode=Mode(pdl=pdl)) for pdl in (False, True)]
    return [PersistentConfig(instance, group) for group in (1, 3, -2)]


CASES = (
    Case(bias=True, activation="relu"),
    Case(alpha=-0.5, beta=2.0, bias=True, activation="gelu"),
    Case(beta=1.0, activation="silu", gap=8, repeats=2, policy=RANDOM),
    Case(alpha=0.25, bias=True, activation="gelu_tanh", batch=3, policy=EAGER),
    Case(beta=-1.0, bias=True, batch=2, shared="b", gap=16, apart=True, policy=RANDOM),
    Case(batch=4, shared="a", activation="relu", policy=LATE),
    Case(alpha=3.0),
)  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("number", range(len(INSTANCES)), ids=lambda n: INSTANCES[n].name)
def test_every_path_is_right(
    number: int, emulator: Emulator, tmp_path: Path, few_multiprocessors: None
) -> None:
    instance = INSTANCES[number]
    any_alignment = isinstance(instance, FallbackInstance) and instance.alignment == 1
    any_rows = isinstance(instance, UnalignedInstance)
    one = any_rows or isinstance(instance, StreamInstance)
    shapes = [Shape(40, 24, 200), Shape(136, 72, 264)]
    if one:
        shapes = [Shape(8, 24, 200), Shape(1, 23, 520), Shape(3, 51, 136)]
    if any_alignment or any_rows:
        shapes = [Shape(33, 23, 65), Shape(67, 71, 197), Shape(1, 1, 3)]
    launched, kinds = 0, set()
    for at, case in enumerate(CASES):
        if any_alignment:
            case = replace(case, shift=2 * at, gap=case.gap and case.gap - 7 + at)
        if any_rows:
            case = replace(case, gap=case.gap and case.gap - 7 + at)
        case = replace(case, batch=1) if one else case
        for index, config in enumerate(configs(instance)):
            shape = shapes[(at + index) % len(shapes)]
            if config.why_illegal(shape) is not None:
                continue
            everything = case.beta != 0 and (case.batch > 1 or one)
            # a third of the combinations, once all splits have run
            if (at + index) % 3 and launched > 8 and not everything:
                continue
            case = replace(case, seed=at + 10 * index)
            wrong = emulator.run(config, shape, case, tmp_path)
            assert wrong == "", f"{config.name} for {shape}, {case}"
            launched += 1
            kinds.add((everything, case.activation))
    assert launched >= 8 and len({a for _, a in kinds}) == 5 and (True, None) in kinds


@needs_compiler
def test_nan_propagates_and_c_is_not_read_without_beta(emulator: Emulator, tmp_path: Path) -> None:
    """The emulator ends at a read of C where beta is 0; and a NaN in A is in every activation's row."""
    config = SmallConfig(_L("tn", 1, 2, 4, epilogue=True))
    shape = Shape(16, 16, 64)
    for activation in ACTIVATIONS:
        case = Case(activation=activation, bias=True)
        assert emulator.run(config, shape, case, tmp_path) == ""
        a = np.fromfile(tmp_path / "a", np.uint16)
        a[5 * 64 + 3] = 0x7E00
        a.tofile(tmp_path / "a")
        np.full((16, 16), 0x7FFF, np.uint16).tofile(tmp_path / "c")
        done = subprocess.run([str(emulator.path), "job"], cwd=tmp_path, timeout=60, check=False)
        assert done.returncode == 0
        c = np.fromfile(tmp_path / "c", np.float16).reshape(16, 16)
        assert np.isnan(c[5]).all() and not np.isnan(np.delete(c, 5, 0)).any()


@needs_compiler
def test_the_emulator_notices_a_forbidden_read(emulator: Emulator, tmp_path: Path) -> None:
    """The check of the test above must be able to fail."""
    config = SplitKConfig(_C("tn", 64, 64, 6, epilogue=True), 2)
    shape = Shape(64, 64, 128)
    assert emulator.run(config, shape, Case(), tmp_path) == ""
    job = (tmp_path / "job").read_text()
    one, zero = str(epilogue.bits(1.0)), "float 0"
    assert job.count(zero) == 1
    (tmp_path / "job").write_text(job.replace(zero, f"float {one}"))
    done = subprocess.run(
        [str(emulator.path), "job"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3 and "outside of A and B" in done.stderr


@needs_compiler
def test_random_launches_are_right(emulator: Emulator, tmp_path: Path, few_multiprocessors: None) -> None:
    rng = np.random.default_rng(5)
    tried = 0
    while tried < 14:
        instance = INSTANCES[int(rng.integers(len(INSTANCES)))]
        found = configs(instance)
        config = found[int(rng.integers(len(found)))]
        odd = isinstance(instance, FallbackInstance) and instance.alignment == 1
        m, n, k = int(rng.integers(1, 150)), int(rng.integers(1, 12)), int(rng.integers(1, 40))
        shape = Shape(m, 8 * n + odd, 8 * k + odd)
        case = Case(
            alpha=float(rng.choice([1.0, -2.0, 0.5])), beta=float(rng.choice([0.0, 1.0, 0.5])),
            activation=[*ACTIVATIONS][int(rng.integers(5))], bias=bool(rng.integers(2)),
            batch=int(rng.integers(1, 4)), shared=["", "a", "b"][int(rng.integers(3))],
            gap=8 * int(rng.integers(2)), policy=int(rng.integers(3)), seed=tried,
        )  # fmt: skip
        count = Batch(case.batch, 8, 8, 8)
        lines = Lines.tight(shape, config.layout)
        if config.why_illegal(shape) or (epilogue.why_illegal(config, shape, count, lines) and not odd):
            continue
        assert emulator.run(config, shape, case, tmp_path) == "", f"{config.name} {shape} {case}"
        tried += 1


# --- the host's side -----------------------------------------------------------------------------------


def test_the_instances_are_few_and_have_names_of_their_own() -> None:
    instances = registry.EPILOGUE_INSTANCES
    assert len(instances) <= 94
    known = {i.name for i in (*registry.INSTANCES, *registry.OTHER_INSTANCES, *instances)}
    assert len(known) == len(registry.INSTANCES) + len(registry.OTHER_INSTANCES) + len(instances)
    for instance in instances:
        assert instance.epilogue and instance.name.endswith(("e", "en", "ef", "el4f", "ep", "el3p"))
        assert registry.parse_instance(instance.name) == instance
    for config in list(registry.epilogue_configurations())[::7]:
        assert names.parse(config.name) == config
    plain = (*registry.INSTANCES, *registry.OTHER_INSTANCES)
    assert not any(i.epilogue for i in plain), "sweeps and the digest of kernels know plain ones only"


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_every_usual_shape_is_served(layout: str, dtype: str) -> None:
    for m in (1, 7, 64, 300, 4096):
        for n, k in ((8, 8), (24, 16), (64, 64), (4096, 4096), (1024, 8192)):
            shape = Shape(m, n, k)
            assert epilogue.configurations(shape, layout, dtype), f"{shape} {layout} {dtype}"
            batch = Batch(6, m * k, 0, m * n)
            assert epilogue.configurations(shape, layout, dtype, batch)
    found = epilogue.configurations(Shape(61, 67, 71), layout, dtype)
    any_rows = {UnalignedConfig} if layout == "tn" else set()
    assert {type(c) for c in found} == {FallbackConfig} | any_rows
    batches = epilogue.configurations(Shape(61, 67, 71), layout, dtype, Batch(2, 61 * 71, 0, 61 * 67))
    moved = epilogue.configurations(Shape(61, 67, 71), layout, dtype, aligned=False)
    assert {type(c) for c in (*batches, *moved)} == {FallbackConfig}


def test_what_cannot_run_says_why() -> None:
    shape = Shape(64, 64, 128)
    lean = SmallConfig(_L("tn", 1, 2, 4, epilogue=True))
    assert "without an epilogue" in str(epilogue.why_illegal(SmallConfig(_L("tn", 1, 2, 4)), shape))
    assert "multiple of 8" in str(epilogue.why_illegal(lean, shape, Batch(2, 4, 0, 64 * 64)))
    assert "same place" in str(epilogue.why_illegal(lean, shape, Batch(2, 64 * 128, 0, 0)))
    few, odd = StreamConfig(_R(4, 2, 256, epilogue=True)), Shape(8, 4099, 4096)
    assert epilogue.why_illegal(few, odd) is None, "lines of C begin anywhere"
    assert "multiple of 8" in str(epilogue.why_illegal(few, odd, lines=Lines(4096, 4100, 4099)))
    assert "no batches" in str(epilogue.why_illegal(few, odd, Batch(2, 8 * 4096, 0, 8 * 4099)))
    assert "rows of tiles" in str(epilogue.why_illegal(lean, shape, Batch(20000, 64 * 128, 0, 64 * 64)))
    assert "too far apart" in str(epilogue.why_illegal(lean, shape, Batch(), Lines(1 << 22, 128, 64)))
    with pytest.raises(SassafrasError, match="no such activation"):
        epilogue.launch(lean, shape, activation="swish")
    with pytest.raises(SassafrasError, match="same place"):
        epilogue.launch(lean, shape, batch=Batch(2, 64 * 128, 0, 0))


def test_a_launch_without_more_is_the_plain_one() -> None:
    for config in registry.epilogue_configurations():
        shape = Shape(256, 512, 2048)
        if config.why_illegal(shape) is None and not isinstance(config, PairConfig):
            plain, made = config.launch(shape), epilogue.launch(config, shape)
            same = ("grid", "threads", "shared_bytes", "cluster", "workspace_bytes", "overlap")
            assert all(getattr(plain, name) == getattr(made, name) for name in same)
            for name, described in made.tensor_maps.items():
                assert described.why_illegal() is None and described.dims[:2] == plain.tensor_maps[name].dims
