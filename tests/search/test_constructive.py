"""Strategies that build schedules from scratch: list, beam, exact."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from tour import Lengths, Tours

from sassafras import search
from sassafras.api.instruction_costs import informed
from sassafras.api.optimize import optimize
from sassafras.core import Budget, SassafrasError, SearchError
from sassafras.evaluate import KernelEvaluator
from sassafras.schedule.spaces import space_of
from sassafras.targets import load
from sassafras.timing_model import ModelDevice
from sassafras.validate import Validator


@lru_cache
def scene(name: str) -> tuple[Any, Any, Any, Any]:
    workload = load(f"suite:{name}")
    case = workload.case(None)
    kernel = workload.build(case, "sm_90a")
    device = ModelDevice()
    device.open(workload, case, kernel)
    return workload, case, kernel, device


def run(strategy: Any, name: str, space: str, evaluations: int, seed: int = 0) -> Any:
    workload, case, kernel, device = scene(name)
    validator = Validator(kernel.cubin, kernel.name)
    judge = KernelEvaluator(device, lambda _, cubin: validator.check(cubin), kernel)
    made = informed(space_of(space, Validator), workload, case)(kernel)
    return search.run(search.get(strategy), made, judge, Budget(evaluations=evaluations), seed=seed)


@pytest.mark.parametrize("space", ["swaps", "control"])
@pytest.mark.parametrize("strategy", ["list", "beam"])
def test_finds_something_and_nothing_illegal(strategy: str, space: str) -> None:
    found = run(strategy, "gemv_int4", space, 40)
    assert found.evaluations == 40 and dict(found.verdicts) == {"modelled": 40}
    # (the compiler's own codes leave less to move since vouchers are pairs: a list finds 0.996 there)
    assert found.best.cost < (0.998 if space == "swaps" else 0.98)
    assert found.best.cost == run(strategy, "gemv_int4", space, 40).best.cost


def test_exact_ends_by_itself_and_is_legal() -> None:
    pytest.importorskip("ortools")
    found = run(search.Exact(patience=3, seconds=0.2), "kv_append", "swaps", 100)
    assert found.reason in ("returned", "budget") and set(found.verdicts) == {"modelled"}
    assert found.best.cost <= 1.0


@pytest.mark.parametrize("strategy", ["list", "beam", "exact"])
def test_other_spaces_are_refused(strategy: str) -> None:
    space = Tours(8)
    with pytest.raises(SearchError, match="from scratch"):
        search.run(search.get(strategy), space, Lengths(space), Budget(evaluations=10))


def test_optimize_tells_the_space_what_instructions_cost(tmp_path: Any) -> None:
    result = optimize(
        "suite:rmsnorm", strategy="list", budget="12e", device="model", store=tmp_path / "s.sqlite",
        space="control",
    )  # fmt: skip
    assert "modelled" in result.summary() and result.evaluations == 12


def test_without_or_tools_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(SassafrasError, match="OR-tools"):
        run("exact", "kv_append", "swaps", 30)
