"""Which member of the portfolio serves a problem; needs no GPU."""

from __future__ import annotations

from dataclasses import replace

from ..configs.backward import PART
from ..configs.registry import with_dtype
from ..select import epilogue_selector, predictor
from ..select.correction import Correction
from ..select.epilogue_selector import Extra
from ..select.gpus import GpuFacts, tables_of
from ..select.selector import Choice, Selector
from ..select.table import ProductRow, TunedTable
from .plan import epilogue_problem, why_illegal
from .problem import BETA, BIAS, CONSTANT, DTYPES, NORM, Problem


def chooser_of(
    gpu: str, table: TunedTable, lt_version: int | None, facts: GpuFacts | None = None
) -> Selector:
    """What chooses for a GPU: a table, and its predictors or the nearest GPU's, corrected as the table was.

    Args:
        facts: of the GPU, by which the nearest one is found.
    """
    model, backward = (predictor.shipped(tables_of(gpu, facts, part), part) for part in ("", PART))
    if model is not None and (learnt := Correction.from_json(table.header.get("correction"))):
        model = replace(model, correction=learnt)
    return Selector(table, lt_version=lt_version, model=model, backward=backward)


def member_of(chooser: Selector, problem: Problem) -> Choice:
    """The portfolio's member for a problem: as the program was tuned, or chosen."""
    tight = bool(problem.lines == problem.tight and problem.aligned)
    row = chooser.table.products.get(problem.product) if problem.product else None
    if row and (choice := _tuned_product(row, problem, tight and row.cublaslt == chooser.lt_version)):
        return choice
    if not problem.plain:
        bias, beta, norm, constant = (bool(problem.extra & bit) for bit in (BIAS, BETA, NORM, CONSTANT))
        extra = Extra(bias, problem.activation, beta, norm, constant)
        config, why = epilogue_selector.choose(chooser, *epilogue_problem(problem), extra=extra)
        return Choice("ours" if config else "torch", config, None, 1.0, why)
    return chooser.choose(
        problem.shape,
        problem.layout,
        lambda config: why_illegal(config, problem) is None,
        lambda config: with_dtype(config, DTYPES[problem.dtype]),
        lt=tight and not problem.dtype,  # algorithms were timed for tight FP16 matrices
    )


def _tuned_product(row: ProductRow, problem: Problem, lt: bool) -> Choice | None:
    """The member that a program's tuning chose; None where it cannot run this problem."""
    speedup, why = row.torch_us / row.us, "tuned in a program: {} is the fastest"
    if row.member == "torch" or (row.member == "lt" and lt):
        name = "torch" if row.member == "torch" else "a cuBLASLt algorithm"
        return Choice(row.member, None, row, speedup, why.format(name))
    config = next((c for c, _ in row.ours if why_illegal(c, problem) is None), None)
    return Choice("ours", config, row, speedup, why.format("ours")) if config else None
