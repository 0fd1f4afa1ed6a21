"""Isolated calls, and choosing by them, on the modelled clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sassafras.core import DeviceError
from sassafras.gemm.bench import dry_run, runs
from sassafras.gemm.bench.measure import hopeful
from sassafras.gemm.bench.options import Options, of_known
from sassafras.gemm.bench.timing import Isolated, TimedBlock
from sassafras.gemm.bench.tune import choose
from sassafras.gemm.configs.fields import from_fields
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select.dataset import shipped


def test_times_hold_the_calls_and_no_pause() -> None:
    stage = dry_run.DryContestants()
    contest = Isolated(stage, [[lambda: stage.gpu.launch(5.0)] * 2, [lambda: stage.gpu.launch(40.0)]])
    began = stage.now()
    table, walls, rate = contest.calls(6, 1000.0, np.random.default_rng(0))
    contest.close()
    assert table.shape == walls.shape == (6, 2) and rate == 1000.0
    assert np.median(table, 0) == pytest.approx([5.0, 40.0], rel=0.02)
    assert (walls >= table - 1e-6).all()
    assert stage.now() - began > 10 * 1e-3, "fourteen pauses of a millisecond on average"


def test_some_take_part() -> None:
    stage = dry_run.DryContestants()
    contest = Isolated(stage, [[lambda us=us: stage.gpu.launch(us)] for us in (5.0, 40.0, 80.0)])  # type: ignore[misc]
    table, walls, _ = contest.calls(4, 1000.0, np.random.default_rng(0), [2, 0])
    assert table.shape == walls.shape == (4, 2)
    assert np.median(table, 0) == pytest.approx([80.0, 5.0], rel=0.02)


def test_layouts_that_are_clearly_slower_get_no_pause() -> None:
    names = ["ours", "ours_nn", "lt_autotune_nn", "lt_autotune_tn", "torch_nn", "torch_tn", "null"]
    times = [10.0, 11.0, 12.0, 10.0, 10.0, 10.4, 12.0]
    kept = [names[index] for index in hopeful(names, times, "lt_autotune_nn")]
    assert kept == ["ours", "lt_autotune_nn", "lt_autotune_tn", "torch_nn", "torch_tn", "null"]
    assert "lt_autotune_nn" not in [names[index] for index in hopeful(names, times, "lt_autotune_tn")]
    slow = [names[index] for index in hopeful(names, [20.0, *times[1:]], "lt_autotune_tn")]
    assert slow[:2] == ["ours", "ours_nn"], "what the selection chose stays, whatever a trial says"


def test_long_calls_lower_the_rate() -> None:
    stage = dry_run.DryContestants()
    contest = Isolated(stage, [[lambda: stage.gpu.launch(4000.0)]])
    assert contest.calls(2, 1000.0, np.random.default_rng(0))[2] == pytest.approx(125.0, rel=0.02)


def test_events_are_no_calls() -> None:
    gpu = dry_run.DryGpu()
    with pytest.raises(DeviceError, match="graph of 1 calls holds 0 nodes"):
        TimedBlock(gpu, lambda: None, 1, (gpu.event(), gpu.event()))  # type: ignore[arg-type]


def test_selection_among_what_the_dataset_holds() -> None:
    options, stage = of_known(Options(), recorded=3), dry_run.DryContestants()
    for shape in (Shape(64, 64, 64), Shape(8192, 8192, 512)):  # back to back, isolated
        found = choose(stage, shape, options)
        known = {config.stem for config, _ in shipped()[shape].ranked()}
        assert found["ours"] and {from_fields(given).stem for given, _, _ in found["rungs"]} <= known
        assert len(found["rungs"]) <= 2 * 3 * 4, "three of each layout, in up to four modes"
    off_grid = choose(stage, Shape(63, 65, 127), options)
    assert len(off_grid["rungs"]) > 6, "nothing is known of it: candidates are drawn as ever"


def test_a_selection_by_isolated_calls_has_a_journal_of_its_own(tmp_path: Path) -> None:
    shape, options = Shape(64, 64, 64), of_known(Options(calls=5))
    settings = runs.RunSettings(tmp_path, options, dry=True, progress=0, say=lambda text: None)
    rows, _ = runs.run((shape,), settings, mode="server")
    assert rows[0]["ours"] > 0 and rows[0]["rounds"] == 5
    assert list(tmp_path.glob("hgemm-select-isolated.gpu*.jsonl"))
    assert not list(tmp_path.glob("hgemm-select.gpu*.jsonl"))
