"""Shapes, configurations and the space, without a compiler."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from sassafras.core import SassafrasError
from sassafras.gemm.bench.grids import choose_shapes
from sassafras.gemm.configs import names, registry, tma_wgmma
from sassafras.gemm.configs.persistent import PersistentConfig, PersistentInstance, band_dividers
from sassafras.gemm.configs.persistent_folded import FoldedPersistentInstance
from sassafras.gemm.configs.small import SmallConfig
from sassafras.gemm.configs.split_k import SplitKConfig, SplitKInstance
from sassafras.gemm.configs.unaligned import UnalignedConfig
from sassafras.gemm.problem.launch import Launch
from sassafras.gemm.problem.shape import BANDS, Shape, cuda_l2_grid, in_bands, stratified
from sassafras.gemm.select.workload import favourite


def test_the_grid_and_its_bands() -> None:
    grid = cuda_l2_grid()
    assert len(set(grid)) == 1000
    assert Counter(s.band for s in grid) == {
        "<1e8": 120, "1e8-1e9": 184, "1e9-1e10": 292, "1e10-1e11": 217, "1e11-1e12": 139, ">1e12": 48
    }  # fmt: skip
    assert [s.flop for s in grid] == sorted(s.flop for s in grid)
    assert sum(len(in_bands(grid, [band])) for band in BANDS) == 1000


def test_samples_are_stratified_and_repeatable() -> None:
    grid = cuda_l2_grid()
    sample = stratified(grid, 60, seed=3)
    assert len(sample) == len(set(sample)) == 60
    assert set(Counter(s.band for s in sample)) == set(BANDS)
    assert sample == stratified(grid, 60, seed=3) != stratified(grid, 60, seed=4)
    assert choose_shapes("64x64x64,8x16x24") == (Shape(64, 64, 64), Shape(8, 16, 24))
    for bad in ("64x64", "64xx64", "0x1x1", "axbxc"):
        with pytest.raises(SassafrasError):
            choose_shapes(bad)
    with pytest.raises(SassafrasError, match="no band huge"):
        choose_shapes("cuda-l2", "huge")


def test_every_grid_shape_has_a_configuration_of_either_layout() -> None:
    for shape in cuda_l2_grid()[::37]:
        assert {c.layout for c in registry.legal(shape)} == {"nn", "tn"}


def test_names_go_there_and_back() -> None:
    configs = list(registry.configurations())
    assert len({c.name for c in configs}) == len(configs)
    assert all(names.parse(c.name) == c for c in configs[::17])
    for bad in (
        "",
        "lean_tn_m1n2s2",
        "lean_tn_m9n9s9/w1x1x1/c1",
        "lean_tn_m1n2s2/w1x1/c1",
        "staged_tn/c1",
        "ws_tn/g1/k1",
        "ws_tn_64x128_pp2s8b2c1x1/g0/k1",
        "ws_tn_64x128_pp2s8b2c1x1/v-8/k1",
        "ws_tn_64x128_pp2s8b2c1x1/x8/k1",
        "ws_tn_64x128_pp2s8b2c1x1/h/k1",
        "ws_tn_64x128_pp2s8b2c1x1/gv8",
        "persistent_tn_64x128_pp2s8b2c1x1/g8/k2",
        "persistent_tn_64x128_pp2s8b2c1x1/g8/sk",
        "cs_tn_64x64_s6q1/c1p2",
        "ws_tn_64x128_pp2s8b2c1x1//k1",
        "cs_x/c1",
        "cs_tn_64x65_s999999999/c1",  # at once
        "cs_xp/c1p2",
        "cs_tn_64x128_s8q1p/c1",
        "cs_tn_64x128_s8q1p/c2p2",
        "cs_tn_64x128_s8q1p/c1p2+os2",
    ):
        with pytest.raises(SassafrasError):
            names.parse(bad)


@pytest.mark.parametrize(
    ("config", "shape", "reason"),
    [
        ("small_tn_m1n2s2/w1x1x1/c1", "64x64x100", "not a multiple of 8"),
        ("small_tn_m1n2s2/w1x1x1/c1", "64x60x64", "n 60 is not a multiple of 8"),
        ("small_tn_m1n1s4/w4x2x4/c1", "512x512x512", "1024 threads"),
        ("small_tn_m1n2s2/w1x1x8/c2", "64x64x256", "would be empty"),
        ("small_tn_m1n2s2/w3x1x1/c1", "64x64x64", "not a power of two"),
        ("small_tn_m1n1s2/w1x1x1/c16", "64x64x4096", "at most 8 CTAs"),
        ("small_tn_m1n1s2/w1x1x1/c1", "2000000x64x64", "tiles"),
        ("fallback_nn_32x64_w2x2s4/c4", "64x64x128", "would be empty"),
        ("fallback_nn_32x64_w2x2s4/c1", "64x60x128", "n 60"),
        ("fallback_nn_32x64_w2x2s4/c9", "64x64x4096", "cluster 9"),
        ("split_k_tn_64x64_s10q1/c9", "64x64x4096", "cluster 9"),
        ("fallback_nn_64x64_w2x2s4a2/c1", "64x61x128", "n 61 is not a multiple of 2"),
        ("unaligned_tn_64x64_s6/c4", "64x61x321", "would be empty"),
        ("unaligned_tn_64x64_s6/c1", "64x61x268435457", "32-bit coordinates"),
        ("fallback_tn_64x64_w2x2s4a1/c1", "64x64x2147483648", "32 bits"),
        ("fallback_tn_64x64_w2x2s4a1/c1", "1x1x2147483647", "32 bits"),
        ("stream_tn_w4s2k256/c1", "1x1x2147483640", "32 bits"),
        ("stream_tn_w4s2k256/c1", "1x1073741840x8", "32 bits"),
        ("small_tn_m1n1s2/w1x1x1/c1", "64x64x2147483648", "32 bits"),
        ("split_k_tn_64x64_s6q1/c4", "64x64x320", "would be empty"),
        ("split_k_nn_64x64_s6q1/c1", "64x60x320", "a row of B has 60 elements"),
        ("persistent_tn_64x128_pp2s8b2c1x1/g8", "64x64x100", "a row of A has 100 elements"),
        ("split_k_two_pass_tn_64x128_s8q1/p4", "64x64x320", "would be empty"),
        ("split_k_two_pass_tn_64x128_s8q1/p17", "64x64x4096", "no 8 to 16 of them"),
        ("split_k_two_pass_nn_64x128_s8q1/p4", "64x60x4096", "a row of B has 60 elements"),
    ],
)
def test_what_cannot_run_says_why(config: str, shape: str, reason: str) -> None:
    why = names.parse(config).why_illegal(Shape.parse(shape))
    assert why is not None and reason in why
    with pytest.raises(SassafrasError):
        names.parse(config).launch(Shape.parse(shape))


def test_orders_of_tiles_have_names_and_reasons() -> None:
    name = "persistent_tn_128x160_pp2s5b2c2x1"
    large = Shape(8192, 8192, 1024)
    groups = {}
    for order in ("g8", "v8"):
        config = names.parse(f"{name}/{order}")
        assert config.name == f"{name}/{order}" and config.why_illegal(large) is None is config.dominated(
            large
        )
        groups[order] = config.launch(large).scalars["group"]
    assert groups == {"g8": 8, "v8": -8}
    assert "at work at once" in (names.parse(f"{name}/v2").dominated(Shape(1024, 1024, 1024)) or "")
    assert "bands of rows" in (names.parse(f"{name}/v8").dominated(Shape(512, 16384, 1024)) or "")
    assert "columns of tiles" in (names.parse(f"{name}/v8").dominated(Shape(16384, 480, 1024)) or "")
    assert "32767" in (names.parse(f"{name}/g32768").why_illegal(large) or "")
    # operands are shared best where tiles at work at once form a square
    times = {order: names.parse(f"{name}/{order}").estimate_us(large) for order in ("g1", "g8", "v8")}
    assert max(times, key=lambda order: times[order]) == "g1"


def test_a_launch_covers_everything_once() -> None:
    rng = np.random.default_rng(0)
    configs = list(registry.configurations())
    kinds: Counter[str] = Counter()
    for _ in range(1800):
        config = configs[int(rng.integers(len(configs)))]
        shape = Shape(int(rng.integers(1, 400)), 8 * int(rng.integers(1, 50)), 8 * int(rng.integers(1, 300)))
        if config.why_illegal(shape):
            continue
        kinds[type(config).__name__] += 1
        launch = config.launch(shape)
        rows, columns = config.tile
        seen = Shape(shape.n, shape.m, shape.k) if config.swap_ab else shape
        assert launch.shared_bytes <= 227 * 1024 and launch.threads <= 1024
        assert all(extent % size == 0 for extent, size in zip(launch.grid, launch.cluster, strict=True))
        assert config.estimate_us(shape) > 0
        if isinstance(config, PersistentConfig):
            _covers(config, launch, seen)
            continue
        (down, across), cluster = (launch.grid[2], launch.grid[1]), launch.cluster
        if isinstance(config, SplitKConfig):
            down, across = config.tiles(shape)
            places = [place(config, launch, cta) for cta in np.ndindex(launch.grid)]
            wanted = {p for p in places if p[0] < down}  # the last band may be short of rows
            assert len(set(places)) == len(places)
            assert len(wanted) == down * across * config.ranges
            assert max(p[0] for p in places) < down + max(1, config.band)
        elif isinstance(config, UnalignedConfig) and config.band:  # whose is which: test_any_rows.py
            down, across = config.tiles(shape)
            assert across * config.band == launch.grid[1]
            assert 0 <= launch.grid[2] * config.band - down < config.band
        assert (down - cluster[2]) * rows < seen.m <= down * rows
        assert (across - cluster[1]) * columns < seen.n <= across * columns
        k_tile = 64 * getattr(config.instance, "k_blocks", 1)
        each = (
            launch.scalars.get("steps_per_slice", 0) * 32 + launch.scalars.get("tiles_per_slice", 0) * k_tile
        )
        parts = getattr(config, "split_k", 1)
        assert each * config.ranges >= shape.k
        assert math.prod(launch.cluster) == config.cluster
        if isinstance(config, SplitKConfig):
            whole = parts * down * across * rows * columns
            assert launch.workspace_bytes == (4 * whole if parts > 1 else 0)
        else:
            assert launch.grid[0] == launch.cluster[0] * parts
        if isinstance(config, SmallConfig):
            assert launch.threads <= config.instance.max_threads
            assert (launch.shared_bytes == 0) == (config.ranges == 1)
    assert set(kinds) == {
        "SmallConfig", "FallbackConfig", "SplitKConfig", "PersistentConfig", "UnalignedConfig",
        "TwoPassSplitKConfig",
    }  # fmt: skip


def place(config: SplitKConfig, launch: Launch, cta: tuple[int, ...]) -> tuple[int, int, int]:
    """Row and column of a CTA's tile, and which of all slices and parts it has, as the kernel's `Place`."""
    x, y, z = cta
    band = launch.scalars["band"]
    if config.instance.leaves:
        return (x, y, z) if band > 0 else (y, x, z)
    return (z * band + x, y, 0) if band > 0 else (z, y, x)


def strips(config: SplitKConfig, shape: Shape, together: int = 16) -> float:
    """Tiles of A and of B that so many CTAs in a row want of a k tile, on average."""
    launch = config.launch(shape)
    x, y, z = launch.grid
    places = [place(config, launch, (i % x, i // x % y, i // (x * y))) for i in range(x * y * z)]
    groups = [places[at : at + together] for at in range(0, len(places), together)]
    return float(np.mean([
        len({(p[0], p[2]) for p in group}) + len({(p[1], p[2]) for p in group}) for group in groups
    ]))  # fmt: skip


def test_bands_and_parts_let_neighbours_ask_for_the_same() -> None:
    wide, tall = Shape(512, 1024, 4096), Shape(1024, 512, 4096)
    assert strips(names.parse("split_k_nn_64x64_s10q1/c1"), wide) == 17  # type: ignore[arg-type]
    assert strips(names.parse("split_k_nn_64x64_s10q1/c1"), tall) == 10  # type: ignore[arg-type]
    for shape in (wide, tall):
        assert strips(names.parse("split_k_nn_64x64_s10q1/c1g4"), shape) == 8  # type: ignore[arg-type]
    for shape in (
        Shape(128, 1024, 8192),
        Shape(1024, 128, 8192),
    ):  # 32 tiles, four parts: two rows or columns
        assert strips(names.parse("split_k_two_pass_tn_64x64_s12q1/p4"), shape) == 10  # type: ignore[arg-type]


def test_bands_are_refused_where_they_are_of_no_use() -> None:
    shape = Shape(512, 1024, 4096)
    for name, why in (("split_k_nn_64x64_s10q1/c2g4", "bands of 4: for CTAs that multiply all of k"),):
        assert why in (names.parse(name).why_illegal(shape) or ""), name
    for name, shape_, why in (
        ("split_k_nn_64x64_s5q2/c1g8", Shape(256, 1024, 512), "bands of 8 for 4 x 16"),
        ("split_k_nn_64x64_s10q1/c1g8", Shape(512, 1024, 512), "holds one CTA"),
        ("split_k_nn_64x64_s10q1/c1g2", Shape(512, 1024, 512), "bands of 2 for 8 rows"),
    ):
        assert why in (names.parse(name).dominated(shape_) or ""), name
    few = names.parse("split_k_nn_64x64_s10q1/c1g4")
    assert "order is of no matter" in (few.dominated(Shape(256, 512, 512)) or "")
    assert few.dominated(shape) is None and few.why_illegal(shape) is None and few.name.endswith("/c1g4")
    assert names.parse(few.name) == few


def _covers(config: PersistentConfig, launch: Launch, seen: Shape) -> None:
    """Tiles cover the problem, and no cluster is without one."""
    i, s = config.instance, launch.scalars
    assert (s["tiles_m"] - 1) * i.tile_m * i.cluster_m < seen.m <= s["tiles_m"] * i.tile_m * i.cluster_m
    assert (s["tiles_n"] - 1) * i.tile_n * i.cluster_n < seen.n <= s["tiles_n"] * i.tile_n * i.cluster_n
    assert 64 * (s["k_tiles"] - 1) < seen.k <= 64 * s["k_tiles"]
    assert launch.workspace_bytes == 0
    assert launch.grid[0] // i.cluster <= s["tiles_m"] * s["tiles_n"]
    assert all(m.why_illegal() is None for m in launch.tensor_maps.values())


@pytest.mark.parametrize(
    ("instance", "reason"),
    [
        (PersistentInstance("tn", 256, 256, 2, False, 2), "256 accumulators"),
        (PersistentInstance("tn", 128, 256, 2, False, 5), "shared memory"),
        (PersistentInstance("nn", 128, 192, 2, False, 3, cluster_m=2), "no multiple of 128"),
        (PersistentInstance("tn", 128, 40, 2, False, 3), "no product is 40 wide"),
        (PersistentInstance("tn", 64, 64, 3, True, 3), "2 for ping-pong"),
        (FoldedPersistentInstance("tn", 128, 256, 2, False, 4), "256 accumulators"),
        (FoldedPersistentInstance("tn", 256, 64, 2, False, 4), "64 rows each"),
        (FoldedPersistentInstance("tn", 64, 64, 2, True, 4), "64 rows each"),
        (SplitKInstance("nn", 64, 32, 4), "no multiple of 64"),
        (SplitKInstance("tn", 192, 64, 4), "64 or 128"),
        (SplitKInstance("tn", 64, 64, 4, k_blocks=3), "1 or 2"),
        (SplitKInstance("tn", 64, 64, 14), "shared memory"),
        (SplitKInstance("tn", 128, 152, 4), "152 columns: C leaves in pieces of 16"),
        (SplitKInstance("tn", 64, 40, 4, True), "no product is 40 wide"),
    ],
)
def test_an_instance_that_cannot_be_says_why(
    instance: PersistentInstance | SplitKInstance, reason: str
) -> None:
    assert reason in (instance.why_illegal() or "")


def test_other_dtypes_and_layouts_have_configurations() -> None:
    shape = Shape(512, 1024, 2048)
    for dtype in ("fp16", "bf16"):
        for layout in ("nn", "tn", "nt", "tt"):
            found = registry.legal(shape, dtype=dtype, layouts=(layout,))
            assert found and {(c.layout, c.dtype) for c in found} == {(layout, dtype)}
    # 32 fold, for invariant calls; 14 are for few rows
    assert len(registry.INSTANCES) + len(registry.OTHER_INSTANCES) <= 268
    for instance in (*registry.INSTANCES, *registry.OTHER_INSTANCES):
        assert registry.parse_instance(instance.name) == instance


def test_sums_of_slices_and_blocks_of_a_stage() -> None:
    """Sums of slices lie beside the stages: more shared memory, and too much of it is refused."""
    shape = Shape(512, 512, 4096)
    plain, split = (names.parse(f"split_k_tn_64x128_s7q1/c{slices}") for slices in (1, 2))
    assert split.shared_bytes == -(-plain.shared_bytes // 128) * 128 + 64 * 128 * 4
    assert "shared memory" in (names.parse("split_k_tn_128x256_s4q1l3/c2").why_illegal(shape) or "")
    # two blocks of k a stage: half as many of them
    one, two = (
        names.parse(name).launch(shape) for name in ("split_k_tn_64x32_s8q1/c1", "split_k_tn_64x32_s4q2/c1")
    )
    assert one.scalars["k_tiles"] == 2 * two.scalars["k_tiles"] == 64 and one.shared_bytes == two.shared_bytes
    # one stage for one slice, and nothing for the other
    assert names.parse("split_k_tn_64x32_s4q2/c2").why_illegal(Shape(64, 64, 128))


def test_transposed_tiles_where_others_leave_multiprocessors_idle() -> None:
    """12288 rows: 192 tiles of 64 or 96 of 128, but 128 of 96."""
    for name in ("split_k_tn_swapped_64x96_s8q1/c1", "split_k_nn_swapped_128x96_s6q1/c1"):
        config = names.parse(name)
        rows = config.tile[0]
        for shape, why in (
            (Shape(12288, rows, 4096), None), (Shape(384, rows, 4096), None),  # as before: few rows
            (Shape(16384, rows, 4096), "for few"), (Shape(8192, rows, 4096), "for few"),
            (Shape(12288, 2 * rows, 4096), "for few"),
        ):  # fmt: skip
            found = config.dominated(shape)
            assert found is None if why is None else why in (found or ""), (name, shape)
    for name in ("split_k_tn_swapped_64x96_s8q1/c2", "split_k_nn_swapped_64x32_s8q1/c1"):
        config = names.parse(name)
        assert "for few" in (config.dominated(Shape(12288, config.tile[0], 4096)) or "")


def test_modes_are_read_and_written() -> None:
    for name in (
        "small_tn_m1n2s2/w1x2x4/c1+os",
        "split_k_tn_64x64_s10q1/c1+ol",
        "persistent_tn_64x128_pp2s8b2c1x1/g8+o",
    ):
        config = names.parse(name)
        launch = config.launch(Shape(256, 256, 512))
        assert config.name == name and launch.overlap
        assert launch.scalars.get("late", 0) == config.mode.trigger_late
        assert name in [mode.name for mode in config.in_modes()]
        assert (launch.shared_bytes > 114 * 1024) >= config.mode.one_cta_per_sm
    for mode in ("+", "+l", "+s", "+so", "+x", "+oo"):
        with pytest.raises(SassafrasError, match="modes are"):
            names.parse("split_k_tn_64x64_s10q1/c1" + mode)


def test_the_favourite_is_the_estimates_best() -> None:
    shape = Shape(64, 128, 512)
    assert favourite(shape).estimate_us(shape) == min(c.estimate_us(shape) for c in registry.legal(shape))
    with pytest.raises(SassafrasError, match="no configuration can run"):
        favourite(Shape(64, 64, 1 << 31))
    assert {c.FAMILY for c in registry.legal(Shape(7, 33, 61))} == {"fallback", "unaligned"}
    wasted = names.parse("unaligned_tn_64x64_s6/c1").dominated(Shape(7, 32, 64))
    assert "fewer copies" in (wasted or "")


def test_clusters_that_do_not_fit_at_once_take_longer() -> None:
    """132 multiprocessors hold 15 clusters of seven or of eight, and 22 of five."""
    for slices, most in ((3, 39), (5, 22), (6, 17), (7, 15), (8, 15)):
        config = names.parse(f"split_k_tn_64x64_s10q1/c{slices}")
        tiles = (most - 1, most, most + 1)
        before, fits, over = (config.estimate_us(Shape(64, 64 * n, 16384)) for n in tiles)
        assert over - fits > 3 * (fits - before) > 0, slices


def test_kernels_divide_exactly() -> None:
    """What `Work::divided` computes in 32 bits, for the divisors and numbers where rounding would show."""
    divisors = {d for s in range(32) for d in ((1 << s) - 1, 1 << s, (1 << s) + 1) if 1 <= d <= 1 << 31}
    for divisor in divisors | {3, 7, 641, 32767 * 65536, 1_000_003}:
        multiplier, shift = tma_wgmma.divider(divisor)
        assert -(1 << 31) <= multiplier < 1 << 31 and 0 <= shift < 32
        numbers = {n + e for n in (0, divisor, (2**31 - 1) // divisor * divisor) for e in (-1, 0, 1)}
        for number in {n for n in numbers | {2**31 - 1} if 0 <= n < 1 << 31}:
            product = (2 * number & 0xFFFFFFFF) * (multiplier & 0xFFFFFFFF)
            assert product >> 32 >> shift == number // divisor, (number, divisor)
    for bad in (0, -1, (1 << 31) + 1):
        with pytest.raises(ValueError, match=str(bad)):
            tma_wgmma.divider(bad)


def test_a_band_larger_than_all_tiles_is_all_of_them() -> None:
    found = band_dividers(1 << 20, 3, -32767)
    assert (found["band_by"], found["band_shift"]) == tma_wgmma.divider(1 << 31)


def test_whole_lines_of_c_leave_whatever_the_tile() -> None:
    for name, columns in (
        ("persistent_tn_128x168_pp2s5b2c1x1/g4", 64), ("persistent_nn_swapped_128x168_pp2s5b2c1x1/g4", 64),
        ("persistent_tn_192x128_pp2s4b3c1x1/g4", 64),
    ):  # fmt: skip
        config = names.parse(name)
        assert config.launch(Shape(1024, 2048, 512)).tensor_maps["map_c"].box[0] == columns, name


def test_clusters_are_as_large_as_gpcs_hold() -> None:
    tile = ("tn", 128, 128, 2, True, 5)
    for m, n, at_once in ((1, 2, 66), (2, 2, 30), (4, 1, 30), (4, 2, 15)):
        instance = PersistentInstance(*tile, cluster_m=m, cluster_n=n)
        config = PersistentConfig(instance, 4)
        assert instance.why_illegal() is None and config.clusters() == at_once
        assert config.launch(Shape(8192, 8192, 512)).grid[0] == at_once * m * n
    for m, n in ((3, 1), (4, 4)):
        assert "1, 2, 4 or 8" in (PersistentInstance(*tile, cluster_m=m, cluster_n=n).why_illegal() or "")
