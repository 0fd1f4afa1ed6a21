"""The TMA + WGMMA kernels' own source on the CPU: tensor copies, barriers, descriptors, splits, clusters."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sassafras.gemm.configs import persistent, tma_wgmma
from sassafras.gemm.configs.base import Mode
from sassafras.gemm.configs.persistent import PersistentConfig, band_dividers
from sassafras.gemm.configs.persistent_folded import FoldedPersistentConfig, FoldedPersistentInstance
from sassafras.gemm.configs.split_k import SplitKConfig, SplitKInstance
from sassafras.gemm.configs.split_k_folded import FoldedInstance, FoldedSplitKConfig
from sassafras.gemm.problem.shape import Shape

from . import spoilt
from .hopper_launch import (
    EAGER,
    FOLDS,
    INSTANCES,
    LATE,
    LEAD,
    RANDOM,
    SPLIT,
    TALL,
    Config,
    Emulator,
    Instance,
    build,
)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

_C, _F = SplitKInstance, FoldedPersistentInstance
_MULTICAST = INSTANCES[1]
_PAIRS = _C("tn", 64, 32, 3, swap_ab=True, k_blocks=2)
assert {SPLIT, LEAD, TALL, FOLDS, _PAIRS} < set(INSTANCES)


@pytest.fixture(scope="module")
def emulator(shared: Path) -> Emulator:
    return build(shared)


@pytest.fixture
def few_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of them: CTAs live through several tiles."""
    monkeypatch.setattr(persistent, "AT_ONCE", (4, 4, 0, 8, 0, 0, 0, 8))


def configs(instance: Instance) -> list[Config]:
    if isinstance(instance, _F):
        kinds = ((3, 2), (-2, 3), (1, 6), (-3, 5), (4, 3))
        return [FoldedPersistentConfig(instance, group, split_k=ranges) for group, ranges in kinds]
    if isinstance(instance, FoldedInstance):
        folded = [FoldedSplitKConfig(instance, split_k=s) for s in (2, 3, 4, 5, 8)]
        return [*folded, *(replace(folded[at], band=2 + at) for at in range(2))]
    if isinstance(instance, SplitKInstance):
        late = Mode(trigger_late=True)
        slices = [SplitKConfig(instance, s, mode=late if s == 3 else Mode()) for s in (1, 2, 3, 5, 8)]
        return [*slices, *(SplitKConfig(instance, band=band) for band in (2, 3))]
    return [PersistentConfig(instance, group) for group in (3, -2, 1, 4, -3)]


@pytest.mark.parametrize("number", range(len(INSTANCES)), ids=lambda n: INSTANCES[n].name)
def test_every_path_is_right(
    number: int, emulator: Emulator, tmp_path: Path, few_multiprocessors: None
) -> None:
    instance = INSTANCES[number]
    rows, columns = instance.tile_m, instance.tile_n
    exact = Shape(columns, rows, 64) if instance.swap_ab else Shape(rows, columns, 64)
    launched = 0
    for at, shape in enumerate((exact, Shape(8, 16, 8), Shape(136, 200, 328), Shape(320, 72, 520))):
        for config in configs(instance)[at % 2 :: 2]:  # each with two of the shapes
            if config.why_illegal(shape) is None:
                wrong = emulator.run(config, shape, tmp_path, policy=(LATE, RANDOM, EAGER)[launched % 3],
                                     seed=launched, repeats=2 if config.ranges != 1 else 1)  # fmt: skip
                assert wrong == "", f"{config.name} for {shape}"
                launched += 1
    assert launched >= (4 if isinstance(instance, FoldedInstance | _F) else 6)  # one range alone is no fold


@pytest.mark.parametrize("number", range(len(INSTANCES)), ids=lambda n: INSTANCES[n].name)
def test_no_copy_asks_for_rows_outside(
    number: int, emulator: Emulator, tmp_path: Path, few_multiprocessors: None
) -> None:
    """Of what is outside some 8 cycles a row are lost; 328 rows end inside of every tile."""
    k = 128 if isinstance(INSTANCES[number], SplitKInstance | _F) else 64
    for at, shape in enumerate((Shape(328, 328, k), Shape(264, 392, k))):
        legal = [config for config in configs(INSTANCES[number]) if config.why_illegal(shape) is None]
        wrong = emulator.run(legal[-at], shape, tmp_path, thrifty=True)
        assert wrong == "", f"{legal[-at].name} for {shape}"


@pytest.mark.parametrize("number", [0, 12])
def test_few_rows_come_in_small_boxes(number: int, emulator: Emulator, tmp_path: Path) -> None:
    for rows in (1, 9, 40, 63):
        shape = Shape(rows, 328, 256)
        config = configs(INSTANCES[number])[0]
        assert emulator.run(config, shape, tmp_path, thrifty=True) == "", str(shape)


@pytest.mark.parametrize(("number", "moved"), [(0, "last_row"), (0, "last_column")])
def test_rows_outside_that_are_asked_for_are_noticed(
    number: int, moved: str, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check must be able to fail: tiles that lie apart."""
    config, shape = configs(INSTANCES[number])[0], Shape(328, 328, 256)
    plan = config.launch(shape)
    plan.scalars[moved] = tma_wgmma.APART
    monkeypatch.setattr(type(config), "launch", lambda self, shape: plan)
    assert "asks for rows outside" in emulator.run(config, shape, tmp_path, thrifty=True)
    assert emulator.run(config, shape, tmp_path) == ""


def test_random_launches_are_right(emulator: Emulator, tmp_path: Path, few_multiprocessors: None) -> None:
    rng = np.random.default_rng(11)
    tried, kinds = 0, set()
    while tried < 24:
        instance = INSTANCES[int(rng.integers(len(INSTANCES)))]
        shape = Shape(*(8 * int(rng.integers(1, most)) for most in (40, 40, 80)))
        config: Config
        if isinstance(instance, FoldedInstance):
            config = FoldedSplitKConfig(instance, band=int(rng.integers(5)), split_k=int(rng.integers(2, 9)))
        elif isinstance(instance, _F):
            group, ranges = int(rng.integers(-3, 5)), int(rng.integers(2, 9))
            config = FoldedPersistentConfig(instance, group, split_k=ranges)
        elif isinstance(instance, SplitKInstance):
            slices = int(rng.integers(1, 9)) if rng.random() < 0.5 else int(rng.integers(1, 4))
            config = SplitKConfig(instance, slices, 0 if slices > 1 else int(rng.integers(5)))
        else:
            config = PersistentConfig(instance, int(rng.integers(-3, 5)))
        if config.why_illegal(shape) is not None:
            continue
        policy = int(rng.integers(3))
        assert emulator.run(config, shape, tmp_path, policy=policy, seed=tried) == "", (
            f"{config.name} {shape}"
        )
        kinds.add((instance.name, config.ranges))
        tried += 1
    assert len(kinds) > 12


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (1, "overwrites a stage that products still read|two copies to one place|more arrivals"),
        (2, "has not landed|overwrites a stage"),
        (3, "wait for each other forever"),
        (4, "without a proxy fence"),
        (5, "before its tensor stores have been read|overwritten while a tensor store"),
        (6, "overwrites a stage that products still read"),
        (8, "wrong, first at|outside of shared memory|has not landed|stored twice, differently"),
        (9, "two copies to one place|overwrites a stage|more arrivals|has not landed|wait for each other"),
        (10, "without a fence"),
    ],
)
def test_planted_faults_are_noticed(
    fault: int, what: str, emulator: Emulator, tmp_path: Path, few_multiprocessors: None
) -> None:
    """The checks must be able to fail: each fault is planted in what the kernel asks for."""
    instance = _MULTICAST  # clusters with multicast, B contiguous along n
    config = PersistentConfig(instance, 2)
    shape = Shape(264, 136, 776)
    assert emulator.run(config, shape, tmp_path) == ""
    # what depends on timing shows in some order of events
    # early copies: where they are late, multipliers drain before they wait for one
    first = EAGER if fault == 6 else LATE
    found = [emulator.run(config, shape, tmp_path, fault=fault, policy=RANDOM if seed else first, seed=seed)
             for seed in range(12 if fault == 9 else 1)]  # fmt: skip
    assert any(re.search(what, text) for text in found), found


_OVERWRITES = "overwrites a stage that products still read|two copies to one place|more arrivals"


@pytest.mark.parametrize(
    ("instance", "fault", "what"),
    [
        (SPLIT, 1, _OVERWRITES),
        (SPLIT, 2, "has not landed"),
        (_PAIRS, 1, _OVERWRITES),
        (_PAIRS, 6, _OVERWRITES),
        (_PAIRS, 7, "what is read has not landed"),
    ],
    ids=lambda x: x if isinstance(x, int) else getattr(x, "name", ""),
)
def test_planted_faults_of_split_k_are_noticed(
    instance: SplitKInstance, fault: int, what: str, emulator: Emulator, tmp_path: Path
) -> None:
    config = SplitKConfig(instance, 2)
    shape = Shape(264, 136, 1160)
    assert emulator.run(config, shape, tmp_path) == ""
    # early copies: where they are late, products are over before anything could overwrite what they read
    first = EAGER if fault == 6 else LATE
    found = [emulator.run(config, shape, tmp_path, fault=fault, policy=RANDOM if seed else first, seed=seed)
             for seed in range(12 if fault == 9 else 1)]  # fmt: skip
    assert any(re.search(what, text) for text in found), found


#: a fault in the text itself: what is launched, what is then found
SPOILT: dict[str, tuple[Config, Shape, str]] = {
    "start": (SplitKConfig(SPLIT, 2), Shape(136, 72, 1160), "a barrier that was not initialised"),
    "release": (SplitKConfig(SPLIT, 2), Shape(136, 72, 1160),
                "overwrites a stage|more arrivals|wait for each other"),
    "lead": (PersistentConfig(LEAD, 2), Shape(520, 136, 776), "overwrites a stage|more arrivals"),
    "unwritten": (PersistentConfig(TALL, 3), Shape(320, 520, 136), "."),
    "unread": (PersistentConfig(TALL, 3), Shape(320, 520, 136), "."),
    "fold": (FoldedPersistentConfig(FOLDS, 2, split_k=3), Shape(520, 136, 776), "stored twice, differently"),
}  # fmt: skip


@pytest.mark.parametrize("fault", SPOILT)
def test_faults_in_the_kernels_text_are_noticed(
    fault: str, shared: Path, tmp_path: Path, few_multiprocessors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, (config, shape, what) = spoilt.hopper(shared), SPOILT[fault]
    assert kernels.run(config, shape, tmp_path) == ""
    spoilt.ask(monkeypatch, fault)
    orders = enumerate((LATE, EAGER, *([RANDOM] * 6)))
    found = [kernels.run(config, shape, tmp_path, policy=policy, seed=seed) for seed, policy in orders]
    assert any(re.search(what, text) for text in found), found


def test_sums_read_before_they_have_landed_are_noticed(emulator: Emulator, tmp_path: Path) -> None:
    """Slices exchange their sums without a barrier of the cluster: each receiver waits for its bytes."""
    config = SplitKConfig(SPLIT, 3)
    shape = Shape(136, 72, 520)
    assert emulator.run(config, shape, tmp_path) == ""
    assert "what is read has not landed" in emulator.run(config, shape, tmp_path, fault=7)


def test_a_wrong_byte_count_is_printed(emulator: Emulator, tmp_path: Path) -> None:
    """A hang names its barriers: 16 bytes are announced that nothing brings."""
    config = SplitKConfig(SPLIT, 1)
    assert "0 of 1 arrivals and 16 bytes to come" in emulator.run(
        config, Shape(64, 64, 64), tmp_path, fault=3
    )


def _sliced(instance: SplitKInstance, slices: int) -> Config:
    return SplitKConfig(instance, slices)


def _folded(instance: FoldedInstance | FoldedPersistentInstance, ranges: int) -> Config:
    if isinstance(instance, FoldedInstance):
        return FoldedSplitKConfig(instance, split_k=ranges)
    return FoldedPersistentConfig(instance, 2, split_k=ranges)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_cluster_and_folds_sum_alike(
    dtype: str, emulator: Emulator, tmp_path: Path, few_multiprocessors: None
) -> None:
    """Equal cuts give equal bits; others do not, or nothing would be compared.

    19 k tiles, the last one of 8 k; persistent CTAs have several tiles of C, ranges more k tiles than stages.
    """
    shape, found = Shape(264, 136, 1160), {}
    sliced = next(i for i in INSTANCES if type(i) is _C and i.dtype == dtype and i.tile_n == 64)
    folding = [i for i in INSTANCES if isinstance(i, FoldedInstance | _F) and i.dtype == dtype]
    configs = [_sliced(sliced, slices) for slices in (1, 2, 3, 4)]
    configs += [_folded(i, ranges) for i in folding for ranges in (2, 3, 4)]
    for at, config in enumerate(configs):
        wrong = emulator.run(config, shape, tmp_path, policy=(LATE, RANDOM, EAGER)[at % 3], seed=7)
        assert wrong == "", config.name
        bits = (tmp_path / "c").read_bytes()
        assert found.setdefault(config.cuts(shape), bits) == bits, config.name
    assert len(set(found.values())) == len(found) == 4 and len(configs) >= 10


@pytest.mark.parametrize("group", [3, -3])
def test_every_tile_is_visited_once(group: int, emulator: Emulator) -> None:
    """Also where the grid of tiles is no power of two; each step leads to a near tile."""
    for rows, columns in ((1, 1), (1, 7), (9, 1), (2, 2), (8, 8), (5, 13), (31, 6), (64, 26), (33, 47)):
        numbers = (rows, columns, group, *band_dividers(rows, columns, group).values())
        done = subprocess.run(
            [str(emulator.path), "order", *map(str, numbers)],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        walk = np.array([list(map(int, line.split())) for line in done.stdout.splitlines()])
        assert sorted(map(tuple, walk.tolist())) == [(r, c) for r in range(rows) for c in range(columns)]
        steps = np.abs(np.diff(walk, axis=0))
        if len(steps):
            assert steps[:, 0 if group > 0 else 1].max() <= 3
