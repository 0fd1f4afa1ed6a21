"""Configurations as JSON: the schema, edits, and errors that say exactly what is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sassafras.gemm import Shape
from sassafras.gemm.configs.fields import to_fields
from sassafras.llm.answer import AnswerError
from sassafras.llm.gemm_space import GemmJsonSpace


@pytest.fixture(scope="module")
def space() -> GemmJsonSpace:
    return GemmJsonSpace(Shape(64, 128, 2048), lambda config: b"\x7fELF")


def test_every_legal_configuration_survives_the_round_trip(space: GemmJsonSpace) -> None:
    for config in space.configs[::17]:
        assert space.read("here: " + space.show(config) + " done", space.start()) == config


def test_the_schema_holds_every_field_of_every_family(space: GemmJsonSpace) -> None:
    schema = space.schema
    assert schema is not None
    families = {json.dumps(part["properties"]["kernel"]["enum"]): part for part in schema["anyOf"]}
    assert {'["small"]', '["fallback"]'} <= set(families)
    for part in schema["anyOf"]:
        assert part["required"] == list(part["properties"]) and part["additionalProperties"] is False
    fields = to_fields(space.start())
    part = families[json.dumps([fields["kernel"]])]
    assert all(value in part["properties"][name]["enum"] for name, value in fields.items())


def test_an_edit_changes_only_what_it_names(space: GemmJsonSpace) -> None:
    parent = next(c for c in space.configs if to_fields(c)["kernel"] == "small" and c.cluster == 2)
    child = space.read('{"edit": {"cluster_split_k": 4}}', parent)
    differing = {n for n, v in to_fields(parent).items() if to_fields(child)[n] != v}
    assert differing == {"cluster_split_k"}
    assert space.read('{"cluster_split_k": 4}', parent) == child


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"kernel": "magic"}', r"kernel 'magic' does not exist .*'small'"),
        ('{"kernel": {"a": 1}}', r"kernel {'a': 1} does not exist"),
        ('{"warp": 3}', r"no field 'warp' in kernel"),
        ('{"cluster_split_k": 3}', r"cluster_split_k may not be 3 \(one of 1, 2, 4, 8\)"),
        ('{"cluster_split_k": true}', r"cluster_split_k may not be true"),
        ('{"cluster_split_k": "2"}', r'cluster_split_k may not be "2"'),
        ('{"cluster_split_k": {"a": 1}}', r"cluster_split_k may not be {"),
        ("no idea", r"no JSON object"),
    ],
)
def test_what_is_wrong_is_said_exactly(space: GemmJsonSpace, answer: str, why: str) -> None:
    parent = next(c for c in space.configs if to_fields(c)["kernel"] == "small")
    with pytest.raises(AnswerError, match=why):
        space.read(answer, parent)


def test_an_illegal_combination_says_why(space: GemmJsonSpace) -> None:
    parent = next(c for c in space.configs if to_fields(c)["kernel"] == "small" and c.warps_k == 32)
    with pytest.raises(AnswerError, match=r"no such kernel is legal for this shape: \d+ slices|threads"):
        space.read('{"warps_k": 32, "warps_m": 2, "warps_n": 2, "cluster_split_k": 8}', parent)


def test_another_family_needs_all_its_fields(space: GemmJsonSpace) -> None:
    small = next(c for c in space.configs if to_fields(c)["kernel"] == "small")
    with pytest.raises(AnswerError, match="is missing"):
        space.read('{"kernel": "fallback", "tile_m": 64}', small)


def test_it_is_a_space(space: GemmJsonSpace) -> None:
    rng = np.random.default_rng(0)
    state = space.start()
    for _ in range(5):
        state = space.apply(state, space.sample(state, rng))
    assert space.candidate(state).recipe["config"] == to_fields(state)
    assert "M=64, N=128, K=2048" in space.brief()
