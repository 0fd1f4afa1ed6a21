"""A GPU without tables: the nearest one's, and what a sample of times makes of it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sassafras.api import doctor
from sassafras.cli.app import app
from sassafras.core import SassafrasError
from sassafras.gemm.bench.calibrate import times
from sassafras.gemm.bench.calibration import sample
from sassafras.gemm.bench.dry_run import DryContestants
from sassafras.gemm.bench.options import Options
from sassafras.gemm.configs.registry import Config
from sassafras.gemm.matmul import loading
from sassafras.gemm.matmul.choice import chooser_of
from sassafras.gemm.matmul.driver import Driver
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select import gpus
from sassafras.gemm.select.correction import Correction, corrected, times_of
from sassafras.gemm.select.dataset import Dataset, DatasetEntry
from sassafras.gemm.select.gpus import GpuFacts, tables_of
from sassafras.gemm.select.table import TunedTable, shipped_path

ROOT = Path(__file__).resolve().parents[2]
H200 = "NVIDIA H200"
STRANGER = GpuFacts("NVIDIA H800 PCIe", 114, 2039, 1755)


@pytest.fixture(scope="module")
def there() -> TunedTable:
    return TunedTable.load(shipped_path(H200))


def slower(shape: Shape, config: Config | None) -> float:
    """A made-up GPU: a third less bandwidth beyond the L2, and split-K kernels take 12 % longer there."""
    memory = shape.nbytes / 4.3e6
    share = memory / (memory + shape.flop / 790e6 + 2.0)
    beyond = 1 / (1 + (40e6 / shape.nbytes) ** 4)
    split = 0.12 if config is not None and config.FAMILY == "split_k" else 0.0
    return math.exp(0.35 * share * beyond + split)


def timed(table: TunedTable, shapes: list[Shape], **header: object) -> Dataset:
    """Times of shapes on it, as a journal's dataset has them."""
    entries = []
    for shape in shapes:
        rows = [row for layout in ("nn", "tn") if (row := table.get(shape, layout))]
        ours = {c: (us * slower(shape, c), 2) for row in rows for c, us in row.ours}
        library = slower(shape, None)
        baselines = {
            "torch": {row.layout: row.torch_us * library for row in rows if row.torch_us},
            "lt_autotune": {row.layout: row.lt_us * library for row in rows if row.lt_us},
        }
        entries.append(DatasetEntry(shape, ours, baselines, {r.layout: r.lt for r in rows if r.lt}))
    known = {"gpu": STRANGER.name, "cublaslt": table.header["cublaslt"], **header}
    return Dataset(known, entries)


def test_the_nearest_table_is_that_of_the_gpu_most_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tables_of(H200) == H200 and gpus.measured().startswith("H200")
    small = GpuFacts("small", 66, 2000, 1700)
    monkeypatch.setattr(gpus, "SHIPPED", (*gpus.SHIPPED, small))
    assert tables_of("NVIDIA GH200 480GB", GpuFacts("NVIDIA GH200 480GB", 132, 4900, 1980)) == H200
    assert tables_of("NVIDIA H800", GpuFacts("NVIDIA H800", 132, 3352, 1980)) == "NVIDIA H100 80GB HBM3"
    assert tables_of("half", GpuFacts("half", 60, 1675, 1755)) == "small"
    assert tables_of("half") == H200, "without facts it is the first"


def test_a_sample_foretells_the_other_shapes(there: TunedTable) -> None:
    shapes = sample(there)
    assert len(shapes) == len(set(shapes)) > 300
    few, others = shapes[:150], shapes[150:250]
    learnt = Correction.fit(times_of(there), timed(there, few))
    off = [
        learnt.of(config.FAMILY, shape, layout, config) - math.log(slower(shape, config))
        for shape in others
        for layout in ("nn", "tn")
        if (row := there.get(shape, layout))
        for config, _ in row.ours
    ]
    assert math.sqrt(sum(value**2 for value in off) / len(off)) < 0.02, "the prior is all that is left"
    assert learnt.error < 0.02 and learnt.pairs > 500
    again = Correction.from_json(json.loads(json.dumps(learnt.to_json())))
    assert again is not None
    row = there.get(others[0], "tn")
    assert row is not None and again.row(row).torch_us == pytest.approx(learnt.row(row).torch_us, rel=1e-3)
    assert Correction.from_json({**learnt.to_json(), "members": ["torch"]}) is None, "of other kernels"
    assert Correction.from_json(None) is None
    with pytest.raises(SassafrasError, match="times are too few"):
        Correction.fit(times_of(there), timed(there, few[:2]))


def test_a_corrected_table_chooses_what_is_faster_there(there: TunedTable) -> None:
    shapes = sample(there)
    few = timed(there, shapes[:150])
    table = corrected(there, Correction.fit(times_of(there), few), few)
    assert table.header["near"] == H200 and table.header["gpu"] == STRANGER.name
    assert table.rows.keys() == there.rows.keys()
    one = table.get(shapes[0], "tn")
    assert (
        one is not None
        and dict(one.ours).items() <= {c: us for c, (us, _) in few[shapes[0]].ours.items()}.items()
    )
    newer = timed(there, shapes[:150], cublaslt=there.header["cublaslt"] + 1)
    other = corrected(there, Correction.fit(times_of(there), newer), newer)
    for found, kept in ((table, True), (other, False)):
        assert any(row.lt for row in found.rows.values() if row.shape in few.entries)
        assert any(row.lt for row in found.rows.values() if row.shape not in few.entries) == kept
    lost = {True: 0.0, False: 0.0}
    for shape in shapes[150:]:
        before, after = there.get(shape, "tn"), table.get(shape, "tn")
        if before is None or after is None or not before.ours:
            continue
        here = {config: us * slower(shape, config) for config, us in before.ours}
        for which, row in ((False, before), (True, after)):
            lost[which] += math.log(here[row.ours[0][0]] / min(here.values()))
    assert lost[True] < 0.2 * lost[False], "what the wrong order costs is mostly gone"


def test_the_predictor_is_corrected_as_well(there: TunedTable) -> None:
    few = timed(there, sample(there)[:150])
    table = corrected(there, Correction.fit(times_of(there), few), few)
    shape = Shape(1000, 2000, 3000 // 64 * 64)

    def legal(config: Config) -> bool:
        return config.layout == "tn" and config.why_illegal(shape) is None

    plain, other = (chooser_of(H200, one, None)._models["tn"] for one in (there, table))
    configs = [config for config, _ in list(there.rows.values())[900].ours[:1]]
    before, after = ({c: s for s, c in one.speedups(configs, shape)} for one in (plain, other))
    ((_, was),), ((_, now),) = before.items(), after.items()
    assert was != now and other.correction is not None and plain.correction is None
    assert chooser_of(H200, table, None).choose(shape, "tn", legal).member in ("ours", "torch")


def test_a_calibration_serves_until_driver_or_library_change(
    there: TunedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SASSAFRAS_GEMM_CACHE", str(tmp_path))
    monkeypatch.delenv("SASSAFRAS_GEMM_TABLE", raising=False)
    monkeypatch.setattr(Driver, "version", staticmethod(lambda: "580.1"))
    few = timed(there, sample(there)[:60])
    made = corrected(there, Correction.fit(times_of(there), few), few)
    made.header |= {"multiprocessors": 114, "driver": "580.1"}
    version = int(there.header["cublaslt"])

    def loaded(facts: GpuFacts = STRANGER, lt: int = version) -> tuple[bool, list[str]]:
        said: list[str] = []
        found = loading.load_table(facts.name, said.append, facts, lt)
        assert found is not None and len(found) >= len(there)
        return "correction" in found.header, said

    assert loaded() == (False, [])
    made.save(loading.calibrated_path(STRANGER))
    assert loaded() == (True, [])
    fewer = GpuFacts(STRANGER.name, 66, 2039, 1755)
    assert loaded(fewer) == (False, []), "a slice is another GPU"
    used, said = loaded(lt=version + 1)
    assert not used and "cublaslt" in said[0] and "sassafras tune --calibrate" in said[0]
    monkeypatch.setattr(Driver, "version", staticmethod(lambda: "590.2"))
    used, said = loaded()
    assert not used and "driver is 590.2, it was 580.1" in said[0]
    loading.calibrated_path(STRANGER).write_text("{")
    assert loaded() == (False, []), "a damaged file breaks nothing"


def test_a_shape_is_timed_with_all_that_the_table_has(there: TunedTable) -> None:
    shape = sample(there)[0]
    record = times(DryContestants(), shape, H200, Options())
    count = sum(len(row.ours) for layout in ("nn", "tn") if (row := there.get(shape, layout)))
    assert len(record["rungs"]) == count and record["torch"].keys() == record["lt"].keys() == {"nn", "tn"}
    with pytest.raises(SassafrasError, match="no such shape"):
        times(DryContestants(), Shape(65, 65, 65), H200, Options())


def test_the_command_rehearses(tmp_path: Path) -> None:
    given = ["tune", "--calibrate", "--dry-run", "--budget", "9s", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0 and "pairs timed (modelled)" in done.stdout
    assert Dataset.load(tmp_path / "calibration.jsonl.gz").modelled
    for more, message in (
        (["--from", "NVIDIA H300"], "no table of this GPU comes with the package"),
        (["--budget", "100e"], "calibrated for a time"),
        (["--shapes", "3"], "--shapes is for --products only"),
    ):
        refused = CliRunner().invoke(app, [*given, *more])
        assert refused.exit_code and message in refused.output + str(refused.exception)


def test_doctor_says_whose_tables_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SASSAFRAS_GEMM_CACHE", str(tmp_path))

    def said(gpu: str, arch: str = "sm_90a") -> tuple[bool, str]:
        monkeypatch.setattr(doctor, "probe", lambda: {"gpu": gpu, "arch": arch, "count": 1})
        found = doctor._tables()
        return found.found, found.version

    class Stranger:
        def hardware(self, ordinal: int) -> GpuFacts:
            return STRANGER

    monkeypatch.setattr(doctor, "Driver", Stranger)
    assert said(H200) == (True, f"its own; measured on {gpus.measured()}")
    assert said("NVIDIA B200", "sm_100a")[0] is False
    near = tables_of(STRANGER.name, STRANGER)
    assert near in said(STRANGER.name)[1] and "--calibrate corrects" in said(STRANGER.name)[1]
    loading.calibrated_path(STRANGER).write_text("{}")
    assert "corrected by a calibration" in said(STRANGER.name)[1]


def test_the_benchmarks_rehearse(there: TunedTable, tmp_path: Path) -> None:
    few = timed(there, sample(there)[:150])
    few.save(tmp_path / "calibration.jsonl.gz")
    made = corrected(there, Correction.fit(times_of(there), few), few)
    made.save(tmp_path / "stranger.calibrated.table.json")
    there.save(tmp_path / "sweep.json")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OUT": str(tmp_path)}
    for command in (
        [
            "calibration.py",
            str(tmp_path),
            "--sweep",
            str(tmp_path / "sweep.json"),
            "--shapes",
            "9",
            "--dry-run",
        ],
        ["winners.py", "--here", "nvidia-h200"],
    ):
        done = subprocess.run(
            [sys.executable, f"benchmarks/{command[0]}", *command[1:]],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "calibration-dry.json").read_text())
    assert found["summary"]["grid"]["products"] == 18 and found["summary"]["modelled"]
    assert not set(few.entries) & {Shape.parse(row["shape"]) for row in found["rows"]}
    alike = json.loads((tmp_path / "winners.json").read_text())["summary"]
    assert alike["shapes"] == 1000 and alike["same"] == alike["cost_of_there"] == 1.0
