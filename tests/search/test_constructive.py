"""The strategy that builds schedules from scratch: list."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from tour import Lengths, Tours

from sassafras import search
from sassafras.api.instruction_costs import informed
from sassafras.api.optimize import optimize
from sassafras.core import Budget, SearchError
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
def test_finds_something_and_nothing_illegal(space: str) -> None:
    found = run("list", "gemv_int4", space, 40)
    assert found.evaluations == 40 and dict(found.verdicts) == {"modelled": 40}
    # (the compiler's own codes leave less to move since vouchers are pairs: a list finds 0.996 there)
    assert found.best.cost < (0.998 if space == "swaps" else 0.98)
    if space == "swaps":  # the same again
        assert found.best.cost == run("list", "gemv_int4", space, 40).best.cost


def test_other_spaces_are_refused() -> None:
    space = Tours(8)
    with pytest.raises(SearchError, match="from scratch"):
        search.run(search.get("list"), space, Lengths(space), Budget(evaluations=10))


def test_optimize_tells_the_space_what_instructions_cost(tmp_path: Any) -> None:
    result = optimize(
        "suite:rmsnorm", strategy="list", budget="12e", device="model", store=tmp_path / "s.sqlite",
        space="control",
    )  # fmt: skip
    assert "modelled" in result.summary() and result.evaluations == 12
