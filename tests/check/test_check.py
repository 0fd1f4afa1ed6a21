"""Wrong workloads are found without a GPU, right ones are not refused, and nothing is accepted in silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sassafras
from sassafras.cli.app import app
from sassafras.core import WorkloadError
from sassafras.precheck import Checker
from tests.check import gallery

pytest.importorskip("torch")
FILE = Path(gallery.__file__)
#: what nothing but a GPU can find
UNCHECKED = {"cuda_wrong_role"}


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker(seconds=20) as made:
        yield made


def test_right_workloads_are_not_refused(checker: Checker) -> None:
    assert len(gallery.RIGHT) >= 30
    for name in gallery.RIGHT:
        found = checker.check(f"{FILE}:{name}")
        if name == "own_saxpy":
            assert [one.level for one in found.findings] == ["unchecked"]
            continue
        assert not found.findings, f"{name}: {list(map(str, found.findings))}"
        assert all(ran == total for ran, total in found.programs.values())


def test_wrong_workloads_are_found_by_name(checker: Checker) -> None:
    assert len(gallery.WRONG) >= 30
    certain = 0
    for name, (_, about) in gallery.WRONG.items():
        found = checker.check(f"{FILE}:{name}")
        assert about in [one.about for one in found.findings], f"{name}: {list(map(str, found.findings))}"
        certain += bool(found.of("wrong"))
        if name in UNCHECKED:
            assert not found.of("wrong") and found.of("unchecked")
    assert certain >= 24


def test_what_a_reference_should_return_is_said(checker: Checker) -> None:
    for name, told in (("nothing", "returned None"), ("no_tensor", "returned a ndarray for 'y'")):
        (finding,) = checker.check(f"{FILE}:reference_returns_{name}").of("wrong")
        assert (
            finding.text
            == f'the reference {told} (return {{"NAME": tensor}}: an entry for each out or inout buffer)'
        )


def test_one_field_changed_by_a_script_is_found(checker: Checker) -> None:
    """The first ten seeds at least change sizes, roles, grids, numbers and tolerances."""
    for seed in gallery.SEEDS:
        found = checker.check(f"{FILE}:seed_{seed}")
        assert found.of("wrong") or found.of("doubtful"), f"seed {seed}: accepted in silence"


def test_what_did_not_run_in_time_is_said(checker: Checker) -> None:
    checker.seconds = 0.0
    try:
        found = checker.check(f"{FILE}:own_transpose")
    finally:
        checker.seconds = 20.0
    assert found.programs == {"c": (1, 6)} and not found.of("wrong")
    assert "1 of 6 programs ran" in found.of("unchecked")[0].text


def test_a_workload_in_no_file_is_said_to_be_unchecked(checker: Checker) -> None:
    found = checker.check(gallery.RIGHT["own_softmax"]())
    assert [str(one) for one in found.findings] == [
        "unchecked: case c, bounds, roles, values: "
        "the workload is not in a file that another process can load"
    ]
    wrong = checker.check(gallery.buffer("norm", "rstd", role="in"))
    assert 'rstd: declared as input, but written: role="out"' in str(wrong.of("wrong")[0])


def test_the_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["check", "--json", f"{FILE}:own_axpy", f"{FILE}:grid_too_small"])
    right, wrong = json.loads(done.stdout)
    assert done.exit_code == 1 and right["findings"] == []
    assert wrong["findings"][0]["about"] == "y" and wrong["findings"][0]["case"] == "c"
    done = CliRunner().invoke(app, ["check", str(tmp_path / "none.py")])
    assert done.exit_code == 1 and "no such file" in done.stdout


def test_a_modelled_run_begins_with_it(tmp_path: Path) -> None:
    target = f"{FILE}:output_as_input"
    with pytest.raises(WorkloadError, match=r'rstd: declared as input, .* writes it: role="out"; 1 more'):
        sassafras.optimize(target, device="model", budget="2e", store=False)
    result = sassafras.optimize(target, device="model", budget="2e", store=False, check=False)
    assert result.modelled and not result.notes
