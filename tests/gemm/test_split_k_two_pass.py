"""Configurations of two launches: which there are for a shape, who may use them, what leaves them out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sassafras.core import SassafrasError
from sassafras.gemm.build import ahead_of_time
from sassafras.gemm.build.cubins import with_companions
from sassafras.gemm.configs import registry, split_k_two_pass
from sassafras.gemm.configs.base import Mode
from sassafras.gemm.configs.names import parse
from sassafras.gemm.configs.split_k_two_pass import PartialsInstance, ReductionInstance, TwoPassSplitKConfig
from sassafras.gemm.problem.shape import Shape, cuda_l2_grid
from sassafras.gemm.select import dataset
from sassafras.gemm.select.workload import favourite, kernel

FIRST = split_k_two_pass.INSTANCES
ALL = list(TwoPassSplitKConfig.every(FIRST))


def proposed(shape: Shape) -> list[TwoPassSplitKConfig]:
    return [c for c in ALL if c.dominated(shape) is None and c.why_illegal(shape) is None]


def test_names_go_there_and_back_in_every_mode() -> None:
    every = [mode for config in ALL for mode in config.in_modes()]
    assert len({c.name for c in every}) == len(every) == 3 * len(ALL)
    for config in every:
        assert parse(config.name) == config and isinstance(parse(config.name), TwoPassSplitKConfig)
        assert registry.parse_instance(config.instance.name) == config.instance
    assert str(parse("split_k_two_pass_nn_64x128_s8q1/p8+ol").mode) == "+ol"


def test_few_are_proposed_and_only_where_they_may_pay() -> None:
    counts = {shape: len(proposed(shape)) for shape in cuda_l2_grid()[::7]}
    others = (Shape(384, 512, 8192), Shape(300, 1000, 5000), Shape(640, 640, 9000), Shape(72, 1544, 4096))
    counts |= {shape: len(proposed(shape)) for shape in others}
    assert max(counts.values()) <= 40 and all(counts[shape] for shape in others)
    assert sum(map(bool, counts.values())) < 0.3 * len(counts)
    for shape in (Shape(4096, 4096, 4096), Shape(64, 64, 64), Shape(256, 256, 256), Shape(512, 512, 100)):
        assert not proposed(shape)
    for config in proposed(Shape(256, 512, 8192)):
        launch = config.launch(Shape(256, 512, 8192))
        ctas = launch.grid[0] * launch.grid[1] * launch.grid[2]
        assert (
            split_k_two_pass.FEWEST <= ctas <= 132
            and 8192 // 64 // config.split_k >= split_k_two_pass.SHORTEST
        )
    shape = Shape(1024, 128, 16384)
    for name, why in (
        ("split_k_two_pass_tn_128x64_s8q1/p2", "2 parts of 16 tiles, where there is room for 8"),
        ("split_k_two_pass_tn_64x128_s8q1/p7", "7 parts of 16 tiles, where there is room for 8"),
        ("split_k_two_pass_tn_64x64_s12q1/p8", "256 CTAs"),
    ):
        assert why in (parse(name).dominated(shape) or ""), name
    assert "each wants 4" in (
        parse("split_k_two_pass_tn_64x64_s12q1/p16").dominated(Shape(256, 128, 2048)) or ""
    )
    assert "12 CTAs that leave sums" in (
        parse("split_k_two_pass_tn_64x64_s12q1/p12").dominated(Shape(64, 64, 8192)) or ""
    )


def test_both_launches_and_the_rule_for_the_second() -> None:
    shape = Shape(250, 512, 8200)
    plain = parse("split_k_two_pass_tn_64x128_s8q1/p8")
    for mode, ctas in ((Mode(), 132), (Mode(pdl=True), 264), (Mode(pdl=True, trigger_late=True), 132)):
        config = replace(plain, mode=mode)
        first = config.launch(shape)
        then = first.then
        assert then is not None and then.launch.then is None
        assert first.overlap == mode.pdl and first.scalars["late"] == int(mode.trigger_late)
        assert config.instances == (config.instance, then.instance) and then.instance == ReductionInstance(8)
        assert then.launch.grid == (ctas, 1, 1) and then.launch.overlap
        assert then.launch.workspace_bytes == first.workspace_bytes == 4 * 8 * 256 * 512
        assert then.launch.scalars["ldc"] == 512 and then.launch.scalars["m"] == 250
    assert parse("split_k_tn_64x128_s7q1/c1").launch(shape).then is None
    assert all(m.mode.one_cta_per_sm is False for m in plain.in_modes()) and len(plain.in_modes()) == 3
    swapped = TwoPassSplitKConfig(PartialsInstance("tn", 64, 32, 8, swap_ab=True), split_k=4)
    seen = swapped.launch(Shape(24, 512, 4096)).then
    assert seen is not None and seen.instance.swap_ab and seen.launch.scalars["m"] == 512


def test_bf16_has_the_same() -> None:
    shape = Shape(256, 512, 8192)
    config = proposed(shape)[0]
    assert config in registry.legal(shape)
    other = registry.with_dtype(config, "bf16")
    assert other is not None and other in registry.legal(shape, dtype="bf16")
    assert other.instances[1].dtype == "bf16" and parse(other.name) == other
    assert len([i for i in ahead_of_time.kernels() if i.name.startswith("add_t")]) == len(FIRST[0].companions)


def test_what_works_on_one_kernel_leaves_them_out() -> None:
    shape = Shape(256, 512, 8192)
    config = proposed(shape)[0]
    with pytest.raises(SassafrasError, match=r"a second kernel \(add_t"):
        kernel(config, shape, b"")
    assert config in registry.legal(shape)
    assert not isinstance(favourite(shape), TwoPassSplitKConfig)


def test_second_kernels_are_built_with_the_first() -> None:
    (first, second, *_), plain = FIRST, parse("split_k_tn_64x128_s7q1/c1").instance
    assert with_companions([plain]) == [plain]
    both = with_companions([first, plain, second])
    assert both[:3] == [first, plain, second] and both[3:] == list(first.companions)
    assert {c.adding for c in ALL} == set(first.companions)
    assert [registry.parse_instance(i.name) for i in first.companions] == list(first.companions)


def test_the_estimate_finds_what_was_fast() -> None:
    """Of what the sweep timed: the best of each shape's numbers of parts and tiles."""
    lost, errors = [], []
    for entry in dataset.shipped():
        timed: dict[TwoPassSplitKConfig, float] = {}
        for config, us in entry.ranked():
            if isinstance(config, TwoPassSplitKConfig):
                plain = replace(config, mode=Mode())
                timed[plain] = min(us, timed.get(plain, us))
        if len(timed) < 2:
            continue
        guesses = {config: config.estimate_us(entry.shape) for config in timed}
        errors += [abs(np.log(guesses[config] / us)) for config, us in timed.items()]
        lost.append(timed[min(guesses, key=lambda config: guesses[config])] / min(timed.values()))
    assert len(lost) > 100 and np.mean(errors) < 0.11 and np.mean(lost) < 1.04


def test_a_listing_says_how_k_is_cut() -> None:
    for name, ranges in (
        ("split_k_two_pass_tn_64x64_s12q1/p8", 8), ("split_k_tn_64x64_s6q1/c2", 2),
        ("small_tn_m1n1s4/w1x1x8/c4", 32), ("persistent_tn_128x256_co2s4b2c1x1l3/g8", 1),
    ):  # fmt: skip
        assert parse(name).ranges == ranges, name
