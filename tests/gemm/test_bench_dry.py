"""The benchmark, the sweep and their files, from the command line down, on a modelled clock."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sassafras.cli.app import app
from sassafras.core import DeviceError, SassafrasError
from sassafras.cuda.cublas import LtAlgorithm
from sassafras.cuda.timing import balanced
from sassafras.gemm.bench import context, dry_run, journal, program, runs, worker
from sassafras.gemm.bench.context import Context
from sassafras.gemm.bench.journal import records
from sassafras.gemm.bench.measure import judged, measure, tuned_rows
from sassafras.gemm.bench.options import Options
from sassafras.gemm.bench.runner import ShapeJob
from sassafras.gemm.bench.runs import RunSettings, benchmark, save_sweep
from sassafras.gemm.bench.timing import apart, contest, timed
from sassafras.gemm.bench.tune import candidates_for, choose
from sassafras.gemm.bench.worker_client import WorkerClient
from sassafras.gemm.configs.fields import from_fields, to_fields
from sassafras.gemm.configs.names import parse
from sassafras.gemm.problem.shape import Product, Shape
from sassafras.gemm.select.dataset import Dataset
from sassafras.gemm.select.table import TunedTable
from tests.scripts import run_benchmark
from tests.shared import python_path

ROOT = Path(__file__).parents[2]

OPTIONS = Options(configs=16, finalists=3, seconds=0.01, walls=6, calls=5)
QUIET: dict[str, Any] = {"dry": True, "progress": 0, "say": lambda text: None}
SHAPES = (Shape(64, 64, 64), Shape(128, 64, 256), Shape(512, 1024, 512))


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One whole run in two processes, on two modelled GPUs."""
    folder = tmp_path_factory.mktemp("offline")
    path, _ = benchmark(SHAPES, RunSettings(folder, OPTIONS, gpus=2, **QUIET), processes=2)
    return path, json.loads(path.read_text())


def test_every_column_is_there(offline: tuple[Path, dict[str, Any]]) -> None:
    path, found = offline
    assert path.name == "hgemm-offline-dry.json" and found["modelled"] and found["summary"]["modelled"]
    assert [row["shape"] for row in found["rows"]] == [str(shape) for shape in SHAPES]
    for row in found["rows"]:
        for name in ("ours", "portfolio", "lt_autotune", "lt_heuristic", "cublas", "torch"):
            assert row[name] > 0
        for name in ("torch", "portfolio"):
            assert row[f"wall_p99_{name}"] >= row[f"wall_p50_{name}"] > row[name]
            assert row[name] == min(row[f"{name}_nn"], row[f"{name}_tn"])
        assert row["ours"] == pytest.approx(min(row["ours_nn"], row["ours_tn"]), rel=0.02)
        assert row["ours"] == row[f"ours_{row['layout']}"]
        assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"] and row["processes"] == 2
        assert row["portfolio_speedup"] > 0.99 and row["cold_sets"] >= 1 and row["cold_ours"] > 0
        assert row["speedup"] == pytest.approx(row["lt_autotune"] / row["ours"], rel=0.02)
        assert 0.98 < row["null"] < 1.02 and row["served"].keys() == {"nn", "tn"}
        assert "ratios" not in row and row["modelled"] is True
    summary = found["summary"]
    for key in (
        "geomean_vs_lt_autotune", "mean_vs_lt_autotune", "median_vs_lt_autotune", "win_rate_vs_lt_autotune",
        "worst_vs_lt_autotune", "portfolio_worst_vs_lt_autotune", "cold_geomean_vs_lt_autotune",
        "geomean_vs_torch", "geomean_vs_cublas", "geomean_vs_lt_heuristic", "wall_p50_portfolio_us",
        "nn_geomean_vs_lt_autotune", "tn_geomean_vs_lt_autotune",
    ):  # fmt: skip
        assert summary[key] > 0
    assert set(summary["bands"]) == {"<1e8", "1e8-1e9"}


def test_a_second_run_has_nothing_to_do(
    offline: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, found = offline
    monkeypatch.setattr(WorkerClient, "_start", lambda self: pytest.fail("a worker was started"))
    settings = RunSettings(path.parent, OPTIONS, **QUIET)
    rows, _ = runs.run(SHAPES, settings, processes=2)
    assert rows == found["rows"], "whatever the number of GPUs"
    with pytest.raises(BaseException, match="a worker was started"):
        runs.run((Shape(64, 64, 128),), settings)


def test_its_selection_is_a_dataset(offline: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, _ = offline
    dataset = runs.collected(path.parent)
    assert dataset.modelled and set(dataset.entries) == set(SHAPES)
    assert all(len(entry.ours) >= 16 for entry in dataset)
    assert save_sweep(dataset, tmp_path) == [tmp_path / "sweep-dry.jsonl.gz"], "no table of a dry run"
    assert Dataset.load(tmp_path / "sweep-dry.jsonl.gz").pairs == dataset.pairs
    dataset.header["modelled"], dataset.header["gpu"] = False, "NVIDIA H200"
    target = tmp_path / "cache/nvidia-h200.table.json"
    paths = save_sweep(dataset, tmp_path, install=target)
    assert [path.name for path in paths[:2]] == ["nvidia-h200.jsonl.gz", "nvidia-h200.table.json"]
    assert paths[2] == target and TunedTable.load(target).rows == TunedTable.load(paths[1]).rows
    assert TunedTable.from_dataset(Dataset.load(paths[0])).rows == TunedTable.load(paths[1]).rows
    save_sweep(dataset, tmp_path, install=target)  # once more: merged
    assert TunedTable.load(target).rows == TunedTable.load(paths[1]).rows
    with pytest.raises(SassafrasError, match="no selection journal"):
        runs.collected(tmp_path)


def test_one_process_at_a_time_works_in_a_folder(tmp_path: Path) -> None:
    """With --fresh the second deleted the first one's journal, and both timed on one GPU."""
    product = {Product(SHAPES[0], "tn"): 1}
    with journal.alone(tmp_path):
        for fresh in (False, True):
            settings = RunSettings(tmp_path, OPTIONS, fresh=fresh, **QUIET)
            with pytest.raises(SassafrasError, match="another process works here"):
                runs.run(SHAPES[:1], settings)
            with pytest.raises(SassafrasError, match="another process works here"):
                program.tune_products(product, tmp_path, dry=True, fresh=fresh)
    assert not list(tmp_path.iterdir())
    assert runs.run(SHAPES[:1], RunSettings(tmp_path, OPTIONS, **QUIET))[1]["measured"] == 1


def test_options_of_the_other_stage_do_not_matter_for_resuming(offline: tuple[Path, dict[str, Any]]) -> None:
    path, _ = offline
    other = Options(configs=16, finalists=3, seconds=0.02, walls=0, calls=9)
    shape = Shape(64, 64, 64)
    rows, _ = runs.run((shape,), RunSettings(path.parent, other, **QUIET), mode="server")
    assert rows[0]["rounds"] == 9 and rows[0]["rate"] == 1000.0 and 1 <= rows[0]["sets"] <= 24
    assert rows[0]["wall_p50_ours"] > 0 and rows[0]["speedup"] > 0
    with pytest.raises(SassafrasError, match="other conditions"):
        changed = RunSettings(path.parent, Options(configs=17), **QUIET)
        runs.run((*SHAPES, Shape(64, 64, 128)), changed)


@pytest.mark.parametrize("minutes", (1e-9, 0))
def test_time_may_be_up(tmp_path: Path, minutes: float) -> None:
    rows, summary = runs.run(SHAPES, RunSettings(tmp_path, OPTIONS, minutes=minutes, **QUIET))
    assert summary["pending"] == 3 and summary["measured"] == 0 and all(row["pending"] for row in rows)
    rows, summary = runs.run(SHAPES[:1], RunSettings(tmp_path, OPTIONS, **QUIET))
    assert summary["pending"] == 0 and rows[0]["ours"] > 0


def test_a_clock_that_is_set_is_no_time_that_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(1e9, 1e6)
    monkeypatch.setattr(time, "time", lambda: next(clock))
    assert runs.run(SHAPES[:1], RunSettings(tmp_path, OPTIONS, minutes=10, **QUIET))[1]["measured"] == 1


def test_results_are_written_whole(tmp_path: Path) -> None:
    """A full disk left a cut file in place of the earlier results."""
    settings = RunSettings(tmp_path, OPTIONS, **QUIET)
    path, _ = benchmark(SHAPES[:1], settings)
    with path.open() as reading:
        assert benchmark(SHAPES[:2], settings)[1]["measured"] == 2
        assert len(json.load(reading)["rows"]) == 1 and len(json.loads(path.read_text())["rows"]) == 2


@pytest.mark.parametrize("left", (b"", b'{"header": {"form'))
def test_a_run_that_was_killed_in_its_first_line_goes_on(tmp_path: Path, left: bytes) -> None:
    """A full disk leaves such a file, too; the whole folder's times were to be given up with --fresh."""
    settings = RunSettings(tmp_path, OPTIONS, gpus=2, **QUIET)
    assert runs.run(SHAPES[:1], settings)[1]["measured"] == 1
    for stem in ("select", "offline-0"):
        (tmp_path / f"hgemm-{stem}.gpu1.jsonl").write_bytes(left)
    assert runs.run(SHAPES[:1], settings)[1]["measured"] == 1
    assert runs.run(SHAPES, settings)[1]["measured"] == 3


def test_selection_leaves_time_to_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[ShapeJob] = []
    monkeypatch.setattr(runs.runner, "work", lambda job, gpus: jobs.append(job))
    runs.run(SHAPES, RunSettings(tmp_path, OPTIONS, minutes=10, **QUIET))
    selecting, measuring = (job.deadline or 0.0 for job in jobs)
    assert measuring - selecting == pytest.approx(240.0), "four of the ten minutes"


@pytest.mark.parametrize("gpus", (1, 2))
def test_an_interrupt_ends_it_after_the_shape_at_hand(tmp_path: Path, gpus: int) -> None:
    command = [sys.executable, "-m", "sassafras", "gemm", "bench", "--dry-run", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": python_path(ROOT / "src")}
    pipes: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    running = subprocess.Popen([*command, "--gpus", str(gpus)], env=environment, **pipes)
    try:
        assert running.stderr is not None
        assert any(line.startswith("select 3/") for line in running.stderr), "three shapes of 1,000 are done"
        os.killpg(running.pid, signal.SIGINT)
        running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130 and len(records(tmp_path, "hgemm-select")) < 500


#: a worker that has this shape to do is killed from outside, at once
KILLED = """
import os, signal
import sassafras.gemm.bench.dry_run as dry
real = dry.DryContestants.operands

def operands(self, shape, *rest):
    if str(shape) == "128x64x256":
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, shape, *rest)

dry.DryContestants.operands = operands
"""


def planted(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have every worker run a text first."""
    (folder / "site").mkdir()
    (folder / "site/sitecustomize.py").write_text(text)
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{folder / 'site'}{os.pathsep}{inherited}")


def test_a_dead_worker_costs_one_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers die in the second shape, and no candidate is at fault; another takes over."""
    planted(tmp_path, monkeypatch, KILLED)
    said: list[str] = []
    settings = RunSettings(tmp_path, OPTIONS, dry=True, progress=0, say=said.append)
    dataset = runs.sweep(SHAPES, settings)
    assert set(dataset.entries) == {SHAPES[0], SHAPES[2]}
    assert sum("lost in 128x64x256: the worker was ended by signal 9" in text for text in said) == 2
    found = records(tmp_path, runs.SELECT)["128x64x256"]
    assert (
        "ended by signal 9" in found["error"] and "lost" not in found and not list(tmp_path.glob("*.trying"))
    )


#: launches of two instances spoil the context, which is seen at the next synchronisation
SPOILING = """
import sassafras.gemm.bench.dry_run as dry
from sassafras.cuda.driver import CudaError

BAD = ("cs_tn_64x64_s10q1", "cs_nn_64x64_s10q1")
real = dry.DryContestants.ours

def ours(self, config, operands):
    enqueue = real(self, config, operands)
    if config.instance.name not in BAD or operands.shape.m != 512:
        return enqueue

    def spoil():
        self.gpu.spoilt = True
        enqueue()

    return spoil

def checked(self):
    if getattr(self, "spoilt", False):
        raise CudaError("cuStreamSynchronize", 715, "CUDA_ERROR_ILLEGAL_INSTRUCTION")

dry.DryContestants.ours, dry.DryGpu.sync = ours, checked
"""


def test_candidates_that_lose_the_context_cost_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real workers, which lose their context; two instances are at fault, the shape is selected."""
    planted(tmp_path, monkeypatch, SPOILING)
    said: list[str] = []
    settings = RunSettings(tmp_path / "out", OPTIONS, dry=True, progress=0, say=said.append)
    dataset = runs.sweep(SHAPES, settings)
    assert len(dataset) == 3, "no shape is lost"
    faulty = [text.split()[0] for text in said if "is not tried again" in text]
    assert sorted(parse(name).instance.name for name in faulty) == ["cs_nn_64x64_s10q1", "cs_tn_64x64_s10q1"]
    assert sum("lost in 512x1024x512: CudaError" in text for text in said) == 3, "once without care"
    found = records(tmp_path / "out", runs.SELECT)["512x1024x512"]
    assert "error" not in found and found["ours"] and len(found["wrong"]) == 2
    assert all(any(line.startswith(name) for name in faulty) for line in found["wrong"])
    assert all("CUDA_ERROR_ILLEGAL_INSTRUCTION" in line for line in found["wrong"])
    noted = [from_fields(note["faulty"]) for note in journal.faulty(tmp_path / "out", runs.SELECT).values()]
    assert [config.name for config in noted] == faulty
    assert not {c.instance for c in noted} & {from_fields(given).instance for given, _, _ in found["rungs"]}
    # a resumed run knows them, and tries them at no other shape either
    said.clear()
    assert len(runs.sweep((*SHAPES, Shape(512, 512, 1024)), settings)) == 4 and not said


def test_bad_requests_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = RunSettings(tmp_path, **QUIET)
    with pytest.raises(SassafrasError, match="mode 'often'"):
        runs.run(SHAPES, settings, mode="often")
    with pytest.raises(SassafrasError, match="at least one process"):
        runs.run(SHAPES, settings, processes=0)
    with pytest.raises(SassafrasError, match="1 calls have no interval"):
        Options(calls=1)
    with pytest.raises(SassafrasError, match="at least one GPU"):
        RunSettings(tmp_path, gpus=0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,3")
    with pytest.raises(SassafrasError, match="2 GPUs are asked for, CUDA_VISIBLE_DEVICES names 1"):
        runs.run(SHAPES, RunSettings(tmp_path, OPTIONS, gpus=2, **QUIET))
    with pytest.raises(SassafrasError, match="at least one shape"):
        runs.sweep((), settings)


# --- the parts
# -----------------------------------------------------------------------------------------------


def test_selection_records_all_rungs_and_both_layouts() -> None:
    stage = dry_run.DryContestants()
    record = choose(stage, Shape(256, 256, 512), OPTIONS)
    rungs = {from_fields(given): (us, rung) for given, us, rung in record["rungs"]}
    assert {rung for _, rung in rungs.values()} <= {0, 1, 2}
    assert record["best"].keys() == record["lt"].keys() == record["torch"].keys() == {"nn", "tn"}
    assert record["ours"] in (record["best"]["nn"][0], record["best"]["tn"][0])
    last = [us for us, rung in rungs.values() if rung == 2]
    ours_us = round(record["ours_us"], 4)
    assert rungs[from_fields(record["ours"])] == (ours_us, 2) and min(last) == ours_us
    rows = {row.layout: row for row in tuned_rows(record)}
    assert to_fields(rows["tn"].ours[0][0]) == record["best"]["tn"][0] and rows["nn"].lt is not None


def test_every_family_enters() -> None:
    shape = Shape(512, 512, 512)
    chosen = candidates_for(shape, "tn", 32)
    assert len(chosen) == len(set(chosen)) == 32 and all(c.why_illegal(shape) is None for c in chosen)
    assert len({type(c) for c in chosen}) >= 2 and {c.layout for c in chosen} == {"tn"}


def test_kernels_known_to_fail_are_left_out() -> None:
    shape = Shape(64, 64, 1024)
    everything = candidates_for(shape, "tn", 1000)
    some = candidates_for(shape, "tn", 1000, exclude="^small_tn_m1n1s")
    assert 0 < len(some) < len(everything)
    assert set(everything) - set(some) == {c for c in everything if c.name.startswith("small_tn_m1n1s")}
    record = choose(dry_run.DryContestants(), shape, Options(configs=16, exclude="^small_"))
    assert record["rungs"] and not any(given["kernel"] == "small" for given, _, _ in record["rungs"])


def test_one_process_measures_both_ways() -> None:
    stage = dry_run.DryContestants()
    selection = choose(stage, Shape(64, 256, 512), OPTIONS)
    server = measure(stage, selection, OPTIONS, 0, "server")
    assert len(server["ratios"]) == OPTIONS.calls
    before = stage.gpu.clock
    slow = measure(stage, selection, Options(calls=5, rate=10.0), 0, "server")
    assert stage.gpu.clock - before > 0.5 * 4 * 12 / 10.0 * 1e6, "it waits between calls"
    assert slow["ours"] == pytest.approx(server["ours"], rel=0.05)
    untuned = measure(stage, selection, Options(calls=5, tuned=False, walls=0, cold=False), 0, "offline")
    assert {of["member"] for of in untuned["served"].values()} == {"torch"} and "cold_ours" not in untuned


def test_a_winner_of_one_layout_alone_is_measured() -> None:
    """The fields of a family that has one layout do not hold it."""
    stage = dry_run.DryContestants()
    options = Options(configs=16, only="^stream", walls=0, cold=False)
    selection = choose(stage, Shape(1, 640, 3200), options)
    assert selection["ours"] and "layout" not in selection["ours"]
    row = measure(stage, selection, options, 0, "offline")
    assert row["layout"] == "tn" and row["ours_tn"] == row["ours"]


def test_judged_takes_the_better_layout_of_each() -> None:
    names = ["ours", "lt_autotune_nn", "lt_autotune_tn", "torch_nn", "torch_tn", "null"]
    table = np.array([[1.0, 2.0, 3.0, 5.0, 4.0, 2.0]] * 6)
    row = judged(table, names, {"lt": {"nn": {"us": 1.0}, "tn": {"us": 2.0}}, "ours": None})
    assert row["lt_autotune"] == 2.0 and row["torch"] == 4.0 and row["speedup"] == 2.0
    assert row["baseline_layout"] == "nn" and row["null"] == 1.0 and "portfolio" not in row
    cold = judged(table, names, {"lt": {"nn": {"us": 1.0}, "tn": {"us": 2.0}}, "ours": None}, "cold_")
    assert cold["cold_ours"] == 1.0 and cold["cold_speedup_low"] == 2.0 and "null" not in cold


def test_work_before_a_block_is_not_timed() -> None:
    stage = dry_run.DryContestants()
    block = stage.block([lambda: stage.gpu.launch(10.0)] * 4, 4)
    table = timed(stage.gpu, stage.watch, [block], 5, before=lambda index: stage.empty_l2())
    assert table.shape == (5, 1) and float(np.median(table)) == pytest.approx(10.0, rel=0.02)


def test_nobody_pays_for_what_another_leaves() -> None:
    """Ahead of each block the L2 is emptied and its own contestant called once, both untimed."""
    stage, said = dry_run.DryContestants(), []

    def call(name: str, us: float) -> Callable[[], None]:
        def enqueue() -> None:
            said.append(name)
            stage.gpu.launch(us)

        return enqueue

    calls = [call("a", 10.0), call("b", 30.0)]
    blocks = [stage.block([one] * 4, 4) for one in calls]
    said.clear()
    table = timed(stage.gpu, stage.watch, blocks, 4, before=apart(stage, calls))
    assert np.median(table, axis=0) == pytest.approx([10.0, 30.0], rel=0.02)
    assert said == ["ab"[which] for which in balanced(2, 5)]  # one round more than counted


def test_a_block_has_each_call_of_a_chain_equally_often() -> None:
    stage = dry_run.DryContestants()
    launch = stage.gpu.launch
    chain = [lambda: launch(2.0), lambda: launch(6.0)]
    # three calls of four microseconds would make the block, two of them the first; five do not make the chain
    for calls, block_us in ((chain, 12.0), ([*chain, *chain, *chain], 20.0)):
        table = contest(stage, [calls, chain[1]], [4.0, 6.0], block_us, 0.0)
        assert np.median(table, axis=0) == pytest.approx([4.0, 6.0], rel=0.02)


def test_products_back_to_back_or_between_kernels() -> None:
    stage, product = dry_run.DryContestants(), Product(Shape(64, 4096, 4096), "tn")
    us = {}
    for around in (False, True):
        here = Context(stage, product, most=2, around=around)
        library = stage.lt.candidates(here.lt)
        assert here.fastest(library[::-1]) == library[0], "the model's first is its fastest"
        with pytest.raises(DeviceError, match="64x4096x4096 tn fp16: no contestant"):
            here.fastest([])
        us[around] = float(np.median(here.times(here.take(["sassafras"]), 5)))
        here.close()
    assert us[True] == pytest.approx(us[False] + 2 * 2.0, rel=0.02), "the modelled kernels last two each"


def test_all_algorithms_are_tried_on_weights_from_memory() -> None:
    """Of 64 MB, more than the L2 holds, too: the end of a single set would stay there."""

    class Many(dry_run.DryContestants):
        def _candidates(self, problem: Any) -> list[LtAlgorithm]:
            return [LtAlgorithm(problem.layout, bytes([n + 1]) + bytes(63), 0) for n in range(20)]

    stage, product, tried = Many(), Product(Shape(16, 8192, 8192), "tn"), set[Any]()

    class Seen(Context):
        def take(self, keys: Any) -> list[Any]:
            taken = super().take(keys)
            tried.update(taken)
            return taken

    here = Seen(stage, product)
    assert len(here.sets) == 2 and stage.l2_bytes < 8192 * 8192 * 2
    context._tuned(here, context.chooser(stage), 0.02)
    assert tried.issuperset(stage.lt.candidates(here.lt))
    assert sum(not isinstance(key, str | LtAlgorithm) for key in tried) >= context._CHOSEN
    here.close()
    assert len(Context(stage, Product(Shape(16, 16384, 8192), "tn")).sets) == 2


def test_what_serves_gives_way_to_a_gain_and_when_it_is_wrong() -> None:
    stage = dry_run.DryContestants()
    chooser = context.chooser(stage)

    class Wrong(Context):
        """What has served is wrong."""

        def errors(self, calls: Any) -> dict[Any, np.ndarray]:
            return {key: rms + (key == served) for key, rms in super().errors(calls).items()}

    for shape, gains in ((Shape(128, 1024, 4096), False), (Shape(128, 8192, 512), False), (SHAPES[2], True)):
        product = Product(shape, "tn")
        served = context.member_of(chooser, context.Problem.of(product)).config
        found = context.tune(stage, chooser, product, 0.02)
        kept = found["member"] == "ours" and found["ours"][0][0] == to_fields(served)
        assert kept is not gains and (found["before_us"] / found["us"] >= 1.01) is gains
        found = context._tuned(here := Wrong(stage, product), chooser, 0.02)
        here.close()
        assert to_fields(served) not in [fields for fields, _ in found["ours"]]
        assert any(line.startswith(served.name) for line in found["wrong"]) and found["before"] == "ours"


@pytest.mark.parametrize("other", ({"seconds": 0.02}, {"apart": True}, {"seed": 3}))
def test_finished_journals_of_other_options_are_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    """All is measured: no worker starts, so none would notice that it was something else."""
    shapes, options = [Shape(64, 64, 64)], {"configs": 4, "seconds": 0.01}
    for _ in range(2):
        runs.run(shapes, RunSettings(tmp_path, Options(**options), **QUIET))
    with pytest.raises(SassafrasError, match="other conditions"):
        runs.run(shapes, RunSettings(tmp_path, Options(**{**options, **other}), **QUIET))


def test_modelled_and_measured_journals_do_not_mix(tmp_path: Path) -> None:
    """Of a rehearsal all is there: nothing would be left to measure."""
    runs.run(SHAPES[:1], RunSettings(tmp_path, OPTIONS, **QUIET))
    for path in tmp_path.glob("*.jsonl"):
        path.write_text(path.read_text().replace('"modelled": true', '"modelled": false', 1))
    with pytest.raises(SassafrasError, match="other conditions"):
        runs.run(SHAPES[:1], RunSettings(tmp_path, OPTIONS, **QUIET))


def test_finished_journals_of_another_gpu_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured elsewhere would be reported beside this machine's environment."""
    runs.run(SHAPES[:1], RunSettings(tmp_path, OPTIONS, **QUIET))
    for path in tmp_path.glob("*.jsonl"):
        measured = path.read_text().replace('"modelled": true', '"modelled": false, "gpu": "NVIDIA H200"', 1)
        path.write_text(measured)
    monkeypatch.setattr(runs.runner, "prepare", lambda *given: None)
    settings = RunSettings(tmp_path, OPTIONS, **{**QUIET, "dry": False})
    for gpu in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
        monkeypatch.setattr(worker, "probe", lambda gpu=gpu: {"gpu": gpu})
        if gpu == "NVIDIA H200":
            assert runs.run(SHAPES[:1], settings)[1]["measured"] == 1
        else:
            with pytest.raises(SassafrasError, match="other conditions"):
                runs.run(SHAPES[:1], settings)


# --- commands
# ------------------------------------------------------------------------------------------------


def test_commands(tmp_path: Path) -> None:
    run = CliRunner()
    common = ["64x64x64", "--configs", "12", "--out", str(tmp_path), "--dry-run"]
    done = run.invoke(app, ["tune", "--products", *common])
    assert done.exit_code == 0 and "1 shapes" in done.output and "(modelled)" in done.output
    done = run.invoke(app, ["gemm", "bench", "--grid", *common, "--mode", "server", "--calls", "5"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "hgemm-server-dry.json").is_file()
    done = run.invoke(app, ["gemm", "choose", "64x64x64", "100x64x512", "--layout", "tn"])
    assert done.exit_code == 0 and "64x64x64" in done.output
    done = run.invoke(app, ["gemm", "choose", "--layout", "xy"])
    assert done.exit_code == 2 and "no layout" in done.output
    done = run.invoke(app, ["gemm", "choose", "--gpu", "NVIDIA H20", "1x1x1"])
    assert done.exit_code == 0 and "NVIDIA H20 was not tuned: the tables of NVIDIA H200" in done.output


@pytest.mark.parametrize("stage", ["sweep", "off-grid"])
def test_the_script_of_a_sitting(tmp_path: Path, stage: str) -> None:
    few = ["--seconds", "0.01", "--calls", "5"] if stage == "off-grid" else []
    command = [stage, "--dry-run", "--shapes", "6", "--configs", "12", "--gpus", "2", *few]
    done = run_benchmark("hgemm", *command, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = {"sweep": "sweep-dry.jsonl.gz", "off-grid": "hgemm-judge-1-dry.json"}
    assert (tmp_path / expected[stage]).is_file()
