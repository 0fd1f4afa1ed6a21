"""Configurations as JSON: the schema, edits, and errors that say exactly what is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sassafras.gemm import GemmSpace, Shape
from sassafras.llm.answer import AnswerError
from sassafras.llm.gemm_json import GemmProposals, to_fields


@pytest.fixture(scope="module")
def space() -> GemmProposals:
    return GemmProposals(GemmSpace(Shape(64, 128, 2048), lambda config: b"\x7fELF"))


def test_every_legal_configuration_survives_the_round_trip(space: GemmProposals) -> None:
    for config in space.space.configs[::17]:
        assert space.read("here: " + space.show(config) + " done", space.start()) == config


def test_the_schema_holds_every_field_of_every_family(space: GemmProposals) -> None:
    schema = space.schema
    assert schema is not None
    families = {json.dumps(part["properties"]["family"]["enum"]): part for part in schema["anyOf"]}
    assert {'["small"]', '["fallback"]'} <= set(families)
    for part in schema["anyOf"]:
        assert part["required"] == list(part["properties"]) and part["additionalProperties"] is False
    fields = to_fields(space.start())
    part = families[json.dumps([fields["family"]])]
    assert all(value in part["properties"][name]["enum"] for name, value in fields.items())


def test_an_edit_changes_only_what_it_names(space: GemmProposals) -> None:
    parent = next(c for c in space.space.configs if to_fields(c)["family"] == "small" and c.cluster == 2)
    child = space.read('{"edit": {"cluster": 4}}', parent)
    differing = {n for n, v in to_fields(parent).items() if to_fields(child)[n] != v}
    assert differing == {"cluster"}
    assert space.read('{"cluster": 4}', parent) == child


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"family": "magic"}', r"family 'magic' does not exist .*'small'"),
        ('{"family": {"a": 1}}', r"family {'a': 1} does not exist"),
        ('{"warp": 3}', r"no field 'warp' in family"),
        ('{"cluster": 3}', r"cluster may not be 3 \(one of 1, 2, 4, 8\)"),
        ('{"cluster": true}', r"cluster may not be true"),
        ('{"cluster": "2"}', r'cluster may not be "2"'),
        ('{"cluster": {"a": 1}}', r"cluster may not be {"),
        ("no idea", r"no JSON object"),
    ],
)
def test_what_is_wrong_is_said_exactly(space: GemmProposals, answer: str, why: str) -> None:
    parent = next(c for c in space.space.configs if to_fields(c)["family"] == "small")
    with pytest.raises(AnswerError, match=why):
        space.read(answer, parent)


def test_an_illegal_combination_says_why(space: GemmProposals) -> None:
    parent = next(c for c in space.space.configs if to_fields(c)["family"] == "small" and c.warps_k == 32)
    with pytest.raises(AnswerError, match=r"no such kernel is legal for this shape: \d+ slices|threads"):
        space.read('{"warps_k": 32, "warps_m": 2, "warps_n": 2, "cluster": 8}', parent)


def test_another_family_needs_all_its_fields(space: GemmProposals) -> None:
    lean = next(c for c in space.space.configs if to_fields(c)["family"] == "small")
    with pytest.raises(AnswerError, match="is missing"):
        space.read('{"family": "fallback", "rows": 64}', lean)


def test_it_is_a_space(space: GemmProposals) -> None:
    rng = np.random.default_rng(0)
    state = space.start()
    for _ in range(5):
        state = space.apply(state, space.sample(state, rng))
    assert space.candidate(state).recipe["config"] == state.name
    assert "M=64, N=128, K=2048" in space.brief() and space.notes()
