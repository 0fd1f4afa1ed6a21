"""Layers of 9 to 64 rows: which kernels they may take, which is chosen, and when."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from sassafras.gemm.configs import few_rows, registry, split_k_early, stream
from sassafras.gemm.problem.launch import MULTIPROCESSORS, ceil_div
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select.selector import Selector
from sassafras.gemm.select.table import TunedTable, shipped_path


def test_every_kernel_is_compiled_once() -> None:
    for instance in (*few_rows.INSTANCES, *few_rows.OTHER_INSTANCES):
        assert instance.why_illegal() is None
    for instances in (registry.INSTANCES, registry.OTHER_INSTANCES):
        assert len(set(instances)) == len(instances)
    assert set(few_rows.INSTANCES) <= set(registry.INSTANCES)
    assert set(few_rows.OTHER_INSTANCES) <= set(registry.OTHER_INSTANCES)


@pytest.mark.parametrize(("rows", "able"), [(1, True), (64, True), (65, False)])
def test_only_few_rows_of_a_large_layer(rows: int, able: bool) -> None:
    assert bool(few_rows.best(Shape(rows, 5120, 13824))) == able
    assert not few_rows.best(Shape(rows, 1024, 1024))
    assert bool(few_rows.best(Shape(rows, 1024, 1024), 0)) == able
    assert not few_rows.best(Shape(rows, 5120, 13822)), "lines of B that no copy reads"


def test_what_the_choice_weighs() -> None:
    def chosen(text: str) -> tuple[int, int]:
        shape = Shape.parse(text)
        best = few_rows.best(shape)[0]
        return best.instance.tile_n, best.tiles(shape)[1] * best.cluster_split_k

    for text in ("64x5120x13824", "16x12288x4096", "64x24576x6144", "40x3072x8192", "16x4096x11008"):
        width, ctas = chosen(text)
        full = ceil_div(ctas, MULTIPROCESSORS) * MULTIPROCESSORS
        assert ctas >= 0.7 * full, f"{text}: {width} columns, {ctas} CTAs"
    assert few_rows.best(Shape(64, 8192, 28672))[0].cluster_split_k <= 3, "8 parts took 1.13 times as long"
    # 36864 lines are many waves whichever tile they have; with 64 rows A costs less by wide ones
    assert chosen("64x36864x3456")[0] > 64
    shape = Shape(64, 8192, 8192)
    costs = [few_rows.cost_us(config, shape) for config in few_rows.best(shape)]
    assert costs == sorted(costs) and costs[0] > 0


def test_it_serves_what_no_table_has() -> None:
    chooser = Selector(TunedTable.load(shipped_path("NVIDIA H200")))

    def chosen(shape: Shape, layout: str = "tn") -> object:
        return chooser.choose(shape, layout, lambda config: True).config

    for rows in (9, 17, 64):
        shape = Shape(rows, 5120, 13824)
        assert chooser.table.get(shape, "tn") is None
        assert chosen(shape) == few_rows.best(shape)[0]
        assert list(chooser.favourites(shape, "tn", lambda config: True))[:3] == few_rows.best(shape)[:3]
        assert chosen(shape, "nn") not in few_rows.best(shape)
    tuned = Shape(64, 4096, 4096)
    assert chooser.table.get(tuned, "tn") is not None and chosen(tuned) not in few_rows.best(tuned)
    small, narrow = Shape(4, 3072, 2048), Shape(4, 2560, 4096)
    assert chosen(small) == few_rows.best(small, 0)[0] and chosen(narrow) not in few_rows.best(narrow, 0)
    of_h100, shape = Selector(TunedTable.load(shipped_path("NVIDIA H100 80GB HBM3"))), Shape(1, 5120, 13824)
    assert of_h100.choose(shape, "tn", lambda config: True).config == stream.best(shape)[0]
    assert chosen(shape) == few_rows.best(shape)[0], "whose memory is faster"
    for chooser_, rows in ((of_h100, 8), (chooser, 1)):
        shape = Shape(rows, 5120, 13824)
        both = few_rows.best(shape)[0], stream.best(shape)[0]
        assert tuple(chooser_.favourites(shape, "tn", lambda config: True))[:2] == both


@pytest.mark.parametrize(
    ("context", "rows", "loss", "gain"),
    [
        ("between", (16, 32, 64), 1.012, 1.05),
        ("norm", (64,), 1.02, 1.07),
        ("norm-400", (16, 32, 64), 1.02, 1.07),
        ("back to back", (1, 4, 8), 1.002, 1.11),
        ("back to back", (16, 32, 64), 1.004, 1.08),
    ],
)
def test_the_choice_beside_what_was_measured(
    context: str, rows: tuple[int, ...], loss: float, gain: float
) -> None:
    """Geometric means of times of a GPU: the choice over the best kernel tried, torch over the choice."""
    gpu = "h200" if context == "back to back" else "h100"
    path = Path(__file__).parents[2] / "benchmarks" / "data" / f"nvidia-{gpu}.few-rows.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found = [row for row in map(json.loads, file) if row.get("context") == context and row["m"] in rows]
    assert len(found) >= 30
    over_best, over_torch = [], []
    for row in found:
        shape, us = Shape(row["m"], row["n"], row["k"]), row["us"]
        # the first probe timed plain launches: by stems
        times = {name.partition("+")[0]: value for name, value in us.items()}
        chosen = few_rows.best(shape, 0) if "norm" not in context else split_k_early.best(shape, "fp16")
        mine = next(times[config.stem] for config in chosen if config.stem in times)
        over_best.append(mine / min(v for name, v in us.items() if name.startswith("split_k")))
        over_torch.append(us["torch"] / mine)
    assert np.exp(np.mean(np.log(over_best))) <= loss
    assert np.exp(np.mean(np.log(over_torch))) >= gain


@pytest.mark.parametrize(
    ("context", "early", "rows", "loss"),
    [
        ("cold", True, (1, 2, 4, 8, 16), 1.014),
        ("cold", True, (33, 48, 64), 1.005),
        ("elementwise", False, (1, 2, 4, 8, 16), 1.004),
        ("elementwise", False, (33, 48, 64), 1.006),
    ],
)
def test_tiles_of_layers_beside_what_was_measured(
    context: str, early: bool, rows: tuple[int, ...], loss: float
) -> None:
    """Geometric means of an H200's times: the choice over the best tile tried, weights read early or not."""
    path = Path(__file__).parents[2] / "benchmarks" / "data" / "nvidia-h200.early-rows.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found = [row for row in map(json.loads, file) if row.get("context") == context and row["m"] in rows]
    assert len(found) == 49 * len(rows)
    kind, over_best = "early:" if early else "ordinary:", []
    for row in found:
        times = {
            name.removeprefix(kind): us for name, us in row["us"].items() if name.startswith(f"{kind}split")
        }
        chosen = split_k_early.best(Shape(row["m"], row["n"], row["k"]), "bf16", early)
        mine = next(times[config.name] for config in chosen if config.name in times)
        over_best.append(mine / min(times.values()))
    assert np.exp(np.mean(np.log(over_best))) <= loss
