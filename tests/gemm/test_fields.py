"""Configurations as JSON objects: there and back, and what is wrong with those that are none."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from sassafras.core import SassafrasError
from sassafras.gemm.configs import names, registry
from sassafras.gemm.configs.fields import from_fields, read_list, to_fields

PAIR = "split_k_two_pass_nn_64x128_s8q1/p8+ol"


def test_every_configuration_goes_there_and_back() -> None:
    every = itertools.chain(
        registry.configurations(), registry.other_configurations(), registry.epilogue_configurations()
    )
    seen = set()
    for config in itertools.islice(every, 0, None, 7):
        for mode in config.in_modes():
            given = to_fields(mode)
            assert from_fields(json.loads(json.dumps(given))) == mode == names.parse(mode.name), given
        seen.add(config.FAMILY)
    assert seen == set(registry.KERNELS)


def test_fields_have_the_words_of_the_field() -> None:
    assert to_fields(names.parse("split_k_tn_swapped_64x32_s16q1/c4+ol")) == {
        "kernel": "split_k", "layout": "tn", "tile_m": 64, "tile_n": 32, "stages": 16, "swap_ab": True,
        "dtype": "fp16", "epilogue": False, "k_blocks": 1, "stagger": 0, "cluster_split_k": 4,
        "rasterization": None, "pdl": True, "trigger_late": True, "one_cta_per_sm": False,
    }  # fmt: skip
    banded = {name: to_fields(names.parse(name))["rasterization"] for name in (
        "split_k_tn_64x64_s6q1/c1g4", "persistent_tn_128x128_pp2s6b2c1x1/v8",
    )}  # fmt: skip
    assert list(banded.values()) == [{"rows": 4}, {"columns": 8}]
    pair = to_fields(names.parse(PAIR))
    assert (pair["kernel"], pair["split_k"], pair["cluster_split_k"]) == ("split_k_two_pass", 8, 1)
    small = to_fields(names.parse("small_tn_swapped_m1n1s4/w2x2x1/c1"))
    assert (small["layout"], small["swap_ab"], small["mma_m"]) == ("tn", True, 1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kernel": "magic"}, "there is no kernel 'magic'"),
        ({"kernel": None}, "there is no kernel None"),
        ({"tiles": 3}, "there is no field 'tiles'"),
        ({"stages": ...}, "the field 'stages' is missing"),
        ({"rasterization": ...}, "the field 'rasterization' is missing"),
        ({"stages": "8"}, "stages is '8', which is no int"),
        ({"pdl": 1}, "pdl is 1, which is no bool"),
        ({"split_k": True}, "split_k is True, which is no int"),
        ({"rasterization": {"rows": 0}}, "not a rasterization"),
        ({"rasterization": {"diagonals": 4}}, "not a rasterization"),
        ({"tile_m": 72}, "no kernel of this version has these parameters"),
    ],
)
def test_what_is_no_configuration_is_refused_with_a_reason(change: dict[str, Any], why: str) -> None:
    given = {k: v for k, v in {**to_fields(names.parse(PAIR)), **change}.items() if v is not ...}
    with pytest.raises(SassafrasError, match=why):
        from_fields(given)


@pytest.mark.parametrize("given", [None, PAIR, 3, [], {}])
def test_what_is_no_object_is_refused(given: Any) -> None:
    with pytest.raises(SassafrasError, match=r"a JSON object of fields|there is no kernel"):
        from_fields(given)


@pytest.mark.parametrize(
    "name", ["small_tn_m1n2s2/w1x1x1/c2", "fallback_nn_32x64_w2x2s4/c1", "unaligned_tn_64x64_s6/c1"]
)
def test_files_from_before_bf16_are_read(name: str) -> None:
    """Three kernels had no type in their fields."""
    config = names.parse(name)
    given = {field: value for field, value in to_fields(config).items() if field != "dtype"}
    assert from_fields(given) == config and config.dtype == "fp16"
    twin = registry.with_dtype(config, "bf16")
    assert twin is not None and from_fields(to_fields(twin)) == twin and names.parse(twin.name) == twin


def test_a_list_reads_what_is_repeated_once_and_tells_a_number_from_a_truth() -> None:
    given = to_fields(names.parse(PAIR))
    first, again, other, odd = read_list(
        [given, json.loads(json.dumps(given)), {**given, "pdl": 1}, {"x": ...}]
    )
    assert first == names.parse(PAIR) and again is first
    assert other is None and odd is None
