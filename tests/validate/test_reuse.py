"""Schedules that read a stale operand from the reuse cache on an H200 (2026-11-21): each must be refused."""

from __future__ import annotations

import base64
import json
import lzma
from pathlib import Path

import pytest

from sassafras.validate import Validator

_DATA = json.loads((Path(__file__).parents[1] / "data" / "stale-reuse.json").read_text())["kernels"]


def unpack(text: str) -> bytes:
    return lzma.decompress(base64.b64decode(text))


@pytest.mark.parametrize("name", _DATA)
def test_stale_operands_are_refused_for_their_reuse_flag(name: str) -> None:
    original = unpack(_DATA[name]["original"])
    validator = Validator(original)
    assert validator.check(original).ok, validator.check(original).violations
    for packed in _DATA[name]["stale"]:
        report = validator.check(unpack(packed))
        assert "reuse" in {violation.kind for violation in report.violations}, report.violations
